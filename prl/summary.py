"""The end of a run for people: what was learned, how it answers now, where everything lies.

Nothing is shown that was not measured, and no file is named that is not there. Text of a model is printed without its
control characters, so that an answer cannot write to the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prl.evaluate import Answer, Evaluation
from prl.progress import duration
from prl.run_folder import Summary

NUM_ANSWERS = 3
MAX_SHOWN = 240

FILES = (
    ("export", "the model, for transformers and vLLM"),
    ("checkpoints", "to go on from, with --resume"),
    ("metrics.jsonl", "one line a step"),
    ("evaluations.jsonl", "one line an evaluation"),
    ("samples.jsonl", "what was trained, token by token"),
    ("events.jsonl", "what happened"),
    ("timeline.jsonl", "who did what, and when"),
    ("summary.json", "these numbers"),
)


def render(summary: Summary, run_dir: Path, *, latest: Evaluation | None = None) -> RenderableType:
    """The report of a run that is done or stopped; ``latest`` is its last evaluation, for the sample answers."""
    parts: list[RenderableType] = ["", Text(headline(summary), "bold"), _grid(_numbers(summary, latest))]
    if latest is not None and latest.answers:
        parts += ["", Text(f"Held-out prompts, as version {latest.version} answers them", "bold")]
        for answer in _one_a_prompt(latest.answers)[:NUM_ANSWERS]:
            parts += [_grid(_answer(answer)), ""]
    else:
        parts.append("")
    parts.append(Text(f"Everything is in {run_dir}", "bold"))
    parts.append(_grid((name, Text(what)) for name, what in FILES if (run_dir / name).exists()))
    return Group(*parts)


def headline(summary: Summary) -> str:
    """How it ended, in one line."""
    return f"{summary.status.capitalize()} after {_steps(summary.steps)} in {duration(summary.wall_s)}"


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _grid(rows: Iterator[tuple[str, Text]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, content in rows:
        table.add_row(label, content)
    return Padding(table, (0, 0, 0, 2))


def _numbers(summary: Summary, latest: Evaluation | None) -> Iterator[tuple[str, Text]]:
    if summary.eval_before is not None and summary.eval_after is not None:
        yield _learned(summary.eval_before, summary.eval_after, latest, is_accuracy=summary.eval_is_accuracy)
        for k, found in latest.pass_at.items() if latest is not None else ():
            interval = f"{100 * found.low:.1f}% to {100 * found.high:.1f}%"
            yield f"pass@{k}", Text.assemble((f"{100 * found.mean:.1f}%", "bold"), f" after, 95% interval {interval}")
    if summary.evals_incomplete:
        yield "evaluations", Text(f"{summary.evals_incomplete} ran out of time: see evaluations.jsonl", "yellow")
    if summary.engine_restarts or summary.trainer_restarts:
        engines, trainer = _times(summary.engine_restarts), _times(summary.trainer_restarts)
        yield "restarts", Text(f"engines {engines}, trainer {trainer}: see events.jsonl", "yellow")
    if summary.reward_first is not None and summary.reward_last is not None:
        yield "reward", Text(f"{summary.reward_first:.3f} at the first step, {summary.reward_last:.3f} at the last")
    if summary.steps:
        yield (
            "lag",
            Text(
                f"at most {_steps(summary.lag_max)}, {summary.lag_mean:.2f} on average;"
                f" up to {summary.num_versions_max_in_sample} weight version(s) in one sample"
            ),
        )
        generated, trained = f"{summary.tokens_generated:,}", f"{summary.tokens_trained:,}"
        yield "tokens", Text(f"{generated} generated, {trained} trained ({100 * summary.goodput:.0f}%)")
    if summary.checkpoints:
        paused = f"training stood still {summary.checkpoint_s:.1f} s for them, generation went on"
        yield "saved", Text(f"{_times(summary.checkpoints)}: {paused}")
    if summary.ess_mean is not None:
        yield "ESS", Text(f"{summary.ess_mean:.3f} on average (1 is on policy)")


def _learned(before: float, after: float, latest: Evaluation | None, *, is_accuracy: bool) -> tuple[str, Text]:
    """Before and after, in percent where the mean reward is the share of right answers."""
    scale, decimals, unit = (100, 1, "%") if is_accuracy else (1, 3, "")
    was, now, gain = (f"{scale * value:.{decimals}f}{unit}" for value in (before, after, after - before))
    text = Text.assemble(f"{was} before, ", (f"{now} after", "bold"), f" ({'+' if after >= before else ''}{gain})")
    if latest is not None:
        low, high = (f"{scale * end:.{decimals}f}{unit}" for end in latest.interval)
        text.append(f", {latest.num_prompts} held-out prompts, 95% interval {low} to {high}")
    return "accuracy" if is_accuracy else "held out", text


def _one_a_prompt(answers: list[Answer]) -> list[Answer]:
    """The first answer to each prompt."""
    return list({answer.prompt_id: answer for answer in reversed(answers)}.values())[::-1]


def _answer(answer: Answer) -> Iterator[tuple[str, Text]]:
    yield "prompt", Text(visible(answer.prompt))
    yield "answer", Text(visible(answer.completion), "cyan")
    if answer.expected:
        yield "expected", Text(visible(answer.expected))
    verdict = {1.0: ("right", "green"), 0.0: ("wrong", "red")}.get(answer.reward, ("", ""))
    yield "reward", Text.assemble(f"{answer.reward:g}  ", verdict)


def visible(text: str) -> str:
    """Text on one line, without anything a terminal would obey, its middle cut where it is long."""
    line = "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text.strip())
    line = " ".join(line.split())
    half = MAX_SHOWN // 2
    return line if len(line) <= MAX_SHOWN else f"{line[:half]} ... {line[-half:]}"

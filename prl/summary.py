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
    ("samples.jsonl", "what was trained, token by token"),
    ("events.jsonl", "what happened"),
    ("summary.json", "these numbers"),
)


def render(summary: Summary, run_dir: Path, *, latest: Evaluation | None = None) -> RenderableType:
    """The report of a run that is done or stopped; ``latest`` is its last evaluation, for the sample answers."""
    parts: list[RenderableType] = [Text(headline(summary), "bold"), _grid(_numbers(summary, latest))]
    if latest is not None and latest.answers:
        parts.append(Text(f"Held-out prompts, as version {latest.version} answers them", "bold"))
        parts.extend(_grid(_answer(answer)) for answer in latest.answers[:NUM_ANSWERS])
    parts.append(Text(f"Everything is in {run_dir}", "bold"))
    parts.append(_grid((name, Text(what)) for name, what in FILES if (run_dir / name).exists()))
    return Group("", *parts)


def headline(summary: Summary) -> str:
    """How it ended, in one line."""
    steps = "1 step" if summary.steps == 1 else f"{summary.steps} steps"
    return f"{summary.status.capitalize()} after {steps} in {duration(summary.wall_s)}"


def _grid(rows: Iterator[tuple[str, Text]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, content in rows:
        table.add_row(label, content)
    return Padding(table, (0, 0, 1, 2))


def _numbers(summary: Summary, latest: Evaluation | None) -> Iterator[tuple[str, Text]]:
    before, after = summary.eval_before, summary.eval_after
    if before is not None and after is not None:
        label = "accuracy" if latest is not None and _is_accuracy(latest) else "held out"
        yield label, _learned(before, after, latest)
    if summary.reward_first is not None and summary.reward_last is not None:
        yield "reward", Text(f"{summary.reward_first:.3f} at the first step, {summary.reward_last:.3f} at the last")
    if summary.steps:
        yield (
            "lag",
            Text(
                f"at most {summary.lag_max} steps, {summary.lag_mean:.2f} on average;"
                f" up to {summary.num_versions_max_in_sample} weight versions in one sample"
            ),
        )
        generated, trained = f"{summary.tokens_generated:,}", f"{summary.tokens_trained:,}"
        yield "tokens", Text(f"{generated} generated, {trained} trained ({100 * summary.goodput:.0f}%)")
    if summary.ess_mean is not None:
        yield "ESS", Text(f"{summary.ess_mean:.3f} on average (1 is on policy)")


def _is_accuracy(evaluation: Evaluation) -> bool:
    """Whether the mean reward is the share of right answers."""
    return all(answer.reward in {0.0, 1.0} for answer in evaluation.answers)


def _learned(before: float, after: float, latest: Evaluation | None) -> Text:
    text = Text.assemble(f"{before:.3f} before, ", (f"{after:.3f} after", "bold"), f" ({after - before:+.3f})")
    if latest is not None:
        text.append(f", {latest.num_samples} held-out prompts, +- {latest.interval:.3f}")
    return text


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

"""The report at the end of a run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from prl.estimates import Estimate
from prl.evaluate import Answer, Evaluation
from prl.run_folder import Summary
from prl.summary import MAX_SHOWN, render, visible
from tests.factories import make_answer, make_evaluation


def summary(**changes: Any) -> Summary:
    """A run that learned."""
    fields: dict[str, Any] = {
        "status": "done",
        "steps": 300,
        "tokens_generated": 1_200_000,
        "tokens_trained": 1_140_000,
        "goodput": 0.95,
        "reward_first": 0.21,
        "reward_last": 0.9,
        "eval_before": 0.25,
        "eval_after": 0.9141,
        "eval_is_accuracy": True,
        "lag_max": 1,
        "lag_mean": 0.62,
        "ess_mean": 0.99,
        "num_engines": 2,
        "num_versions_max_in_sample": 3,
        "wall_s": 151.0,
    }
    return Summary(**{**fields, **changes})


def evaluation(*answers: Answer) -> Evaluation:
    """The last evaluation."""
    return make_evaluation(
        *answers, version=300, reward_mean=0.9141, interval=(0.8732, 0.9427), num_prompts=256, num_answers=256
    )


RIGHT = make_answer(prompt="12 + 30 = ?", completion="42", reward=1.0, expected="42")
WRONG = make_answer(1, prompt="95 + 65 = ?", completion="150", reward=0.0, expected="160")
AGAIN, LAST = (msgspec.structs.replace(answer, prompt_id=number) for number, answer in ((2, RIGHT), (3, WRONG)))


def printed(summary: Summary, run_dir: Path, **options: Any) -> str:
    """The report as text."""
    out = io.StringIO()
    Console(file=out, width=120).print(render(summary, run_dir, **options))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_it_says_what_was_learned_and_how_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole report of a run that is done, as people read it."""
    monkeypatch.chdir(tmp_path)  # where there is no runs/math
    for name in ("export", "checkpoints"):
        (tmp_path / name).mkdir()
    (tmp_path / "summary.json").touch()
    run = Path("runs/math")
    text = printed(summary(), run, latest=evaluation(RIGHT, WRONG, AGAIN, LAST))
    assert text == (
        "\n"
        "Done after 300 steps in 2:31\n"
        "  accuracy  25.0% before, 91.4% after (+66.4%), 256 held-out prompts, 95% interval 87.3% to 94.3%\n"
        "  reward    0.210 at the first step, 0.900 at the last\n"
        "  lag       at most 1 step, 0.62 on average; up to 3 weight version(s) in one sample\n"
        "  tokens    1,200,000 generated, 1,140,000 trained (95%)\n"
        "  ESS       0.990 on average (1 is on policy)\n"
        "\n"
        "Held-out prompts, as version 300 answers them\n"
        "  prompt    12 + 30 = ?\n"
        "  answer    42\n"
        "  expected  42\n"
        "  reward    1  right\n"
        "\n"
        "  prompt    95 + 65 = ?\n"
        "  answer    150\n"
        "  expected  160\n"
        "  reward    0  wrong\n"
        "\n"
        "  prompt    12 + 30 = ?\n"
        "  answer    42\n"
        "  expected  42\n"
        "  reward    1  right\n"
        "\n"
        "Everything is in runs/math"
    )


def test_pass_at_k_and_lost_evaluations_are_shown_where_there_are_any(tmp_path: Path) -> None:
    """A row for each k with its interval; one answer a prompt is shown; evaluations without a result are counted."""
    twice = [msgspec.structs.replace(WRONG, completion=f"{number}") for number in (150, 250)]
    latest = msgspec.structs.replace(
        evaluation(*twice, AGAIN), pass_at={4: Estimate(mean=0.96, low=0.9, high=0.9812)}, num_answers=1024
    )
    text = printed(summary(evals_incomplete=2, engine_restarts=1, trainer_restarts=3), tmp_path, latest=latest)
    assert "pass@4       96.0% after, 95% interval 90.0% to 98.1%\n" in text
    assert "evaluations  2 ran out of time: see evaluations.jsonl\n" in text
    assert "restarts     engines once, trainer 3 times: see events.jsonl\n" in text
    assert (text.count("150"), text.count("250"), text.count("12 + 30")) == (1, 0, 1)


def test_the_pause_of_the_checkpoints_is_stated(tmp_path: Path) -> None:
    """How often the run was saved, and how long training stood still for it; nothing where it never was."""
    text = printed(summary(checkpoints=3, checkpoint_s=12.34), tmp_path)
    assert "3 times: training stood still 12.3 s for them, generation went on\n" in text
    assert "stood still" not in printed(summary(), tmp_path)


def test_it_names_only_files_that_are_there(tmp_path: Path) -> None:
    """A run that exported nothing does not say where its model is."""
    (tmp_path / "metrics.jsonl").touch()
    text = printed(summary(), tmp_path)
    assert "metrics.jsonl  one line a step" in text
    assert "export" not in text


def test_a_mean_reward_that_is_no_share_of_right_answers_is_no_accuracy(tmp_path: Path) -> None:
    """With graded rewards the numbers stay numbers, also where those of the last answers happen to be 0 or 1."""
    told = summary(eval_before=0.5, eval_after=0.4, eval_is_accuracy=False)
    text = printed(told, tmp_path, latest=evaluation(make_answer(prompt="p", completion="c", reward=1.0, expected="")))
    assert "held out  0.500 before, 0.400 after (-0.100), 256 held-out prompts, 95% interval 0.873 to 0.943" in text
    assert "expected" not in text
    graded = make_answer(prompt="p", completion="c", reward=0.5, expected="")
    assert "reward  0.5" in printed(told, tmp_path, latest=evaluation(graded))


def test_what_was_not_measured_is_not_shown(tmp_path: Path) -> None:
    """A run of no steps and no evaluation has a headline and a folder."""
    nothing = Summary(status="done")
    assert printed(nothing, tmp_path) == f"\nDone after 0 steps in 0:00\n\nEverything is in {tmp_path}"


def test_a_model_cannot_write_to_the_terminal() -> None:
    """Controls become replacement characters, white space one blank, long text loses its middle."""
    assert visible("a\x1b[31mred\x07\n\n\tb") == "a�[31mred� b"
    long = visible("x" * 1000 + "y" * 1000)
    assert len(long) == MAX_SHOWN + len(" ... ")
    assert long.startswith("xxx")
    assert long.endswith("yyy")


def test_text_of_a_model_is_not_read_as_markup(tmp_path: Path) -> None:
    """Square brackets are part of mathematics."""
    odd = make_answer(prompt="[bold]p[/bold]", completion="[/]", reward=1.0, expected="[1, 2]")
    text = printed(summary(), tmp_path, latest=evaluation(odd))
    for part in ("[bold]p[/bold]", "[/]", "[1, 2]"):
        assert part in text

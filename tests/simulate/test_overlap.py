"""What engines and ranks cost one another, read from what a run left."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from prl.settings import to_toml
from prl.simulate.calibrate import measured_in
from prl.simulate.overlap import Span, StepTimes, Work, works_of
from tests.simulate.test_run import small

MACHINE = ("trainer.num_ranks=1", "engine.count=1", "simulate.num_accelerators=1")
SHARING, TOKEN_S = 0.8, 0.01
"""Of the machine that is recorded: what is left where both are at work, and a decoded token alone."""


def test_work_is_what_it_would_have_taken_alone() -> None:
    """Of 10 s: 4 s of decoding alone, 4 s of both at half the speed, 1 s of training alone, 1 s of nobody."""
    spans = [
        Span("engine-0", "generating", -5.0, 8.0),
        Span("engine-0", "paused", 8.0, 20.0),
        Span("trainer rank 0", "waiting", 0.0, 4.0),
        Span("trainer rank 0", "training", 4.0, 9.0),
    ]
    step = StepTimes(0.0, 10.0, 0.8, 0.5)
    assert works_of(small(*MACHINE), [step], spans) == [Work(4.0, 2.0, 1.0, 2.0)]
    two = small("engine.count=2", "trainer.num_ranks=1", "simulate.num_accelerators=2")
    assert works_of(two, [step], spans) == [Work(2.0, 2.0, 1.0, 4.0)]


def test_what_passes_between_two_steps_is_work_of_the_ranks() -> None:
    """2 s of the 5 in which they do not train: engines at work then have half the speed, and so has it itself."""
    spans = [Span("engine-0", "generating", 0.0, 8.0), Span("trainer rank 0", "training", 4.0, 9.0)]
    step = StepTimes(0.0, 10.0, 0.8, 0.5, between_s=2.0)
    (work,) = works_of(small(*MACHINE), [step], spans)
    assert work == pytest.approx(Work(2.4, 2.8, 1.0, 2.0, 0.4, 0.8))
    (likely,) = works_of(small(*MACHINE), [step], [])
    assert likely == pytest.approx(Work(2.0, 3.0, 1.0, 2.0, 0.0, 1.0))
    apart = small("trainer.num_ranks=1", "engine.count=1")
    assert works_of(apart, [step], []) == [Work(8.0, 0.0, 5.0, 0.0, 2.0, 0.0)]


def test_in_rounds_what_passes_between_two_steps_is_beside_nobody() -> None:
    """Engines have sampled all that a round trains before it is packed: it lies where nobody is at work, if it fits."""
    config = small(*MACHINE, "pipeline.mode=conventional", "pipeline.steps_per_round=1")
    spans = [Span("engine-0", "generating", 0.0, 4.0), Span("trainer rank 0", "training", 6.0, 10.0)]
    for told in (spans, []):
        fits, too_long = (StepTimes(0.0, 10.0, 0.4, 0.4, between_s) for between_s in (2.0, 3.0))
        assert works_of(config, [fits], told) == [pytest.approx(Work(4.0, 0.0, 4.0, 0.0, 2.0, 0.0))]
        assert works_of(config, [too_long], told) == [pytest.approx(Work(3.0, 0.5, 4.0, 0.0, 2.0, 0.5))]


def test_a_span_is_shared_out_among_the_steps_that_it_reaches_over() -> None:
    """Three steps of which the last begins a second late: decoding goes on through all, training through two."""
    spans = [Span("engine-0", "generating", 5.0, 40.0), Span("trainer rank 0", "training", 8.0, 20.0)]
    steps = [StepTimes(0.0, 10.0, 0.5, 0.2), StepTimes(10.0, 20.0, 1.0, 1.0), StepTimes(21.0, 30.0, 1.0, 0.0)]
    expected = [Work(3.0, 1.0, 0.0, 1.0), Work(0.0, 5.0, 0.0, 5.0), Work(9.0, 0.0, 0.0, 0.0)]
    assert works_of(small(*MACHINE), steps, spans) == expected


def test_without_a_timeline_any_moment_is_as_likely() -> None:
    """Each stage busy half of the time: a quarter of it both; and nobody is slowed down on accelerators of its own."""
    step = StepTimes(0.0, 8.0, 0.5, 0.5)
    assert works_of(small(*MACHINE), [step], []) == [Work(2.0, 1.0, 2.0, 1.0)]
    apart = small("trainer.num_ranks=1", "engine.count=1")
    assert works_of(apart, [step], []) == [Work(4.0, 0.0, 4.0, 0.0)]


def recorded(folder: Path) -> None:
    """A run on a machine that loses a fifth of its speed where both are at work, more or less of each step."""
    config = small(*MACHINE, "engine.max_num_seqs=16", "pipeline.max_lag=2")
    lines, spans, at = [], [], 100.0
    for number in range(24):
        both_s, apart_s = 2.0 + number % 4, 3.0 - number % 3
        train_s, time_s = both_s, both_s + apart_s
        tokens = (apart_s + SHARING * both_s / 2) / TOKEN_S
        spans += [("engine-0", "generating", at, at + time_s), ("trainer rank 0", "training", at, at + both_s)]
        at += time_s
        line = {
            "step": number + 1,
            "time_s": time_s,
            "at": at,
            "samples": 16,
            "tokens_generated": round(tokens),
            "tokens_trained": round(1000 * SHARING * train_s / 2),
            "trainer_busy": train_s / time_s,
            "engine_busy": 1.0,
            "wait_batch_s": apart_s,
            "pause_s": 0.0,
            "in_flight": 16.0,
        }
        lines.append(line)
    samples = [{"step": 1, "prompt_id": n, "prompt_token_ids": [], "token_ids": [2] * 20} for n in range(64)]
    fields = ("lane", "state", "start", "end")
    folder.mkdir()
    (folder / "config.toml").write_text(to_toml(config))
    for name, rows in (
        ("metrics", lines),
        ("samples", samples),
        ("timeline", [dict(zip(fields, span, strict=True)) for span in spans]),
    ):
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, rows)))


def test_what_the_stages_cost_one_another_is_found(tmp_path: Path) -> None:
    """In steps that differ in how long both were at work; the costs alone, up to the one factor, follow."""
    recorded(tmp_path / "run")
    measured = measured_in(tmp_path / "run", 1)
    assert measured.sharing == pytest.approx(SHARING, abs=0.03)
    decoded_s = measured.base_s / 16 + measured.per_sequence_s
    assert decoded_s / measured.train_token_s == pytest.approx(TOKEN_S / 0.001, rel=0.05)

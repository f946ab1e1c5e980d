"""What a run records for people to look at, through a whole run of simulated parts that is stopped and resumed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import prl
from prl import virtual_time
from prl.config import EngineConfig, PipelineConfig, RunConfig, SamplingConfig
from prl.engines.simulated import SimulatedEngine
from prl.trainer.base import LOG_RATIO_EDGES
from prl.trainer.simulated import SimulatedTrainer
from tests.test_pipeline import lines, simulated, take_steps


def record(folder: Path, num_steps: int, **run: Any) -> None:
    """Take two steps in a run of so many, or two more."""
    config = simulated(
        run=RunConfig(num_steps=num_steps, checkpoint_every=1, **run),
        pipeline=PipelineConfig(max_lag=2, groups_per_step=2, group_size=2),
        engine=EngineConfig(kind="simulated", count=2, max_num_seqs=4, max_model_len=256),
        sampling=SamplingConfig(max_tokens=64),
    )

    async def main() -> None:
        resume = (folder / "config.toml").exists()
        async with prl.Pipeline(config, run_dir=folder, resume=resume, accept_changes=True) as pipeline:
            await take_steps(pipeline, 2)

    virtual_time.run(main())


def _lasting(call: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A second of virtual time, then the call: the simulated one takes none of its own, so no lane would show it."""

    async def lasting(*given: Any) -> None:
        await asyncio.sleep(1.0)
        await call(*given)

    return lasting


def test_a_run_that_is_resumed_records_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file goes on behind what is there, with what the page shows of each step, sample and lane."""
    run = tmp_path / "run"
    for kind, name in ((SimulatedTrainer, "save"), (SimulatedEngine, "pause"), (SimulatedEngine, "load")):
        monkeypatch.setattr(kind, name, _lasting(getattr(kind, name)))
    record(run, 2)
    first_spans, first_gauges = lines(run / "timeline.jsonl"), lines(run / "gauges.jsonl")
    record(run, 4)
    metrics, samples = lines(run / "metrics.jsonl"), lines(run / "samples.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    for line in metrics:
        assert sum(line["lag_histogram"]) == sum(line["ratio_histogram"]) == line["tokens_trained"]
        assert len(line["ratio_histogram"]) == len(LOG_RATIO_EDGES) + 1
        assert len(line["lag_histogram"]) == line["lag_max"] + 1
        assert line["gap_mean"] >= line["gap_staleness"] >= 0 == line["gap_numerics"]
        of_step = [sample for sample in samples if sample["step"] == line["step"]]
        lengths = [len(sample["token_ids"]) for sample in of_step]
        assert (line["length_max"], line["samples"]) == (max(lengths), len(lengths))
        assert line["finish_length_share"] == sum(sample["finish"] == "length" for sample in of_step) / len(of_step)
    for sample in samples:
        assert len(sample["trained_logprobs"]) == len(sample["token_ids"])
        rows = zip(sample["versions"], sample["logprobs"], sample["trained_logprobs"], strict=True)
        on_policy = [(mu, pi) for version, mu, pi in rows if version == sample["step"] - 1]
        assert all(abs(mu - pi) < 2e-6 for mu, pi in on_policy)
    assert len({(sample["step"], sample["group"], sample["member"]) for sample in samples}) == len(samples) == 16

    spans, gauges = lines(run / "timeline.jsonl"), lines(run / "gauges.jsonl")
    assert spans[: len(first_spans)] == first_spans
    assert gauges[: len(first_gauges)] == first_gauges
    for part in (first_spans, spans[len(first_spans) :]):
        _check_lanes(part)
    whys = {span["why"] for span in spans if span["lane"] == "trainer rank 0" and "why" in span}
    assert {"the next batch", "a checkpoint"} <= whys
    trained = [line["step"] for line in spans if line["lane"] == "trainer rank 0" and line["state"] == "training"]
    assert trained == [1, 2, 3, 4]
    assert {"num_slots", "running", "finished", "taken"} <= set(gauges[-1]["slots"])
    assert set(gauges[-1]["running"]) == {"engine-0", "engine-1"}
    assert json.loads((run / "versions.json").read_text())["prl"]


def _check_lanes(spans: list[dict[str, Any]]) -> None:
    """Each lane is whole."""
    for lane in ("engine-0", "engine-1", "trainer rank 0", "controller"):
        of_lane = [span for span in spans if span["lane"] == lane]
        assert all(first["end"] == second["start"] for first, second in pairwise(of_lane))
    assert {"engine-0", "evaluation"} <= {span["lane"] for span in spans}
    assert {"generating", "paused"} <= {span["state"] for span in spans if span["lane"].startswith("engine-")}


def test_what_is_switched_off_is_not_written(tmp_path: Path) -> None:
    """Without samples the trainer is not asked about tokens, and without a timeline nobody watches."""
    run = tmp_path / "run"
    record(run, 2, samples_every=0, timeline=False)
    left = {path.name for path in run.iterdir()}
    assert not left & {"samples.jsonl", "timeline.jsonl", "gauges.jsonl"}
    assert {"metrics.jsonl", "versions.json"} <= left

"""The embedding API over simulated engines and a simulated trainer: the run folder, resuming, failing, leaving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import prl
from prl.config import (
    Config,
    EngineConfig,
    EvalConfig,
    PipelineConfig,
    RewardConfig,
    RunConfig,
    SamplingConfig,
    TrainerConfig,
)
from prl.config_algorithm import AdvantageConfig, OverlongConfig
from tests.virtual import in_virtual_time


@prl.reward("test-length")
async def length(completion: prl.Completion, _: prl.Prompt) -> float:
    """More for shorter."""
    return 1.0 / len(completion.token_ids)


@prl.reward("test-bug")
def bug(completion: prl.Completion, _: prl.Prompt) -> float:
    """Add a number to a text."""
    return completion.text + 1  # type: ignore[operator,no-any-return]


def simulated(**changes: Any) -> Config:
    """A configuration that needs neither torch nor vLLM."""
    config = Config(
        model="builtin:tiny-math",
        run=RunConfig(num_steps=4, checkpoint_every=2),
        pipeline=PipelineConfig(max_lag=1, groups_per_step=2, group_size=2),
        engine=EngineConfig(kind="simulated", count=2, max_num_seqs=8, max_model_len=256),
        sampling=SamplingConfig(max_tokens=64),
        trainer=TrainerConfig(kind="simulated"),
        eval=EvalConfig(num_samples=8),
        rewards=[RewardConfig(name="test-length")],
    )
    return msgspec.structs.replace(config, **changes)


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


async def take_steps(pipeline: prl.Pipeline, count: int) -> list[prl.StepReport]:
    """Take ``count`` steps."""
    return [await pipeline.step() for _ in range(count)]


@in_virtual_time
async def test_the_algorithm_is_what_the_configuration_says(tmp_path: Path) -> None:
    """Overlong masking takes tokens and sequences away, and refilled groups are in the metrics."""
    config = simulated(
        sampling=SamplingConfig(max_tokens=8),
        advantage=AdvantageConfig(name="group_mean", zero_variance="refill", max_refills=5),
        overlong=OverlongConfig(buffer=2, mask=True),
    )
    async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline:
        await take_steps(pipeline, 4)
    assert prl.load_config(tmp_path / "run" / "config.toml") == config
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert sum(line.get("dropped_zero_variance", 0) for line in metrics) > 0
    sampled = sum(line["length_mean"] * line["samples"] for line in metrics)
    assert sum(line["tokens_trained"] for line in metrics) < sampled


@in_virtual_time
async def test_a_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    """Resolved config, a line a step with every stated key, samples token by token, checkpoints, export, summary."""
    run = tmp_path / "run"
    async with prl.Pipeline(simulated(), run_dir=run) as pipeline:
        await take_steps(pipeline, 4)
    assert prl.load_config(run / "config.toml") == simulated()
    metrics = lines(run / "metrics.jsonl")
    keys = (
        "step version time_s reward_mean reward_std samples tokens_generated tokens_trained lag_max lag_mean ess"
        " kl_behaviour clip_frac entropy loss grad_norm lr length_mean gen_tok_s train_tok_s trainer_busy engine_busy"
        " wait_batch_s pause_s publish_s loop_lag_ms"
    )
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    assert all(set(keys.split()) <= set(line) for line in metrics)
    for sample in lines(run / "samples.jsonl"):
        assert len(sample["token_ids"]) == len(sample["versions"]) == len(sample["logprobs"])
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    assert (run / "export").is_dir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "done"
    assert (summary["steps"], summary["samples"], summary["num_engines"]) == (4, 16, 2)
    assert summary["eval_before"] is not None
    assert summary["eval_after"] is not None
    assert summary["lag_max"] <= 1
    assert summary["tokens_trained"] == sum(line["tokens_trained"] for line in metrics)
    assert pipeline.summary == msgspec.convert(summary, prl.Summary)
    assert any(event["event"] == "evaluated" for event in lines(run / "events.jsonl"))


@in_virtual_time
async def test_a_stopped_run_is_resumed_exactly(tmp_path: Path) -> None:
    """Leaving early is "stopped"; resuming goes on with the next step, and every prompt is trained once."""
    run = tmp_path / "run"
    async with prl.Pipeline(simulated(), run_dir=run) as pipeline:
        await take_steps(pipeline, 1)
    assert pipeline.summary is not None
    assert pipeline.summary.status == "stopped"
    async with prl.Pipeline(simulated(), run_dir=run, resume=True) as pipeline:
        assert pipeline.step_number == 1
        reports = await take_steps(pipeline, 3)
    assert [report.step for report in reports] == [2, 3, 4]
    assert [line["step"] for line in lines(run / "metrics.jsonl")] == [1, 2, 3, 4]
    prompts = sorted({sample["prompt_id"] for sample in lines(run / "samples.jsonl")})
    assert prompts == list(range(8))
    assert (pipeline.summary.status, pipeline.summary.steps) == ("done", 4)
    assert pipeline.summary.eval_before is not None, "measured before the first step, carried by the checkpoint"


@in_virtual_time
async def test_a_run_that_is_done_takes_no_extra_step(tmp_path: Path) -> None:
    """Step off by one: resuming a run that reached num_steps begins at that step and changes nothing."""
    run = tmp_path / "run"
    async with prl.Pipeline(simulated(), run_dir=run) as pipeline:
        await take_steps(pipeline, 4)
    async with prl.Pipeline(simulated(), run_dir=run, resume=True) as pipeline:
        assert pipeline.step_number == 4
    assert [line["step"] for line in lines(run / "metrics.jsonl")] == [1, 2, 3, 4]


@in_virtual_time
async def test_a_crash_loses_no_step(tmp_path: Path) -> None:
    """Steps after the newest checkpoint are done again from the journal; in the files none stands twice."""
    run = tmp_path / "run"

    async def fail_after_step_3() -> None:
        async with prl.Pipeline(simulated(), run_dir=run) as pipeline:
            await take_steps(pipeline, 3)
            raise KeyError("the host program fails; the newest checkpoint is of step 2")

    with pytest.raises(KeyError):
        await fail_after_step_3()
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"
    async with prl.Pipeline(simulated(), run_dir=run, resume=True) as pipeline:
        assert pipeline.step_number == 3
        await take_steps(pipeline, 1)
    assert pipeline.summary is not None
    assert (pipeline.summary.steps, pipeline.summary.samples) == (
        4,
        sum(line["samples"] for line in lines(run / "metrics.jsonl")),
    )
    assert [line["step"] for line in lines(run / "metrics.jsonl")] == [1, 2, 3, 4]


@in_virtual_time
async def test_a_bug_in_a_reward_ends_the_run_as_it_was(tmp_path: Path) -> None:
    """A TypeError in a reward is raised from step() unwrapped, and stands in summary.json."""
    config = simulated(rewards=[RewardConfig(name="test-bug")], eval=EvalConfig(num_samples=0))
    with pytest.raises(TypeError, match="can only concatenate"):
        async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline:
            await take_steps(pipeline, 4)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["error"].startswith("TypeError")


@in_virtual_time
async def test_a_bug_in_a_reward_shows_in_the_first_evaluation(tmp_path: Path) -> None:
    """The same bug met at start-up is raised from entering, unwrapped."""
    config = simulated(rewards=[RewardConfig(name="test-bug")])
    with pytest.raises(TypeError, match="can only concatenate"):
        async with prl.Pipeline(config, run_dir=tmp_path / "run"):
            pytest.fail("the pipeline must not start")


@in_virtual_time
async def test_a_run_folder_is_not_overwritten(tmp_path: Path) -> None:
    """A folder that holds a run is refused unless the run is resumed."""
    async with prl.Pipeline(simulated(), run_dir=tmp_path / "run"):
        pass
    with pytest.raises(prl.ConfigError, match="holds a run already"):
        prl.Pipeline(simulated(), run_dir=tmp_path / "run")
    with pytest.raises(prl.ConfigError, match="no run to resume"):
        prl.Pipeline(simulated(), run_dir=tmp_path / "other", resume=True)


@in_virtual_time
async def test_step_needs_an_entered_pipeline(tmp_path: Path) -> None:
    """step() before entering says how to enter."""
    with pytest.raises(prl.PrlError, match="async with"):
        await prl.Pipeline(simulated(), run_dir=tmp_path / "run").step()


@in_virtual_time
async def test_an_incomplete_round_is_pushed_before_the_last_evaluation(tmp_path: Path) -> None:
    """Conventional mode with steps that are no multiple of the round: what is evaluated is what is exported."""
    mode = PipelineConfig(mode="conventional", steps_per_round=3, groups_per_step=2, group_size=2)
    async with prl.Pipeline(simulated(pipeline=mode), run_dir=tmp_path / "run") as pipeline:
        await take_steps(pipeline, 4)
    assert pipeline.evaluation is not None
    assert pipeline.evaluation.version == 4


@in_virtual_time
async def test_evaluation_between_steps(tmp_path: Path) -> None:
    """With eval.every the latest evaluation is of a version that the engines served, while rollouts went on."""
    async with prl.Pipeline(simulated(eval=EvalConfig(num_samples=8, every=2)), run_dir=tmp_path / "run") as pipeline:
        await take_steps(pipeline, 2)
        assert pipeline.evaluation is not None
        assert pipeline.evaluation.version == 2


@pytest.mark.parametrize(
    "pipeline",
    [
        PipelineConfig(max_lag=0, groups_per_step=2, group_size=2),
        PipelineConfig(groups_per_step=2, group_size=2),
        PipelineConfig(mode="conventional", steps_per_round=2, groups_per_step=2, group_size=2),
    ],
    ids=["synchronous", "unbounded", "conventional"],
)
@in_virtual_time
async def test_every_mode_runs(tmp_path: Path, pipeline: PipelineConfig) -> None:
    """The three modes run through the same code to the same number of steps."""
    async with prl.Pipeline(simulated(pipeline=pipeline), run_dir=tmp_path / "run") as running:
        reports = await take_steps(running, 4)
    assert [report.version for report in reports] == [1, 2, 3, 4]

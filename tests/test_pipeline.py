"""The embedding API over simulated engines and a simulated trainer: the run folder, resuming, failing, leaving."""

from __future__ import annotations

import asyncio
import json
import socket
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
from prl.config_control import ControlConfig
from prl.config_view import ViewConfig
from prl.view import beside
from prl.view.beside import FILE
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
    """A configuration that needs neither torch nor vLLM, nor a socket."""
    config = Config(
        model="builtin:tiny-math",
        run=RunConfig(num_steps=4, checkpoint_every=2),
        pipeline=PipelineConfig(max_lag=1, groups_per_step=2, group_size=2),
        engine=EngineConfig(kind="simulated", count=2, max_num_seqs=8, max_model_len=256),
        sampling=SamplingConfig(max_tokens=64),
        trainer=TrainerConfig(kind="simulated"),
        eval=EvalConfig(num_samples=8),
        control=ControlConfig(enabled=False),
        rewards=[RewardConfig(name="test-length")],
    )
    return msgspec.structs.replace(config, **changes)


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


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
        " in_flight wait_batch_s pause_s publish_s streams_moved engine_restarts trainer_restarts loop_lag_ms"
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
    both = [line for line in lines(run / "evaluations.jsonl") if line["step"] in {0, 4}]
    assert summary["eval_is_accuracy"] == all(line["is_accuracy"] for line in both)
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


MODES = {
    "bounded": PipelineConfig(max_lag=1, groups_per_step=2, group_size=2),
    "synchronous": PipelineConfig(max_lag=0, groups_per_step=2, group_size=2),
    "unbounded": PipelineConfig(groups_per_step=2, group_size=2),
    "conventional": PipelineConfig(mode="conventional", steps_per_round=2, groups_per_step=2, group_size=2),
}


@pytest.mark.parametrize("mode", MODES)
@in_virtual_time
async def test_evaluation_beside_training(tmp_path: Path, mode: str) -> None:
    """The step that makes an evaluation due does not wait for it; the next push does, and both say how long.

    An evaluation that a push ran into would end the run: each of its tokens is checked.
    """
    run = tmp_path / "run"
    held_out = EvalConfig(num_samples=16, num_answers=4, temperature=1.0, every=2)
    config = simulated(pipeline=MODES[mode], eval=held_out, run=RunConfig(num_steps=6))
    async with prl.Pipeline(config, run_dir=run) as pipeline:
        await take_steps(pipeline, 2)
        assert pipeline.evaluation is not None
        assert pipeline.evaluation.version == 0, "that of version 2 has begun"
        await take_steps(pipeline, 2)
        assert pipeline.evaluation.version == 2
        await take_steps(pipeline, 2)
    assert pipeline.evaluation.version == 6
    told = lines(run / "evaluations.jsonl")
    assert [(line["step"], line["version"], line["complete"]) for line in told] == [(v, v, True) for v in (0, 2, 4, 6)]
    assert all(
        (line["num_prompts"], line["num_answers"], list(line["pass_at"])) == (16, 64, ["1", "4"]) for line in told
    )
    metrics = lines(run / "metrics.jsonl")
    blocked = {line["step"]: line["eval_block_s"] for line in metrics if line["eval_block_s"] > 0}
    next_push = 4 if mode == "conventional" else 3
    assert blocked.get(next_push, 0.0) == pytest.approx(told[1]["block_s"], abs=0.1)  # files take real time
    assert set(blocked) <= {next_push, next_push + 2}
    assert mode == "conventional" or blocked
    assert told[1]["block_s"] < told[1]["seconds"]


@in_virtual_time
async def test_an_evaluation_that_is_too_slow_is_given_up(tmp_path: Path) -> None:
    """Past eval.max_block_s training goes on with the next weights, and everything that tells of it says incomplete."""
    run = tmp_path / "run"
    held_out = EvalConfig(num_samples=16, num_answers=8, temperature=1.0, every=1, max_block_s=0.125)
    async with prl.Pipeline(simulated(eval=held_out), run_dir=run) as pipeline:
        reports = await take_steps(pipeline, 4)
    assert [report.evals_incomplete for report in reports] == [0, 1, 1, 1]
    assert [report.eval_block_s for report in reports] == pytest.approx([0, 0.125, 0.125, 0.125], abs=1e-6)
    told = lines(run / "evaluations.jsonl")
    assert [(line["version"], line["complete"]) for line in told] == [
        *((0, True), (1, False), (2, False), (3, False), (4, True)),
    ]
    assert told[1]["reason"] == "eval.max_block_s = 0.125 s"
    assert 0 < told[1]["num_answers"] < 128
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["evals_incomplete"]) == ("done", 3)
    assert summary["eval_after"] == told[-1]["reward_mean"], "the last one is waited for"


@in_virtual_time
async def test_a_run_that_stops_waits_no_longer_than_a_push(tmp_path: Path) -> None:
    """Leaving early: what an evaluation under way has not finished within the bound is given up, and all is saved."""
    run = tmp_path / "run"
    held_out = EvalConfig(num_samples=16, num_answers=8, temperature=1.0, every=1, max_block_s=0.125)
    async with prl.Pipeline(simulated(eval=held_out), run_dir=run) as pipeline:
        await take_steps(pipeline, 1)
    assert pipeline.summary is not None
    assert (pipeline.summary.status, pipeline.summary.evals_incomplete) == ("stopped", 1)
    assert [line["complete"] for line in lines(run / "evaluations.jsonl")] == [True, False]


@in_virtual_time
async def test_an_evaluation_that_a_crash_cut_off_is_made_up_for(tmp_path: Path) -> None:
    """Resuming at a step whose evaluation has no line evaluates it; no version stands there twice."""
    run = tmp_path / "run"
    config = simulated(eval=EvalConfig(num_samples=8, every=1))

    async def fail_after_step_3() -> None:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, 3)
            raise KeyError("the host program fails; the newest checkpoint is of step 2")

    with pytest.raises(KeyError):
        await fail_after_step_3()
    kept = [line for line in (run / "evaluations.jsonl").read_text().splitlines() if '"step":3' not in line]
    (run / "evaluations.jsonl").write_text("".join(f"{line}\n" for line in kept))
    async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
        await take_steps(pipeline, 1)
    assert [line["step"] for line in lines(run / "evaluations.jsonl")] == [0, 1, 2, 3, 4]


class MOODS:
    """How the reward below behaves, for the test to change while the run goes on."""

    mood = "quick"


@prl.reward("test-moods")
async def moods(completion: prl.Completion, prompt: prl.Prompt) -> float:
    """``buggy`` and ``slow`` strike at short answers, which only evaluations ask for."""
    if MOODS.mood == "buggy" and len(completion.token_ids) == 1:
        return completion.text + 1  # type: ignore[operator,no-any-return]
    if MOODS.mood == "slow":
        await asyncio.sleep(9)
    return 1.0


@in_virtual_time
async def test_a_bug_beside_training_is_raised_from_the_next_step(tmp_path: Path) -> None:
    """What fails in an evaluation ends the run as it was, from the step that was under way or the next."""
    MOODS.mood = "quick"
    held_out = EvalConfig(num_samples=8, every=2, max_tokens=1)
    config = simulated(rewards=[RewardConfig(name="test-moods")], eval=held_out)

    async def meet_the_bug() -> None:
        async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline:
            await take_steps(pipeline, 1)
            MOODS.mood = "buggy"
            await take_steps(pipeline, 2)
            pytest.fail("the third step must raise")

    with pytest.raises(TypeError, match="can only concatenate"):
        await meet_the_bug()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("failed", 2)


@in_virtual_time
async def test_a_last_evaluation_that_fails_costs_only_itself(tmp_path: Path) -> None:
    """A bug that only the last evaluation meets is raised as it was, from a run that is saved and exported."""
    MOODS.mood = "quick"
    run = tmp_path / "run"
    config = simulated(rewards=[RewardConfig(name="test-moods")], eval=EvalConfig(num_samples=8, max_tokens=1))

    async def whole() -> None:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, 4)
            MOODS.mood = "buggy"

    with pytest.raises(TypeError):
        await whole()
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"
    assert (run / "checkpoints" / "step-000004").is_dir()
    assert (run / "export").is_dir()


@in_virtual_time
async def test_a_last_evaluation_without_an_end_costs_only_itself(tmp_path: Path) -> None:
    """The run is saved and exported, and says that it was not evaluated; before the first step it would not start."""
    MOODS.mood = "quick"
    run = tmp_path / "run"
    config = simulated(rewards=[RewardConfig(name="test-moods")], eval=EvalConfig(num_samples=8, timeout_s=5))
    async with prl.Pipeline(config, run_dir=run) as pipeline:
        await take_steps(pipeline, 4)
        MOODS.mood = "slow"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["eval_after"], summary["evals_incomplete"]) == ("done", None, 1)
    assert (run / "export").is_dir()
    with pytest.raises(prl.PrlError, match=r"took longer than eval.timeout_s = 5 s"):
        async with prl.Pipeline(config, run_dir=tmp_path / "other"):
            pytest.fail("the pipeline must not start")


@in_virtual_time
async def test_the_host_may_ask_for_an_evaluation(tmp_path: Path) -> None:
    """``await pipeline.evaluate()`` gives the result for what the engines serve now, whatever eval.every says."""
    async with prl.Pipeline(simulated(), run_dir=tmp_path / "run") as pipeline:
        await take_steps(pipeline, 1)
        found = await pipeline.evaluate()
        assert (found.version, found) == (1, pipeline.evaluation)
        await take_steps(pipeline, 1)
    assert [line["version"] for line in lines(tmp_path / "run" / "evaluations.jsonl")] == [0, 1]


@pytest.mark.parametrize("mode", MODES)
@in_virtual_time
async def test_every_mode_runs(tmp_path: Path, mode: str) -> None:
    """All modes run through the same code to the same number of steps."""
    async with prl.Pipeline(simulated(pipeline=MODES[mode]), run_dir=tmp_path / "run") as running:
        reports = await take_steps(running, 4)
    assert [report.version for report in reports] == [1, 2, 3, 4]


@in_virtual_time
async def test_a_pipeline_serves_a_page_to_those_who_ask_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``on_page`` hears where; without it, or with ``view.enabled = false``, nothing listens; no process is made."""

    async def nobody(_: socket.socket) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(beside, "_knock", nobody)
    told: list[str] = []
    async with prl.Pipeline(simulated(), run_dir=tmp_path / "a", on_page=told.append) as pipeline:
        await pipeline.step()
        assert json.loads((tmp_path / "a" / FILE).read_text())["url"] == told[0]
        assert not (tmp_path / "a" / "logs" / "view.log").exists()
    assert not (tmp_path / "a" / FILE).exists()
    off = simulated(view=ViewConfig(enabled=False))
    for name, config, on_page in (("b", simulated(), None), ("c", off, told.append)):
        async with prl.Pipeline(config, run_dir=tmp_path / name, on_page=on_page):
            assert not (tmp_path / name / FILE).exists()
    assert len(told) == 1

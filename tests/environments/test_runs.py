"""Environments in whole runs over simulated engines: what is trained, journalled, resumed, evaluated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import prl
from prl.batch import make_samples
from prl.config import Config, PipelineConfig, RunConfig, SamplingConfig
from prl.config_environment import EnvironmentConfig, GatewayConfig
from prl.config_eval import EvalConfig
from prl.errors import EngineDeadError
from prl.failure import FirstFailure
from prl.journal import read
from prl.records import Member, Played, completion_of, member_of
from prl.rollout import Done, Rollout
from prl.sampler import Sampler
from prl.types import Completion, Prompt, Turn
from tests.factories import make_prompt
from tests.streams import DECODING, Streams, as_numbers, chunk
from tests.test_pipeline import lines, simulated, take_steps
from tests.test_rollout import TIMEOUT_S, by_length
from tests.virtual import in_virtual_time


@prl.environment("test-talk")
async def talk(session: prl.Session, prompt: prl.Prompt, *, num_turns: int = 3, tool_s: float = 0.1) -> float:
    """Some turns with pauses between them, the last beside another; more for shorter."""
    token_ids, num_tokens = list(prompt.token_ids), 0
    for _ in range(num_turns):
        reply = await session.generate(token_ids)
        num_tokens += len(reply.token_ids)
        token_ids += [*reply.token_ids, 9]
        await asyncio.sleep(tool_s)
    await session.generate([7, 7, 7])
    return 1 / num_tokens


def talking(**changes: Any) -> Config:
    """A run of episodes of four turns in two samples, without [[rewards]]."""
    fields: dict[str, Any] = {
        "environment": EnvironmentConfig(name="test-talk"),
        "sampling": SamplingConfig(max_tokens=16),
        "rewards": [],
        "run": RunConfig(num_steps=6, checkpoint_every=4),
    }
    return simulated(**{**fields, **changes})


MODES = {
    "bounded": PipelineConfig(max_lag=1, groups_per_step=2, group_size=2),
    "synchronous": PipelineConfig(max_lag=0, groups_per_step=2, group_size=2),
    "unbounded": PipelineConfig(groups_per_step=2, group_size=2),
    "conventional": PipelineConfig(mode="conventional", steps_per_round=3, groups_per_step=2, group_size=2),
}


@pytest.mark.parametrize("mode", MODES)
@in_virtual_time
async def test_episodes_are_trained_within_the_lag_bound(tmp_path: Path, mode: str) -> None:
    """An episode holds its slot from its first turn to its push, so the proof holds; evaluations play it too."""
    run = tmp_path / "run"
    async with prl.Pipeline(talking(pipeline=MODES[mode]), run_dir=run) as pipeline:
        reports = await take_steps(pipeline, 6)
    bound = {"bounded": 1, "synchronous": 0, "conventional": 2, "unbounded": 100}[mode]
    assert all(report.lag_max <= bound for report in reports)
    assert mode not in {"bounded", "conventional"} or max(report.lag_max for report in reports) == bound
    samples = lines(run / "samples.jsonl")
    assert len(samples) == 6 * 2 * 2
    for sample in samples:
        turns = msgspec.convert(sample["turns"], list[Turn])
        assert [turn.sample for turn in turns] == [0, 0, 0, 1]
        assert [turn.context for turn in turns] == [sample["prompt_token_ids"], [9], [9], [7, 7, 7]]
        assert sum(turn.num_sampled for turn in turns) == len(sample["token_ids"]) == len(sample["versions"])
        assert sample["reward"] == sample["parts"]["environment"] > 0
    trained = sum(line["tokens_trained"] for line in lines(run / "metrics.jsonl"))
    assert trained == sum(len(sample["token_ids"]) for sample in samples), "only what was sampled"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval_before"] > 0
    assert summary["eval_after"] > 0


@in_virtual_time
async def test_finished_episodes_survive_a_crash_and_others_begin_anew(tmp_path: Path) -> None:
    """Exactly once: every prompt is trained once, and an episode that the journal has is not played again."""
    run, config = tmp_path / "run", talking()

    async def fail_after_step_3() -> None:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, 3)
            await asyncio.sleep(0.55)
            raise KeyError("the host program fails")

    with pytest.raises(KeyError):
        await fail_after_step_3()
    kept = {
        (number, index): member
        for number, entry in read(run / "journal").ledger.open.items()
        for index, member in entry.members.items()
    }
    assert kept
    assert all(len(member.turns) == 4 for member in kept.values())
    async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
        await take_steps(pipeline, 3)
    samples = lines(run / "samples.jsonl")
    assert sorted({sample["prompt_id"] for sample in samples}) == list(range(12))
    assert len(samples) == 24
    again = [member for (number, _), member in kept.items() if number < 12]
    assert again
    assert all(member.token_ids in [sample["token_ids"] for sample in samples] for member in again)


@in_virtual_time
async def test_a_slow_environment_is_dropped_at_the_rollouts_deadline(tmp_path: Path) -> None:
    """One deadline for all of an episode: what hangs between two turns is a drop with its reason, as any other."""
    pipeline_config = PipelineConfig(
        max_lag=1, groups_per_step=2, group_size=2, rollout_timeout_s=5, max_consecutive_drops=3
    )
    config = talking(
        pipeline=pipeline_config,
        environment=EnvironmentConfig(name="test-talk", options={"tool_s": 60.0}),
        eval=EvalConfig(num_samples=0),
    )
    with pytest.raises(prl.PrlError, match=r"3 rollouts in a row .* pipeline.rollout_timeout_s = 5 passed"):
        async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline:
            await take_steps(pipeline, 1)


def rollout_of(play: Any, record: Any = lambda _: None, streams: Any = None) -> Rollout:
    """A rollout that plays episodes."""
    return Rollout(
        Sampler(streams or Streams(), as_numbers),
        by_length,
        decoding=DECODING,
        group_size=1,
        timeout_s=TIMEOUT_S,
        failure=FirstFailure(),
        record=record,
        play=play,
    )


EPISODE = Completion(
    token_ids=[7, 8],
    logprobs=[-0.5, -0.5],
    versions=[2, 1],
    text="8",
    finish="stop",
    turns=[
        Turn(sample=0, context=[1], num_sampled=1, finish="stop"),
        Turn(sample=1, context=[2], num_sampled=1, finish="stop", earned=0.5),
    ],
    rewards={"environment": 1.0},
    noted={"tries": 2.0},
)


@in_virtual_time
async def test_an_episode_is_recorded_once_it_is_finished() -> None:
    """No chunk of it before; what is recorded is the episode, bit for bit, and a known one is judged without a turn."""
    records: list[Any] = []

    async def play(prompt: Prompt, decoding: Any, sample: Any) -> Completion:
        await sample(prompt, decoding, lambda _: None)
        return EPISODE

    outcome = await rollout_of(play, records.append)(make_prompt(3))
    assert isinstance(outcome, Done)
    assert outcome.group.completions == [EPISODE]
    assert records == [Played(prompt_id=3, member=0, episode=member_of(EPISODE))]
    assert completion_of(records[0].episode, lambda ids: str(ids[0])) == EPISODE

    async def never(*_: Any) -> Completion:
        pytest.fail("it is known")

    known: dict[int, Member] = {0: records[0].episode}
    again = await rollout_of(never)(make_prompt(3), known)
    assert isinstance(again, Done)
    assert again.group.completions == [EPISODE]


@in_virtual_time
async def test_an_engine_that_dies_within_a_turn_leaves_it_to_another() -> None:
    """The stream goes on behind the tokens it has, as ever; the episode does not notice."""
    streams = Streams((chunk(7, 8), EngineDeadError("engine-0 is dead")), (chunk(9, finish="stop"),))

    async def play(prompt: Prompt, decoding: Any, sample: Any) -> Any:
        return await sample(prompt, decoding, lambda _: None)

    rollout = rollout_of(play, streams=streams)
    outcome = await rollout(make_prompt())
    assert isinstance(outcome, Done)
    assert outcome.group.completions[0].token_ids == [7, 8, 9]
    assert (rollout.sampler.num_moved, streams.asked[1][0]) == (1, [*make_prompt().token_ids, 7, 8])


async def test_an_evaluation_judges_episodes_as_training_does() -> None:
    """Both by ``Rollout.answer``, which without an environment is a stream."""

    async def play(prompt: Prompt, decoding: Any, sample: Any) -> Any:
        return EPISODE

    assert await rollout_of(play).answer(make_prompt(), DECODING) == EPISODE
    assert (await rollout_of(None).answer(make_prompt(), DECODING)).token_ids == [7, 8]  # type: ignore[union-attr]


def test_what_no_environment_reads_is_refused() -> None:
    """Options and a gateway without an environment, and no reward at all."""
    with pytest.raises(prl.ConfigError, match="of use to an environment alone"):
        prl.Pipeline(simulated(gateway=GatewayConfig(enabled=True)))
    with pytest.raises(prl.ConfigError, match="at least one is needed to train"):
        prl.Pipeline(simulated(rewards=[]))
    with pytest.raises(prl.ConfigError, match=r"there is no environment 'test-tlak' .did you mean 'test-talk'"):
        prl.Pipeline(simulated(environment=EnvironmentConfig(name="test-tlak")))


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([(0, [1], 1)], "2 tokens are not those of the turns"),
        ([(0, [1], 2), (0, [], 0)], "2 tokens are not those of the turns"),
        ([(1, [1], 2)], "a turn of sample 1 where 0 have begun"),
        ([(0, [], 2)], "a turn of sample 0 where 0 have begun, behind 0 tokens"),
    ],
)
def test_turns_divide_a_completion(turns: list[tuple[int, list[int], int]], message: str) -> None:
    """Every token is in one turn, every sample begins with a context, samples are numbered as they begin."""
    made = [Turn(sample=sample, context=context, num_sampled=n, finish="stop") for sample, context, n in turns]
    with pytest.raises(ValueError, match=message):
        Completion(token_ids=[7, 8], logprobs=[-1.0] * 2, versions=[0, 0], text="", finish="stop", turns=made)


def test_an_overlong_episode_is_masked_as_a_whole() -> None:
    """All samples of an episode whose last turn was cut count in no gradient."""
    samples = make_samples(make_prompt(), EPISODE, [3.0, 3.0], trained=False)
    assert [(s.loss_mask, s.advantages) for s in samples] == [([0, 0], [0.0, 0.0])] * 2

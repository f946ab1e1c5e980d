"""Every known kind of failure of an asynchronous RL system has a test here that pins the right behaviour.

``KINDS`` lists them by section: A, the controller and scheduling; B, engines and weight updates; G, checkpoints,
resuming and logging; H, processes. Those that no other file pins are tested below.
"""

from __future__ import annotations

import ast
import asyncio
import threading
from functools import cache
from pathlib import Path

import msgspec
import pytest

import prl
from prl import virtual_time
from prl.config import Config, PipelineConfig, RunConfig
from prl.engines.base import Decoding
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script
from prl.trainer.simulated import SimulatedTrainer
from tests.test_pipeline import lines, simulated, take_steps
from tests.virtual import in_virtual_time

TESTS = Path(__file__).parent
NUM_BY_SECTION = {"A": 14, "B": 13, "G": 8, "H": 4}

KINDS: dict[str, tuple[str, ...]] = {
    "A: a published version is passed over and somebody waits for its acknowledgement": (
        "test_kinds.py::test_every_version_is_served_in_turn_while_an_evaluation_runs",
        "test_evaluator.py::test_the_push_waits_for_it_and_says_how_long",
    ),
    "A: the controller finishes first and strands the trainer in its last broadcast": (
        "test_kinds.py::test_a_slow_trainer_is_not_left_alone_at_the_end",
    ),
    "A: a short run sends no broadcast and somebody waits for one": ("test_controller.py::test_short_runs_end",),
    "A: the last evaluation waits for weights that never come": (
        "test_evaluator.py::test_the_last_one_completes",
        "test_evaluator.py::test_the_last_one_that_runs_out_of_time_is_none",
    ),
    "A: the staleness bound is off by one": (
        "test_buffer.py::test_the_lag_never_exceeds_the_bound",
        "test_buffer.py::test_the_bound_is_reached",
        "test_controller.py::test_the_whole_controller_keeps_the_lag_bound",
        "test_controller.py::test_the_lag_bound_is_reached",
    ),
    "A: capacity is divided until it is zero and nothing is dispatched": (
        "test_kinds.py::test_refused_rollouts_leave_the_capacity_as_it_was",
        "test_buffer.py::test_a_drop_closes_the_ranks",
    ),
    "A: one lost rollout blocks its batch for ever": (
        "test_rollout.py::test_a_rollout_has_a_deadline",
        "test_rollout.py::test_a_member_that_is_cancelled_from_within_ends_the_run",
        "test_watchdog.py::test_an_engine_that_owes_tokens_is_given_up_and_the_run_goes_on",
    ),
    "A: an exception in a task that nobody awaits is swallowed": (
        "test_failure.py::test_a_loop_that_fails",
        "test_failure.py::test_a_loop_that_ends_early",
        "test_controller.py::test_a_failure_is_raised_from_step_as_it_was",
    ),
    "A: a task is collected by the garbage collector": ("test_failure.py::test_the_garbage_collector_ends_no_loop",),
    "A: cancelling raises an old failure, or hides its own cancellation": (
        "test_failure.py::test_a_clean_up_that_fails_is_not_the_first_failure",
        "test_failure.py::test_being_cancelled_tells_who_asked",
        "test_failure.py::test_a_cancellation_while_a_failure_closes",
    ),
    "A: failed members become a crash, zeros, or a lost group": (
        "test_rollout.py::test_a_group_goes_on_with_its_survivors",
        "test_controller.py::test_dropped_rollouts_are_counted_and_refilled",
    ),
    "A: blocking code holds up the event loop": (
        "rewards/test_scorer.py::test_blocking_reward_does_not_hold_the_loop",
    ),
    "A: a pool is smaller than what runs at once, and its wait counts as lateness": (
        "rewards/test_scorer.py::test_concurrency_is_bounded_and_waiting_is_not_counted",
        "rewards/test_pool.py::test_more_questions_than_workers",
    ),
    "A: objects are bound to another event loop": ("test_kinds.py::test_two_runs_in_two_loops_do_not_meet",),
    "B: the stream of an aborted request never returns": (
        "test_rollout.py::test_a_stream_that_fails_to_close_is_not_sampled_again",
        "engines/test_pool.py::test_stalled_stream_meets_the_token_deadline",
    ),
    "B: a request stays when its consumer has left": (
        "engines/test_contract.py::test_early_close_frees_the_stream",
        "engines/test_contract.py::test_cancelled_consumer_frees_the_stream",
        "test_rollout.py::test_a_deadline_frees_the_engine",
    ),
    "B: partial tokens of an abort look like an answer": (
        "test_rollout.py::test_only_stop_and_length_are_scored",
        "test_rollout.py::test_an_abort_is_sampled_once_more",
    ),
    "B: a request is accepted between a pause and what it should stop": (
        "engines/test_pool.py::test_paused_pool_admits_nobody",
        "engines/test_contract.py::test_request_while_paused_waits_for_resume",
    ),
    "B: cancelling work while the engine is paused breaks it": (
        "test_kinds.py::test_a_stream_may_be_closed_while_its_engine_is_paused",
        "engines/test_pool.py::test_every_stream_ends_in_exactly_one_way",
    ),
    "B: a pause or an update has no deadline, or leaves engines paused": (
        "test_sync.py::test_nothing_hangs_longer_than_the_deadline",
        "engines/test_seats.py::test_engines_may_fail_in_an_update",
    ),
    "B: a collective waits for a peer that has failed": (
        "test_sync.py::test_a_failure_names_its_side_at_once",
        "test_transfer.py::test_killed_receiver_is_noticed",
        "test_transfer.py::test_absent_peer_is_named_in_time",
    ),
    "B: an update reports success and moves nothing": (
        "test_sync.py::test_a_transfer_that_moves_nothing_is_caught",
        "test_sync.py::test_a_transfer_that_moves_nothing_is_caught_after_a_small_step",
        "test_transfer.py::test_damaged_bytes_are_noticed",
    ),
    "B: a cache of older weights serves new requests": (
        "engines/test_vllm.py::test_new_request_reads_no_older_prefix_cache",
        "engines/test_transformers.py::test_new_requests_never_use_an_older_versions_cache",
    ),
    "B: requests are served before an update is whole": (
        "engines/test_contract.py::test_failed_load_refuses_until_a_good_one",
        "test_sync.py::test_a_score_that_disagrees_is_caught",
        "engines/test_seats.py::test_an_engine_that_comes_back_serves",
    ),
    "B: weights on disk are removed before somebody has read them": (
        "test_kinds.py::test_a_trainer_that_starts_again_finds_its_checkpoint",
        "test_recovery.py::test_old_checkpoints_and_segments_go",
    ),
    "B: tied weights are sent twice or not at all": (
        "trainer/test_model.py::test_names_are_the_checkpoints_and_tied_ones_come_once",
        "engines/test_vllm.py::test_tied_head_is_stale_without_repacking",
    ),
    "B: what is sent has another type or shape than is expected": (
        "trainer/test_publish.py::test_the_engine_gets_every_tensor_in_its_dtype",
        "trainer/test_publish.py::test_another_manifest_is_refused_before_anything_is_sent",
        "test_transfer.py::test_disagreement_is_an_error_on_every_rank_and_harms_nothing",
    ),
    "G: a half-written checkpoint is taken": (
        "trainer/test_checkpoint.py::test_killed_at_any_stage_the_previous_one_is_chosen",
        "trainer/test_checkpoint.py::test_a_damaged_folder_is_skipped_and_named",
    ),
    "G: the data position is lost or ahead of training": (
        "test_recovery.py::test_every_prompt_is_trained_once_whenever_the_run_is_killed",
        "test_controller.py::test_resuming_trains_every_prompt_once",
    ),
    "G: a resumed run generates again to get where it was": (
        "test_kinds.py::test_a_resumed_run_asks_no_engine_for_what_it_has",
    ),
    "G: a deadlock that only a resumed run has": (
        "test_kinds.py::test_a_resumed_run_goes_on_whatever_its_buffer_held",
        "test_recovery.py::test_every_prompt_is_trained_once_whenever_the_run_is_killed",
    ),
    "G: optimiser or schedule are not restored, or twice": (
        "trainer/test_learner.py::test_a_resumed_run_goes_on_bit_for_bit",
        "test_recovery.py::test_a_killed_run_ends_with_the_same_weights",
    ),
    "G: a step is counted twice or not at all": (
        "test_pipeline.py::test_a_run_that_is_done_takes_no_extra_step",
        "test_pipeline.py::test_a_crash_loses_no_step",
    ),
    "G: random states are not restored": (
        "trainer/test_learner.py::test_a_resumed_run_goes_on_bit_for_bit",
        "trainer/test_learner.py::test_two_ranks_draw_different_numbers",
    ),
    "G: metrics are dropped or doubled after a resume": (
        "test_run_folder.py::test_repeated_steps_are_cut",
        "test_run_folder.py::test_a_line_that_was_cut_short_is_dropped",
    ),
    "H: engine processes outlive a killed controller": (
        "test_process.py::test_a_parents_death_takes_its_children_along",
        "test_process.py::test_a_parents_death_takes_a_stopped_child_along",
        "test_live_engines.py::test_an_engine_is_added_and_another_removed",
        "trainer/test_remote.py::test_ranks_die_with_a_killed_controller",
        "rewards/test_pool.py::test_workers_die_with_their_parent",
    ),
    "H: SIGTERM reaches only the direct child": (
        "test_process.py::test_stop_ends_the_grandchildren",
        "test_process.py::test_stop_ends_what_a_shell_wraps",
        "test_process.py::test_a_child_that_ignores_sigterm_is_killed",
        "test_shell.py::test_the_second_signal_kills_every_descendant",
    ),
    "H: a dead child is not noticed": (
        "test_faults.py::test_a_killed_process",
        "test_fault_matrix.py::test_roles_that_are_struck",
        "trainer/test_remote.py::test_a_run_with_two_ranks_and_its_death",
    ),
    "H: a start that never ends is repeated for ever, or leaves processes": (
        "engines/test_pool.py::test_start_has_a_deadline",
        "engines/test_pool.py::test_one_failed_start_closes_all",
        "engines/test_lives.py::test_the_pauses_before_restarts_grow_over_short_lives",
        "engines/test_vllm_process.py::test_start_that_takes_too_long_leaves_nothing",
    ),
}


@cache
def names_in(file: str) -> set[str]:
    """The names of the tests in a file."""
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_kind_has_its_tests() -> None:
    """Each kind of sections A, B, G and H names at least one test, and every named one exists."""
    counts = {section: sum(kind.startswith(f"{section}: ") for kind in KINDS) for section in NUM_BY_SECTION}
    assert counts == NUM_BY_SECTION
    assert all(KINDS.values())
    named = {tuple(test.split("::")) for tests in KINDS.values() for test in tests}
    assert [f"{file}::{name}" for file, name in sorted(named) if name not in names_in(file)] == []


def config_of(num_steps: int, *, max_lag: int | None = 1, num_samples: int = 0) -> Config:
    """A short simulated run."""
    config = simulated(
        run=RunConfig(num_steps=num_steps, checkpoint_every=2, keep_checkpoints=1),
        pipeline=PipelineConfig(max_lag=max_lag, groups_per_step=2, group_size=2),
    )
    evaluation = msgspec.structs.replace(config.eval, num_samples=num_samples, every=1 if num_samples else 0)
    return msgspec.structs.replace(config, eval=evaluation)


@in_virtual_time
async def test_every_version_is_served_in_turn_while_an_evaluation_runs(tmp_path: Path) -> None:
    """Evaluations beside every step pass over no version: each is pushed, acknowledged by its push, and served."""
    async with prl.Pipeline(config_of(6, num_samples=8), run_dir=tmp_path / "run") as pipeline:
        await take_steps(pipeline, 6)
    pushed = [event["version"] for event in lines(tmp_path / "run" / "events.jsonl") if event["event"] == "pushed"]
    assert pushed == [1, 2, 3, 4, 5, 6]


@in_virtual_time
async def test_a_slow_trainer_is_not_left_alone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rewards that take no time and a trainer that takes long, the last version has arrived when all is over."""
    published: list[int] = []
    publish = SimulatedTrainer.publish

    async def slow(self: SimulatedTrainer, update: prl.types.WeightUpdate) -> None:
        await asyncio.sleep(30)
        await publish(self, update)
        published.append(update.version)

    monkeypatch.setattr(SimulatedTrainer, "publish", slow)
    async with prl.Pipeline(config_of(5), run_dir=tmp_path / "run") as pipeline:
        await take_steps(pipeline, 5)
    assert published == [0, 1, 2, 3, 4, 5]
    assert pipeline.summary is not None
    assert pipeline.summary.status == "done"


@prl.reward("test-often-fails")
async def often_fails(_: prl.Completion, prompt: prl.Prompt) -> float:
    """Fail for two prompts of three."""
    if prompt.id % 3:
        raise prl.RewardError("the judge is not there")
    return 1.0


@pytest.mark.parametrize("max_lag", [0, 2])
def test_refused_rollouts_leave_the_capacity_as_it_was(tmp_path: Path, max_lag: int) -> None:
    """The bound counts prompts once, whatever the number of engines: dispatching goes on however many are dropped."""
    config = config_of(6, max_lag=max_lag)
    rewards = [msgspec.structs.replace(config.rewards[0], name="test-often-fails")]
    config = msgspec.structs.replace(config, rewards=rewards, engine=msgspec.structs.replace(config.engine, count=4))

    async def run() -> list[prl.StepReport]:
        async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline:
            return await take_steps(pipeline, 6)

    reports = virtual_time.run(run())
    assert [report.samples for report in reports] == [4] * 6
    assert sum(sum(report.dropped.values()) for report in reports) > 0
    assert max(report.lag_max for report in reports) <= max_lag


def test_two_runs_in_two_loops_do_not_meet(tmp_path: Path) -> None:
    """A run in a thread with a loop of its own, beside and after another one: nothing belongs to a loop but its own."""
    ends: dict[str, str] = {}

    def run(name: str) -> None:
        async def main() -> None:
            async with prl.Pipeline(config_of(3, num_samples=4), run_dir=tmp_path / name) as pipeline:
                await take_steps(pipeline, 3)
            assert pipeline.summary is not None
            ends[name] = pipeline.summary.status

        virtual_time.run(main())

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    run("three")
    assert ends == {"one": "done", "two": "done", "three": "done"}


@in_virtual_time
async def test_a_stream_may_be_closed_while_its_engine_is_paused() -> None:
    """Work that is cancelled between pause and resume is gone, and the engine serves on."""
    engine = SimulatedEngine(index=0, max_num_seqs=2, script=Script(), seed=0)
    await engine.open()
    long, short = (Decoding(temperature=1.0, max_tokens=count, stop_token_ids=[]) for count in (50, 5))
    streams = [engine.generate([1, 2], long) for _ in range(3)]  # the third waits for its turn
    first = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await first[0]
    await engine.pause()
    first[2].cancel()
    await asyncio.wait([first[1], first[2]])
    for stream in streams:
        await stream.aclose()
    assert engine.statistics().running == 0
    await engine.resume()
    after = [chunk async for chunk in engine.generate([1, 2], short)]
    assert after[-1].finish == "length"
    await engine.close()


@in_virtual_time
async def test_a_trainer_that_starts_again_finds_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one checkpoint kept, a trainer that dies while it is written, or after, still has a whole one to load."""
    save, deaths = SimulatedTrainer.save, [2, 4]

    async def deadly(self: SimulatedTrainer, folder: Path, state: dict[str, object]) -> None:
        if self.step in deaths:
            deaths.remove(self.step)
            self._die("it died while it saved")
        await save(self, folder, state)

    monkeypatch.setattr(SimulatedTrainer, "save", deadly)
    async with prl.Pipeline(config_of(6), run_dir=tmp_path / "run") as pipeline:
        await take_steps(pipeline, 6)
        assert pipeline.trainer_restarts == 2
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000006"]


def stopped_midway(run: Path, config: Config, steps: int) -> None:
    """Take so many steps and crash."""

    async def main() -> None:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, steps)
            raise KeyError("a crash between two steps")

    with pytest.raises(KeyError):
        virtual_time.run(main())


def test_a_resumed_run_asks_no_engine_for_what_it_has(tmp_path: Path) -> None:
    """Until the first new rollout no token is sampled: steps are done again from the journal, not generated again."""
    config = config_of(8)
    stopped_midway(tmp_path / "run", config, 5)
    tokens: dict[str, int] = {}

    async def main() -> None:
        def on_stage(stage: str) -> None:
            if "again, from the journal" in stage or stage == "sending the first weights":
                tokens[stage] = pipeline._overview.fleet.engines.statistics().tokens_generated

        pipeline = prl.Pipeline(config, run_dir=tmp_path / "run", resume=True, on_stage=on_stage)
        async with pipeline:
            await take_steps(pipeline, 3)

    virtual_time.run(main())
    assert tokens == {"training step 5 again, from the journal": 0, "sending the first weights": 0}


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3, 30.0])
@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_a_resumed_run_goes_on_whatever_its_buffer_held(tmp_path: Path, max_lag: int | None, seconds: float) -> None:
    """Left with an empty, a partly full and a full buffer, and beside a newer checkpoint that is not whole."""
    run, config = tmp_path / "run", config_of(6, max_lag=max_lag)

    async def left() -> None:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, 3)
            await asyncio.sleep(seconds)
            raise KeyError("a crash")

    with pytest.raises(KeyError):
        virtual_time.run(left())
    newer = run / "checkpoints" / "step-000099"
    newer.mkdir()
    (newer / "complete.json").write_text("{")

    async def resumed() -> list[prl.StepReport]:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            return await take_steps(pipeline, 3)

    assert [report.step for report in virtual_time.run(resumed())] == [4, 5, 6]

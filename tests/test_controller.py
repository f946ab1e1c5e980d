"""The controller over simulated engines and a simulated trainer, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import virtual_time
from prl.advantage import ADVANTAGES
from prl.batch import make_batch
from prl.buffer import Buffer
from prl.config import EngineConfig
from prl.controller import Controller, Pacing, Step
from prl.engines.base import Decoding
from prl.engines.pool import EnginePool
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script, StreamFault
from prl.errors import EngineDeadError, PrlError, TrainerError, WeightSyncError
from prl.failure import FirstFailure, running, together
from prl.ledger import Ledger
from prl.records import Entry, Open
from prl.refill import Refill
from prl.reporter import Judges
from prl.rollout import Rollout
from prl.sampler import Sampler, stream_seed
from prl.shaping import plain
from prl.simulation import MANIFEST, CallFault
from prl.sync import WeightSync
from prl.trainer.base import TrainReport
from prl.trainer.simulated import SimulatedTrainer, TrainerScript
from prl.types import Batch, Completion, Group, Prompt, Score, Verdict

DECODING = Decoding(temperature=1.0, max_tokens=200, stop_token_ids=[0])


class Numbers:
    """A source whose prompt i is the token i + 2, without end."""

    def __init__(self) -> None:
        self.cursor = 0

    def next(self) -> Prompt:
        """The next number."""
        self.cursor += 1
        number = self.cursor - 1
        return Prompt(id=number, token_ids=[number + 2], text=str(number), messages=[], fields={})

    def passed_over(self) -> list[tuple[int, str]]:
        """None: there is no number that is too long."""
        return []

    def seek(self, cursor: int) -> None:
        """Go on from there."""
        self.cursor = cursor


async def parity(completion: Completion, _: Prompt) -> Verdict:
    """Reward 1 for an even first token."""
    return Score(reward=float(completion.token_ids[0] % 2 == 0))


class Run(msgspec.Struct):
    """A controller with the parts it was made of."""

    controller: Any
    trainer: Any
    engines: Any
    buffer: Any
    source: Any

    async def steps(self, count: int) -> list[Step]:
        """Take ``count`` steps."""
        return [await self.controller.step() for _ in range(count)]


@asynccontextmanager
async def controller_over(
    *,
    max_lag: int | None = 1,
    groups_per_step: int = 4,
    group_size: int = 2,
    steps_per_round: int = 1,
    num_engines: int = 2,
    script: Script | None = None,
    trainer: SimulatedTrainer | None = None,
    score: Callable[[Completion, Prompt], Any] = parity,
    seed: int | None = None,
    ledger: Ledger | None = None,
    resumed: Ledger | None = None,
    max_refills: int | None = None,
    judges: Judges | None = None,
    make_engine: Callable[..., SimulatedEngine] = SimulatedEngine,
    rolling: int = 0,
    staged: bool = True,
) -> AsyncIterator[Run]:
    """Start a controller on simulated parts, as the pipeline does, or on the ledger of a run that it goes on from."""
    failure = FirstFailure()
    ledger = Ledger() if ledger is None else ledger
    config = EngineConfig(count=num_engines, max_num_seqs=8, token_timeout_s=1e6)
    script = script or Script()
    engines = EnginePool(
        [make_engine(index=i, max_num_seqs=8, script=script, seed=0) for i in range(num_engines)],
        config,
        gate_timeout_s=60,
        rolling=rolling,
        staged=staged,
    )
    trainer = trainer or SimulatedTrainer(step_s=0.2)
    source = Numbers()
    buffer = (
        Buffer(num_engines * 8, order="completion", group_size=group_size, max_ahead=2 * groups_per_step)
        if max_lag is None
        else Buffer(groups_per_step * (max_lag + 1) * steps_per_round)
    )
    rollout = Rollout(
        Sampler(engines, str),
        score,
        decoding=DECODING,
        group_size=group_size,
        timeout_s=1e5,
        failure=failure,
        seed=seed,
        record=ledger.append,
    )
    sync = WeightSync(
        trainer,
        engines,
        transport="gloo",
        manifest=MANIFEST,
        probe=[1, 2, 3],
        tolerance=1e-9,
        timeout_s=60,
        verify_every=1,
        staged=staged,
    )

    async def batch(step: int, groups: list[Group]) -> Batch:
        return make_batch(
            step, groups, advantage=ADVANTAGES["leave_one_out"], num_ranks=2, max_tokens_per_microbatch=512
        )

    try:
        opened = await together({}, "open", trainer=trainer.open, engines=engines.open)
        part, num_parts = 0, 1
        while part < num_parts:
            group = engines.weight_group(transport="gloo", address="simulated", port=1, timeout_s=60, part=part)
            joining = {"trainer": partial(trainer.connect, group), "engines": partial(engines.connect, group)}
            await together({}, "join", **joining)
            part, num_parts = part + 1, group.num_parts
        controller = Controller(
            source=source,
            engines=engines,
            trainer=trainer,
            rollout=rollout,
            buffer=buffer,
            make_batch=batch,
            sync=sync,
            pacing=Pacing(
                groups_per_step=groups_per_step,
                steps_per_round=steps_per_round,
                max_consecutive_drops=20,
            ),
            failure=failure,
            records=ledger,
            first_step=opened["trainer"].step,
            judges=judges,
            refill=None if max_refills is None else Refill(plain, max_refills),
        )
        if resumed is not None:
            ledger.begin(step=0, cursor=resumed.cursor, open_ids=list(resumed.open))
            for entry in resumed.open.values():
                ledger.append(Open(entry=Entry(prompt=entry.prompt)))
            controller.restore(ledger.cursor, [entry.copy() for entry in ledger.open.values()])
        await sync.push(opened["trainer"].step)
        async with running(controller.keep()), running(controller.run()):
            yield Run(controller, trainer, engines, buffer, source)
    finally:
        await trainer.close()
        await engines.close()


def lags(trainer: SimulatedTrainer) -> list[int]:
    """The lag of the oldest token of each trained sample."""
    return [
        batch.step - min(version for version in sample.versions if version >= 0)
        for _, batch in trainer.trained
        for sample in batch.samples
    ]


@settings(max_examples=40, deadline=None)
@given(
    max_lag=st.integers(0, 4),
    groups_per_step=st.integers(1, 4),
    group_size=st.sampled_from([1, 2, 4]),
    num_engines=st.integers(1, 3),
    step_s=st.sampled_from([0.001, 0.2, 5.0]),
)
def test_the_whole_controller_keeps_the_lag_bound(
    max_lag: int, groups_per_step: int, group_size: int, num_engines: int, step_s: float
) -> None:
    """Off-by-one in the staleness bound: no sample's oldest token is ever more than max_lag steps old when trained."""

    async def main() -> list[int]:
        trainer = SimulatedTrainer(step_s=step_s)
        async with controller_over(
            max_lag=max_lag,
            groups_per_step=groups_per_step,
            group_size=group_size,
            num_engines=num_engines,
            trainer=trainer,
        ) as run:
            await run.steps(8)
        return lags(trainer)

    assert max(virtual_time.run(main())) <= max_lag


@pytest.mark.parametrize("max_lag", [1, 2, 4])
def test_the_lag_bound_is_reached(max_lag: int) -> None:
    """The bound is a bound and not twice a bound: with a slow trainer some sample is exactly max_lag steps old."""

    async def main() -> list[int]:
        trainer = SimulatedTrainer(step_s=60.0)
        async with controller_over(max_lag=max_lag, trainer=trainer) as run:
            await run.steps(8)
        return lags(trainer)

    assert max(virtual_time.run(main())) == max_lag


def test_sequences_live_through_several_versions() -> None:
    """In flight: with long sequences and a quick trainer one sample holds tokens of several versions."""

    async def main() -> int:
        script = Script(length_median=100, length_sigma=0.5)
        async with controller_over(max_lag=None, script=script, trainer=SimulatedTrainer(step_s=0.05)) as run:
            return max(step.report.versions_max for step in await run.steps(12))

    assert virtual_time.run(main()) >= 2


@pytest.mark.parametrize("max_lag", [0, 2, None])
def test_nothing_is_trained_on_tokens_of_weights_without_proof(max_lag: int | None) -> None:
    """A batch with tokens of the version under proof waits for the proof; one that was sampled before it does not."""
    proven = {0: 0.0}
    begun: list[tuple[float, int, int]] = []

    class Noting(SimulatedTrainer):
        async def train(self, batch: Batch) -> TrainReport:
            newest = max(max(sample.versions) for sample in batch.samples)
            begun.append((asyncio.get_running_loop().time(), newest, batch.step))
            return await super().train(batch)

    async def main() -> None:
        slow = tuple(CallFault(call="score", kind="delay", nth=nth, delay_s=3.0) for nth in range(1, 20))
        trainer = Noting(step_s=0.2)
        async with controller_over(max_lag=max_lag, script=Script(calls=slow), trainer=trainer) as run:
            sync = run.controller._sync
            prove = sync._prove

            async def noted() -> None:
                await prove()
                proven.setdefault(sync.version, asyncio.get_running_loop().time())

            sync._prove = noted
            await run.steps(8)

    virtual_time.run(main())
    assert len(begun) == 8
    assert all(proven[newest] <= at for at, newest, _ in begun)
    early = [step for at, _, step in begun if at < proven[step]]
    assert bool(early) == (max_lag != 0), "the trainer learns beside the proof of the version it made last"


def test_prompts_are_trained_once_and_in_order() -> None:
    """Each prompt is trained exactly once, in the order of admission, whatever the lengths."""

    async def main() -> list[int]:
        async with controller_over(max_lag=2) as run:
            return [group.prompt.id for step in await run.steps(10) for group in step.groups]

    assert virtual_time.run(main()) == list(range(40))


def test_max_lag_0_equals_an_alternating_loop() -> None:
    """Synchronous, exactly: the batches and weights are those of sample, train, push, sample ... written plainly."""

    async def pipelined() -> tuple[list[Batch], bytes]:
        trainer = SimulatedTrainer(step_s=0.2)
        async with controller_over(max_lag=0, seed=7, trainer=trainer) as run:
            await run.steps(6)
        return [batch for _, batch in trainer.trained], trainer.weights

    async def alternating() -> tuple[list[Batch], bytes]:
        engine, trainer = SimulatedEngine(index=0, max_num_seqs=8, script=Script(), seed=0), SimulatedTrainer()
        source, batches = Numbers(), []
        await engine.open()
        await trainer.open()
        pool = EnginePool([engine], EngineConfig(), gate_timeout_s=60)
        group = pool.weight_group(transport="gloo", address="alternating", port=1, timeout_s=60)
        await together({}, "", trainer=lambda: trainer.connect(group), engine=lambda: engine.connect(group, 1))
        sync = WeightSync(
            trainer,
            pool,
            transport="gloo",
            manifest=MANIFEST,
            probe=[1, 2],
            tolerance=1e-9,
            timeout_s=60,
            verify_every=1,
        )
        await sync.push(0)
        for step in range(6):
            groups = []
            for _ in range(4):
                prompt, completions = source.next(), []
                for member in range(2):
                    decoding = msgspec.structs.replace(DECODING, seed=stream_seed(7, prompt.id, member, 0))
                    async with aclosing(engine.generate(prompt.token_ids, decoding)) as stream:
                        chunks = [chunk async for chunk in stream]
                    completions.append(
                        Completion(
                            token_ids=[t for chunk in chunks for t in chunk.token_ids],
                            logprobs=[p for chunk in chunks for p in chunk.logprobs],
                            versions=[chunk.version for chunk in chunks for _ in chunk.token_ids],
                            text="",
                            finish=chunks[-1].finish,  # type: ignore[arg-type]
                        )
                    )
                scores = [await parity(completion, prompt) for completion in completions]
                groups.append(Group(prompt=prompt, completions=completions, scores=scores))  # type: ignore[arg-type]
            batch = make_batch(
                step, groups, advantage=ADVANTAGES["leave_one_out"], num_ranks=2, max_tokens_per_microbatch=512
            )
            batches.append(batch)
            await trainer.train(batch)
            await sync.push(step + 1)
        return batches, trainer.weights

    expected_batches, expected_weights = virtual_time.run(alternating())
    batches, weights = virtual_time.run(pipelined())
    assert [msgspec.to_builtins(batch) for batch in batches] == [msgspec.to_builtins(b) for b in expected_batches]
    assert weights == expected_weights


def test_conventional_rounds() -> None:
    """In conventional mode a round's samples are all of the version that began it, so the lag runs 0 .. G - 1."""

    async def main() -> list[list[int]]:
        trainer = SimulatedTrainer(step_s=0.2)
        async with controller_over(max_lag=0, steps_per_round=4, trainer=trainer) as run:
            await run.steps(8)
        return [
            sorted({batch.step - v for s in batch.samples for v in s.versions if v >= 0})
            for _, batch in trainer.trained
        ]

    assert virtual_time.run(main()) == [[0], [1], [2], [3]] * 2


def test_resuming_trains_every_prompt_once() -> None:
    """Data position lost or ahead of training: prompts in flight at the checkpoint are issued again first, and once."""

    async def part(count: int, resumed: Ledger | None) -> tuple[list[int], Ledger]:
        ledger = Ledger()
        async with controller_over(max_lag=2, ledger=ledger, resumed=resumed) as run:
            steps = await run.steps(count)
            assert [prompt.id for prompt in run.controller.state()["untrained"]] == list(ledger.open)
            assert run.controller.state()["cursor"] == ledger.cursor
        return [group.prompt.id for step in steps for group in step.groups], ledger

    async def main() -> list[int]:
        first, ledger = await part(3, None)
        assert len(ledger.open) > 0
        second, ledger = await part(3, ledger)
        accounts = ledger.accounts()
        assert (accounts.lost, accounts.trained_twice, accounts.trained) == ([], [], 24)
        return first + second

    assert virtual_time.run(main()) == list(range(24))


async def broken_reward(_: Completion, __: Prompt) -> Verdict:
    """A reward with a bug."""
    raise TypeError("unsupported operand")


@pytest.mark.parametrize(
    ("parts", "error", "says"),
    [
        ({"score": broken_reward}, TypeError, "unsupported operand"),
        ({"script": Script(die_at_s=3.0)}, EngineDeadError, "engine-0 died"),
        ({"trainer": SimulatedTrainer(script=TrainerScript(die_at_s=3.0))}, TrainerError, "died"),
        (
            {"trainer": SimulatedTrainer(script=TrainerScript(calls=(CallFault(call="train", nth=2, kind="raise"),)))},
            TrainerError,
            "train",
        ),
        (
            {"script": Script(calls=(CallFault(call="load", nth=2, kind="hang"),))},
            WeightSyncError,
            "weights.timeout_s",
        ),
        (
            {"script": Script(calls=(CallFault(call="load", nth=2, kind="raise"),))},
            WeightSyncError,
            "side of the engines",
        ),
        ({"script": Script(streams=(StreamFault(kind="abort", token=3),))}, PrlError, "20 rollouts in a row"),
    ],
    ids=["bug in a reward", "dead engine", "dead trainer", "failing step", "hung load", "failed load", "all aborted"],
)
def test_a_failure_is_raised_from_step_as_it_was(parts: dict[str, Any], error: type[Exception], says: str) -> None:
    """Exceptions of fire-and-forget tasks are not swallowed: a failure ends the current or next step, unwrapped."""

    async def main() -> None:
        async with controller_over(**parts) as run:
            await run.steps(1000)

    with pytest.raises(error, match=says) as caught:
        virtual_time.run(main())
    assert type(caught.value) is error


class _Outage(msgspec.Struct):
    """Rewards that give no verdict from a moment on, for so long."""

    seconds: float
    num_retries: int = 0

    def lap(self) -> dict[str, dict[str, float]]:
        """Nothing is measured."""
        return {}

    async def score(self, completion: Completion, prompt: Prompt) -> Verdict:
        """The verdict, after the outage."""
        if self.seconds:
            await asyncio.sleep(self.seconds)
            self.num_retries += 1
            self.seconds = 0.0
        return await parity(completion, prompt)


def test_the_retries_of_rewards_are_reported() -> None:
    """The step that waited for them says how often rewards were tried again."""

    async def main() -> list[Step]:
        outage = _Outage(400.0)
        async with controller_over(score=outage.score, judges=outage, max_lag=0) as run:
            return await run.steps(2)

    assert [step.report.reward_retries for step in virtual_time.run(main())] == [8, 0]  # of every member


def test_dropped_rollouts_are_counted_and_refilled() -> None:
    """Failed members are not zeros: they leave their group, a group without two survivors is replaced and counted."""

    async def main() -> tuple[list[Step], Any]:
        aborts = tuple(StreamFault(kind="abort", request=request, token=1) for request in range(2, 40))
        async with controller_over(script=Script(streams=aborts), num_engines=1) as run:
            return await run.steps(6), run.buffer.statistics()

    steps, slots = virtual_time.run(main())
    assert all(len(step.groups) == 4 for step in steps)
    assert sum(count for step in steps for count in step.report.dropped.values()) > 0
    assert slots.trained == 24


async def by_prompt(completion: Completion, prompt: Prompt) -> Verdict:
    """Every third prompt has rewards that differ, the others only zeros."""
    return Score(reward=float(sum(completion.token_ids)) if prompt.id % 3 == 0 else 0.0)


@pytest.mark.parametrize("max_lag", [0, 2])
def test_groups_that_teach_nothing_are_refilled(max_lag: int) -> None:
    """Only groups whose rewards differ are trained, in order; the others are counted, and the lag bound holds."""

    async def main() -> tuple[list[Step], Run]:
        trainer = SimulatedTrainer(step_s=5.0)
        async with controller_over(score=by_prompt, max_refills=100, max_lag=max_lag, trainer=trainer) as run:
            return await run.steps(5), run

    steps, run = virtual_time.run(main())
    trained = [group.prompt.id for step in steps for group in step.groups]
    assert trained == list(range(0, 60, 3))
    # every prompt up to the last one trained that was not trained, and some that were under way
    assert sum(step.report.dropped.get("zero_variance", 0) for step in steps) >= 2 * (57 - 19)
    assert max(lags(run.trainer)) <= max_lag


@pytest.mark.parametrize("max_refills", [0, 3])
def test_refills_are_bounded(max_refills: int) -> None:
    """Field notes D, filter removes everything: with a constant reward each step trains after that many refills."""

    async def constant(_: Completion, __: Prompt) -> Verdict:
        return Score(reward=1.0)

    async def main() -> list[Step]:
        async with controller_over(score=constant, max_refills=max_refills, max_lag=0) as run:
            return await run.steps(4)

    steps = virtual_time.run(main())
    assert [len(step.groups) for step in steps] == [4] * 4
    assert [step.report.dropped.get("zero_variance", 0) for step in steps] == [2 * max_refills] * 4


def test_a_resumed_run_does_not_train_what_was_refused() -> None:
    """A refused prompt is done with: the checkpoint neither keeps nor repeats it."""

    async def part(count: int, resumed: Ledger | None) -> tuple[list[int], Ledger]:
        ledger = Ledger()
        async with controller_over(max_lag=2, score=by_prompt, max_refills=100, ledger=ledger, resumed=resumed) as run:
            steps = await run.steps(count)
        return [group.prompt.id for step in steps for group in step.groups], ledger

    async def main() -> list[int]:
        first, ledger = await part(3, None)
        second, ledger = await part(3, ledger)
        assert set(ledger.accounts().left) == {"zero_variance"}
        return first + second

    assert virtual_time.run(main()) == list(range(0, 72, 3))


def test_the_report_adds_up() -> None:
    """A step's numbers agree with what was trained: samples, tokens, versions, rates, shares in 0 .. 1."""

    async def main() -> list[Step]:
        async with controller_over(max_lag=1) as run:
            return await run.steps(5)

    for number, step in enumerate(virtual_time.run(main()), start=1):
        report = step.report
        lengths = [len(c.token_ids) for group in step.groups for c in group.completions]
        assert (report.step, report.version, report.samples) == (number, number, 8)
        assert report.tokens_trained == sum(lengths)
        assert report.length_mean == sum(lengths) / 8
        assert report.gen_tok_s == pytest.approx(report.tokens_generated / report.time_s)
        assert 0 <= report.engine_busy <= 1
        assert 0 < report.trainer_busy <= 1


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
@pytest.mark.parametrize("max_lag", [None, 0, 1, 2, 4])
@pytest.mark.parametrize("group_size", [1, 2])
def test_short_runs_end(num_steps: int, max_lag: int | None, group_size: int) -> None:
    """Short runs: for every small number of steps and every bound, pushes equal steps (and the first), and all ends."""

    async def main() -> tuple[int, dict[str, int]]:
        async with controller_over(max_lag=max_lag, group_size=group_size) as run:
            await run.steps(num_steps)
            return run.controller.step_number, run.engines.statistics().versions

    step_number, versions = virtual_time.run(main())
    assert step_number == num_steps
    assert versions == {"engine-0": num_steps, "engine-1": num_steps}


def test_leaving_frees_every_stream() -> None:
    """Leaked requests: after the loops end no engine runs a stream."""

    async def main() -> dict[str, int]:
        async with controller_over() as run:
            await run.steps(2)
            engines = run.engines
        await asyncio.sleep(0)
        running_streams: dict[str, int] = engines.statistics().running
        return running_streams

    assert virtual_time.run(main()) == {"engine-0": 0, "engine-1": 0}


def test_a_failing_source_is_raised_as_it_was() -> None:
    """What the data raises in the middle of a run reaches step() unwrapped, not in an exception group."""

    async def main() -> None:
        async with controller_over(max_lag=0) as run:
            await run.steps(1)
            run.source.next = lambda: 1 / 0
            await run.steps(2)

    with pytest.raises(ZeroDivisionError):
        virtual_time.run(main())


def test_a_cancelled_step_ends_the_run() -> None:
    """A step cut off by its caller's deadline leaves taken groups behind: the next step says so and does not train."""

    async def main() -> None:
        async with controller_over(trainer=SimulatedTrainer(step_s=60.0)) as run:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(30):
                    await run.controller.step()
            await run.controller.step()

    with pytest.raises(PrlError, match="step 0 was cancelled midway"):
        virtual_time.run(main())

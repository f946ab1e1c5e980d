"""One weight push: its order, its deadline, the side it names when it fails, and the proof that it moved anything."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from prl.advantage import ADVANTAGES
from prl.batch import make_batch
from prl.config import EngineConfig
from prl.engines.base import Standstill
from prl.engines.pool import EnginePool
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script
from prl.errors import EngineDeadError, EngineError, TrainerError, WeightSyncError
from prl.failure import together
from prl.simulation import MANIFEST, CallFault
from prl.sync import WeightSync
from prl.trainer.simulated import SimulatedTrainer, TrainerScript
from tests.factories import make_group
from tests.virtual import in_virtual_time

TIMEOUT_S = 60.0
TOLERANCE = 1e-3
PROBE = [5, 6, 7]


async def simulated(side: str = "", fault: CallFault | None = None) -> tuple[WeightSync, SimulatedTrainer, EnginePool]:
    """A push between a simulated trainer and two simulated engines; a fault of the engines strikes the second."""
    faults = {side: () if fault is None else (fault,)}
    trainer = SimulatedTrainer(publish_s=1, script=TrainerScript(calls=faults.get("trainer", ())))
    engines = [
        SimulatedEngine(index=index, max_num_seqs=4, script=Script(load_s=2, calls=calls), seed=0)
        for index, calls in enumerate([(), faults.get("engines", ())])
    ]
    pool = EnginePool(engines, EngineConfig(), gate_timeout_s=TIMEOUT_S)
    await together({}, "open", trainer=trainer.open, engines=pool.open)
    group = pool.weight_group(transport="gloo", address="127.0.0.1", port=1, timeout_s=TIMEOUT_S)
    await together({}, "join", trainer=lambda: trainer.connect(group), engines=lambda: pool.connect(group))
    return make_sync(trainer, pool), trainer, pool


def make_sync(
    trainer: Any, engines: Any, *, verify_every: int = 1, probe: Sequence[int] = PROBE, **more: Any
) -> WeightSync:
    """A push between these two."""
    return WeightSync(
        trainer,
        engines,
        transport="gloo",
        manifest=MANIFEST,
        probe=list(probe),
        tolerance=TOLERANCE,
        timeout_s=TIMEOUT_S,
        verify_every=verify_every,
        **more,
    )


async def train(trainer: SimulatedTrainer) -> int:
    """Make the next version of the weights and return its number."""
    groups = [make_group(trainer.step, [1.0, 0.0])]
    await trainer.train(
        make_batch(
            trainer.step, groups, advantage=ADVANTAGES["leave_one_out"], num_ranks=1, max_tokens_per_microbatch=100
        )
    )
    return trainer.step


class Fakes:
    """A trainer and engines that note what is asked of them and do what the test says, or nothing for a second."""

    def __init__(self, parts: Sequence[int | None] = (None,), **work: Callable[[], Awaitable[Any]]) -> None:
        self.parts = list(parts)
        self.calls: list[str] = []
        self.probes: list[list[int]] = []
        self._work: dict[str, Callable[[], Awaitable[Any]]] = {
            "engines.stage": self.scores(scores=False),
            "engines.swap": self.swap,
            "trainer.score": self.scores([-1.0, -2.0]),
            "engines.score": self.scores({"engine-0": [-1.0, -2.0], "engine-1": [-1.0, -2.0]}),
            **{name.replace("_", ".", 1): value for name, value in work.items()},
        }
        self.trainer, self.engines = _Side("trainer", self), _Side("engines", self)

    @staticmethod
    async def swap() -> Standstill:
        """A second to stop, and half a second of standing still."""
        await asyncio.sleep(1.5)
        return Standstill(drain_s=1.0, still_s=0.5)

    @staticmethod
    def scores(scores: Any) -> Callable[[], Awaitable[Any]]:
        """Work that gives these scores."""

        async def work() -> Any:
            return scores

        return work

    async def call(self, name: str, part: str) -> Any:
        """Note a call's start and end."""
        self.calls.append(f"{name}{part}")
        result = await (self._work[name]() if name in self._work else asyncio.sleep(1))
        self.calls.append(f"{name}{part} done")
        return result


class _Side:
    def __init__(self, name: str, fakes: Fakes) -> None:
        self._name, self._fakes = name, fakes

    def turns(self, *, is_staged: bool) -> Sequence[int | None]:
        """Those of the fakes."""
        return self._fakes.parts

    def __getattr__(self, call: str) -> Callable[..., Awaitable[Any]]:
        async def work(*arguments: Any) -> Any:
            if call == "score":
                self._fakes.probes.append(arguments[0])
            part = arguments[-1] if arguments and isinstance(arguments[-1], int) else None
            sent = arguments[0].part if call == "publish" and self._fakes.parts != [None] else part
            return await self._fakes.call(f"{self._name}.{call}", "" if sent is None else f" {sent}")

        return work


def raises(error: Exception) -> Callable[[], Awaitable[Any]]:
    """Work that fails."""

    async def work() -> Any:
        raise error

    return work


async def hangs() -> None:
    """Work that never ends."""
    await asyncio.get_running_loop().create_future()


# ---- a push that succeeds --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_the_order_of_a_push() -> None:
    """Engines that cannot stage are paused before anything is sent, and receive while it is; verified last."""
    fakes = Fakes()
    await make_sync(fakes.trainer, fakes.engines).push(0)
    assert fakes.calls[:2] == ["engines.stage", "engines.stage done"]
    calls = fakes.calls[2:]
    assert calls[:2] == ["engines.pause", "engines.pause done"]
    assert set(calls[2:4]) == {"trainer.publish", "engines.load"}, "side by side"
    assert set(calls[4:6]) == {"trainer.publish done", "engines.load done"}
    assert calls[6:8] == ["engines.resume", "engines.resume done"]
    assert calls[8:] == ["trainer.score", "trainer.score done", "engines.score", "engines.score done"]


@in_virtual_time
async def test_staged_engines_stand_still_for_the_load_only() -> None:
    """What engines receive beside generation is sent before they are paused; the pause has the load and no more."""
    fakes = Fakes(engines_stage=Fakes.scores(scores=True))
    report = await make_sync(fakes.trainer, fakes.engines).push(0)
    order = ["engines.stage", "trainer.publish", "engines.swap"]
    assert fakes.calls[:6] == [f"{call}{end}" for call in order for end in ("", " done")]
    assert (report.pause_s, report.drain_s, report.publish_s) == (1.5, 1.0, 1.0)


@in_virtual_time
async def test_engines_that_could_stage_are_not_asked_to_where_it_costs_too_much() -> None:
    """``weights.staged = false``: they are paused first, and receive into place."""
    fakes = Fakes(engines_stage=Fakes.scores(scores=True))
    await make_sync(fakes.trainer, fakes.engines, staged=False).push(0)
    assert fakes.calls[:3] == ["engines.pause", "engines.pause done", "trainer.publish"]
    assert "engines.stage" not in fakes.calls


@in_virtual_time
async def test_the_turns_of_a_staged_push() -> None:
    """Everything is sent once; the swaps come one after another, and the proof when the last has gone on."""
    fakes = Fakes([0, 1], engines_stage=Fakes.scores(scores=True))
    report = await make_sync(fakes.trainer, fakes.engines).push(0)
    order = ["engines.stage", "trainer.publish 0", "engines.swap 0", "engines.swap 1", "trainer.score", "engines.score"]
    assert fakes.calls == [f"{call}{end}" for call in order for end in ("", " done")]
    assert (report.pause_s, report.drain_s, report.publish_s) == (1.5, 1.0, 1.0)


@in_virtual_time
async def test_the_turns_of_a_plain_push() -> None:
    """Each part is paused when the one before has gone on, and is sent the weights in a group of its own."""
    fakes = Fakes([0, 1])
    report = await make_sync(fakes.trainer, fakes.engines, staged=False).push(0)
    for part in (0, 1):
        calls = fakes.calls[8 * part : 8 * part + 8]
        assert calls[:2] == [f"engines.pause {part}", f"engines.pause {part} done"]
        assert set(calls[2:4]) == {f"trainer.publish {part}", f"engines.load {part}"}
        assert calls[6:] == [f"engines.resume {part}", f"engines.resume {part} done"]
    assert (report.pause_s, report.drain_s, report.publish_s) == (3.0, 1.0, 2.0)


@in_virtual_time
async def test_each_turn_has_the_deadline() -> None:
    """Two turns that hang have twice the time, and the error says so."""
    fakes = Fakes([0, 1], engines_stage=Fakes.scores(scores=True), engines_swap=hangs)
    match = r"longer than weights.timeout_s = 60 s for each of 2 turns; not done: engines \(swap\)"
    with pytest.raises(WeightSyncError, match=match):
        await make_sync(fakes.trainer, fakes.engines).push(0)
    assert asyncio.get_running_loop().time() == 1.0 + 2 * TIMEOUT_S - 1.0


@in_virtual_time
async def test_every_engine_serves_the_new_version() -> None:
    """After a push all engines serve what the trainer holds, under its number, and go on."""
    sync, trainer, pool = await simulated()
    assert sync.version == -1
    for version in range(3):
        if version:
            assert await train(trainer) == version
        await sync.push(version)
        assert sync.version == version
        assert set(pool.statistics().versions.values()) == {version}
        assert not pool.statistics().paused


@in_virtual_time
async def test_the_report_of_a_push() -> None:
    """The pause spans everything from the request to stand still to the go-ahead; the transfer is a part of it."""
    fakes = Fakes()
    report = await make_sync(fakes.trainer, fakes.engines).push(4)
    assert (report.version, report.pause_s, report.drain_s, report.publish_s) == (4, 3.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("verify_every", "verified"), [(0, [0]), (1, [0, 1, 2, 3, 4, 5, 6]), (2, [0, 2, 4, 6]), (3, [0, 3, 6])]
)
@in_virtual_time
async def test_verification_every_n_pushes(verify_every: int, verified: list[int]) -> None:
    """The first push is verified whatever is configured, and then every n-th."""
    fakes, asked = Fakes(), list[int]()
    sync = make_sync(fakes.trainer, fakes.engines, verify_every=verify_every)
    for version in range(7):
        await sync.push(version)
        before = fakes.calls.count("engines.score")
        await sync.prove()
        if fakes.calls.count("engines.score") > before or version == 0:
            asked.append(version)
    assert asked == verified


@in_virtual_time
async def test_neither_side_waits_for_the_proof() -> None:
    """A push returns when the engines go on and the trainer has scored; they are asked later, and only once."""
    fakes = Fakes()
    sync = make_sync(fakes.trainer, fakes.engines)
    await sync.push(0)
    fakes.calls.clear()
    await sync.push(1)
    assert fakes.calls[-2:] == ["trainer.score", "trainer.score done"]
    await sync.unproven()
    await sync.prove()
    await sync.prove()
    assert fakes.calls.count("engines.score") == 1
    assert sync.verify_gap == 0.0


@in_virtual_time
async def test_a_version_is_proven_before_the_next_is_pushed() -> None:
    """Whoever forgets the proof meets it at the next push, before anything of that push is begun."""
    fakes = small_step(TOLERANCE / 2, both=False)
    sync = make_sync(fakes.trainer, fakes.engines)
    await sync.push(0)
    await sync.push(1)
    calls = len(fakes.calls)
    with pytest.raises(WeightSyncError, match="engine-1 does not serve the trainer's weights of version 1"):
        await sync.push(2)
    assert fakes.calls[calls:] == ["engines.score", "engines.score done"]


@in_virtual_time
async def test_a_proof_that_nobody_answers_is_owed() -> None:
    """Where no engine was left to ask, the next push is proven, whatever ``verify_every`` says."""
    answers = iter([{"engine-0": [-1.0, -2.0]}, {}, {"engine-0": [-1.0, -9.0]}])

    async def engines_score() -> Any:
        return next(answers)

    fakes = Fakes(engines_score=engines_score)
    sync = make_sync(fakes.trainer, fakes.engines, verify_every=2)
    for version in range(3):
        await sync.push(version)
    await sync.prove()
    await sync.push(3)
    with pytest.raises(WeightSyncError, match="engine-0 does not serve the trainer's weights of version 3"):
        await sync.prove()


@in_virtual_time
async def test_an_engine_that_dies_of_the_proof_is_mended() -> None:
    """The others, which mending has paused, go on and are asked again; nobody is asked who is paused."""
    deaths = [EngineDeadError("engine-1 died")]
    asked: list[int] = []

    async def engines_score() -> Any:
        if asked and deaths:
            raise deaths.pop()
        return {"engine-0": [-1.0, -2.0]}

    async def mend(version: int) -> bool:
        asked.append(version)
        return True

    fakes = Fakes(engines_score=engines_score)
    sync = make_sync(fakes.trainer, fakes.engines, mend=mend)
    await sync.push(0)
    asked.append(-1)
    await sync.push(1)
    calls = len(fakes.calls)
    await sync.prove()
    assert asked == [-1, 1]
    again = ["engines.resume", "engines.resume done", "engines.score", "engines.score done"]
    assert fakes.calls[calls:] == ["engines.score", *again]


# ---- the proof -------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_transfer_that_moves_nothing_is_caught() -> None:
    """Field notes B, update reports success but moves nothing: the engine that still has the old weights is named."""
    sync, trainer, _ = await simulated("engines", CallFault(call="load", kind="drop", nth=1))
    await sync.push(0)
    version = await train(trainer)
    await sync.push(version)
    with pytest.raises(WeightSyncError, match="engine-1 does not serve the trainer's weights of version 1"):
        await sync.prove()


def small_step(moved: float, *, both: bool) -> Fakes:
    """Scores of two pushes between which the trainer's second token moves, and that of one engine or both."""
    before, after = [-1.0, -2.0], [-1.0, -2.0 - moved]
    trainer = iter([before, after])
    engines = iter([dict.fromkeys(("engine-0", "engine-1"), before), {"engine-0": after, "engine-1": before}])
    if both:
        engines = iter([dict.fromkeys(("engine-0", "engine-1"), scores) for scores in (before, after)])

    async def trainer_score() -> Any:
        return next(trainer)

    async def engines_score() -> Any:
        return next(engines)

    return Fakes(trainer_score=trainer_score, engines_score=engines_score)


@in_virtual_time
async def test_a_transfer_that_moves_nothing_is_caught_after_a_small_step() -> None:
    """Old weights may agree within the tolerance; an engine that stood still while the trainer moved is named."""
    fakes = small_step(TOLERANCE / 2, both=False)
    sync = make_sync(fakes.trainer, fakes.engines)
    await sync.push(0)
    await sync.push(1)
    with pytest.raises(WeightSyncError, match=r"engine-1 does not serve .* version 1: .* moved by 0.0005 .* by 0$"):
        await sync.prove()


@pytest.mark.parametrize(("moved", "both"), [(TOLERANCE / 2, True), (TOLERANCE / 20, False), (0.0, False)])
@in_virtual_time
async def test_a_small_step_that_arrived_passes(moved: float, both: bool) -> None:
    """Engines that moved with the trainer do, and so do those of a step that rounding hides or that changed nothing."""
    fakes = small_step(moved, both=both)
    sync = make_sync(fakes.trainer, fakes.engines)
    await sync.push(0)
    await sync.push(1)
    await sync.prove()
    assert sync.version == 1


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("wrong", [math.nan, -math.inf, -1.0 - 1.1 * TOLERANCE])
@pytest.mark.parametrize("side", ["trainer", "engine"])
@in_virtual_time
async def test_a_score_that_disagrees_is_caught(side: str, wrong: float, position: int) -> None:
    """Field notes B, traffic before the update is complete: NaN, -inf or another weight's score is refused anywhere."""
    right = [-1.0, -1.0, -1.0]
    found = [*right[:position], wrong, *right[position + 1 :]]
    trainer, engine = (found, right) if side == "trainer" else (right, found)
    by_engine = {"engine-0": right if side == "engine" else engine, "engine-1": engine}
    fakes = Fakes(trainer_score=Fakes.scores(trainer), engines_score=Fakes.scores(by_engine))
    with pytest.raises(
        WeightSyncError, match=r"the log-probabilities differ by .* above weights.verify_tolerance = 0.001"
    ):
        await make_sync(fakes.trainer, fakes.engines).push(0)


@in_virtual_time
async def test_what_is_no_number_on_both_sides_does_not_agree() -> None:
    """Weights that are NaN on both sides, scores of -inf on both, or no scores at all prove nothing."""
    for scores in ([math.nan], [-math.inf], []):
        fakes = Fakes(trainer_score=Fakes.scores(scores), engines_score=Fakes.scores({"engine-0": scores}))
        with pytest.raises(WeightSyncError, match="engine-0 does not serve"):
            await make_sync(fakes.trainer, fakes.engines).push(0)


@pytest.mark.parametrize("found", [[], [-1.0], [-1.0, -2.0, -3.0]])
@in_virtual_time
async def test_scores_of_other_tokens_are_caught(found: list[float]) -> None:
    """An engine that scores fewer or more tokens than were asked for does not pass for those it scored."""
    fakes = Fakes(engines_score=Fakes.scores({"engine-0": [-1.0, -2.0], "engine-1": found}))
    with pytest.raises(WeightSyncError, match="engine-1 does not serve"):
        await make_sync(fakes.trainer, fakes.engines).push(0)


@in_virtual_time
async def test_the_gap_is_the_largest_of_any_engine() -> None:
    """Rounding within the tolerance passes, and the report says how much of it was used."""
    by_engine = {"engine-0": [-1.0 + TOLERANCE / 2, -2.0], "engine-1": [-1.0, -2.0 - TOLERANCE / 4]}
    fakes = Fakes(engines_score=Fakes.scores(by_engine))
    sync = make_sync(fakes.trainer, fakes.engines)
    await sync.push(0)
    assert sync.verify_gap == pytest.approx(TOLERANCE / 2)


@in_virtual_time
async def test_a_probe_of_one_token_is_a_probe() -> None:
    """A prompt of one token has no log-probability after its first; it is asked for twice, so that something is."""
    fakes = Fakes(trainer_score=Fakes.scores([-1.0]), engines_score=Fakes.scores({"engine-0": [-1.0]}))
    await make_sync(fakes.trainer, fakes.engines, probe=[5]).push(0)
    assert fakes.probes == [[5, 5], [5, 5]]


# ---- a push that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["raise", "die"])
@pytest.mark.parametrize(
    ("side", "call", "paused"),
    [
        ("trainer", "publish", True),
        ("engines", "pause", True),
        ("engines", "load", True),
        ("engines", "resume", True),
        ("trainer", "score", False),
        ("engines", "score", False),
    ],
)
@in_virtual_time
async def test_a_failure_names_its_side_at_once(side: str, call: str, kind: Any, paused: bool) -> None:
    """Field notes B, the peer already failed: the error names the side and the other is not waited for.

    Until all engines are known to hold the new weights the pool stays paused: nothing is generated by half a fleet.
    """
    sync, _, pool = await simulated(side, CallFault(call=call, kind=kind))
    what = "the proof of" if (side, call) == ("engines", "score") else "the update to"
    with pytest.raises(WeightSyncError, match=f"{what} version 0 failed on the side of the {side}: ") as raised:
        await sync.push(0)
    assert isinstance(raised.value.__cause__, TrainerError if side == "trainer" else EngineError)
    assert ("engine-1" in str(raised.value)) == (side == "engines")
    assert asyncio.get_running_loop().time() < TIMEOUT_S
    assert pool.statistics().paused == paused
    assert sync.version == (0 if what == "the proof of" else -1)


@pytest.mark.parametrize(
    ("side", "call", "waits"),
    [
        ("engines", "pause", r"engines \(pause\)"),
        ("trainer", "publish", r"trainer \(transfer\), engines \(transfer\)"),
        ("engines", "load", r"trainer \(transfer\), engines \(transfer\)"),
        ("engines", "resume", r"engines \(resume\)"),
        ("trainer", "score", r"trainer \(verification\)"),
        ("engines", "score", r"engines \(verification\)"),
    ],
)
@in_virtual_time
async def test_nothing_hangs_longer_than_the_deadline(side: str, call: str, waits: str) -> None:
    """Field notes B, pause/update request hangs with no deadline: one deadline for all of it; who is late is named."""
    sync, _, _ = await simulated(side, CallFault(call=call, kind="hang"))
    what = "the proof of" if (side, call) == ("engines", "score") else "the update to"
    match = rf"{what} version 0 took longer than weights.timeout_s = 60 s; not done: {waits}$"
    with pytest.raises(WeightSyncError, match=match):
        await sync.push(0)
    pushed_s = 3.0 if what == "the proof of" else 0.0
    assert asyncio.get_running_loop().time() == pushed_s + TIMEOUT_S


@in_virtual_time
async def test_a_slow_end_does_not_hide_who_failed() -> None:
    """When the cancelled side takes longer to end than the deadline, the error still says which side failed and how."""

    async def slow_to_end() -> None:
        try:
            await hangs()
        finally:
            await asyncio.sleep(2 * TIMEOUT_S)

    fakes = Fakes(trainer_publish=slow_to_end, engines_load=raises(EngineError("out of memory")))
    with pytest.raises(WeightSyncError, match=r"engines \(transfer failed: out of memory\)"):
        await make_sync(fakes.trainer, fakes.engines).push(0)


@in_virtual_time
async def test_a_sides_own_timeout_is_not_the_deadline() -> None:
    """A TimeoutError that a side raises is that side's failure."""
    for call in ("engines_pause", "trainer_publish", "engines_resume", "engines_score"):
        fakes = Fakes(**{call: raises(TimeoutError("the socket's"))})
        side = call.split("_")[0]
        with pytest.raises(WeightSyncError, match=f"failed on the side of the {side}: the socket's"):
            await make_sync(fakes.trainer, fakes.engines).push(0)


@in_virtual_time
async def test_a_bug_is_the_cause_of_the_error() -> None:
    """An error that nobody foresaw stays in the traceback, as the cause."""
    bug = TypeError("'NoneType' object is not iterable")
    fakes = Fakes(trainer_publish=raises(bug))
    with pytest.raises(WeightSyncError, match="'NoneType' object is not iterable") as raised:
        await make_sync(fakes.trainer, fakes.engines).push(0)
    assert raised.value.__cause__ is bug


@in_virtual_time
async def test_a_dead_engine_is_told_as_dead() -> None:
    """The error of a push into an engine that died has the death as its cause."""
    sync, _, _ = await simulated("engines", CallFault(call="load", kind="die"))
    with pytest.raises(WeightSyncError, match="engine-1 died in load, as scripted") as raised:
        await sync.push(0)
    assert isinstance(raised.value.__cause__, EngineDeadError)


@pytest.mark.parametrize("call", ["pause", "load", "resume"])
@in_virtual_time
async def test_no_push_follows_an_interrupted_one(call: str) -> None:
    """A push that was cancelled half-way is not followed by another as if nothing had happened."""
    sync, trainer, pool = await simulated("engines", CallFault(call=call, kind="hang"))
    async with asyncio.TaskGroup() as group:
        push = group.create_task(sync.push(0))
        await asyncio.sleep(10)
        push.cancel()
    assert push.cancelled()
    version, paused = await train(trainer), pool.statistics().paused
    with pytest.raises(WeightSyncError, match=r"the update to version 0 was interrupted, so .* unknown; restart"):
        await sync.push(version)
    assert pool.statistics().paused == paused, "it touched no engine"


@in_virtual_time
async def test_no_push_follows_a_failed_one() -> None:
    """Neither does one follow a push that failed, whichever way."""
    for failing in (Fakes(engines_load=hangs), Fakes(trainer_publish=raises(TrainerError("no")))):
        sync = make_sync(failing.trainer, failing.engines)
        with pytest.raises(WeightSyncError):
            await sync.push(0)
        calls = len(failing.calls)
        with pytest.raises(WeightSyncError, match="restart"):
            await sync.push(1)
        assert len(failing.calls) == calls

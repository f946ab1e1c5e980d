"""Runs in virtual time to which random things happen at random moments, by seed; and what must be so all the same.

    engines    die, hang, fail or delay any call, are slow to start; streams stall, break off, babble, give NaN
    trainer    dies at any time or in any call, skips steps, is slow to start again
    rewards    raise, hang, abstain, return what is no number
    the disk   takes nothing for a while

A run may end only with an error that says why (``PrlError``); it is resumed then, undisturbed, and has to end well. In
either case: no hang, which virtual time shows as a deadlock or as hours; every step once; every prompt accounted for,
none lost or trained twice; the lag within its bound; every token stamped with the version that sampled it.

``python -m tests.faults.chances --seeds 5000`` looks at so many and names those that broke a promise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import functools
import importlib.metadata
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import msgspec

import prl
from prl import disk, journal, machinery, pipeline, virtual_time
from prl.config import Config, EngineConfig, PipelineConfig, RewardConfig, RunConfig, SamplingConfig, TrainerConfig
from prl.config_eval import EvalConfig
from prl.config_weights import WeightsConfig
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import FIRST_VERSION_TOKEN, Script, StreamFault
from prl.errors import WeightSyncError
from prl.simulation import CallFault
from prl.trainer.simulated import SimulatedTrainer, TrainerScript
from prl.types import WeightGroup

NUM_STEPS = 6
LONGEST_S = 24 * 3600.0
"""Virtual time after which a run counts as hanging: more than every deadline and every restart added up."""
ENGINE_CALLS = ("connect", "stage", "pause", "load", "resume", "score", "open", "close")
TRAINER_CALLS = ("connect", "publish", "score", "train", "save", "export", "open")


class PunctualEngine(SimulatedEngine):
    """Waits for the others of a weight group no longer than the group says, as real ones do."""

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join, or be late."""
        try:
            async with asyncio.timeout(group.timeout_s):
                await super().connect(group, rank_offset)
        except TimeoutError:
            raise WeightSyncError(f"{self.name}: the weight group did not come together") from None


class Fate:
    """What happens in one run, by its seed; nothing any more once it is ``over``."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.over = False
        draw = self.random
        self.max_lag: int | None = draw.choice([0, 1, 1, 2, None])
        self.count = draw.choice([1, 2, 2, 3])
        self.checkpoint_every = draw.choice([0, 1, 2, 3])
        self.badness = draw.choice([0.02, 0.1, 0.25])
        """Chance of a fault wherever one may be."""
        self.full_from = draw.uniform(0.0, 6.0) if draw.random() < self.badness else float("inf")
        self.full_until = self.full_from + draw.uniform(0.5, 300.0)
        self.staged, self.rolling = draw.choice([True, False]), draw.choice([0, 0, 1, 2])

    def config(self) -> Config:
        """A short run whose tokens say which version sampled them."""
        limits = {"num_steps": NUM_STEPS, "checkpoint_every": self.checkpoint_every, "keep_checkpoints": 2}
        rewards = [RewardConfig(name="test-chances", timeout_s=5.0, max_failures=1000)]
        return Config(
            model="builtin:tiny-math",
            run=RunConfig(**limits, disk_timeout_s=200.0, stall_timeout_s=10_000.0),
            pipeline=PipelineConfig(max_lag=self.max_lag, groups_per_step=2, group_size=2, rollout_timeout_s=120.0),
            engine=EngineConfig(kind="simulated", count=self.count, max_num_seqs=8, max_model_len=256),
            sampling=SamplingConfig(max_tokens=24),
            trainer=TrainerConfig(kind="simulated", max_restarts=6),
            eval=EvalConfig(num_samples=0),
            weights=WeightsConfig(staged=self.staged, rolling=self.rolling),
            rewards=rewards,
        )

    def happens(self) -> bool:
        """Whether something does."""
        return not self.over and self.random.random() < self.badness

    def engine(self, index: int) -> SimulatedEngine:
        """One more for a seat."""
        draw, calls, streams = self.random, list[CallFault](), list[StreamFault]()
        for call in ENGINE_CALLS:
            if self.happens():
                kinds = ["delay", "raise", "die", "hang", *(["drop"] if call == "load" else [])]
                fault = CallFault(
                    call=call, kind=draw.choice(kinds), nth=draw.randrange(4), delay_s=draw.uniform(0, 90)
                )
                calls.append(fault)
        for request in range(12):
            if self.happens():
                kind = draw.choice(["delay", "stall", "raise", "abort", "die", "nan", "end", "babble"])
                token, delay_s = draw.randrange(20), draw.uniform(0, 120)
                streams.append(StreamFault(kind=kind, request=request, token=token, delay_s=delay_s))
        script = Script(
            length_median=8.0,
            tokens="version",
            open_s=draw.uniform(0, 120) if self.happens() else 0.5,
            load_s=draw.choice([0.0, 0.05, 0.5]),
            stages=self.staged,
            calls=tuple(calls),
            streams=tuple(streams),
            die_at_s=draw.uniform(0, 8) if self.happens() else None,
        )
        return PunctualEngine(index=index, max_num_seqs=8, script=script, seed=0)

    def trainer(self, _: Config, __: str, ___: Path, resume: Path | None, **____: bool) -> SimulatedTrainer:
        """One more."""
        draw, calls = self.random, list[CallFault]()
        for call in TRAINER_CALLS:
            if self.happens():
                kinds = ["delay", "die", *(["skip"] if call == "train" else ["raise"])]
                calls.append(
                    CallFault(call=call, kind=draw.choice(kinds), nth=draw.randrange(3), delay_s=draw.uniform(0, 90))
                )
        script = TrainerScript(
            calls=tuple(calls),
            die_at_s=draw.uniform(0, 8) if self.happens() else None,
            open_s=draw.uniform(0, 600) if self.happens() else 0.5,
        )
        return SimulatedTrainer(publish_s=0.05, resume_from=resume, script=script)

    def check_disk(self) -> None:
        """Raise what a full disk does, while it is."""
        if not self.over and self.full_from <= asyncio.get_running_loop().time() < self.full_until:
            raise OSError(errno.ENOSPC, "No space left on device")


_fates: list[Fate] = []
"""That of the run under way."""


@prl.reward("test-chances")
async def judge(_: prl.Completion, __: prl.Prompt) -> float | None:
    """A reward that is often no reward."""
    draw = _fates[-1].random
    if not _fates[-1].happens():
        return draw.random()
    outcome = draw.choice(["raise", "hang", "abstain", "nan", "late"])
    if outcome == "raise":
        raise prl.RewardError("the judge is not there")
    if outcome in {"hang", "late"}:
        await asyncio.sleep(1e6 if outcome == "hang" else 3.0)
    return {"abstain": None, "nan": float("nan")}.get(outcome, 0.5)


class _Lazy(list[int]):
    """Engines that are made when they are asked for."""

    def __init__(self, count: int, make: Callable[[int], SimulatedEngine]) -> None:
        super().__init__(range(count))
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return (self._make(index) for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return self._make(index)


@contextlib.contextmanager
def under(fate: Fate) -> Iterator[None]:
    """Everything that is made belongs to this fate; what costs time and changes nothing is left out."""
    _fates[:] = [fate]

    def make_engines(*_: object) -> list[Any]:
        return _Lazy(fate.count, fate.engine)

    async def write(work: Callable[[], Any]) -> Any:
        fate.check_disk()
        return work()

    async def at_once(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return work(*arguments, **named)

    entry_points = functools.cache(importlib.metadata.entry_points)
    with (
        mock.patch.object(machinery, "make_engines", make_engines),
        mock.patch.object(machinery, "make_trainer", fate.trainer),
        mock.patch.object(disk, "_in_thread", write),
        mock.patch.object(asyncio, "to_thread", at_once),
        mock.patch.object(os, "fsync"),
        mock.patch.object(pipeline, "frozen_heap", contextlib.nullcontext),
        mock.patch.object(importlib.metadata, "entry_points", entry_points),
    ):
        yield


async def _run(config: Config, run: Path, *, resume: bool) -> None:
    """To the end, or to what ends it."""
    async with asyncio.timeout(LONGEST_S) as limit:
        try:
            async with prl.Pipeline(config, run_dir=run, resume=resume) as whole:
                while whole.step_number < NUM_STEPS:
                    await whole.step()
        except TimeoutError:
            if limit.expired():
                raise AssertionError(f"the run hung for {LONGEST_S / 3600:g} hours") from None
            raise


def look_at(seed: int, folder: Path) -> str:
    """One run by its seed: how it ended. Raises whatever is no such end, or AssertionError for a broken promise."""
    fate, run = Fate(seed), folder / "run"
    config, how = fate.config(), "done"
    with under(fate):
        try:
            virtual_time.run(_run(config, run, resume=False))
        except prl.PrlError as error:
            how = type(error).__name__
            fate.over = True
            virtual_time.run(_run(config, run, resume=(run / "config.toml").exists()))
    check(run, fate.max_lag)
    return how


def check(run: Path, max_lag: int | None) -> None:
    """What every run has to keep."""
    accounts = journal.read(run / "journal").ledger.accounts()
    assert (accounts.lost, accounts.trained_twice) == ([], []), accounts
    assert accounts.trained == 2 * NUM_STEPS, accounts
    metrics = [msgspec.json.decode(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    assert [line["step"] for line in metrics] == list(range(1, NUM_STEPS + 1)), "a step is missing, or there twice"
    lag = max(line["lag_max"] for line in metrics)
    assert max_lag is None or lag <= max_lag, f"a lag of {lag}"
    for line in (run / "samples.jsonl").read_bytes().splitlines():
        sample = msgspec.json.decode(line)
        pairs = zip(sample["token_ids"], sample["versions"], strict=True)
        mixed = [pair for pair in pairs if pair[0] >= FIRST_VERSION_TOKEN and pair[0] - FIRST_VERSION_TOKEN != pair[1]]
        assert not mixed, f"tokens with the stamp of another version: {mixed}"


def main() -> int:
    """Look at many; 0 where every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    ends: dict[str, int] = {}
    broken: list[int] = []
    began = time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        folder = Path(tempfile.mkdtemp(prefix="prl-chance-"))
        try:
            how = look_at(seed, folder)
        except Exception as error:  # noqa: BLE001 -- counted and named; the others are looked at all the same
            how = "broken"
            broken.append(seed)
            print(f"seed {seed}: {''.join(traceback.format_exception(error, limit=-2, chain=False))}", flush=True)
        finally:
            shutil.rmtree(folder)
        ends[how] = ends.get(how, 0) + 1
        if sum(ends.values()) % 500 == 0:
            print(f"{sum(ends.values())} seeds in {time.monotonic() - began:.0f} s: {ends}", flush=True)
    print(f"{arguments.seeds} seeds in {time.monotonic() - began:.0f} s: {ends}; broken: {broken}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

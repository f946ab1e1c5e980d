"""A trainer without tensors: it takes the time a step would take, and its weights are a digest of what it trained on.

Invariants:

- Version v + 1 is a function of version v and the batch of step v, so two runs trained on the same batches in the same
  order exactly when their digests are equal. A batch for another step is refused.
- It keeps every batch it trained on with the version it was trained on, for whoever compares runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from prl.errors import CheckpointError, TrainerDeadError, TrainerError
from prl.network import LOOPBACK
from prl.process import free_port
from prl.simulation import CHECKPOINT, MANIFEST, CallFault, CallFaults, Meeting, learn, sequence_logprobs
from prl.trainer import checkpoint
from prl.trainer.base import TrainerReady, TrainReport
from prl.trainer.simulated_report import report_of
from prl.types import Batch, WeightGroup, WeightUpdate
from prl.waits import waiting

_FILE = "simulated-trainer.msgpack"


class TrainerScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong in a simulated trainer."""

    calls: tuple[CallFault, ...] = ()
    """Faults of open, connect, train, publish, score, rescore, nudge, save, export and close."""
    die_at_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """When it dies, in seconds after it was opened."""
    open_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds it takes to start."""


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    weights: bytes
    state: dict[str, Any]


class SimulatedTrainer:
    """See the module. ``resume_from`` is a folder that ``save`` wrote."""

    def __init__(
        self,
        *,
        step_s: float = 0.5,
        per_token_s: float = 0.0,
        publish_s: float = 0.0,
        script: TrainerScript | None = None,
        learning_rate: float = 1e-6,
        resume_from: Path | None = None,
    ) -> None:
        self.trained: list[tuple[int, Batch]] = []
        """(version trained on, batch), in order."""
        self.weights = CHECKPOINT
        self.step = 0
        self._step_s, self._per_token_s, self._publish_s = step_s, per_token_s, publish_s
        self._script = script or TrainerScript()
        self._faults = CallFaults(self._script.calls)
        self._learning_rate, self._resume_from = learning_rate, resume_from
        self._death: str | None = None
        self._died = asyncio.Event()
        self._death_timer: asyncio.TimerHandle | None = None
        self._command: str | None = None
        self._meetings: dict[int, Meeting] = {}
        """By the part of the engines that is in the weight group."""
        self._busy_s = self._tokens_trained = self._num_skipped = 0.0

    async def open(self) -> TrainerReady:
        """Take the script's ``open_s`` and read the checkpoint, if there is one."""
        await self._call("open")
        with waiting("the trainer", "starts", alive_at=asyncio.get_running_loop().time):
            await asyncio.sleep(self._script.open_s)
        state = self._resume(self._resume_from) if self._resume_from else {}
        if self._script.die_at_s is not None:
            reason = f"the simulated trainer died {self._script.die_at_s:g} s after its start, as scripted"
            self._death_timer = asyncio.get_running_loop().call_later(self._script.die_at_s, self._die, reason)
        return TrainerReady(
            step=self.step, manifest=MANIFEST, state=state, num_parameters=len(self.weights), memory_bytes=0
        )

    async def meeting(self, hosts: list[str]) -> tuple[str, int]:  # noqa: ARG002 -- all are in this process
        """Any place: simulated groups meet by its name."""
        self._check_alive()
        return LOOPBACK, free_port(LOOPBACK)

    async def connect(self, group: WeightGroup) -> None:
        """Join the weight group as rank 0; returns when every engine has."""
        await self._call("connect")
        try:
            self._meetings[group.part] = await Meeting.join(group, 0)
        except ValueError as error:
            raise TrainerError(f"the simulated trainer: {error}") from error

    async def train(self, batch: Batch) -> TrainReport:
        """Take ``step_s + per_token_s * tokens`` and learn the batch."""
        with self._alone("train"):
            skipped = await self._call("train") == "skip"
            if batch.step != self.step:
                raise TrainerError(f"the batch is for step {batch.step}, the trainer is at step {self.step}")
            num_tokens = sum(sum(sample.loss_mask) for sample in batch.samples)
            train_s = self._step_s + self._per_token_s * num_tokens
            await self._work(train_s)
            report = report_of(batch, self.weights, lr=self._learning_rate, train_s=train_s, skipped=skipped)
            self.trained.append((self.step, batch))
            self.weights = self.weights if skipped else learn(self.weights, batch.samples)
            self.step += 1
            self._tokens_trained += num_tokens
            self._num_skipped += skipped
            return report

    async def publish(self, update: WeightUpdate) -> None:
        """Take ``publish_s`` and hand the weights to every engine of the weight group."""
        with self._alone("publish"):
            await self._call("publish")
            if update.version != self.step:
                raise TrainerError(f"version {update.version} was to be published, the trainer holds {self.step}")
            if update.part not in self._meetings:
                raise TrainerError("the trainer is in no weight group; connect it before it publishes")
            await asyncio.sleep(self._publish_s)
            await self._meetings[update.part].send(update.version, self.weights)
            self._check_alive()

    async def score(self, token_ids: list[int]) -> list[float]:
        """The simulated model's log-probabilities (length L - 1)."""
        with self._alone("score"):
            await self._call("score")
            return sequence_logprobs(self.weights, token_ids)

    async def rescore(
        self,
        sequences: list[list[int]],
        *,
        temperature: float,  # noqa: ARG002 -- the simulated model has none
        dtype: str | None = None,  # noqa: ARG002 -- nor anything to round
    ) -> list[list[float]]:
        """The simulated model's log-probabilities, whatever the temperature and dtype."""
        with self._alone("rescore"):
            await self._call("rescore")
            return [sequence_logprobs(self.weights, sequence) for sequence in sequences]

    async def nudge(self, names: list[str], scale: float) -> None:  # noqa: ARG002 -- there is one tensor, a digest
        """Other weights, as the next version."""
        with self._alone("nudge"):
            await self._call("nudge")
            self.weights = learn(self.weights, [])
            self.step += 1

    async def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write step, weights and ``state`` to ``folder``, which then holds all of them or nothing."""
        with self._alone("save"):
            await self._call("save")
            saved = _Saved(step=self.step, weights=self.weights, state=state)
            await asyncio.to_thread(_save, folder, saved)

    async def export(self, folder: Path) -> None:
        """Write the digest; there are no tensors to export."""
        with self._alone("export"):
            await self._call("export")
            await asyncio.to_thread(_write, folder / "simulated-weights.txt", self.weights.hex().encode())

    async def failed(self) -> str:
        """Wait until the script kills it."""
        await self._died.wait()
        return str(self._death)

    def statistics(self) -> dict[str, float]:
        """Busy seconds and counters."""
        return {
            "busy_s": self._busy_s,
            "steps": float(self.step),
            "skipped": self._num_skipped,
            "tokens_trained": self._tokens_trained,
        }

    async def close(self) -> None:
        """Nothing to end but the scripted death."""
        await self._faults.strike("close")
        if self._death_timer is not None:
            self._death_timer.cancel()

    @contextmanager
    def _alone(self, command: str) -> Iterator[None]:
        """One command at a time; a second one is a bug of the caller and is refused."""
        if self._command is not None:
            raise TrainerError(f"the trainer was asked to {command} while it was busy with {self._command}")
        self._command = command
        try:
            yield
        finally:
            self._command = None

    async def _call(self, call: str) -> Literal["raise", "die", "drop", "skip"] | None:
        self._check_alive()
        fault = await self._faults.strike(call)
        if fault == "die":
            self._die(f"the simulated trainer died in {call}, as scripted")
        elif fault == "raise":
            raise TrainerError(f"the simulated trainer failed in {call}, as scripted")
        self._check_alive()
        return fault

    async def _work(self, seconds: float) -> None:
        """Be busy and show it, as a rank's beats do, unless death comes first."""
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            with waiting("the trainer", "works", alive_at=clock):
                async with asyncio.timeout(seconds):
                    await self._died.wait()
        except TimeoutError:
            pass
        finally:
            self._busy_s += clock() - started
        self._check_alive()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise TrainerDeadError(self._death)

    def _die(self, reason: str) -> None:
        if self._death is None:
            self._death = reason
            self._died.set()

    def _resume(self, folder: Path) -> dict[str, Any]:
        try:
            saved = msgspec.msgpack.decode((folder / _FILE).read_bytes(), type=_Saved)
        except (OSError, msgspec.MsgspecError) as error:
            raise CheckpointError(f"{folder} holds no checkpoint of a simulated trainer: {error}") from error
        self.step, self.weights = saved.step, saved.weights
        return saved.state


def _save(folder: Path, saved: _Saved) -> None:
    """Complete or not there; the controller's state is where every trainer puts it."""
    try:
        partial = checkpoint.begin(folder)
        (partial / _FILE).write_bytes(msgspec.msgpack.encode(saved))
        (partial / checkpoint.STATE).write_bytes(msgspec.msgpack.encode(saved.state))
        checkpoint.commit(folder, step=saved.step, num_ranks=1)
    except OSError:
        checkpoint.discard(folder)
        raise


def _write(path: Path, content: bytes) -> None:
    """Make ``path`` hold ``content`` or, if anything stops this, what it held before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)

"""The real trainer, seen from the controller: ranks under torchrun, spoken to over sockets. Imports no torch.

Invariants, besides those of ``commands.py``:

- Before ``open`` raises, every process it started is gone. ``close`` is bounded: a healthy trainer leaves by itself,
  any other is killed.
- Ranks that loaded different things are refused before anything is asked of them. What they are given in a step is what
  the batch's plan says, and what they say of it comes back in the batch's order.
- Only the ranks of a run's first start that others started are waited for anew when one dies as it loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from prl.config import Config
from prl.errors import TrainerDeadError, TrainerError, WeightSyncError
from prl.trainer import launch, protocol
from prl.trainer.base import LOGPROB_BYTES, TrainerReady, TrainReport
from prl.trainer.commands import Commands, R
from prl.trainer.external import External
from prl.trainer.gathering import Gathering
from prl.trainer.ranks import Ranks
from prl.trainer.shared_folder import witness
from prl.trainer.torchrun import Torchrun
from prl.types import Batch, WeightGroup, WeightUpdate

_GRACE_S = 5.0


class FsdpTrainer:
    """``config.trainer.num_ranks`` ranks as one Trainer.

    Args:
        config: the whole configuration; the ranks get it over the wire.
        model: a folder, or a hub name.
        run_dir: where ``logs/trainer.log`` (torchrun) and ``logs/trainer-rank-N.log`` are written.
        resume: a complete checkpoint's folder, or None for a fresh start.
        is_restart: a death while it starts is its end, and counted by whoever starts the next (``kept.py``).
    """

    def __init__(
        self, config: Config, model: str, run_dir: Path, resume: Path | None, *, is_restart: bool = False
    ) -> None:
        self._config, self._model, self._resume = config, model, resume
        self._run_dir = run_dir
        self._address = launch.split_address(config.trainer.listen)
        self._token = launch.make_token(config)
        self._launched: Torchrun | External
        if config.trainer.launch == "external":
            self._launched, self._max_deaths = External(config), 0 if is_restart else config.trainer.max_restarts
        else:
            self._launched, self._max_deaths = Torchrun(config, run_dir / "logs"), 0
        self._expect_ranks()
        self._closed = False
        self._skipped_in_a_row = 0
        self._totals = {"steps": 0.0, "skipped": 0.0, "tokens_trained": 0.0}

    async def open(self) -> TrainerReady:
        """Start the ranks, or wait for those started by hand, and load the model."""
        try:
            replies = await self._start()
        except BaseException:
            await self.close()
            raise
        ready = [reply.ready for reply in replies]
        if any(other.manifest != ready[0].manifest or other.step != ready[0].step for other in ready):
            await self.close()
            raise TrainerError("the trainer's ranks loaded different models or checkpoints; give all the same files")
        return msgspec.structs.replace(ready[0], memory_bytes=sum(each.memory_bytes for each in ready))

    async def meeting(self, hosts: list[str]) -> tuple[str, int]:
        """Where rank 0 and ``hosts`` can meet. Raises WeightSyncError: there is no way from one to the other."""
        replies = await self._transfer("meet", protocol.Meeting, protocol.Meet(hosts=hosts))
        return replies[0].address, replies[0].port

    async def connect(self, group: WeightGroup) -> None:
        """Open the sending side of the weight group; returns when every engine worker has joined."""
        await self._sync("connect", protocol.Connect(group=group))

    async def train(self, batch: Batch) -> TrainReport:
        """One optimiser step. Raises TrainerError too when ``trainer.max_skipped_steps`` in a row were skipped."""
        if len(batch.plan) != self._ranks.num_ranks or len({len(microbatches) for microbatches in batch.plan}) > 1:
            counts = [len(microbatches) for microbatches in batch.plan]
            raise TrainerError(
                f"the plan of step {batch.step} must give {self._ranks.num_ranks} ranks equally many micro-batches,"
                f" got {counts}"
            )
        commands = [
            protocol.Train(
                step=batch.step,
                microbatches=[[batch.samples[index] for index in microbatch] for microbatch in microbatches],
                num_teaching=batch.num_teaching,
                num_sequences=batch.num_sequences,
                with_logprobs=batch.with_logprobs,
            )
            for microbatches in batch.plan
        ]
        trained = await self._commands.ask(f"train step {batch.step}", protocol.Trained, commands)
        logprobs = in_order(batch, [reply.report.logprobs for reply in trained]) if batch.with_logprobs else []
        phases = [phases for reply in trained for phases in reply.report.phases]
        return self._counted(msgspec.structs.replace(trained[0].report, logprobs=logprobs, phases=phases))

    async def publish(self, update: WeightUpdate) -> None:
        """Send the current weights to the weight group."""
        await self._sync(f"publish version {update.version}", protocol.Publish(update=update))

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first (length L - 1)."""
        replies = await self._commands.ask("score", protocol.Scored, self._to_all(protocol.Score(token_ids=token_ids)))
        return replies[0].logprobs

    async def rescore(
        self, sequences: list[list[int]], *, temperature: float, dtype: str | None = None
    ) -> list[list[float]]:
        """Log-probability of each token after the first, by sequence."""
        command = protocol.Rescore(sequences=sequences, temperature=temperature, dtype=dtype)
        return (await self._commands.ask("rescore", protocol.Rescored, self._to_all(command)))[0].logprobs

    async def nudge(self, names: list[str], scale: float) -> None:
        """Change the named tensors by noise of ``scale`` times their size, as the next version."""
        await self._commands.ask("nudge", protocol.Done, self._to_all(protocol.Nudge(names=names, scale=scale)))

    async def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a complete checkpoint to ``folder`` atomically. Raises OSError where the disk does not take it."""
        await self._write(f"save {folder}", protocol.Save(folder=_path(folder), state=state))

    async def export(self, folder: Path) -> None:
        """Write the weights as Hugging Face safetensors with config and tokenizer. Raises OSError as ``save`` does."""
        await self._write(f"export {folder}", protocol.Export(folder=_path(folder)))

    async def failed(self) -> str:
        """Wait until a rank is dead or hangs, then return which, why, and its last log lines.

        Ranks that were left in the middle of a command are as good as dead.
        """
        return await self._commands.failed()

    def statistics(self) -> dict[str, float]:
        """Busy seconds and counters since the start."""
        return {"busy_s": self._commands.busy_s, **self._totals}

    async def close(self) -> None:
        """End every rank: by word if it listens, by force if not."""
        if self._closed:
            return
        self._closed, healthy = True, self._commands.are_idle
        self._commands.close()
        try:
            if healthy:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE_S):
                        await self._ranks.shut_down()
                        await self._launched.ended(self._ranks)
        finally:
            self._gathering.close()
            self._ranks.close()
            await self._launched.stop(_GRACE_S if healthy else 0.0)

    def _expect_ranks(self) -> None:
        self._ranks = Ranks(self._config.trainer.num_ranks)
        self._gathering = Gathering(self._ranks, self._token)
        self._commands = Commands(self._config, self._ranks, self._launched)

    async def _start(self) -> list[protocol.Ready]:
        """Get every rank here and let it load; those that die of it are waited for anew, as often as they may."""
        death, num_deaths = None, 0
        while True:
            address = self._gathering.listen(*self._address)
            took_s = await self._launched.gather(self._gathering, address, death)
            try:
                return await self._load(self._config.trainer.start_timeout_s - took_s)
            except TrainerDeadError as error:
                num_deaths += 1
                if num_deaths > self._max_deaths or not self._ranks.any_ended.is_set():
                    raise
                death = error
            self._ranks.close()  # the others leave, too, and come back with it
            self._expect_ranks()

    async def _load(self, timeout_s: float) -> list[protocol.Ready]:
        """Let every rank load the model; those on other hosts must see the run folder first."""
        is_there = witness(self._run_dir) if self._launched.spans_hosts else contextlib.nullcontext()
        with is_there as seen:
            setup = protocol.Setup(
                config=self._config,
                model=await asyncio.to_thread(_model_path, self._model),
                resume=None if self._resume is None else _path(self._resume),
                start=secrets.token_hex(8),
                witness=seen,
            )
            return await self._commands.ask(
                "start", protocol.Ready, self._to_all(setup), timeout_s, "trainer.start_timeout_s"
            )

    async def _sync(self, what: str, command: protocol.Command) -> None:
        """A command of the weight transfer that has no result."""
        await self._transfer(what, protocol.Done, command)

    async def _transfer(self, what: str, kind: type[R], command: protocol.Command) -> list[R]:
        """A command of the weight transfer: its failures are WeightSyncErrors that name this side.

        A failure that every rank answered leaves the trainer as it was: an engine may be the cause.
        """
        timeout_s = self._config.weights.timeout_s
        try:
            return await self._commands.ask(what, kind, self._to_all(command), timeout_s, "weights.timeout_s")
        except TrainerError as error:
            raise WeightSyncError(f"the trainer's side failed: {error}") from error

    async def _write(self, what: str, command: protocol.Command) -> None:
        """A command that writes: what the disk said to a rank is raised here, and the ranks go on."""
        replies = await self._commands.ask(what, protocol.Written, self._to_all(command))
        said = [(rank, reply) for rank, reply in enumerate(replies) if reply.errno]
        if said:
            rank, reply = next((each for each in said if each[1].error), said[0])
            raise OSError(reply.errno, f"{os.strerror(reply.errno)} (trainer rank {rank}: {reply.error})")

    def _to_all(self, command: protocol.Setup | protocol.Command) -> list[protocol.Setup | protocol.Command]:
        return [command] * self._ranks.num_ranks

    def _counted(self, report: TrainReport) -> TrainReport:
        self._totals["steps"] += 1
        self._totals["tokens_trained"] += report.tokens_trained
        self._totals["skipped"] += report.skipped
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if report.skipped else 0
        if self._skipped_in_a_row >= self._config.trainer.max_skipped_steps:
            raise TrainerError(
                f"{self._skipped_in_a_row} steps in a row, the last of them step {report.step}, had a loss"
                f" ({report.loss}) or gradient norm ({report.grad_norm}) that is not finite"
                f" (trainer.max_skipped_steps); lower trainer.learning_rate or look at the rewards"
            )
        return report


def in_order(batch: Batch, by_rank: Sequence[list[bytes]]) -> list[bytes]:
    """What each rank said of its samples, in the order of the batch's. Raises TrainerError where it is not of them."""
    in_order = [b""] * len(batch.samples)
    for rank, (microbatches, of_rank) in enumerate(zip(batch.plan, by_rank, strict=True)):
        indices = [index for microbatch in microbatches for index in microbatch]
        expected = [LOGPROB_BYTES * sum(batch.samples[index].loss_mask) for index in indices]
        if [*map(len, of_rank)] != expected:
            raise TrainerError(
                f"trainer rank {rank} gave {sum(map(len, of_rank))} bytes of log-probabilities of {len(of_rank)}"
                f" samples in step {batch.step}, not {sum(expected)} of {len(expected)}"
            )
        for index, logprobs in zip(indices, of_rank, strict=True):
            in_order[index] = logprobs
    return in_order


def _model_path(model: str) -> str:
    """The same for the model, unless it is a name on the hub."""
    return _path(Path(model)) if Path(model).is_dir() else model


def _path(folder: Path) -> str:
    """Ranks may run in another working directory."""
    return str(folder.absolute())

"""The real trainer, seen from the controller: ranks under torchrun, spoken to over sockets. Imports no torch.

Invariants:

- Every wait has the deadline of its config key, and every way a rank can fail ends as an error that names the rank, the
  command it was in and the last lines of its log, within seconds.
- One command at a time. A command that was interrupted leaves the ranks in the middle of it, so the only thing left to
  do is ``close``: to ``failed`` it is a death.
- Before ``open`` raises, every process it started is gone. ``close`` is bounded: a healthy trainer leaves by itself,
  any other is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from prl.config import Config
from prl.deadlines import awake_timeout
from prl.errors import TrainerDeadError, TrainerError, WeightSyncError
from prl.process import Child, tail
from prl.trainer import launch, protocol
from prl.trainer.base import LOGPROB_BYTES, TrainerReady, TrainReport
from prl.trainer.external import gather_external
from prl.trainer.ranks import RankFailure, Ranks
from prl.trainer.shared_folder import witness
from prl.types import Batch, WeightGroup, WeightUpdate
from prl.waits import waiting

R = TypeVar(
    "R",
    protocol.Ready,
    protocol.Trained,
    protocol.Scored,
    protocol.Rescored,
    protocol.Written,
    protocol.Meeting,
    protocol.Done,
)

_GRACE_S = 5.0
_REPORT_S = 2.0


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
        self._max_deaths = 0 if is_restart else config.trainer.max_restarts
        self._logs = run_dir / "logs"
        self._torchrun_log = self._logs / "trainer.log"
        self._is_external = config.trainer.launch == "external"
        self._address = launch.split_address(config.trainer.listen)
        self._ranks = Ranks(config.trainer.num_ranks, launch.make_token(config))
        self._child: Child | None = None
        self._under_way: str | None = None
        self._interrupted = asyncio.Event()
        """The ranks were left in the middle of the command under way: nothing can be asked of them any more."""
        self._closed = False
        self._skipped_in_a_row = 0
        self._totals = {"busy_s": 0.0, "steps": 0.0, "skipped": 0.0, "tokens_trained": 0.0}

    async def open(self) -> TrainerReady:
        """Start the ranks, or wait for those started by hand, and load the model."""
        clock = asyncio.get_running_loop().time
        began_at = clock()
        try:
            if self._is_external:
                replies = await self._load_external()
            else:
                await self._start_ranks(self._ranks.listen(*self._address))
                replies = await self._load(self._config.trainer.start_timeout_s - (clock() - began_at))
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
        trained = await self._ask(f"train step {batch.step}", protocol.Trained, commands)
        logprobs = in_order(batch, [reply.report.logprobs for reply in trained]) if batch.with_logprobs else []
        phases = [phases for reply in trained for phases in reply.report.phases]
        return self._counted(msgspec.structs.replace(trained[0].report, logprobs=logprobs, phases=phases))

    async def publish(self, update: WeightUpdate) -> None:
        """Send the current weights to the weight group."""
        await self._sync(f"publish version {update.version}", protocol.Publish(update=update))

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first (length L - 1)."""
        replies = await self._ask("score", protocol.Scored, self._to_all(protocol.Score(token_ids=token_ids)))
        return replies[0].logprobs

    async def rescore(
        self, sequences: list[list[int]], *, temperature: float, dtype: str | None = None
    ) -> list[list[float]]:
        """Log-probability of each token after the first, by sequence."""
        command = protocol.Rescore(sequences=sequences, temperature=temperature, dtype=dtype)
        return (await self._ask("rescore", protocol.Rescored, self._to_all(command)))[0].logprobs

    async def nudge(self, names: list[str], scale: float) -> None:
        """Change the named tensors by noise of ``scale`` times their size, as the next version."""
        await self._ask("nudge", protocol.Done, self._to_all(protocol.Nudge(names=names, scale=scale)))

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
        await _first(self._ranks.watch(self._config.trainer.heartbeat_timeout_s), self._interrupted.wait())
        if not self._ranks.any_ended.is_set():
            return f"the trainer was interrupted {self._under_way}"
        return await self._describe(RankFailure(self._ranks.ends[0], None), self._under_way or "no command")

    def statistics(self) -> dict[str, float]:
        """Busy seconds and counters since the start."""
        return dict(self._totals)

    async def close(self) -> None:
        """End every rank: by word if it listens, by force if not."""
        if self._closed:
            return
        self._closed = True
        healthy = self._under_way is None and not self._ranks.any_ended.is_set() and not self._ranks.missing()
        try:
            if healthy:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE_S):
                        await self._ranks.shut_down()
                        await (self._child.ended() if self._child is not None else self._ranks.all_ended.wait())
        finally:
            self._ranks.close()
            if self._child is not None:
                await self._child.stop(_GRACE_S if healthy else 0.0)

    async def _load(self, timeout_s: float) -> list[protocol.Ready]:
        """Let every rank load the model; those on other hosts must see the run folder first."""
        is_there = contextlib.nullcontext() if not self._is_external else witness(self._logs.parent)
        with is_there as seen:
            setup = protocol.Setup(
                config=self._config,
                model=await asyncio.to_thread(_model_path, self._model),
                resume=None if self._resume is None else _path(self._resume),
                start=secrets.token_hex(8),
                witness=seen,
            )
            return await self._ask(
                "start", protocol.Ready, [setup] * self._ranks.num_ranks, timeout_s, "trainer.start_timeout_s"
            )

    async def _load_external(self) -> list[protocol.Ready]:
        """The same for ranks that others start; those that die of a run's first start are waited for anew."""
        trainer = self._config.trainer
        death: TrainerDeadError | None = None
        for _ in range(1 + self._max_deaths):
            address = self._ranks.listen(*self._address)
            await gather_external(self._ranks, self._config, address, after=death)
            try:
                return await self._load(trainer.start_timeout_s)
            except TrainerDeadError as error:
                if not self._ranks.any_ended.is_set():
                    raise
                death = error
            self._ranks.close()  # the others leave, too, and come back with it
            self._ranks, self._under_way = Ranks(trainer.num_ranks, self._ranks.token), None
        assert death is not None
        raise death

    async def _start_ranks(self, address: str) -> None:
        """Start torchrun and get every rank to connect."""
        trainer = self._config.trainer
        timeout_s = trainer.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                with waiting("the trainer", self._missing, limit_s=timeout_s):
                    command = launch.torchrun_command(trainer.num_ranks)
                    environment = await asyncio.to_thread(
                        launch.environment, self._config, address, self._ranks.token, self._logs
                    )
                    self._child = await Child.start("the trainer", command, self._torchrun_log, environment)
                    problem = await _first(self._ranks.gather(), self._child.ended())
        except TimeoutError:
            raise TrainerError(
                f"trainer {self._missing()} within trainer.start_timeout_s = {timeout_s:g} s{self._last_lines()}"
            ) from None
        if problem is not None:
            raise TrainerError(f"the trainer did not start: {problem}")

    def _missing(self) -> str:
        return f"{launch.named(self._ranks.missing())} of {self._ranks.num_ranks} did not connect"

    async def _sync(self, what: str, command: protocol.Command) -> None:
        """A command of the weight transfer that has no result."""
        await self._transfer(what, protocol.Done, command)

    async def _transfer(self, what: str, kind: type[R], command: protocol.Command) -> list[R]:
        """A command of the weight transfer: its failures are WeightSyncErrors that name this side.

        A failure that every rank answered leaves the trainer as it was: an engine may be the cause.
        """
        timeout_s = self._config.weights.timeout_s
        try:
            return await self._ask(what, kind, self._to_all(command), timeout_s, "weights.timeout_s")
        except TrainerError as error:
            raise WeightSyncError(f"the trainer's side failed: {error}") from error

    async def _write(self, what: str, command: protocol.Command) -> None:
        """A command that writes: what the disk said to a rank is raised here, and the ranks go on."""
        replies = await self._ask(what, protocol.Written, self._to_all(command))
        said = [(rank, reply) for rank, reply in enumerate(replies) if reply.errno]
        if said:
            rank, reply = next((each for each in said if each[1].error), said[0])
            raise OSError(reply.errno, f"{os.strerror(reply.errno)} (trainer rank {rank}: {reply.error})")

    def _to_all(self, command: protocol.Command) -> list[protocol.Command]:
        return [command] * self._ranks.num_ranks

    async def _ask(
        self,
        what: str,
        kind: type[R],
        commands: Sequence[protocol.Setup | protocol.Command],
        timeout_s: float | None = None,
        key: str = "trainer.step_timeout_s",
    ) -> list[R]:
        """One command to every rank; returns their replies, all of type ``kind``."""
        if self._interrupted.is_set():
            raise TrainerDeadError(f"cannot {what}: the trainer was interrupted {self._under_way}")
        if self._closed or self._under_way is not None:
            raise TrainerError(
                f"cannot {what}: the trainer is {self._under_way or 'closed'}; it takes one command at a time"
            )
        self._under_way = f"in {what!r}"
        timeout_s = self._config.trainer.step_timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        try:
            async with awake_timeout(timeout_s):
                with waiting("the trainer", what, limit_s=timeout_s):
                    outcome = await self._ranks.ask(commands, what)
        except asyncio.CancelledError:
            self._interrupted.set()
            raise
        except TimeoutError:
            self._interrupted.set()
            raise TrainerDeadError(
                f"the trainer did not finish {what!r} within {key} = {timeout_s:g} s{self._last_lines()}"
            ) from None
        if isinstance(outcome, RankFailure):
            described = await self._describe(outcome, self._under_way)
            if outcome.in_step and isinstance(commands[0], protocol.Meet | protocol.Connect | protocol.Publish):
                self._under_way = None
            error = TrainerDeadError if outcome.failed is None else TrainerError
            raise error(described)
        if kind is not protocol.Ready:
            self._totals["busy_s"] += time.monotonic() - started
        replies = [reply for reply in outcome if isinstance(reply, kind)]
        if len(replies) != len(commands):
            raise TrainerError(f"a rank answered {what!r} with {[type(reply).__name__ for reply in outcome]}")
        self._under_way = None
        return replies

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

    async def _describe(self, failure: RankFailure, when: str) -> str:
        """One paragraph about a rank that failed or died."""
        where = f" on {self._ranks.host(failure.rank)}" if self._is_external and self._ranks.host(failure.rank) else ""
        name = f"trainer rank {failure.rank} (pid {self._ranks.pid(failure.rank)}{where})"
        if failure.failed is not None:
            details = f"\n{failure.failed.traceback}" if failure.failed.traceback else ""
            return f"{name} failed {when}: {failure.failed.error}{details}"
        if failure.rank in self._ranks.hung:
            limit = f"trainer.heartbeat_timeout_s = {self._config.trainer.heartbeat_timeout_s:g} s"
            return f"{name} hangs {when}: no sign of life for {limit}{self._last_lines(failure.rank)}"
        how = None
        if self._child is not None:
            with contextlib.suppress(TimeoutError):  # torchrun writes how the rank ended, and ends
                async with asyncio.timeout(_REPORT_S):
                    await self._child.ended()
            how = launch.how_it_ended(self._torchrun_log, self._ranks.pid(failure.rank))
        return f"{name} {how or 'died'} {when}{self._last_lines(failure.rank)}"

    def _last_lines(self, rank: int | None = None) -> str:
        """The end of a rank's log, or of torchrun's."""
        if self._child is None:
            return "; look at the output of the torchrun that you started"
        log = self._torchrun_log if rank is None else launch.rank_log(self._logs, rank)
        return f"; last lines of {log}:\n{tail(log)}"


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


async def _first(one: Any, other: Any) -> Any:
    """The result of whichever coroutine ends first; the other is cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one), group.create_task(other)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    return done.pop().result()


def _model_path(model: str) -> str:
    """The same for the model, unless it is a name on the hub."""
    return _path(Path(model)) if Path(model).is_dir() else model


def _path(folder: Path) -> str:
    """Ranks may run in another working directory."""
    return str(folder.absolute())

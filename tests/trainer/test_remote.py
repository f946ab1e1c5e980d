from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.errors import TrainerDeadError, TrainerError, WeightSyncError
from prl.trainer import checkpoint, protocol
from prl.trainer.base import Trainer, TrainerReady
from prl.trainer.kept import KeptTrainer
from prl.trainer.remote import FsdpTrainer
from prl.trainer.torchrun import Torchrun
from prl.types import Sample, WeightGroup, WeightUpdate
from prl.wire import Channel, WireClosedError
from tests.trainer.cases import make_batch, make_config
from tests.trainer.played import READY, assert_gone, free_port, play, played
from tests.trainer.test_protocol import REPORT

pytestmark = pytest.mark.usefixtures("token")

UPDATE = WeightUpdate(version=1, transport="gloo", manifest=[])


# Without torch: ranks played by the test ------------------------------------------------------------------------------


async def test_each_rank_gets_its_own_micro_batches(tmp_path: Path) -> None:
    """The plan's indices become samples, per rank, with the global number of sequences."""
    got: list[protocol.Train] = []

    def reply(command: protocol.FromController) -> protocol.Reply:
        assert isinstance(command, protocol.Train)
        got.append(command)
        return protocol.Trained(report=msgspec.structs.replace(REPORT, skipped=False))

    batch = make_batch(1, 2)
    async with played(reply, tmp_path, 2) as trainer:
        report = await trainer.train(batch)
    assert report == msgspec.structs.replace(REPORT, skipped=False)
    assert sorted([each.token_ids for each in command.microbatches[0]] for command in got) == sorted(
        [batch.samples[index].token_ids for index in plan[0]] for plan in batch.plan
    )
    assert {command.num_sequences for command in got} == {4}
    assert trainer.statistics()["steps"] == 1


async def test_log_probabilities_come_back_in_the_order_of_the_batch(tmp_path: Path) -> None:
    """Each rank says those of its samples, micro-batch by micro-batch; here each token's is its own id."""

    def reply(command: protocol.FromController) -> protocol.Reply:
        assert isinstance(command, protocol.Train)
        assert command.with_logprobs
        logprobs = [_ids_as_logprobs(each) for microbatch in command.microbatches for each in microbatch]
        return protocol.Trained(report=msgspec.structs.replace(REPORT, skipped=False, logprobs=logprobs))

    plan = [[[4, 1], []], [[3], [0, 2]]]
    batch = msgspec.structs.replace(make_batch(1, 2, 5), plan=plan, with_logprobs=True)
    async with played(reply, tmp_path, 2) as trainer:
        report = await trainer.train(batch)
        assert report.logprobs == [_ids_as_logprobs(each) for each in batch.samples]


def _ids_as_logprobs(each: Sample) -> bytes:
    return array("f", compress(each.token_ids, each.loss_mask)).tobytes()


async def test_log_probabilities_of_other_tokens_are_refused(tmp_path: Path) -> None:
    """A rank that does not say one for each trained token is at fault, by name."""
    report = msgspec.structs.replace(REPORT, skipped=False, logprobs=[b"\0" * 4] * 4)
    batch = msgspec.structs.replace(make_batch(1, 1), with_logprobs=True)
    async with played(lambda _: protocol.Trained(report=report), tmp_path) as trainer:
        with pytest.raises(TrainerError, match="trainer rank 0 gave 16 bytes of log-probabilities of 4 samples"):
            await trainer.train(batch)


@pytest.mark.parametrize("plan", [[[[0]]], [[[0], [1]], [[2]]]])
async def test_a_plan_that_would_hang_the_ranks_is_refused(tmp_path: Path, plan: list[list[list[int]]]) -> None:
    """Another number of ranks, or unequal numbers of micro-batches, is an error before anything is sent."""
    batch = msgspec.structs.replace(make_batch(0, 2), plan=plan)
    async with played(lambda _: None, tmp_path, 2) as trainer:
        with pytest.raises(TrainerError, match="2 ranks equally many micro-batches"):
            await trainer.train(batch)


async def test_skipped_steps_in_a_row_end_the_run(tmp_path: Path) -> None:
    """The second consecutive skip raises; a good step in between starts the count again."""
    skips = iter([True, False, True, True])

    def reply(_: protocol.FromController) -> protocol.Reply:
        return protocol.Trained(report=msgspec.structs.replace(REPORT, skipped=next(skips)))

    async with played(reply, tmp_path, trainer={"max_skipped_steps": 2}) as trainer:
        reports = [await trainer.train(make_batch(step, 1)) for step in range(3)]
        assert [report.skipped for report in reports] == [True, False, True]
        with pytest.raises(TrainerError, match=r"2 steps in a row.*max_skipped_steps"):
            await trainer.train(make_batch(3, 1))


GROUP = WeightGroup(transport="gloo", address="127.0.0.1", port=1, world_size=2, timeout_s=1.0)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(lambda trainer: trainer.connect(GROUP), id="connect"),
        pytest.param(lambda trainer: trainer.publish(UPDATE), id="publish"),
    ],
)
async def test_a_transfer_that_fails_or_hangs_is_a_weight_sync_error(
    tmp_path: Path, command: Callable[[FsdpTrainer], Awaitable[None]]
) -> None:
    """Both name the trainer's side; the hang names weights.timeout_s."""
    failed = protocol.Failed(error="WeightSyncError: engine 1 went away", traceback="")
    async with played(lambda _: failed, tmp_path) as trainer:
        with pytest.raises(WeightSyncError, match=r"the trainer's side failed: trainer rank 0 .*engine 1 went away"):
            await command(trainer)
    async with played(lambda _: None, tmp_path, weights={"timeout_s": 0.1}) as trainer:
        with pytest.raises(WeightSyncError, match=r"weights\.timeout_s = 0\.1 s"):
            await command(trainer)


async def test_what_the_disk_said_to_one_rank_is_raised_and_the_ranks_go_on(tmp_path: Path) -> None:
    """Field notes G, disk full: an OSError that names the rank, and the next save is asked of the same ranks."""
    full = protocol.Written(errno=errno.ENOSPC, error="[Errno 28] No space left on device: 'step-000003.partial/a'")
    replies = iter([protocol.Written(errno=errno.ENOSPC), full, *[protocol.Written()] * 2])
    async with played(lambda _: next(replies), tmp_path, 2) as trainer:
        with pytest.raises(
            OSError, match=r"No space left on device \(trainer rank \d: .*'step-000003.partial/a'\)"
        ) as said:
            await trainer.save(tmp_path / "step-000003", {})
        assert said.value.errno == errno.ENOSPC
        await trainer.save(tmp_path / "step-000003", {})


async def test_ranks_that_do_not_come_are_named(tmp_path: Path) -> None:
    """Started by hand, the wait for the ranks ends with those that are missing and where they should connect."""
    config = make_config(Path("m"), trainer={"launch": "external", "num_ranks": 2, "gather_timeout_s": 0.2})
    with pytest.raises(TrainerError, match=r"ranks 0, 1 of 2 did not connect to 127\.0\.0\.1:\d+ within"):
        await FsdpTrainer(config, "m", tmp_path, None).open()


async def _dies_of_its_start(rank: int, port: int, then: Callable[[], None] = lambda: None) -> None:
    """A rank that connects, is told what to load, and is gone."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        await asyncio.sleep(0.01)
    channel = Channel[protocol.FromController](reader, writer, protocol.FromController)
    with contextlib.closing(channel):
        await channel.send(protocol.Hello(rank=rank, world_size=2, pid=1000 + rank, token="secret", host="node-3"))
        await channel.receive()
        then()


def _starting(tmp_path: Path, *, is_restart: bool = False) -> tuple[FsdpTrainer, int]:
    port = free_port()
    table = {"launch": "external", "listen": f"127.0.0.1:{port}", "num_ranks": 2}
    return FsdpTrainer(make_config(Path("m"), trainer=table), "m", tmp_path, None, is_restart=is_restart), port


async def test_external_ranks_that_die_of_their_first_start_are_waited_for_again(tmp_path: Path) -> None:
    """Both come back, whoever died: what started them starts them again, and the run begins."""
    trainer, port = _starting(tmp_path)

    async def other() -> None:
        with contextlib.suppress(WireClosedError):  # it leaves with the one that died
            await play(1, 2, port, READY, lambda _: None)
        await play(1, 2, port, READY, lambda _: None)

    async def dies_and_comes_back() -> None:
        await _dies_of_its_start(0, port)
        await play(0, 2, port, READY, lambda _: None)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        players = [group.create_task(other()), group.create_task(dies_and_comes_back())]
        assert (await trainer.open()).num_parameters == READY.num_parameters
        await trainer.close()
        for player in players:
            player.cancel()


async def test_ranks_that_do_not_come_back_to_the_first_start_are_told_with_its_death(tmp_path: Path) -> None:
    """At the deadline: who is missing, and what ended the start before."""
    trainer, port = _starting(tmp_path)

    def hurry() -> None:
        table = msgspec.structs.replace(trainer._config.trainer, gather_timeout_s=0.2)
        trainer._launched._config = msgspec.structs.replace(trainer._config, trainer=table)

    wanted = r"ranks 0, 1 of 2 did not connect .* = 0\.2 s .*after this: trainer rank \d \(pid 100\d on node-3\) died"
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for rank in range(2):
            group.create_task(_dies_of_its_start(rank, port, hurry))
        with pytest.raises(TrainerError, match=wanted):
            await trainer.open()


async def test_external_ranks_that_die_of_a_restart_are_a_death_at_once(tmp_path: Path) -> None:
    """Nobody waits for them here: the next start is another restart of the run, and counted as one."""
    trainer, port = _starting(tmp_path, is_restart=True)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for rank in range(2):
            group.create_task(_dies_of_its_start(rank, port))
        with pytest.raises(TrainerDeadError, match=r"trainer rank \d \(pid 100\d on node-3\) died"):
            await trainer.open()


async def test_ranks_that_loaded_different_models_are_refused(tmp_path: Path) -> None:
    """A rank that stands at another step than its peers ends the start."""
    with pytest.RaisesGroup(pytest.RaisesExc(TrainerError, match="different models or checkpoints")):
        async with played(lambda _: None, tmp_path, 2, ready=lambda rank: msgspec.structs.replace(READY, step=rank)):
            pass


async def test_memory_is_that_of_all_ranks(tmp_path: Path) -> None:
    """What is told at the start adds up the ranks' memory, and counts the parameters once."""
    seen: list[TrainerReady] = []
    async with played(lambda _: None, tmp_path, 2, opened=seen.append):
        pass
    assert seen == [msgspec.structs.replace(READY, memory_bytes=20)]


# With torchrun --------------------------------------------------------------------------------------------------------


def _pids(trainer: FsdpTrainer) -> list[int]:
    assert isinstance(trainer._launched, Torchrun)
    assert trainer._launched.child is not None
    return [trainer._launched.child.pid, *(trainer._ranks.pid(rank) for rank in range(trainer._ranks.num_ranks))]


def _receive(group: WeightGroup, update: WeightUpdate) -> dict[str, Any]:
    from prl.transfer import GlooGroup

    with contextlib.closing(GlooGroup.join(group, 1)) as member:
        return dict(member.receive(update.version, update.manifest))


async def test_a_run_with_two_ranks_and_its_death(models: dict[str, Path], tmp_path: Path) -> None:
    """Under torchrun: train, publish, score and save; then a killed rank is named at once, and nothing is left."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    trainer = FsdpTrainer(make_config(models["tied"], trainer={"num_ranks": 2}), str(models["tied"]), tmp_path, None)
    try:
        ready = await trainer.open()
        pids = _pids(trainer)
        assert len({os.getpgid(pid) for pid in pids} | {os.getpgid(0)}) > 1, "not in the test's own group"
        report = await trainer.train(make_batch(0, 2))
        assert (report.step, report.skipped, report.tokens_trained > 0) == (0, False, True)
        assert len(report.phases) == 2
        for phases in report.phases:
            assert (phases[0].state, phases[-1].state) == ("training", "training")
            assert min(phase.seconds for phase in phases) >= 0
        assert sum(phase.seconds for phase in report.phases[0]) >= report.train_s - 1e-6

        group = WeightGroup(transport="gloo", address="127.0.0.1", port=free_port(), world_size=2, timeout_s=20.0)
        update = WeightUpdate(version=1, transport="gloo", manifest=ready.manifest)
        async with asyncio.TaskGroup() as both:
            receiving = both.create_task(asyncio.to_thread(_receive, group, update))
            await trainer.connect(group)
            await trainer.publish(update)
        await trainer.export(tmp_path / "export")
        exported = load_file(tmp_path / "export" / "model.safetensors")
        assert receiving.result().keys() == exported.keys()
        assert all(torch.equal(tensor, exported[name]) for name, tensor in receiving.result().items())
        scores = await trainer.score([4, 5, 6])
        assert len(scores) == 2
        rescored = await trainer.rescore([[4, 5, 6], [7]], temperature=1.0, dtype="bfloat16")
        assert rescored == [pytest.approx(scores, abs=0.3), []]
        assert rescored[0] != scores
        await trainer.save(tmp_path / "step-000001", {"cursor": 3})
        assert checkpoint.latest(tmp_path).folder == tmp_path / "step-000001"

        async with asyncio.timeout(15), asyncio.TaskGroup() as both:
            told = both.create_task(trainer.failed())
            os.kill(pids[2], signal.SIGKILL)
            with pytest.raises(
                TrainerError,
                match=rf"(?s)trainer rank 1 \(pid {pids[2]}\) was killed by SIGKILL in 'train step 1'; last lines",
            ):
                await trainer.train(make_batch(1, 2))
        assert f"trainer rank 1 (pid {pids[2]}) was killed by SIGKILL" in told.result()
    finally:
        started = time.monotonic()
        await trainer.close()
        await trainer.close()
    assert time.monotonic() - started < 6
    await assert_gone(pids, 2)


@asynccontextmanager
async def two_hosts(address: str, log: Path) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Two torchruns that stand for two hosts with a rank each, and start their ranks anew when one has died."""
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--local-addr", "127.0.0.1"]
    options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "prl.trainer.worker"]
    variables = {**os.environ, "PRL_TRAINER_ADDRESS": address, "OMP_NUM_THREADS": "1"}
    hosts: list[asyncio.subprocess.Process] = []
    with log.open("wb") as output:
        try:
            while len(hosts) < 2:
                host = await asyncio.create_subprocess_exec(
                    *command, env=variables, stdout=output, stderr=output, start_new_session=True
                )
                hosts.append(host)
            yield hosts
        finally:
            for host in hosts:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(host.pid, signal.SIGKILL)
                await host.wait()


@pytest.mark.usefixtures("one_rank")
async def test_ranks_of_two_hosts_come_back_after_a_death(models: dict[str, Path], tmp_path: Path) -> None:
    """Torchruns started by hand bring the ranks; one dies, they bring all again, and the run is where it was.

    Those that come back have the weights of the newest checkpoint, train the steps after it once more, and then have
    the numbers of a trainer that never died. At the end both torchruns leave with exit code 0.
    """
    torch = pytest.importorskip("torch")
    from prl.trainer.learner import Learner

    model, address, checkpoints = str(models["tied"]), f"127.0.0.1:{free_port()}", tmp_path / "checkpoints"
    table = {"launch": "external", "listen": address, "num_ranks": 2, "num_replicas": 2}
    config = make_config(models["tied"], trainer=table)
    replayed: list[int] = []

    async def replay(another: Trainer, first: int) -> None:
        replayed.append(first)
        await another.train(make_batch(first, 2))

    trainer = KeptTrainer(
        FsdpTrainer(config, model, tmp_path, None),
        lambda resume: FsdpTrainer(config, model, tmp_path, resume, is_restart=True),
        newest_checkpoint=lambda: checkpoint.latest(checkpoints).folder,
        replay=replay,
        max_restarts=1,
    )
    async with asyncio.timeout(150), two_hosts(address, tmp_path / "torchrun.log") as hosts:
        try:
            assert (await trainer.open()).step == 0
            await trainer.train(make_batch(0, 2))
            await trainer.save(checkpoints / "step-000001", {"cursor": 5})
            await trainer.train(make_batch(1, 2))
            assert isinstance(trainer._trainer, FsdpTrainer)
            os.kill(trainer._trainer._ranks.pid(1), signal.SIGKILL)
            report = await trainer.train(make_batch(2, 2))
        finally:
            await trainer.close()
        assert [await host.wait() for host in hosts] == [0, 0], (tmp_path / "torchrun.log").read_text()[-3000:]
    assert (replayed, trainer.num_restarts) == ([1], 1)
    learner = Learner(make_config(models["tied"]), model, None, torch.device("cpu"))
    for step in range(3):
        expected = learner.train(step, [make_batch(step, 1).samples], 4)
    assert (report.step, report.tokens_trained) == (expected.step, expected.tokens_trained)
    assert (report.loss, report.grad_norm) == pytest.approx((expected.loss, expected.grad_norm), rel=1e-3)


ORPHANS = """
import asyncio, sys
from pathlib import Path
import msgspec
from prl.config import Config
from prl.trainer.remote import FsdpTrainer

async def main():
    config = msgspec.convert({"model": "m", "trainer": {"num_ranks": 2}}, Config)
    trainer = FsdpTrainer(config, "/no/such/model", Path(sys.argv[1]), None)
    async def tell():
        while trainer._ranks.missing():
            await asyncio.sleep(0.01)
        print(trainer._launched.child.pid, *(trainer._ranks.pid(rank) for rank in range(2)), flush=True)
        await asyncio.sleep(60)
    async with asyncio.TaskGroup() as group:
        group.create_task(trainer.open())
        group.create_task(tell())

asyncio.run(main())
"""


async def test_ranks_die_with_a_killed_controller(tmp_path: Path) -> None:
    """SIGKILL of the controller leaves neither torchrun nor a rank."""
    controller = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ORPHANS, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert controller.stdout is not None
        async with asyncio.timeout(30):
            pids = [int(word) for word in (await controller.stdout.readline()).split()]
        assert len(pids) == 3
    finally:
        controller.kill()
        await controller.wait()
    await assert_gone(pids, 5)

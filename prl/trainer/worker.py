"""One rank of the trainer: ``torchrun ... -m prl.trainer.worker``, a loop over the controller's commands.

Invariants:

- The rank introduces itself before it imports torch, so that a wrong token or world size is an error within a second.
- Each command is answered by exactly one reply; whatever goes wrong in it becomes ``Failed``, and the rank then waits
  to be stopped.
- The rank ends when its parent does, when the controller's end of the socket closes, or on ``Shutdown``; whatever it is
  doing at that moment, a collective included.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import select
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from prl import stacks
from prl.errors import PrlError, TrainerError
from prl.models import BUILTIN_PREFIX, resolve_model
from prl.network import interface_of, is_loopback, meeting_address
from prl.process import die_with_parent, free_port
from prl.trainer import launch, protocol, shared_folder
from prl.wire import BlockingChannel

if TYPE_CHECKING:
    from prl.trainer.learner import Learner

_CONNECT_TIMEOUT_S = 30.0
_RETRY_S = 0.5
_SAY_S = 30.0
_WATCH_INTERVAL_S = 0.5
_NUM_FRAMES = 5


class _Rank:
    """What this rank has: the way to the controller, and later its model."""

    def __init__(self, connection: socket.socket) -> None:
        self.controller: str = connection.getpeername()[0]
        self.learner: Learner | None = None

    def doing(self) -> str:
        """How far it is, for the next sign of life."""
        return "loads the model" if self.learner is None else self.learner.doing


def main() -> int:
    """Connect, introduce this rank, load, serve; returns the exit code."""
    die_with_parent()
    faulthandler.enable()
    stacks.answer_requests(f"rank {os.environ.get('RANK', '')}")
    try:
        host, port = launch.split_address(os.environ[launch.ADDRESS])
        rank, world_size, token = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ[launch.TOKEN]
    except KeyError as error:
        print(f"{error} is not set; start the ranks with:\n  {_HOW}", file=sys.stderr)  # noqa: T201 -- the log
        return 2
    if logs := os.environ.get(launch.LOGS):
        _log_to(launch.rank_log(Path(logs), rank))
    try:
        connection = _reach(host, port, float(os.environ.get(launch.WAIT, launch.DEFAULT_WAIT_S)))
    except OSError as error:
        print(f"no controller at {host}:{port} ({launch.ADDRESS}): {error}", file=sys.stderr)  # noqa: T201 -- the log
        return 2
    connection.settimeout(None)
    _choose_interface(connection)
    threading.Thread(target=_leave_at_end_of, args=(connection,), name="prl-controller-watch", daemon=True).start()
    channel = BlockingChannel[protocol.FromController](connection, protocol.FromController)
    with contextlib.closing(channel), contextlib.suppress(ConnectionError):
        hello = protocol.Hello(
            rank=rank, world_size=world_size, pid=os.getpid(), token=token, host=socket.gethostname()
        )
        channel.send(hello)
        first = channel.receive()
        if isinstance(first, protocol.Setup):
            state = _Rank(connection)
            _notice_silence(connection, first.config.trainer.heartbeat_timeout_s)
            threading.Thread(target=_beat, args=(channel, state), name="prl-heartbeat", daemon=True).start()
            return _serve(channel, first, state)
        print(f"the controller refused rank {rank}: {getattr(first, 'reason', first)}", file=sys.stderr)  # noqa: T201 -- the log
    return 1


_HOW = f"{launch.ADDRESS}=host:port {launch.TOKEN}=... torchrun --nproc-per-node N -m prl.trainer.worker"


def _reach(host: str, port: int, wait_s: float) -> socket.socket:
    """Connect to the controller, which may not be there yet. Raises OSError after ``wait_s``."""
    deadline = time.monotonic() + wait_s
    said_at = -math.inf
    while True:
        try:
            return socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S)
        except OSError as error:
            now = time.monotonic()
            if now >= deadline:
                raise
            if now - said_at >= _SAY_S:
                said_at = now
                left = f"trying for {deadline - now:.0f} s more ({launch.WAIT})"
                print(f"no controller at {host}:{port} yet: {error}; {left}", file=sys.stderr, flush=True)  # noqa: T201 -- the log
            time.sleep(_RETRY_S)


def _choose_interface(connection: socket.socket) -> None:
    """Between hosts gloo takes the interface that leads to the controller, unless GLOO_SOCKET_IFNAME names another.

    Its own choice would be what this host's name stands for, which is loopback on many.
    """
    own = connection.getsockname()[0]
    if not is_loopback(own) and (interface := interface_of(own)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _notice_silence(connection: socket.socket, timeout_s: float) -> None:
    """Fail the connection when what was sent is not acknowledged for so long: the controller has given this rank up.

    On one machine nothing is lost on the way: there a controller that takes nothing is stopped, and will go on.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT") and not is_loopback(connection.getpeername()[0]):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))


def _log_to(path: Path) -> None:
    """Append what this process prints to a log of its own, native code included."""
    with path.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())


def _serve(channel: BlockingChannel[protocol.FromController], setup: protocol.Setup, state: _Rank) -> int:
    """Answer commands until ``Shutdown``."""
    command: protocol.FromController = setup
    while not isinstance(command, protocol.Shutdown):
        try:
            if isinstance(command, protocol.Setup):
                state.learner = _load(command)
                reply: protocol.Reply = protocol.Ready(ready=state.learner.ready())
            elif isinstance(command, protocol.Meet):
                address = meeting_address([*command.hosts, state.controller])
                reply = protocol.Meeting(address=address, port=free_port(address))
            else:
                assert state.learner is not None
                reply = _answer(state.learner, command)
        except Exception as error:  # noqa: BLE001 -- it becomes the reply, with its traceback
            reply = _failed(error)
        channel.send(reply)
        command = channel.receive()
    if state.learner is not None:
        state.learner.close()
    return 0


def _load(setup: protocol.Setup) -> Learner:
    model = setup.model if setup.witness is None else _here(setup, setup.witness)
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415 -- heavy: after the hello

    from prl.trainer.learner import Learner, join_ranks  # noqa: PLC0415 -- the same

    transformers_logging.disable_progress_bar()  # the log is read by people, after a failure
    device = join_ranks(setup.config, int(os.environ.get("LOCAL_RANK", "0")), setup.start)
    resume = None if setup.resume is None else Path(setup.resume)
    return Learner(setup.config, model, resume, device)


def _here(setup: protocol.Setup, witness: shared_folder.Witness) -> str:
    """The model on a host that may not be the controller's. Raises TrainerError: it, or the run folder, is not here."""
    who = f"rank {os.environ['RANK']} on {socket.gethostname()}"
    shared_folder.check(witness, who)
    if setup.config.model.startswith(BUILTIN_PREFIX):
        return resolve_model(setup.config.model)
    if Path(setup.model).is_absolute() and not Path(setup.model).is_dir():
        raise TrainerError(
            f"{who} has no folder {setup.model} (model = {setup.config.model!r}): put the model on a file system that"
            " all hosts share, or at the same path on each"
        )
    return setup.model


def _answer(learner: Learner, command: protocol.FromController) -> protocol.Reply:
    match command:
        case protocol.Train():
            report = learner.train(
                command.step,
                command.microbatches,
                command.num_sequences,
                num_teaching=command.num_teaching,
                with_logprobs=command.with_logprobs,
            )
            return protocol.Trained(report=report)
        case protocol.Score():
            return protocol.Scored(logprobs=learner.score(command.token_ids))
        case protocol.Rescore():
            return protocol.Rescored(logprobs=learner.rescore(command.sequences, command.temperature, command.dtype))
        case protocol.Nudge():
            learner.nudge(command.names, command.scale)
        case protocol.Connect():
            learner.connect(command.group)
        case protocol.Publish():
            learner.publish(command.update)
        case protocol.Save():
            return _written(learner.save(Path(command.folder), command.state))
        case protocol.Export():
            return _written(learner.export(Path(command.folder)))
        case _:
            raise PrlError(f"{type(command).__name__} is no command for a rank that is set up")
    return protocol.Done()


def _written(fault: OSError | None) -> protocol.Written:
    """The reply after writing; ``fault`` is what the disk said to this rank, or without words to another."""
    if fault is None:
        return protocol.Written()
    return protocol.Written(errno=fault.errno or 0, error=str(fault) if fault.strerror else "")


def _failed(error: Exception) -> protocol.Failed:
    """The reply for ``error``; the log gets its whole traceback, the controller the end of it."""
    traceback.print_exception(error)
    last_frames = traceback.format_exception(error, limit=-_NUM_FRAMES, chain=False)
    text = "" if isinstance(error, PrlError) else "".join(last_frames)
    return protocol.Failed(error=f"{type(error).__name__}: {error}", traceback=text)


def _beat(channel: BlockingChannel[protocol.FromController], state: _Rank) -> None:
    """Show that this process runs; one that is stopped, or swapped out for ever, does not."""
    with contextlib.suppress(ConnectionError):  # the controller is gone, and this process is about to be
        while True:
            time.sleep(protocol.BEAT_S)
            channel.send(protocol.Beat(doing=state.doing()))


def _leave_at_end_of(connection: socket.socket) -> None:
    """End this process when the controller closes its side, even while the main thread is in a collective."""
    while True:
        try:
            select.select([connection], [], [])
            if not connection.recv(1, socket.MSG_PEEK):
                os._exit(1)
        except (OSError, ValueError):
            if connection.fileno() == -1:  # closed by this side: the process is leaving anyway
                return
            os._exit(1)  # reset, or no way to the controller for too long
        time.sleep(_WATCH_INTERVAL_S)  # a command is waiting to be read


if __name__ == "__main__":
    sys.exit(main())

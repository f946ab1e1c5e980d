"""How the ranks are started: a torchrun child, or by hand.

Invariants:

- Where to connect and the run's token travel in the environment, never in an argument list that others can read.
- A run takes a free port for torchrun's own meeting, on loopback, so two runs on one host cannot collide.
- Each rank has a log of its own, so that what a dead rank said last is not buried under its peers' complaints;
  torchrun's own log is only read for how a rank ended.
- A rank that ends is never restarted by torchrun: half a step cannot be taken up again, and the controller must know.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from prl.config import Config
from prl.errors import ConfigError
from prl.memory import gpu_memory
from prl.process import tail

ADDRESS = "PRL_TRAINER_ADDRESS"
LOGS = "PRL_TRAINER_LOGS"
WAIT = "PRL_TRAINER_WAIT_S"
"""How long a rank tries to reach the controller, which may still read its data, or wait for other ranks to be gone."""
DEFAULT_WAIT_S = 1800.0
TOKEN = "PRL_TOKEN"  # noqa: S105 -- the name of a variable
EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 -- to tell them apart, not to listen
_WORKER = "prl.trainer.worker"
_REPORT = re.compile(r"^.*torch/distributed/elastic/.* failed \(exitcode: (-?\d+)\).*\(pid: (\d+)\)", re.MULTILINE)
_NUM_LINES = 100


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of ``trainer.listen``. Raises ConfigError."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 -- the largest port
        raise ConfigError(f"trainer.listen must be host:port with a port from 0 to 65535, got {listen!r}")
    return host.strip("[]"), int(port)


def make_token(config: Config) -> str:
    """The secret that ranks present: PRL_TOKEN where a person starts them, a random one otherwise.

    Raises:
        ConfigError: ``trainer.launch`` is external and PRL_TOKEN is not set.
    """
    if config.trainer.launch == "torchrun":
        return secrets.token_hex(16)
    if not os.environ.get(TOKEN):
        raise ConfigError(
            f"trainer.launch = 'external' needs the variable {TOKEN}: set it to the same secret here and for torchrun"
        )
    return os.environ[TOKEN]


def torchrun_command(num_ranks: int) -> list[str]:
    """The command that starts ``num_ranks`` ranks on this host."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    options = ["--nproc-per-node", str(num_ranks), "--max-restarts", "0", "--shutdown-timeout", "2"]
    return [*launcher, *options, "-m", _WORKER]


def rank_log(logs: Path, rank: int) -> Path:
    """Where a rank of the torchrun child writes what it prints."""
    return logs / f"trainer-rank-{rank}.log"


def environment(config: Config, address: str, token: str, logs: Path) -> dict[str, str]:
    """What the torchrun child has in its environment on top of this process's.

    Threads: without a choice of the user's, each rank gets its share of the cores with every engine counted as one
    process, at least one; more would take the cores from the engines.
    """
    processes = config.trainer.num_ranks + config.engine.num_local
    threads = max(1, (os.cpu_count() or 1) // processes)
    return {
        ADDRESS: address,
        TOKEN: token,
        LOGS: str(logs.absolute()),
        WAIT: "0",  # the controller listens already
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYTHONUNBUFFERED": "1",
        **_own_gpus(config),
    }


def _own_gpus(config: Config) -> dict[str, str]:
    """The GPUs behind those of the engines on this host; where there are not enough for both, they share them all."""
    if config.trainer.device == "cpu":
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(index) for index in range(len(gpu_memory()))]
    first = config.engine.num_local * config.engine.tensor_parallel_size
    own = gpus[first : first + config.trainer.num_ranks]
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)} if len(own) == config.trainer.num_ranks else {}


def by_hand(config: Config, address: str) -> str:
    """The command that a person runs for ``trainer.launch = "external"``, of one host or of each of several."""
    host, port = split_address(address)
    shown = f"{socket.gethostname() if host in EVERY_ADDRESS else host}:{port}"
    num_ranks, num_hosts = config.trainer.num_ranks, config.trainer.num_replicas
    hosts = ["--nproc-per-node", str(num_ranks)]
    if num_hosts > 1:
        hosts = ["--nnodes", str(num_hosts), "--nproc-per-node", str(num_ranks // num_hosts)]
        hosts += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "FIRST_HOST:29500"]
    return f"{ADDRESS}={shown} {TOKEN}=... torchrun {' '.join(hosts)} -m {_WORKER}"


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 4-7`` with runs of three or more drawn together; ascending."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shortest = 3
    parts = [f"{run[0]}-{run[-1]}" if len(run) >= shortest else ", ".join(map(str, run)) for run in runs]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(parts)}"


def how_it_ended(log: Path, pid: int) -> str | None:
    """How torchrun says that the rank with this pid ended, such as ``was killed by SIGKILL``; None: it does not say."""
    for code, reported in _REPORT.findall(tail(log, _NUM_LINES)):
        if int(reported) == pid:
            return f"was killed by {signal.Signals(-int(code)).name}" if int(code) < 0 else f"exited with {code}"
    return None

"""Which part of a run goes where, on machines of one kind. Pure: from the numbers of the TOML alone.

Invariants:

- What fits on one machine stays there, as ``prl run`` starts it by itself: engines and torchrun are its children.
- Else engines and ranks are on machines of their own: each engine is a ``vllm serve`` process on one machine, and the
  ranks fill theirs, so that a replica of the model can stay within a machine.
- Whatever is wrong is said with the keys of the TOML, before anything is written.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from prl.config import Config
from prl.engines.server_command import KEY_VARIABLE, server_command, server_environment
from prl.errors import ConfigError
from prl.hidden import ENVIRONMENT, is_reference, without_secrets

RANKS_PORT, MEETING_PORT, FIRST_SERVER_PORT = 29400, 29500, 8000
"""Where ranks connect to the controller, where torchruns meet, and where an engine's server listens."""
API_KEY = KEY_VARIABLE
"""The variable with the secret of the engines that are started here; that of the ranks is ``trainer.launch.TOKEN``."""
_MARGIN_S = 60
_LONGEST_NAME = 40


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How many of what."""

    name: str
    """Of the job: ``run.name`` in lower case, without what a host's name may not hold."""
    num_gpus: int
    """GPUs of one machine."""
    num_gpus_wanted: int
    """GPUs that the run uses, all machines together."""
    num_engines: int
    """``vllm serve`` processes to start; 0 where everything is on one machine, or the servers are there already."""
    gpus_per_engine: int
    num_trainer_nodes: int
    """0 where everything is on one machine."""
    ranks_per_node: int
    grace_s: int
    """From the signal to stop until the checkpoint is written, at the worst: the deadlines of a step and of a save."""
    variables: list[str]
    """Environment variables that the configuration refers to: secrets of rewards and services."""

    @property
    def is_single(self) -> bool:
        """Whether one machine has it all."""
        return self.num_trainer_nodes == 0

    @property
    def engines_per_node(self) -> int:
        """As many as a machine's GPUs allow."""
        return self.num_gpus // self.gpus_per_engine

    @property
    def num_engine_nodes(self) -> int:
        """Machines with engines. The controller is on the first of all machines."""
        return math.ceil(self.num_engines / self.engines_per_node)

    @property
    def num_nodes(self) -> int:
        """All machines."""
        return 1 if self.is_single else self.num_engine_nodes + self.num_trainer_nodes


def layout_of(config: Config, num_gpus: int) -> Layout:
    """The layout of ``config`` on machines with ``num_gpus`` GPUs.

    Raises:
        ConfigError: it cannot be laid out so.
    """
    engine, trainer = config.engine, config.trainer
    if trainer.kind == "simulated":
        raise ConfigError("trainer.kind = 'simulated' needs no scheduler: `prl run` it where you are")
    if num_gpus < 1:
        raise ConfigError(f"--gpus-per-node = {num_gpus} must be at least 1")
    if engine.tensor_parallel_size > num_gpus:
        raise ConfigError(
            f"engine.tensor_parallel_size = {engine.tensor_parallel_size} is more than the {num_gpus} GPUs of a node"
            " (--gpus-per-node): an engine stays on one machine"
        )
    wanted = engine.num_local * engine.tensor_parallel_size + trainer.num_ranks
    fits = wanted <= num_gpus
    if engine.servers and engine.num_local and not fits:
        raise ConfigError(
            f"engine.servers lists {len(engine.servers)} servers, and engine.count = {engine.count} more would be"
            " started with a key of their own: list all of them and set engine.kind = 'server', or none"
        )
    ranks_per_node = min(trainer.num_ranks, num_gpus)
    if not fits and trainer.num_ranks % ranks_per_node:
        lower = trainer.num_ranks // num_gpus * num_gpus
        raise ConfigError(
            f"trainer.num_ranks = {trainer.num_ranks} does not fill nodes of {num_gpus} GPUs (--gpus-per-node): take"
            f" {lower} or {lower + num_gpus}"
        )
    return Layout(
        name=_host_name(config.run.name),
        num_gpus=num_gpus,
        num_gpus_wanted=wanted,
        num_engines=0 if fits else engine.num_local,
        gpus_per_engine=engine.tensor_parallel_size,
        num_trainer_nodes=0 if fits else trainer.num_ranks // ranks_per_node,
        ranks_per_node=ranks_per_node,
        grace_s=math.ceil(2 * trainer.step_timeout_s) + _MARGIN_S,
        variables=sorted(set(_variables(msgspec.to_builtins(config)))),
    )


def notes(config: Config, layout: Layout) -> list[str]:
    """What will run and may not be what was meant."""
    found = []
    nodes = layout.num_trainer_nodes
    if nodes > 1 and config.trainer.num_replicas == 1:
        found.append(
            f"trainer.num_replicas = 1 shards over {nodes} nodes, so every layer crosses the network; with"
            f" trainer.num_replicas = {nodes} only gradients do, at {nodes} times the memory a rank"
        )
    idle = layout.num_engine_nodes * layout.num_gpus - layout.num_engines * layout.gpus_per_engine
    if idle:
        found.append(f"{idle} GPUs of the {layout.num_engine_nodes} nodes with engines have none: see engine.count")
    if not config.run.checkpoint_every:
        found.append("run.checkpoint_every = 0: a job that is killed and not stopped begins anew; set it")
    return found


def secrets_stay_out(config: Config) -> None:
    """Refuse a configuration that holds a secret itself: what is written here lies in files that others read.

    Raises:
        ConfigError: one line per secret.
    """
    tree = msgspec.to_builtins(config)
    found = list(_differing(tree, without_secrets(tree)))
    if found:
        raise ConfigError(
            "\n".join(f"{key} holds a secret: write 'env:NAME' there, the variable that has it" for key in found)
        )


def server_words(config: Config) -> tuple[str, str]:
    """Environment and arguments of ``vllm serve`` as words of a shell, but for model, host and port."""
    transport = "gloo" if config.weights.transport == "gloo" else "nccl"
    command = server_command("", config.engine, transport, host="", port=0, on_cpu=False)
    arguments = command[command.index("--port") + 2 :]
    environment = server_environment(config.engine, on_cpu=False)
    return " ".join(f"{name}={value}" for name, value in environment.items()), shlex.join(arguments)


def find_model(config: Config) -> str:
    """A line of bash that puts into ``model`` what ``vllm serve`` loads: prl knows where its own models lie."""
    program = "import sys; from prl.models import resolve_model; print(resolve_model(sys.argv[1]))"
    return f'model="$(python -c {shlex.quote(program)} {shlex.quote(config.model)})"'


def _host_name(name: str) -> str:
    """What may stand in the name of a host, and of a job."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_LONGEST_NAME].strip("-") or "run"


def _variables(tree: Any) -> Iterator[str]:
    """Environment variables that a configuration names."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if is_reference(str(key)) and isinstance(value, str):
                yield value
            else:
                yield from _variables(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _variables(value)
    elif isinstance(tree, str) and tree.startswith(ENVIRONMENT):
        yield tree.removeprefix(ENVIRONMENT)


def _differing(tree: Any, hidden: Any, key: str = "") -> Iterator[str]:
    """Keys whose values were hidden."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _differing(value, hidden[name], f"{key}.{name}" if key else str(name))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _differing(value, hidden[index], f"{key}.{index}")
    elif tree != hidden:
        yield key

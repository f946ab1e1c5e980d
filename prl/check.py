"""Checks that span fields of the configuration: what each field allows alone and no run can do together.

Every conflict is one line that names the keys, their values and a way out; all are reported at once. Nothing here looks
at the machine beyond its environment variables; ``preflight.py`` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from prl import settings
from prl.check_algorithm import check_algorithm
from prl.check_control import check_control
from prl.check_data import check_data
from prl.check_evaluation import check_evaluation
from prl.config import Config
from prl.config_environment import SINGLE_TURN
from prl.errors import ConfigError
from prl.hidden import without_secrets
from prl.network import is_loopback
from prl.servers import address_problem, same_form
from prl.trainer.launch import TOKEN, split_address


def cross_check(config: Config, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a configuration that no run can satisfy.

    Raises:
        ConfigError: one line per conflict.
    """
    settings.validate(config)
    found = [
        *_run(config),
        *_pipeline(config),
        *_engine(config),
        *_servers(config),
        *_trainer(config),
        *_lora(config),
        *_listen(config, environment),
        *check_data(config),
        *check_control(config, environment),
        *check_evaluation(config),
        *check_algorithm(config),
        *_rewards(config),
        *_trackers(config),
    ]
    if found:
        raise ConfigError("\n".join(found))


def sequences_in_flight(config: Config) -> int:
    """Most streams that all engines run at once."""
    return config.engine.num_engines * config.engine.max_num_seqs


def _run(config: Config) -> Iterator[str]:
    name = config.run.name
    if name in {"", ".", ".."} or PurePath(name).name != name or not name.isprintable():
        yield f"run.name = {name!r} must be one folder name; --run-dir names another place"


def _pipeline(config: Config) -> Iterator[str]:
    pipeline, capacity = config.pipeline, sequences_in_flight(config)
    if pipeline.mode == "conventional" and pipeline.max_lag is not None:
        yield (
            f"pipeline.max_lag = {pipeline.max_lag} conflicts with pipeline.mode = 'conventional', whose lag is"
            f" steps_per_round - 1 = {pipeline.steps_per_round - 1}: remove max_lag"
        )
    if pipeline.target_ess is not None and (pipeline.mode == "conventional" or pipeline.max_lag == 0):
        fixed = "pipeline.mode = 'conventional'" if pipeline.mode == "conventional" else "pipeline.max_lag = 0"
        yield (
            f"pipeline.target_ess = {pipeline.target_ess:g} conflicts with {fixed}, where the lag is fixed and there is"
            " nothing to move: remove target_ess, or set max_lag to the most that may be"
        )
    if config.engine.num_engines and pipeline.group_size > capacity:
        yield (
            f"pipeline.group_size = {pipeline.group_size} is larger than what may be in flight: engines x"
            f" engine.max_num_seqs = {config.engine.num_engines} x {config.engine.max_num_seqs} = {capacity};"
            " raise engine.max_num_seqs"
        )
    batch = pipeline.groups_per_step * pipeline.group_size
    if batch < config.trainer.num_ranks:
        yield (
            f"a step trains groups_per_step x group_size = {batch} sequences, too few for"
            f" trainer.num_ranks = {config.trainer.num_ranks}: every rank needs one"
        )


def _engine(config: Config) -> Iterator[str]:
    engine, room = config.engine, config.engine.max_model_len - config.sampling.max_tokens
    if room < 1:
        yield (
            f"sampling.max_tokens = {config.sampling.max_tokens} leaves no room for a prompt in"
            f" engine.max_model_len = {engine.max_model_len}: the context holds prompt and completion"
        )
    if engine.tensor_parallel_size > 1 and engine.kind in {"transformers", "simulated"}:
        yield (
            f"engine.tensor_parallel_size = {engine.tensor_parallel_size} needs engine.kind = 'vllm',"
            f" not {engine.kind!r}"
        )
    if (engine.kind == "simulated") != (config.trainer.kind == "simulated"):
        yield (
            f"engine.kind = {engine.kind!r} conflicts with trainer.kind = {config.trainer.kind!r}:"
            " simulate both or neither"
        )


def _servers(config: Config) -> Iterator[str]:
    engine = config.engine
    for address in engine.servers:
        if (problem := address_problem(address)) is not None:
            yield f"engine.servers: {problem}"
    forms = [same_form(address) for address in engine.servers]
    for address in sorted({form for form in forms if forms.count(form) > 1}):
        yield f"engine.servers names {address} twice: one address is one engine, whatever is behind it"
    if engine.kind == "server" and not engine.servers:
        yield 'engine.kind = "server" needs engine.servers, such as ["http://host:8000"]; docs/servers.md'
    if engine.kind == "simulated" and engine.servers:
        yield "engine.servers conflicts with engine.kind = 'simulated': simulate all engines or none"


def _trainer(config: Config) -> Iterator[str]:
    trainer, num_steps = config.trainer, config.run.num_steps
    if trainer.num_ranks % trainer.num_replicas:
        yield (
            f"trainer.num_replicas = {trainer.num_replicas} does not divide trainer.num_ranks = {trainer.num_ranks}:"
            " every replica of the model is sharded over equally many ranks"
        )
    if trainer.schedule != "constant" and trainer.warmup_steps >= num_steps:
        yield (
            f"trainer.schedule = {trainer.schedule!r} has no steps to fall in: trainer.warmup_steps ="
            f" {trainer.warmup_steps}, run.num_steps = {num_steps}; lower warmup_steps or take 'constant'"
        )
    if config.weights.transport == "nccl" and (trainer.device == "cpu" or config.engine.kind == "transformers"):
        yield (
            f"weights.transport = 'nccl' needs vLLM and CUDA, and engine.kind = {config.engine.kind!r},"
            f" trainer.device = {trainer.device!r}: take weights.transport = 'auto'"
        )


def _lora(config: Config) -> Iterator[str]:
    lora = config.lora
    if lora.rank == 0:
        for option in ("alpha", "target_modules", "publish"):
            if (value := getattr(lora, option)) is not None:
                yield f"lora.{option} = {value!r} is not read while lora.rank = 0: remove it, or set a rank"
        return
    if config.trainer.kind == "simulated":
        yield f"lora.rank = {lora.rank} conflicts with trainer.kind = 'simulated', which has no weights: remove [lora]"
    if lora.publish == "adapters" and config.weights.transport == "nccl":
        yield (
            "lora.publish = 'adapters' conflicts with weights.transport = 'nccl': vLLM's own backend loads whole"
            " weights only; take weights.transport = 'gloo', or lora.publish = 'merged'"
        )


def _listen(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    trainer = config.trainer
    try:
        host, port = split_address(trainer.listen)
    except ConfigError as error:
        yield str(error)
        return
    if trainer.launch == "external" and port == 0:
        yield (
            f"trainer.launch = 'external' needs a port in trainer.listen, got {trainer.listen!r}: ranks that you start"
            " are told where to connect, and come back to it when one has died; write such as '0.0.0.0:29400'"
        )
    if environment.get(TOKEN):
        return
    if trainer.launch == "external":
        yield f"trainer.launch = 'external' needs a secret in {TOKEN}, the same here and for every rank"
    elif not is_loopback(host):
        yield (
            f"trainer.listen = {trainer.listen!r} can be reached from other machines: set {TOKEN} to a secret, or"
            " listen on 127.0.0.1"
        )


def _rewards(config: Config) -> Iterator[str]:
    is_single_turn = config.environment.name == SINGLE_TURN
    if is_single_turn and (config.environment.options or config.gateway.enabled):
        yield (
            "environment.options and gateway.enabled = true are of use to an environment alone, and environment.name ="
            f" {SINGLE_TURN!r}: name one, or remove them"
        )
    if not config.rewards:
        if not is_single_turn:
            return
        yield "rewards: at least one is needed to train: add [[rewards]] with a name, such as 'math'"
    elif all(reward.weight == 0 for reward in config.rewards):
        yield "rewards: every weight is 0, so there is nothing to learn"
    for index, reward in enumerate(config.rewards):
        twins = [
            other for other in config.rewards[:index] if (other.name, other.options) == (reward.name, reward.options)
        ]
        if twins:
            yield f"rewards.{index}: {reward.name!r} with these options is there already: raise its weight instead"


def _trackers(config: Config) -> Iterator[str]:
    """Their processes read the configuration from the run folder, where no secret may stand."""
    for index, tracker in enumerate(config.trackers):
        hidden = without_secrets(tracker.options)
        for key, value in tracker.options.items():
            if hidden[key] != value:
                yield (
                    f"trackers.{index}.options.{key} holds a secret: put it into an environment variable, and write"
                    f" {key} = 'env:NAME' here, or nothing where {tracker.name} knows the variable by itself"
                )

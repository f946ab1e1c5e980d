"""Is this machine able to run this configuration? Looked at, not tried: no engine and no trainer is started.

``before_start`` takes milliseconds and comes before every run; ``check`` (``prl run --check``) also reads tokenizer and
data and makes the rewards. What cannot work is a ConfigError; what works and may surprise is a note.
"""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from prl import memory, servers, settings
from prl.check import cross_check, sequences_in_flight
from prl.check_data import check_data
from prl.config import Config
from prl.data.opening import source_tables
from prl.environments.base import REGISTRY as ENVIRONMENTS
from prl.environments.history import rewritten_history
from prl.errors import ConfigError, MissingExtraError, RefusedError
from prl.machinery import engine_kind, installed, transport_of
from prl.models import local_folder, resolve_model
from prl.parts import environment_of, make_scorer
from prl.preflight_model import Finding, check_context, gib, look_at_model, need_of
from prl.rewards.base import REGISTRY
from prl.trackers.base import check_trackers
from prl.trainer.launch import split_address


def before_start(config: Config) -> list[Finding]:
    """Everything that can be known without loading anything.

    Raises:
        ConfigError: the configuration cannot run here.
        MissingExtraError: the configured engine, a tracker, or peft where there are adapters to train, is not
            installed.
    """
    cross_check(config)
    if config.lora.rank and not installed("peft"):
        raise MissingExtraError("peft", "lora", f"lora.rank = {config.lora.rank}")
    for reward in config.rewards:
        REGISTRY.find(reward.name)
    ENVIRONMENTS.find(config.environment.name)
    check_trackers(config.trackers)
    _files(config)
    kind, why = engine_kind(config)
    local = [f"{config.engine.num_local} x {kind} ({why})"] if config.engine.num_local else []
    elsewhere = [f"{len(config.engine.servers)} x vllm serve elsewhere"] if config.engine.servers else []
    findings = [Finding(topic="engine", text=", ".join([*local, *elsewhere]))]
    if config.trainer.kind != "simulated":
        findings += look_at_model(config)
        findings.append(_port(config))
    return findings + _pacing(config)


def room_for(config: Config, num_engines: int) -> None:
    """Whether so many engines fit on this machine together, as far as the estimate tells. Blocking.

    Raises:
        RefusedError: they do not.
    """
    folder = None if engine_kind(config)[0] == "simulated" else local_folder(resolve_model(config.model))
    if folder is None:  # a hub name that was never downloaded is loaded by now; there is nothing to read
        return
    engine, num_ranks = msgspec.structs.replace(config.engine, count=num_engines), config.trainer.num_local_ranks
    gpus = [] if config.trainer.device == "cpu" else memory.gpu_memory()
    wanted = num_engines * engine.tensor_parallel_size + num_ranks
    if gpus and wanted > len(gpus):
        raise RefusedError(
            f"no room for another engine: {num_engines} x {engine.tensor_parallel_size} GPUs of engines and"
            f" {num_ranks} of the trainer are {wanted}, and {len(gpus)} are visible"
        )
    many = msgspec.structs.replace(config, engine=engine)
    need = need_of(many, memory.read_shape(folder), on_gpu=bool(gpus))
    total, _ = memory.machine_memory()
    if not gpus and need.total > total:
        raise RefusedError(
            f"no room for another engine: with {num_engines} the run needs about {gib(need.total)} of memory, and the"
            f" machine has {gib(total)}"
        )


def before_evaluation(config: Config) -> None:
    """The same for engines alone: no trainer's port, no trainer's memory.

    Raises:
        ConfigError: the model cannot be evaluated here.
        MissingExtraError: the configured engine is not installed.
    """
    cross_check(config)
    for reward in config.rewards:
        REGISTRY.find(reward.name)
    ENVIRONMENTS.find(config.environment.name)
    _files(config)
    folder = None if engine_kind(config)[0] == "simulated" else local_folder(resolve_model(config.model))
    if folder is not None:
        check_context(config, folder)


def before_data(config: Config) -> None:
    """What can be known of the data alone without reading it; no engine, trainer or reward need be configured.

    Raises:
        ConfigError: the configuration is not valid, or a file is not there.
    """
    settings.validate(config)
    if found := list(check_data(config)):
        raise ConfigError("\n".join(found))
    _files(config)


def check(config: Config) -> list[Finding]:
    """``before_start``, and the tokenizer, the data and the rewards.

    Raises:
        ConfigError: the configuration cannot run here.
        MissingExtraError: something optional that it needs is not installed.
    """
    from prl.prompts import open_source  # noqa: PLC0415 - only --check reads data here
    from prl.tokenizer import Tokenizer  # noqa: PLC0415 - takes seconds

    findings = before_start(config)
    findings += _servers(config)
    scorer = make_scorer(config)
    names = ", ".join(f"{reward.name} x {reward.weight:g}" for reward in config.rewards)
    findings.append(Finding(topic="rewards", text=names or "the environment's own"))
    findings += [Finding(topic="rewards", text=note) for note in scorer.notes]
    if (environment := environment_of(config)) is not None:
        findings.append(Finding(topic="environment", text=environment.name))
    tokenizer = Tokenizer.load(resolve_model(config.model))
    ends = ", ".join(map(str, tokenizer.stop_token_ids))
    template = "a chat template" if tokenizer.has_template else "no chat template"
    findings.append(Finding(topic="tokenizer", text=f"{tokenizer.vocab_size} ids, {template}, stops at {ends}"))
    if environment is not None and (warning := rewritten_history(tokenizer)) is not None:
        findings.append(Finding(topic="environment", text=warning, is_note=True))
    source = open_source(
        config, tokenizer, scorer.required_fields, scorer.check_row, reads_all_fields=scorer.reads_all_fields
    )
    num_held_out = len(source.held_out(config.eval.num_samples))
    counts = source.statistics()  # after the held-out prompts were rendered, so that too long ones among them count
    for each in source.sources:
        findings.append(Finding(topic="data", text=f"{each.name}: {len(each.train)} prompts an epoch"))
        if each.num_measured < len(each.train) and not each.is_generated:
            text = (
                f"{each.name}: the lengths of the first {each.num_measured:,} are known; what is too long among the"
                " others is left out when it comes up, and counted"
            )
            findings.append(Finding(topic="data", text=text))
    findings += [Finding(topic="data", text=warning, is_note=True) for warning in counts.warnings]
    return [*findings, *_held_out(config, num_held_out)]


def _servers(config: Config) -> list[Finding]:
    """Each server, asked whether it will do."""
    transport = transport_of(config)
    asked = servers.ask_all(config, resolve_model(config.model), transport) if config.engine.servers else []
    findings = []
    for address, facts in zip(config.engine.servers, asked, strict=True):
        workers = f"{facts.num_workers} worker{'' if facts.num_workers == 1 else 's'}"
        text = f"{address}: vLLM {facts.version}, {facts.model}, {workers}, weights over {transport}"
        findings.append(Finding(topic="server", text=text))
        if facts.is_paused:
            text = f"{address} is paused, as in a weight update: it was not asked to sample"
            findings.append(Finding(topic="server", text=text, is_note=True))
        elif not facts.names_versions:
            text = f"{address} has no plug-in of prl: tokens of sequences that live through an update come at their end"
            findings.append(Finding(topic="server", text=text, is_note=True))
    return findings


def _files(config: Config) -> None:
    paths = [("eval.path", config.eval.path)]
    paths += [(f"{key}.path", each.path) for key, each in source_tables(config) if each.source != "dataset"]
    for key, path in paths:
        if path is None or Path(path).is_file() or (key == "eval.path" and Path(path).is_dir()):
            continue
        what = "is a folder" if Path(path).is_dir() else "does not exist"
        raise ConfigError(f"{key} = {path!r}: {Path(path).absolute()} {what}; name a file, such as rows.jsonl")


def _held_out(config: Config, found: int) -> list[Finding]:
    wanted = config.eval.num_samples
    if not wanted:
        return [Finding(topic="held out", text="eval.num_samples = 0: nothing is evaluated", is_note=True)]
    if found < wanted:
        text = f"{found} prompts, fewer than eval.num_samples = {wanted}"
        return [Finding(topic="held out", text=text, is_note=True)]
    return [Finding(topic="held out", text=f"{found} prompts")]


def _port(config: Config) -> Finding:
    """Bind the trainer's port and let it go."""
    listen = config.trainer.listen
    host, port = split_address(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        raise ConfigError(
            f"trainer.listen = {listen!r}: {error.strerror}; name another port, or 0 for any that is free"
        ) from error
    return Finding(topic="port", text=f"{listen} is free" if port else f"{host}, any free port")


def _pacing(config: Config) -> list[Finding]:
    """Settings that agree with each other and still leave something idle."""
    pipeline, trainer, notes = config.pipeline, config.trainer, []
    batch = pipeline.groups_per_step * pipeline.group_size
    text = f"{pipeline.groups_per_step} prompts x {pipeline.group_size} completions a step"
    if pipeline.mode == "conventional":
        text += f", {pipeline.steps_per_round} steps a round"
    elif pipeline.max_lag is None:
        text += ", lag measured, not bounded"
    else:
        text += f", lag at most {pipeline.max_lag}"
        admitted = (pipeline.max_lag + 1) * batch
        if admitted < sequences_in_flight(config):
            notes.append(
                f"the engines hold {sequences_in_flight(config)} sequences and pipeline.max_lag = {pipeline.max_lag}"
                f" admits {admitted}: the rest of engine.max_num_seqs stays empty"
            )
    if trainer.warmup_steps > config.run.num_steps:
        notes.append(f"trainer.warmup_steps = {trainer.warmup_steps} is not over at step {config.run.num_steps}")
    return [
        Finding(topic="pace", text=text),
        *(Finding(topic="pace", text=note, is_note=True) for note in notes),
    ]

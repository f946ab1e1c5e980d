"""What a simulated machine takes its time for, from ``[simulate]`` and, where that says nothing, from a run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from prl.config import Config
from prl.config_simulate import DecodeConfig, SimulateConfig
from prl.errors import ConfigError
from prl.parts import has_bound, num_streams
from prl.simulate.lengths import Lengths, quantile_of, read_lengths
from prl.simulate.machine import step_time_of

LONGEST_SIMULATED = 128
"""Simulated tokens of the longest completion where ``simulate.grain`` is absent."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, tokens in simulated ones of ``grain`` tokens each, unless said otherwise."""

    grain: int
    longest: int
    """Bound on a completion."""
    prompt_tokens: int
    """Real ones, of each prompt."""
    step_s: Callable[[int], float]
    """Of one simulated token of each of h sequences of one engine."""
    length_of: Callable[[int, int], int]
    """By prompt and seed."""
    train_s: Callable[[int, int], float]
    """Of a step on so many samples with so many sampled tokens."""
    between_s: float
    """Between two steps, with nobody at work on it."""
    sharing: float
    """What is left of shared accelerators' speed while engines and ranks are both at work."""
    update_s: float
    """The engines stand still for an update."""
    transfer_s: float
    """It is sent before that, the engines going on."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a run folder says of its machine; fills what ``[simulate]`` leaves open."""

    groups: list[list[float]]
    """Lengths of completions by prompt."""
    prompt_tokens: int
    base_s: float
    per_sequence_s: float
    train_token_s: float
    train_fixed_s: float
    between_s: float
    sharing: float
    update_s: float
    transfer_s: float


def costs_of(config: Config, measured: Measured | None = None) -> Costs:
    """The costs that ``[simulate]`` describes; ``measured`` says the rest.

    Raises:
        ConfigError: something that is needed is neither given nor measured.
    """
    simulate = config.simulate
    longest, num_ranks = config.sampling.max_tokens, config.trainer.num_ranks
    decode = _decode(simulate.decode, measured)
    token_s, fixed_s = _training(simulate, measured)
    prompt_tokens = simulate.prompt_tokens or (measured.prompt_tokens if measured else 0)
    grain = simulate.grain or max(1, longest // LONGEST_SIMULATED)
    between_s, sharing = simulate.train.between_s, simulate.sharing
    update_s, transfer_s = simulate.update_s, simulate.transfer_s
    return Costs(
        grain=grain,
        longest=longest // grain + 2,
        prompt_tokens=prompt_tokens,
        step_s=step_time_of(decode, grain, config.engine.max_num_seqs),
        length_of=_lengths(config, grain, measured),
        train_s=lambda samples, tokens: fixed_s + token_s / num_ranks * (tokens * grain + samples * prompt_tokens),
        between_s=between_s if between_s is not None else measured.between_s if measured else 0.0,
        sharing=sharing if sharing is not None else measured.sharing if measured else 1.0,
        update_s=update_s if update_s is not None else measured.update_s if measured else 0.0,
        transfer_s=transfer_s if transfer_s is not None else measured.transfer_s if measured else 0.0,
    )


def _num_cut(config: Config) -> int:
    """Prompts that are under way at the beginning as if the run had gone on for long."""
    if has_bound(config) or not config.simulate.steady_start:
        return 0
    return num_streams(config, config.engine.num_engines) // config.pipeline.group_size


def _decode(config: DecodeConfig, measured: Measured | None) -> DecodeConfig:
    given = [
        name
        for name, value in (
            ("base_s", config.base_s),
            ("table", config.table),
            ("utilisation", config.utilisation),
        )
        if value
    ]
    if len(given) > 1:
        raise ConfigError(f"simulate.decode: {' and '.join(given)} say the same in two ways: keep one")
    if given:
        return config
    if measured is None:
        raise ConfigError(
            "simulate.decode: how long a decode step takes is missing: give base_s and per_sequence_s, a table, or"
            " utilisation, or name a run folder in simulate.run"
        )
    return DecodeConfig(base_s=measured.base_s, per_sequence_s=measured.per_sequence_s)


def _training(simulate: SimulateConfig, measured: Measured | None) -> tuple[float, float]:
    """Seconds of one rank for a token, and of a step beside that."""
    if simulate.train.token_s is not None:
        return simulate.train.token_s, simulate.train.fixed_s
    if measured is None:
        raise ConfigError(
            "simulate.train.token_s is missing: give the seconds in which one rank trains a token, or name a run"
            " folder in simulate.run"
        )
    return measured.train_token_s, measured.train_fixed_s


def _lengths(config: Config, grain: int, measured: Measured | None) -> Lengths:
    lengths, groups = config.simulate.lengths, list[list[float]]()
    if lengths.kind == "file":
        groups = read_lengths(Path(lengths.path))
    elif lengths.kind is None and measured is not None:
        groups = measured.groups
    longest = config.sampling.max_tokens
    return Lengths(
        quantile_of(lengths, longest),
        longest=longest,
        grain=grain,
        prompt_share=lengths.prompt_share,
        num_cut=_num_cut(config),
        seed=config.seed,
        groups=groups,
    )

"""Conflicts within the algorithm's tables: options that nothing would read, and statistics of too few rewards."""

from __future__ import annotations

from collections.abc import Iterator

from prl.config import Config
from prl.config_algorithm import LOSS_OPTIONS, is_own
from prl.config_environment import SINGLE_TURN
from prl.plugins import nearest
from prl.trainer.losses import LOSSES

_OPTIONS = sorted({option for options in LOSS_OPTIONS.values() for option in options})


def check_algorithm(config: Config) -> Iterator[str]:
    """One line per conflict."""
    yield from _loss(config)
    yield from _kl(config)
    yield from _advantage(config)
    yield from _overlong(config)


def _loss(config: Config) -> Iterator[str]:
    loss = config.loss
    known = LOSSES.names()
    if ":" not in loss.name and loss.name not in known:
        yield (
            f"loss.name = {loss.name!r} is no loss{nearest(loss.name, known)}; known: {', '.join(known)}; one of your"
            " own is named 'package.module:name'"
        )
        return
    reads = LOSS_OPTIONS.get(loss.name, {})
    for option in _OPTIONS:
        value = getattr(loss, option)
        if value is not None and option not in reads:
            readers = ", ".join(name for name in sorted(LOSS_OPTIONS) if option in LOSS_OPTIONS[name])
            yield f"loss.{option} = {value:g} is not read by loss.name = {loss.name!r}, but by {readers}: remove it"
    if loss.options and not is_own(loss.name):
        yield f"loss.options is for a loss of your own; loss.name = {loss.name!r} reads {', '.join(reads)}"
    if loss.name == "decoupled_ppo" and loss.anchor == "sampler":
        yield (
            "loss.name = 'decoupled_ppo' with loss.anchor = 'sampler' would be 'ppo': take 'ppo', or set loss.anchor ="
            " 'recomputed', with which a run has the gradient of 'reinforce' and never clips"
        )
    if loss.anchor == "recomputed" and loss.name != "decoupled_ppo" and not is_own(loss.name):
        yield (
            f"loss.anchor = 'recomputed' is not read by loss.name = {loss.name!r}, whose ratios are to the sampler's"
            " log-probabilities: remove it, or take 'decoupled_ppo'"
        )


def _kl(config: Config) -> Iterator[str]:
    kl = config.kl
    for option in ("estimator", "where"):
        value = getattr(kl, option)
        if value is not None and kl.coefficient == 0:
            yield f"kl.{option} = {value!r} is not read while kl.coefficient = 0: remove it, or set a coefficient"


def _advantage(config: Config) -> Iterator[str]:
    advantage, pipeline = config.advantage, config.pipeline
    if advantage.name != "reinforce_pp" and pipeline.group_size == 1:
        yield (
            f"pipeline.group_size = 1 leaves advantage.name = {advantage.name!r} nothing to compare with:"
            " it needs a group_size of at least 2; 'reinforce_pp' compares with the whole batch"
        )
    if advantage.name == "reinforce_pp" and pipeline.group_size * pipeline.groups_per_step == 1:
        yield "advantage.name = 'reinforce_pp' needs at least 2 completions a step: groups_per_step x group_size = 1"
    if advantage.credit == "reward_to_go":
        if config.environment.name == SINGLE_TURN:
            yield (
                "advantage.credit = 'reward_to_go' tells the turns of an episode apart, and environment.name ="
                f" {SINGLE_TURN!r} has one: name an environment, or remove it"
            )
        if advantage.name == "reinforce_pp":
            yield (
                "advantage.credit = 'reward_to_go' conflicts with advantage.name = 'reinforce_pp', which compares with"
                " the whole batch and knows no turns: take another advantage, or credit = 'episode'"
            )
    if advantage.name == "dr_grpo" and config.loss.aggregation != "fixed_length":
        yield (
            f"advantage.name = 'dr_grpo' needs loss.aggregation = 'fixed_length', not {config.loss.aggregation!r}:"
            " the two together are Dr. GRPO; set it, or take 'group_mean'"
        )
    if advantage.zero_variance == "refill" and advantage.name == "reinforce_pp":
        yield (
            "advantage.zero_variance = 'refill' conflicts with advantage.name = 'reinforce_pp', which compares with the"
            " whole batch: there a group of equal rewards does teach; take 'keep'"
        )
    if advantage.zero_variance == "keep" and advantage.max_refills is not None:
        yield (
            f"advantage.max_refills = {advantage.max_refills} is not read while advantage.zero_variance = 'keep':"
            " remove it, or take 'refill'"
        )


def _overlong(config: Config) -> Iterator[str]:
    overlong, max_tokens = config.overlong, config.sampling.max_tokens
    if overlong.buffer > max_tokens:
        yield (
            f"overlong.buffer = {overlong.buffer} is longer than a completion can be:"
            f" sampling.max_tokens = {max_tokens}"
        )

"""Which class stands for which word of the configuration, of what the controller is made of.

Engines and trainer, and where they run, are chosen in ``machinery.py``.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence

from prl import machinery
from prl.advantage import ADVANTAGES
from prl.batch import make_batch
from prl.buffer import Buffer
from prl.config import Config
from prl.config_algorithm import is_own
from prl.config_environment import SINGLE_TURN
from prl.controller import Pacing
from prl.engines.base import Decoding
from prl.engines.pool import EnginePool
from prl.environments.base import Environment, make_environment
from prl.environments.episodes import Door, Episodes, GroupJudge, Judge, group_judged_with, judged_with
from prl.environments.history import rewritten_history
from prl.environments.session import Limits
from prl.errors import ConfigError
from prl.evaluate import Asked, Evaluation, evaluate, ks_of
from prl.evaluator import Evaluate
from prl.failure import FirstFailure
from prl.governor import Governor
from prl.log import get_logger
from prl.metrics import StepReport
from prl.records import Played, Proven, Sampled, Unproven
from prl.refill import Refill
from prl.rewards.scorer import Scorer, labels_of
from prl.rollout import Play, Rollout
from prl.sampler import Sampler
from prl.shaping import shaping_of
from prl.sync import WeightSync
from prl.tokenizer import Tokenizer
from prl.trainer.base import Trainer
from prl.types import Batch, Group, Prompt, TensorSpec

EXACT_TOLERANCE, ROUNDED_TOLERANCE = 1e-3, 0.15
"""Accepted difference of log-probabilities between engine and trainer: the largest in float32, else the mean."""

log = get_logger(__name__)


def is_exact(config: Config) -> bool:
    """Whether engine and trainer both compute in float32."""
    return config.engine.dtype == config.trainer.dtype == "float32"


def tolerance_of(config: Config) -> float:
    """What ``[weights]`` accepts as agreement between an engine and the trainer; see ``gap_of``."""
    return config.weights.verify_tolerance or (EXACT_TOLERANCE if is_exact(config) else ROUNDED_TOLERANCE)


def gap_of(config: Config) -> Callable[[list[float]], float]:
    """What the tolerance is of: the largest difference where both sides are exact, else the mean.

    Rounding to 16 bits moves single improbable tokens far: for one of log-probability -15 in a model of 135 million
    parameters, 0.4 between two right implementations, where the mean was 0.07.
    """
    return max if is_exact(config) else statistics.fmean


def make_buffer(config: Config) -> Buffer:
    """The slots that ``[pipeline]`` asks for; ``buffer.py`` says what follows from their number and order."""
    pipeline, engine = config.pipeline, config.engine
    if pipeline.mode == "conventional":
        return Buffer(pipeline.groups_per_step * pipeline.steps_per_round)
    if pipeline.max_lag is not None:
        return Buffer(pipeline.groups_per_step * (pipeline.max_lag + 1))
    return Buffer(
        num_streams(config, engine.num_engines),
        order="completion",
        group_size=pipeline.group_size,
        max_ahead=pipeline.batches_ahead * pipeline.groups_per_step,
    )


def make_governor(config: Config) -> Governor | None:
    """What holds ``pipeline.target_ess``; None where nothing is to be held."""
    pipeline = config.pipeline
    if pipeline.target_ess is None:
        return None
    if pipeline.max_lag is not None:
        batch, most = pipeline.groups_per_step, pipeline.groups_per_step * (pipeline.max_lag + 1)
        return Governor(target=pipeline.target_ess, least=batch + 1, most=most, synchronous=batch, start=2 * batch)
    most = num_streams(config, config.engine.num_engines)
    least = min(most, max(pipeline.group_size, pipeline.groups_per_step * pipeline.group_size))
    return Governor(target=pipeline.target_ess, least=least, most=most, synchronous=0)


def slots_after(config: Config, governor: Governor | None, report: StepReport, num_engines: int) -> int | None:
    """The slots that there are to be after a step; None where their number is fixed."""
    if governor is not None:
        slots = governor.observe(report.ess, report.lag_max)
        return slots if has_bound(config) else min(slots, num_streams(config, num_engines))
    return None if has_bound(config) else num_streams(config, num_engines)


def num_streams(config: Config, num_engines: int) -> int:
    """The slots of the paper's mode: the streams that so many engines run at once."""
    return num_engines * config.engine.max_num_seqs


def has_bound(config: Config) -> bool:
    """Whether the number of slots is bounded by the lag; it follows the engines otherwise."""
    return config.pipeline.mode == "conventional" or config.pipeline.max_lag is not None


def make_pacing(config: Config) -> Pacing:
    """How generation and training take turns, as ``[pipeline]`` says."""
    pipeline = config.pipeline
    return Pacing(
        groups_per_step=pipeline.groups_per_step,
        steps_per_round=pipeline.steps_per_round if pipeline.mode == "conventional" else 1,
        max_consecutive_drops=pipeline.max_consecutive_drops,
    )


def make_refill(config: Config) -> Refill | None:
    """What ``[advantage] zero_variance`` asks for; a round of several steps has the refills of as many."""
    if config.advantage.zero_variance == "keep":
        return None
    rewards_of = shaping_of(config.overlong, config.sampling.max_tokens)
    max_refills = (config.advantage.max_refills or 0) * make_pacing(config).steps_per_round
    return Refill(rewards_of, max_refills, config.advantage.credit)


def make_sync(
    config: Config,
    trainer: Trainer,
    engines: EnginePool,
    *,
    transport: str,
    manifest: list[TensorSpec],
    probe: list[int],
    join: Callable[[], Awaitable[None]],
    mend: Callable[[int], Awaitable[bool]],
    record: Callable[[Unproven | Proven], None],
) -> WeightSync:
    """What pushes weights as ``[weights]`` says, and compares both sides on the tokens of ``probe``."""
    return WeightSync(
        trainer,
        engines,
        transport=transport,
        manifest=manifest,
        probe=probe,
        tolerance=tolerance_of(config),
        gap_of=gap_of(config),
        timeout_s=config.weights.timeout_s,
        verify_every=config.weights.verify_every,
        staged=machinery.is_staged(config, transport),
        lock=engines.seats.transfers,
        join=join,
        mend=mend,
        record=record,
    )


def make_rollout(
    config: Config,
    engines: EnginePool,
    scorer: Scorer,
    tokenizer: Tokenizer,
    failure: FirstFailure,
    *,
    record: Callable[[Sampled | Played], None] = lambda _: None,
    play: Play | None = None,
) -> Rollout:
    """What rolls out prompts on ``engines`` as ``[sampling]`` and ``[pipeline]`` say; see ``Rollout``."""
    sampling = config.sampling
    return Rollout(
        Sampler(engines, tokenizer.decode),
        judge_of(config, scorer),
        decoding=Decoding(
            temperature=sampling.temperature, max_tokens=sampling.max_tokens, stop_token_ids=tokenizer.stop_token_ids
        ),
        group_size=config.pipeline.group_size,
        timeout_s=config.pipeline.rollout_timeout_s,
        failure=failure,
        seed=config.seed if sampling.seeded else None,
        record=record,
        deadlines=engines.deadlines,
        play=play,
        score_group=group_judge_of(config, scorer),
    )


def make_scorer(config: Config) -> Scorer:
    """The rewards. Raises PluginError, MissingExtraError, or ConfigError where they cannot judge what is held out."""
    is_single_turn = config.environment.name == SINGLE_TURN
    scorer = Scorer(config.rewards, needed=is_single_turn)
    if is_single_turn and config.eval.num_samples and len(scorer.of_groups) == len(config.rewards):
        raise ConfigError(
            f"rewards: {', '.join(scorer.of_groups)} judge whole groups, and an evaluation has single answers: add a"
            " reward that judges one, or set eval.num_samples = 0"
        )
    return scorer


def judge_of(config: Config, scorer: Scorer) -> Judge:
    """What judges a completion: the rewards, and the environment where there is one."""
    if config.environment.name == SINGLE_TURN:
        return scorer.score
    return judged_with(scorer.score if config.rewards else None, scorer.labels)


def group_judge_of(config: Config, scorer: Scorer) -> GroupJudge | None:
    """What judges whole groups; None where no reward does."""
    if not scorer.of_groups:
        return None
    return scorer.score_group if config.environment.name == SINGLE_TURN else group_judged_with(scorer.score_group)


def environment_of(config: Config) -> Environment | None:
    """What ``[environment]`` names, not opened; None for a single turn. Raises PluginError or ConfigError."""
    if config.environment.name == SINGLE_TURN:
        return None
    environment = make_environment(config.environment)
    if environment.asks_over_http and not config.gateway.enabled:
        raise ConfigError(f"environment.name = {environment.name!r} asks over HTTP: set gateway.enabled = true")
    if taken := [label for label in labels_of(config.rewards) if label in environment.parts]:
        raise ConfigError(
            f"environment.name = {environment.name!r} gives a part of the score that is named {taken[0]!r}, and so is"
            " one of [[rewards]]; one of both would be lost: give the reward, or the part, another name"
        )
    return environment


def make_episodes(config: Config, environment: Environment, tokenizer: Tokenizer, door: Door | None) -> Episodes:
    """What plays episodes of ``environment``, not opened; ``door`` is the gateway, if there is one."""
    if (warning := rewritten_history(tokenizer)) is not None:
        log.warning(warning)
    timeout_s = config.pipeline.rollout_timeout_s
    limits = Limits(config.environment.max_turns, config.engine.max_model_len, timeout_s)
    return Episodes(environment, tokenizer, limits, door=door)


def make_evaluate(
    config: Config, prompts: Sequence[Prompt], rollout: Rollout, scorer: Scorer, ends: list[int]
) -> Evaluate:
    """What evaluates a version on ``prompts`` as ``[eval]`` says; ``ends`` are the stop tokens."""
    held_out, max_tokens = config.eval, config.eval.max_tokens or config.sampling.max_tokens
    asked = Asked(
        decoding=Decoding(temperature=held_out.temperature, max_tokens=max_tokens, stop_token_ids=ends),
        num_answers=held_out.num_answers,
        pass_at=ks_of(held_out),
        pass_reward=held_out.pass_reward,
        concurrency=config.engine.num_engines * config.engine.max_num_seqs,
        seed=config.seed if config.sampling.seeded else None,
    )

    async def evaluate_version(version: int, on_answer: Callable[[], None]) -> Evaluation:
        judge = judge_of(config, scorer)
        return await evaluate(prompts, rollout.answer, judge, asked=asked, version=version, on_answer=on_answer)

    return evaluate_version


def only_advantages_teach(config: Config) -> bool:
    """Whether a token with an advantage of 0 has a gradient of exactly 0: prl's own losses are linear in it."""
    return not is_own(config.loss.name) and config.loss.entropy_bonus == 0 and config.kl.coefficient == 0


def records_samples_of(config: Config, step: int) -> bool:
    """Whether the samples of the step of this number, counted from 1, are written down."""
    return config.run.samples_every > 0 and step % config.run.samples_every == 0


def batch_maker(config: Config) -> Callable[[int, list[Group]], Awaitable[Batch]]:
    """How groups become a batch, outside the event loop: a large one takes longer than the loop may stand still."""
    rewards_of = shaping_of(config.overlong, config.sampling.max_tokens)

    async def make(step: int, groups: list[Group]) -> Batch:
        return await asyncio.to_thread(
            make_batch,
            step,
            groups,
            advantage=ADVANTAGES[config.advantage.name],
            credit=config.advantage.credit,
            rewards_of=rewards_of,
            mask_overlong=config.overlong.mask,
            only_advantages_teach=only_advantages_teach(config),
            with_logprobs=records_samples_of(config, step + 1),
            num_ranks=config.trainer.num_ranks,
            max_tokens_per_microbatch=config.trainer.max_tokens_per_microbatch,
        )

    return make

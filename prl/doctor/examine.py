"""The examination: what engine and trainer are asked, in which order, and what becomes of the answers.

- Hypotheses are tried on the trainer, never on the engine: a few of the sampled sequences are scored again as if the
  engine had done this or that, and whichever leaves the smallest gap says what it did.
- The engine is also compared with itself (a sampled token's log-probability against its own score of it) and in one
  forward pass with the trainer; so the ways through sampler and model are told apart.
- The weights are changed last, group by group, since nothing that comes after would mean anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from prl.config import Config
from prl.doctor.causes import AS_RENDERED, EXPLAINS
from prl.doctor.evidence import Evidence, Forward, Gap, Nudged, Sampled, gap_of
from prl.doctor.inputs import groups_of, is_retokenised, prompt_facts, stop_facts
from prl.errors import EngineError
from prl.tokenizer import Tokenizer
from prl.types import Prompt

NUM_PROBED = 8
"""Sequences on which hypotheses are tried."""
NUM_NUDGED = 4
"""Sequences on which the weights are followed."""
NUDGE = 0.1
"""Noise of a nudge, relative to a tensor's root mean square: far above bfloat16's rounding, far below nonsense."""
_REFINEMENTS = 6
_WIDEST = 2.0

Stage = Callable[[str], None]


class Sides(Protocol):
    """One engine and the trainer, as the doctor asks them."""

    tensors: list[str]
    """Names of what a weight update sends."""

    async def sample(self, prompts: Sequence[Prompt], temperature: float) -> list[Sampled]:
        """One completion of each prompt; those that come to nothing are left out."""
        ...

    async def engine_scores(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """The engine's log-probability at temperature 1 of each token after the first, by sequence."""
        ...

    async def trainer_scores(
        self, sequences: Sequence[list[int]], temperature: float, dtype: str | None = None
    ) -> list[list[float]]:
        """The trainer's, at any temperature and in any compute dtype (None: its own)."""
        ...

    async def nudge(self, tensors: list[str], scale: float) -> None:
        """Change these tensors in the trainer and push all weights into the engine."""
        ...


class _Prefix(NamedTuple):
    """How the engine may have read a prompt."""

    name: str
    read: Callable[[list[int]], list[int]]
    num_tokens: int
    """That it read more than there are."""


_RENDERED = _Prefix(AS_RENDERED, lambda ids: ids, 0)


class Examination:
    """Asks both sides.

    Args:
        sides: engine and trainer, with the first weights pushed.
        config: what they were started with.
        tokenizer: of the model.
        tolerance: largest accepted gap of a token at temperature 1.
        sampling_defaults: what the model's generation config would change in the distribution.
        on_stage: told what is being done.
    """

    def __init__(
        self,
        sides: Sides,
        config: Config,
        tokenizer: Tokenizer,
        *,
        tolerance: float,
        sampling_defaults: dict[str, float],
        on_stage: Stage = lambda _: None,
    ) -> None:
        self._sides, self._tokenizer, self._on_stage = sides, tokenizer, on_stage
        self._tolerance, self._defaults = tolerance, sampling_defaults
        self._temperature, self._max_len = config.sampling.temperature, config.engine.max_model_len
        self._engine_dtype, self._trainer_dtype = config.engine.dtype, config.trainer.dtype
        shorter = {self._engine_dtype, self._trainer_dtype} - {"float32"}
        self._rounded = self._engine_dtype if self._engine_dtype in shorter else min(shorter, default="bfloat16")

    async def run(self, prompts: Sequence[Prompt], *, num_too_long: int = 0) -> Evidence:
        """The evidence on completions of ``prompts``; ``num_too_long`` others did not fit the context.

        Raises:
            EngineError: no completion was short enough to be scored.
        """
        sampled, control = await self._sample(prompts)
        self._on_stage("scoring them in engine and trainer")
        scores = await self._sides.trainer_scores([each.ids for each in sampled], self._temperature)
        own = await self._own(control)
        differs = [is_retokenised(self._tokenizer, each) for each in sampled]
        rows = list(zip(sampled, scores, differs, strict=True))
        probed = sorted(rows, key=lambda row: row[2])[:NUM_PROBED]  # where the tokens are what they seem, first
        probe = [each for each, _, _ in probed]
        self._on_stage("trying what would explain a gap")
        by_temperature = await self._by_temperature(probe)
        by_prefix, prefix = await self._by_prefix(probe)
        forward = await self._forward(probe, prefix)
        self._on_stage("changing the weights, group by group, to see the engine follow")
        return Evidence(
            temperature=self._temperature,
            engine_dtype=self._engine_dtype,
            trainer_dtype=self._trainer_dtype,
            tolerance=self._tolerance,
            gap=_gap((each, score) for each, score, _ in rows),
            num_misfits=sum(each.pairs(score) is None for each, score, _ in rows),
            probe=_gap((each, score) for each, score, _ in probed),
            by_temperature=by_temperature,
            by_prefix=by_prefix,
            sampler=_gap(zip(control, own, strict=True)),
            forward=forward,
            nudged=await self._nudge_all(probe[:NUM_NUDGED], prefix),
            num_retokenised=sum(differs),
            kept=_gap((each, score) for each, score, changed in rows if not changed),
            changed=_gap((each, score) for each, score, changed in rows if changed),
            sampling_defaults=self._defaults,
            prompts=prompt_facts(self._tokenizer, prompts, num_too_long),
            stops=stop_facts(self._tokenizer, sampled),
        )

    async def _sample(self, prompts: Sequence[Prompt]) -> tuple[list[Sampled], list[Sampled]]:
        """Completions at the configured temperature and at 1, those that both sides can score."""
        found = []
        for temperature in dict.fromkeys((self._temperature, 1.0)):
            self._on_stage(f"sampling {len(prompts)} completions at temperature {temperature:g}")
            every = await self._sides.sample(prompts, temperature)
            found.append([each for each in every if len(each.ids) < self._max_len])
            if not found[-1]:
                raise EngineError(
                    f"none of {len(every)} completions is shorter than the context (engine.max_model_len ="
                    f" {self._max_len}), and a score needs one token more; raise it by one"
                )
        return found[0], found[-1]

    # ---- hypotheses ------------------------------------------------------------------------------------------------

    async def _by_temperature(self, probe: list[Sampled]) -> dict[str, float]:
        """Mean gap at the configured temperature, at those it is often mistaken for, and near the best of them."""
        configured = self._temperature
        likely = {
            configured,
            1.0,
            configured**2,
            configured / 2,
            configured * 2,
            self._defaults.get("temperature", 1.0),
        }
        found = {heat: await self._mean_gap(probe, heat) for heat in sorted(likely)}
        if found[configured] > self._tolerance:
            step = _WIDEST**0.5
            for _ in range(_REFINEMENTS):
                best = min(found, key=found.__getitem__)
                for heat in (best / step, best * step):
                    found[heat] = await self._mean_gap(probe, heat)
                step **= 0.5
        best = min(found, key=found.__getitem__)
        return {f"{heat:.3g}": found[heat] for heat in sorted({*likely, best})}

    async def _mean_gap(self, probe: list[Sampled], temperature: float, prefix: _Prefix = _RENDERED) -> float:
        scores = await self._sides.trainer_scores([prefix.read(each.ids) for each in probe], temperature)
        return _gap(zip(probe, scores, strict=True), prefix).mean

    async def _by_prefix(self, probe: list[Sampled]) -> tuple[dict[str, float], _Prefix]:
        """Mean gap by how a prompt may have been read, and the way that fits."""
        prefixes, bos = [_RENDERED], self._tokenizer.bos_token_id
        if bos is not None:
            prefixes.append(_Prefix("a BOS more", lambda ids: [bos, *ids], 1))
            if all(each.prompt_ids[0] == bos and len(each.prompt_ids) > 1 for each in probe):
                prefixes.append(_Prefix("a BOS fewer", lambda ids: ids[1:], -1))
        found = {prefix.name: await self._mean_gap(probe, self._temperature, prefix) for prefix in prefixes}
        best = min(prefixes, key=lambda prefix: found[prefix.name])
        fits = found[best.name] <= EXPLAINS * found[AS_RENDERED] and found[AS_RENDERED] > self._tolerance
        return found, best if fits else _RENDERED

    async def _forward(self, probe: list[Sampled], prefix: _Prefix) -> Forward:
        """One forward pass of each side at temperature 1, and what rounding does to the trainer's."""
        own = await self._scored_by_engine(probe)
        read = [prefix.read(each.ids) for each in probe]
        by_dtype = {
            dtype: await self._sides.trainer_scores(read, 1.0, dtype) for dtype in (None, "float32", self._rounded)
        }
        in_float32 = [
            msgspec.structs.replace(each, logprobs=score[-len(each.token_ids) :])
            for each, score in zip(probe, by_dtype["float32"], strict=True)
        ]
        return Forward(
            gap=_gap(zip(own, by_dtype[None], strict=True), prefix),
            exact=_gap(zip(own, by_dtype["float32"], strict=True), prefix).mean,
            rounded=_gap(zip(own, by_dtype[self._rounded], strict=True), prefix).mean,
            dtype=self._rounded,
            rounding=_gap(zip(in_float32, by_dtype[self._rounded], strict=True), prefix).mean,
        )

    # ---- weights ---------------------------------------------------------------------------------------------------

    async def _nudge_all(self, probe: list[Sampled], prefix: _Prefix) -> list[Nudged]:
        """Change one group of tensors after the other, and see what the engine makes of each."""
        nudged = []
        before = await self._pairs(probe, prefix)
        for group, tensors in groups_of(self._sides.tensors).items():
            await self._sides.nudge(tensors, NUDGE)
            after = await self._pairs(probe, prefix)
            changes = [(e1 - e0, t1 - t0) for (e0, t0), (e1, t1) in zip(before, after, strict=True)]
            moved = math.fsum(abs(trainer) for _, trainer in changes) / max(1, len(changes))
            apart = math.fsum(abs(engine - trainer) for engine, trainer in changes) / max(1, len(changes))
            missed = apart / moved if moved else 0.0
            nudged.append(Nudged(group=group, num_tensors=len(tensors), moved=moved, missed=missed))
            before = after
        return nudged

    async def _pairs(self, probe: list[Sampled], prefix: _Prefix) -> list[tuple[float, float]]:
        """(engine's, trainer's) of each token in a forward pass at temperature 1."""
        own = await self._scored_by_engine(probe)
        scores = await self._sides.trainer_scores([prefix.read(each.ids) for each in probe], 1.0)
        return _pairs(zip(own, scores, strict=True), prefix)

    async def _own(self, sampled: list[Sampled]) -> list[list[float]]:
        return await self._sides.engine_scores([each.ids for each in sampled])

    async def _scored_by_engine(self, sampled: list[Sampled]) -> list[Sampled]:
        """The same sequences with the engine's scores in place of what it reported when it sampled."""
        return [
            msgspec.structs.replace(each, logprobs=score[-len(each.token_ids) :])
            for each, score in zip(sampled, await self._own(sampled), strict=True)
        ]


def _pairs(rows: Iterable[tuple[Sampled, list[float]]], prefix: _Prefix = _RENDERED) -> list[tuple[float, float]]:
    """(first's, second's) log-probability of every token, of the sequences that both scored."""
    found = (each.pairs(scores, prefix.num_tokens) for each, scores in rows)
    return [pair for pairs in found if pairs is not None for pair in pairs]


def _gap(rows: Iterable[tuple[Sampled, list[float]]], prefix: _Prefix = _RENDERED) -> Gap:
    return gap_of(_pairs(rows, prefix))

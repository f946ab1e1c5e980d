"""One real engine and the real trainer of a configuration, started for an examination and ended after it.

Invariants:

- They are started and joined as a run does it, by the same parts, but for the number of engines: one tells as much.
- Every wait has the deadline of its config key. Whatever happens, leaving ends every process.
- A push is not judged here: one that moved nothing is a finding, not an error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from prl import machinery
from prl.config import Config
from prl.doctor.evidence import Sampled
from prl.doctor.examine import Stage
from prl.engines.base import Decoding, Engine
from prl.engines.pool import EnginePool
from prl.errors import EngineError
from prl.failure import FirstFailure, failures_to, raise_as_it_was, together_as_it_was
from prl.log import get_logger
from prl.sampler import Dropped, Sampler
from prl.servers import host_of
from prl.sync import WeightSync
from prl.tokenizer import Tokenizer
from prl.trainer.base import ExaminedTrainer
from prl.types import Completion, Prompt, TensorSpec

log = get_logger(__name__)


class LiveSides:
    """``examine.Sides`` over an open pool of one engine and an open trainer that has joined it."""

    def __init__(
        self,
        config: Config,
        tokenizer: Tokenizer,
        *,
        pool: EnginePool,
        trainer: ExaminedTrainer,
        sync: WeightSync,
        tensors: list[str],
    ) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._pool, self._trainer, self._sync = pool, trainer, sync
        self.tensors = tensors
        self._failure = FirstFailure()
        self._sampler = Sampler(pool, tokenizer.decode)

    async def sample(self, prompts: Sequence[Prompt], temperature: float) -> list[Sampled]:
        """One completion of each prompt, side by side.

        Raises:
            EngineError: none came to anything, or not within ``pipeline.rollout_timeout_s``.
        """
        decoding = Decoding(
            temperature=temperature,
            max_tokens=self._config.sampling.max_tokens,
            stop_token_ids=self._tokenizer.stop_token_ids,
        )
        timeout_s = self._config.pipeline.rollout_timeout_s
        outcomes: dict[int, Completion | Dropped] = {}

        async def one(index: int, prompt: Prompt) -> None:
            with failures_to(self._failure.set, f"the completion of prompt {prompt.id}"):
                outcomes[index] = await self._sampler.sample(prompt, decoding)

        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                for index, prompt in enumerate(prompts):
                    group.create_task(one(index, prompt))
        except TimeoutError:
            raise EngineError(
                f"{len(prompts)} completions took longer than pipeline.rollout_timeout_s = {timeout_s:g} s"
            ) from None
        if self._failure.error is not None:
            raise_as_it_was(self._failure.error)
        sampled = [
            Sampled(
                prompt_ids=prompts[index].token_ids,
                token_ids=outcome.token_ids,
                logprobs=outcome.logprobs,
                stopped=outcome.finish == "stop",
            )
            for index, outcome in sorted(outcomes.items())
            if isinstance(outcome, Completion)
        ]
        if not sampled:
            dropped = next(outcome for outcome in outcomes.values() if isinstance(outcome, Dropped))
            raise EngineError(f"none of {len(prompts)} completions came to anything: {dropped.message}")
        return sampled

    async def engine_scores(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """One after the other: an engine keeps room for one score beside its streams."""
        return [next(iter((await self._pool.score(sequence)).values())) for sequence in sequences]

    async def trainer_scores(
        self, sequences: Sequence[list[int]], temperature: float, dtype: str | None = None
    ) -> list[list[float]]:
        """All in one command."""
        return await self._trainer.rescore(list(sequences), temperature=temperature, dtype=dtype)

    async def nudge(self, tensors: list[str], scale: float) -> None:
        """Change the trainer's weights and push them as the next version."""
        await self._trainer.nudge(tensors, scale)
        await self._sync.push(self._sync.version + 1)


@asynccontextmanager
async def live_sides(
    config: Config, model: str, tokenizer: Tokenizer, logs: Path, on_stage: Stage
) -> AsyncIterator[LiveSides]:
    """Start both sides, push the first weights, and end every process on leaving.

    Args:
        config: of the run; of its engines one is started, and no reference model.
        model: a folder or hub name.
        tokenizer: of the model.
        logs: where the processes write what they have to say.
        on_stage: told what is being waited for.
    """
    kl = msgspec.structs.replace(config.kl, coefficient=0.0)
    servers = [] if config.engine.num_local else config.engine.servers[:1]
    engine = msgspec.structs.replace(config.engine, count=1, servers=servers)
    config = msgspec.structs.replace(config, engine=engine, kl=kl)
    transport = await asyncio.to_thread(machinery.transport_of, config)
    engines: list[Engine] = machinery.make_engines(config, model, logs, transport)
    pool = EnginePool(engines, config.engine, gate_timeout_s=config.weights.timeout_s)
    trainer = machinery.make_trainer(config, model, logs, None)
    try:
        on_stage(f"starting {machinery.describe(config)}")
        opened = await together_as_it_was("start", trainer=trainer.open, engines=pool.open)
        on_stage("joining engine and trainer, sending the first weights")
        timeout_s = config.weights.timeout_s
        address, port = await trainer.meeting([host_of(server) for server in servers])
        address = config.weights.host or address
        group = pool.weight_group(
            transport=transport,
            address=address,
            port=port,
            timeout_s=timeout_s,
            bucket_bytes=config.weights.bucket_bytes,
        )
        await together_as_it_was("join", trainer=lambda: trainer.connect(group), engines=lambda: pool.connect(group))
        manifest: list[TensorSpec] = opened["trainer"].manifest
        sync = WeightSync(
            trainer,
            pool,
            transport=transport,
            manifest=manifest,
            probe=[0, 0],
            tolerance=math.inf,
            timeout_s=timeout_s,
            verify_every=0,
            staged=machinery.is_staged(config, transport),
        )
        await sync.push(0)
        tensors = [spec.name for spec in manifest]
        yield LiveSides(config, tokenizer, pool=pool, trainer=trainer, sync=sync, tensors=tensors)
    finally:
        on_stage("ending the processes")
        async with asyncio.TaskGroup() as closing:
            for close in (trainer.close, pool.close):
                closing.create_task(_closed(close))


async def _closed(close: Callable[[], Awaitable[None]]) -> None:
    with failures_to(lambda error: log.error("a part did not close", exc_info=error), "a close"):
        await close()

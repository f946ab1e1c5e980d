"""Episodes while a run, or an evaluation, goes on: the environment opened, and the gateway where one is wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prl import parts
from prl.config import Config
from prl.environments.base import Environment
from prl.gateway.gateway import Gateway
from prl.rollout import Play
from prl.tokenizer import Tokenizer


@asynccontextmanager
async def playing(config: Config, environment: Environment | None, tokenizer: Tokenizer) -> AsyncIterator[Play | None]:
    """What plays episodes of ``environment`` meanwhile; None where a rollout is a single turn.

    Raises:
        ConfigError: the gateway's address cannot be had.
    """
    if environment is None:
        yield None
        return
    gateway = Gateway(config.gateway) if config.gateway.enabled else None
    try:
        if gateway is not None:
            await gateway.open()
        async with parts.make_episodes(config, environment, tokenizer, gateway) as episodes:
            yield episodes.play
    finally:
        if gateway is not None:
            await gateway.close()

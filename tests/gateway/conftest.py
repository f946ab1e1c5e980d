"""A gateway that listens, and the tokenizer of the episodes behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from prl.config_environment import GatewayConfig
from prl.gateway.gateway import Gateway
from tests.environments.conftest import tokenizer

__all__ = ["gateway", "tokenizer"]


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    """On a free port of loopback."""
    opened = Gateway(GatewayConfig(enabled=True))
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()

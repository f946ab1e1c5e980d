"""The tables of environments and their gateway, ``[environment]`` and ``[gateway]``."""

from __future__ import annotations

from typing import Any

from msgspec import field

from prl.config_control import Port
from prl.config_fields import Positive, Table

SINGLE_TURN = "single_turn"
VERIFIERS = "verifiers"


class EnvironmentConfig(Table, frozen=True, kw_only=True):
    """``[environment]``: what a rollout does with the model.

    ``sampling.max_tokens`` bounds each turn, ``engine.max_model_len`` an episode's tokens, and
    ``pipeline.rollout_timeout_s`` is the one deadline of all of it.
    """

    name: str = SINGLE_TURN
    """``single_turn``, ``guess``, ``calculator``, ``python``, ``verifiers`` (one of that package's, named by
    ``options.env``), an entry point in group ``prl.environments``, or ``package.module:name``."""
    max_turns: Positive = 16
    """Times that an episode may ask the model; asking again ends it."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""


class GatewayConfig(Table, frozen=True, kw_only=True):
    """``[gateway]``: an OpenAI-compatible address on the running pipeline, for the agents of an environment.

    Each episode has an API key of its own, which is all that it takes to speak as that episode. Tools, streams, stop
    sequences and the log-probabilities of what was sampled are served; of sampling parameters the run's own hold,
    and one that an agent would rely on otherwise (``n``, ``response_format``, ``logit_bias``) is refused by its name.
    """

    enabled: bool = False
    """Serve it: the environment then finds ``session.base_url`` and ``session.api_key``."""
    address: str = "127.0.0.1"
    """Host name or IP address to listen on. It is plain HTTP: across a network that others can read, tunnel it."""
    port: Port = 0
    """0 picks a free one."""

"""The environment protocol: what one episode is, and how an environment is made from its name and options.

An environment is called once for every member of a group, as ``await environment(session, prompt)``. It is either

- an async function, whose keyword-only parameters are its options; or
- a class whose constructor takes the options as keywords and whose instances are called so. An instance may have
  ``async open()`` and ``async close()``, for what its episodes share, ``asks_over_http = True``, which refuses a run
  without ``[gateway]`` before it starts, and ``parts``, the names of the parts of the reward that it gives.

It asks the model as often as it likes (``session.generate``) and gives rewards (``session.reward``, or a number that it
returns). Every token that the model sampled is trained, with the advantage of the episode; nothing else is.

An environment that cannot go on now (a service is down) raises OSError, RewardError or aiohttp's ClientError: the
episode is played once more and then leaves its group, counted as ``dropped_environment_error``. What it raises because
its session said that the episode is over, or that a turn came to nothing, ends the episode as the session said; once it
has set ``session.is_judging = True``, since from there on it only judges, nothing is taken for that. Any other
exception is a bug in the environment and ends the run as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from prl.config_environment import SINGLE_TURN, VERIFIERS, EnvironmentConfig
from prl.environments.session import OWN_PART
from prl.errors import PluginError
from prl.plugins import Registry, call_of, check_takes, made

F = TypeVar("F", bound=Callable[..., Any])

REGISTRY = Registry(
    "environment",
    "prl.environments",
    {
        SINGLE_TURN: "prl.environments.single_turn:single_turn",
        "guess": "prl.environments.guess:guess",
        "calculator": "prl.environments.calculator:calculator",
        "python": "prl.environments.python_tool:Python",
        VERIFIERS: "prl.environments.verifiers_package:Verifiers",
    },
)


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that is ready to be opened: found, of the right shape, its options bound."""

    name: str
    call: Callable[..., Awaitable[float | None]]
    open: Callable[[], Awaitable[None]] | None
    close: Callable[[], Awaitable[None]] | None
    asks_over_http: bool
    """It needs the gateway."""
    parts: tuple[str, ...]
    """The parts of the score that it says it gives: none of ``[[rewards]]`` may have one of these names."""


def environment(name: str, *, parts: Sequence[str] = ()) -> Callable[[F], F]:
    """Register an environment under ``name``; it stays callable as it was.

    ``parts`` are the names of the parts of the reward that it gives (``session.reward(1.0, "found")``), where they are
    not ``environment`` alone. That one of ``[[rewards]]`` has one of them is then found before anything starts.
    """

    def decorate(target: F) -> F:
        _check_shape(name, target)
        if parts:
            target.parts = tuple(parts)  # type: ignore[attr-defined]
        return REGISTRY.register(name, target)

    return decorate


def make_environment(config: EnvironmentConfig) -> Environment:
    """What ``[environment]`` names, its options bound. Raises PluginError, and whatever a constructor raises."""
    target = REGISTRY.find(config.name)
    _check_shape(config.name, target)
    instance = made("environment", config.name, target, config.options)
    return Environment(
        name=config.name,
        call=instance,
        open=getattr(instance, "open", None),
        close=getattr(instance, "close", None),
        asks_over_http=bool(getattr(instance, "asks_over_http", False)),
        parts=tuple(getattr(instance, "parts", getattr(target, "parts", (OWN_PART,)))),
    )


def _check_shape(name: str, target: Any) -> None:
    """Raise PluginError unless ``target`` (or an instance of it) is an async callable of (session, prompt)."""
    call = call_of(target)
    if call is None or not inspect.iscoroutinefunction(call):
        raise PluginError(
            f"the environment {name!r} must be an async function of (session, prompt), or a class whose __call__ is"
            f" one; it is {target!r:.80}"
        )
    check_takes("environment", name, target, ("session", "prompt"))

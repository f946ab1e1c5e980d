"""The reward protocol: what judges one completion, and how one is made from its name and options.

A reward is called as ``reward(completion, prompt)``. It is either

- a function, async or plain, whose keyword-only parameters are its options; or
- a class whose constructor takes the options as keywords and whose instances are called. An instance may have
  ``async open()`` and ``async close()``, ``required_fields``, ``reads_all_fields``, ``check_row``, ``concurrency``,
  ``statistics()`` (see ``Reward``).

It returns a finite number, or None to abstain, or either with its reason (``Judged``). Anything else is a failure of
the reward, never a 0. Plain functions run outside the event loop, in threads. A reward sees the completion's text
alone, never joined with the prompt's.

A reward that cannot judge now (a service is down, a worker died) raises RewardError, OSError or aiohttp's ClientError:
that is tried again ``max_retries`` times unless it would come back (a missing file, a refused request); then it is
counted, and ``on_failure`` decides. Any other exception is a bug in the reward and ends the run as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from prl.errors import PluginError
from prl.plugins import Registry, call_of, check_takes, made
from prl.types import Completion, Prompt

Judgement = float | int | bool | None
F = TypeVar("F", bound=Callable[..., Any])

REGISTRY = Registry(
    "reward",
    "prl.rewards",
    {
        "answer": "prl.rewards.answer:Answer",
        "code": "prl.rewards.code:Code",
        "format": "prl.rewards.format:Format",
        "http": "prl.rewards.http:Http",
        "judge": "prl.rewards.judge:Judge",
        "math": "prl.rewards.math:Math",
        "reasoning_gym": "prl.rewards.gym:ReasoningGym",
    },
)


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What a reward gives a completion, and why: reasons are counted, and ``prl score`` shows them."""

    value: Judgement
    """None abstains."""
    reason: str = ""
    """A short key, such as ``no_answer``; few different ones, since each is a counter."""
    detail: str = ""
    """The reason for people, with what was found."""


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """A reward that is ready to be opened: found, of the right shape, its options bound."""

    name: str
    call: Callable[[Completion, Prompt], Any]
    is_async: bool
    per_group: bool
    """Called as ``reward(completions, prompt)`` with all completions of a prompt, for one value each."""
    required_fields: tuple[str, ...]
    """Fields that a prompt must have (such as ``answer``); a row without one is refused when the data is loaded."""
    reads_all_fields: bool
    """It looks at whatever fields a row has, so that none of them is one too many."""
    concurrency: int | None
    """Most calls that make sense at once, where the reward itself knows (its number of workers)."""
    open: Callable[[], Awaitable[None]] | None
    close: Callable[[], Awaitable[None]] | None
    statistics: Callable[[], Mapping[str, float]] | None
    """Counters of the reward's own, shown next to the scorer's."""
    notes: tuple[str, ...]
    """What ``prl run --check`` says of it besides its name, such as the isolation that this machine offers."""
    check_row: Callable[[Mapping[str, Any]], str | None] | None
    """Says what makes a row's fields useless to the reward, if anything does; asked of every row at load."""


def reward(name: str, *, required_fields: Sequence[str] = ()) -> Callable[[F], F]:
    """Register a reward function or class under ``name``; it stays callable as it was.

    ``required_fields`` are fields that every prompt must have: a row without one is refused when the data is loaded.
    """

    def decorate(target: F) -> F:
        _check_shape(name, target)
        if required_fields:
            target.required_fields = tuple(required_fields)  # type: ignore[attr-defined]
        return REGISTRY.register(name, target)

    return decorate


def group_reward(name: str, *, required_fields: Sequence[str] = ()) -> Callable[[F], F]:
    """Register a reward that sees all completions of a prompt at once, to rank them or to reward what differs.

    It is called as ``reward(completions, prompt)`` and returns a number (or None) for each, in their order. Members
    that failed or were not scored are not among them. Evaluations judge answers one by one and leave it out.
    """
    decorate_single = reward(name, required_fields=required_fields)

    def decorate(target: F) -> F:
        target.per_group = True  # type: ignore[attr-defined]
        return decorate_single(target)

    return decorate


def make_reward(name: str, options: Mapping[str, Any]) -> Reward:
    """The reward ``name`` with ``options`` bound. Raises PluginError, and whatever its constructor raises."""
    target = REGISTRY.find(name)
    _check_shape(name, target)
    instance = made("reward", name, target, options)
    return Reward(
        name=name,
        call=instance,
        is_async=inspect.iscoroutinefunction(instance) or inspect.iscoroutinefunction(type(instance).__call__),
        per_group=bool(getattr(target, "per_group", False)),
        required_fields=tuple(getattr(instance, "required_fields", getattr(target, "required_fields", ()))),
        reads_all_fields=bool(getattr(instance, "reads_all_fields", False)),
        concurrency=getattr(instance, "concurrency", None),
        open=getattr(instance, "open", None),
        close=getattr(instance, "close", None),
        statistics=getattr(instance, "statistics", None),
        check_row=getattr(instance, "check_row", None),
        notes=tuple(getattr(instance, "notes", ())),
    )


def _check_shape(name: str, target: Any) -> None:
    """Raise PluginError unless ``target`` (or an instance of it) can be called as ``(completion, prompt)``."""
    if call_of(target) is None:
        raise PluginError(f"the reward {name!r} cannot be called: it is {target!r:.80}")
    check_takes("reward", name, target, ("completion", "prompt"))

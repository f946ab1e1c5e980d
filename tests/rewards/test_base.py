"""Rewards by name: their shape, their options, and what they say about themselves."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from prl.errors import PluginError
from prl.rewards.base import REGISTRY, make_reward, reward
from prl.types import Completion, Prompt
from tests.rewards.samples import completion, prompt


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(REGISTRY, "_registered", {})
    return


def test_function_stays_callable_and_is_found() -> None:
    """The decorator registers a function and gives it back."""

    @reward("short")
    def short(completion: Completion, prompt: Prompt) -> float:
        return 1.0 if len(completion.text) < 3 else 0.0

    assert short(completion("ab"), prompt()) == 1.0
    made = make_reward("short", {})
    assert made.call(completion("abc"), prompt()) == 0.0
    assert not made.is_async
    assert made.required_fields == ()


def test_options_are_keyword_only_parameters() -> None:
    """A function's options are bound to its keyword-only parameters; those left out keep their default."""

    @reward("limit", required_fields=("answer",))
    async def limit(completion: Completion, prompt: Prompt, *, below: int = 3, unit: str = "chars") -> float:
        return float(len(completion.text) < below)

    made = make_reward("limit", {"below": 5})
    assert made.is_async
    assert made.required_fields == ("answer",)
    assert made.call.keywords == {"below": 5}


def test_class_is_made_from_options() -> None:
    """A class gets its options as keywords, and its instance is what is called, opened and closed."""

    @reward("counted")
    class Counted:
        required_fields = ("tests",)

        def __init__(self, *, start: int = 0) -> None:
            self.count = start
            self.concurrency = 3

        async def open(self) -> None: ...

        async def close(self) -> None: ...

        async def __call__(self, completion: Completion, prompt: Prompt) -> float:
            return self.count

        def statistics(self) -> dict[str, float]:
            return {"count": self.count}

    made = make_reward("counted", {"start": 4})
    assert made.is_async
    assert (made.required_fields, made.concurrency) == (("tests",), 3)
    assert made.statistics is not None
    assert made.statistics() == {"count": 4}
    assert made.open is not None
    assert made.close is not None


def test_options_are_checked_by_their_annotations() -> None:
    """An unknown, missing or wrongly typed option is one line that names reward, option and value."""

    @reward("strict")
    class Strict:
        def __init__(self, *, size: Annotated[int, Meta(ge=1)], mode: Literal["a", "b"] = "a") -> None: ...

        def __call__(self, completion: Completion, prompt: Prompt) -> float:
            return 0.0

    for options, message in [
        ({"size": 1, "mod": "a"}, r"'strict' has no option 'mod' \(did you mean 'mode'\?\); it takes size, mode"),
        ({}, "'strict' needs the option 'size'"),
        ({"size": "1"}, "'strict', option 'size': Expected `int`, got `str`; got '1'"),
        ({"size": 0}, r"'strict', option 'size': Expected `int` >= 1; got 0"),
        ({"size": 1, "mode": "c"}, "option 'mode': Invalid enum value 'c'"),
    ]:
        with pytest.raises(PluginError, match=message):
            make_reward("strict", options)


def test_function_without_options_takes_none() -> None:
    """An option for a reward that has none says so."""
    reward("bare")(lambda completion, prompt: 1.0)
    with pytest.raises(PluginError, match="'bare' has no option 'x'; it takes none"):
        make_reward("bare", {"x": 1})


class _NoCall:
    pass


class _NarrowCall:
    def __call__(self, completion: Completion) -> float:
        return 0.0


@pytest.mark.parametrize(
    "target",
    [
        5,
        _NoCall,
        _NarrowCall,
        lambda: 1.0,
        lambda completion: 1.0,
        lambda completion, prompt, reference: 1.0,
        functools.partial(pow, 2, 3, 4),
    ],
)
def test_wrong_shape_is_refused(target: Any) -> None:
    """What cannot be called with a completion and a prompt is no reward."""
    with pytest.raises(PluginError, match=r"cannot be called|must take \(completion, prompt\)"):
        reward("bad")(target)


@pytest.mark.parametrize("name", ["answer", "format", "math"])
def test_builtin_rewards_are_there(name: str) -> None:
    """The built-in names lead to rewards that can be made."""
    made = make_reward(name, {"pattern": "x"} if name == "format" else {})
    assert made.is_async
    assert made.name == name


def test_unknown_reward_names_the_closest() -> None:
    """A misspelt name answers with the nearest."""
    with pytest.raises(PluginError, match=r"there is no reward 'anwser' \(did you mean 'answer'\?\)"):
        make_reward("anwser", {})

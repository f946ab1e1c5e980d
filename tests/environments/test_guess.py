"""The guessing game."""

from __future__ import annotations

from typing import Any

import pytest

from prl.environments.guess import guess
from prl.errors import ConfigError
from tests.factories import make_prompt


class Reply:
    """What a player says."""

    def __init__(self, text: str) -> None:
        self.finish = "length" if text.endswith("...") else "stop"
        self.text, self.message = text, {"role": "assistant", "content": text}


class Player:
    """Plays by a rule that sees the last message."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule
        self.heard: list[str] = []
        self.given: dict[str, float] = {}

    def reward(self, value: float, part: str) -> None:
        """Keep it."""
        self.given[part] = value

    async def generate(self, messages: list[dict[str, str]]) -> Reply:
        """The next guess."""
        self.heard.append(messages[-1]["content"])
        return Reply(self._rule(self.heard[-1]))


def halving(message: str) -> str:
    """Guess the middle of what is left."""
    low, high = message.removesuffix(" = ?").split(" to ")
    return f"\\boxed{{{(int(low) + int(high)) // 2}}}"


async def play(player: Player, number: int, **options: Any) -> float:
    """One game about prompt ``number``: whether it was found."""
    await guess(player, make_prompt(number), **options)  # type: ignore[arg-type]
    return player.given["found"]


async def test_halving_what_is_left_always_finds_it() -> None:
    """Four guesses are enough for nine numbers; the same prompt has the same secret."""
    for number in range(40):
        first, second = Player(halving), Player(halving)
        assert await play(first, number, num_guesses=4) == 1.0
        await play(second, number, num_guesses=4)
        assert first.heard == second.heard


async def test_three_guesses_find_seven_of_nine() -> None:
    """What ``configs/guess.toml`` says that nobody can exceed, over many prompts."""
    found = [await play(Player(halving), number) for number in range(900)]
    assert sum(found) / len(found) == pytest.approx(7 / 9, abs=0.04)


async def test_what_is_no_number_is_a_lost_guess() -> None:
    """The same question comes again; a guess out of range narrows nothing, and an answer that was cut off is none."""
    for text in ("perhaps", "100", "0", "5 or 6 ..."):
        player = Player(lambda _, text=text: text)
        assert await play(player, 0) == 0.0
        assert player.heard == ["1 to 9 = ?"] * 3


@pytest.mark.parametrize(
    ("low", "high", "guesses", "worth"), [(1, 9, "5", 0.3125), (1, 9, "100", 0.0), (4, 4, "4", None)]
)
async def test_narrowing_is_worth_what_it_rules_out(low: int, high: int, guesses: str, worth: float | None) -> None:
    """Five of eight others ruled out is that share of ``narrowing``; found, all are; alone there are no others."""
    for number in range(20):
        player = Player(lambda _: guesses)
        found = await play(player, number, low=low, high=high, num_guesses=1, narrowing=0.5)
        narrowed = player.given.get("narrowed")
        assert narrowed == (0.5 if found and worth is not None else worth)


async def test_no_numbers_is_a_config_error() -> None:
    """The options say between which numbers to look."""
    with pytest.raises(ConfigError, match="low = 9 is above high = 1"):
        await play(Player(halving), 0, low=9, high=1)

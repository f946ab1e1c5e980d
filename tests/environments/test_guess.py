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
        self.text, self.message = text, {"role": "assistant", "content": text}


class Player:
    """Plays by a rule that sees the last message."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule
        self.heard: list[str] = []

    async def generate(self, messages: list[dict[str, str]]) -> Reply:
        """The next guess."""
        self.heard.append(messages[-1]["content"])
        return Reply(self._rule(self.heard[-1]))


def halving(message: str) -> str:
    """Guess the middle of what is left."""
    low, high = message.removesuffix(" = ?").split(", ")[-1].split(" to ")
    return f"\\boxed{{{(int(low) + int(high)) // 2}}}"


async def play(player: Player, number: int, **options: Any) -> float:
    """One game about prompt ``number``."""
    return await guess(player, make_prompt(number), **options)  # type: ignore[arg-type]


async def test_halving_what_is_left_always_finds_it() -> None:
    """Four guesses are enough for nine numbers, and each hint is true; the same prompt has the same secret."""
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
    """The same question comes again, without a hint; a guess out of range narrows nothing."""
    player = Player(lambda _: "perhaps")
    assert await play(player, 0) == 0.0
    assert player.heard == ["1 to 9 = ?"] * 3
    player = Player(lambda _: "100")
    await play(player, 0)
    assert player.heard == ["1 to 9 = ?", *["lower, 1 to 9 = ?"] * 2]


async def test_no_numbers_is_a_config_error() -> None:
    """The options say between which numbers to look."""
    with pytest.raises(ConfigError, match="low = 9 is above high = 1"):
        await play(Player(halving), 0, low=9, high=1)

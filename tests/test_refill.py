"""Which groups are rolled out again, and when that ends."""

from __future__ import annotations

import logging

import pytest

from prl.config import Config, PipelineConfig
from prl.config_algorithm import AdvantageConfig, OverlongConfig
from prl.parts import make_refill
from prl.refill import Refill
from prl.shaping import plain, shaping_of
from tests.factories import make_completion, make_group


@pytest.mark.parametrize(
    ("rewards", "refused"),
    [([1.0, 1.0], True), ([0.1 * 3] * 7, True), ([0.1 + 0.2, 0.3], False), ([5.0], True), ([0.0, 0.0, 1e-300], False)],
)
def test_only_equal_rewards_teach_nothing(rewards: list[float], *, refused: bool) -> None:
    """Decided on the rewards themselves: rounding neither makes a difference nor hides one."""
    assert Refill(plain, 1).wants_another(make_group(0, rewards)) is refused


def test_the_rewards_that_are_trained_on_decide() -> None:
    """Equal scores of which one is overlong are not equal; unequal ones may become so."""
    refill = Refill(shaping_of(OverlongConfig(buffer=4), 8), 9)
    short, long = make_completion([7] * 4), make_completion([7] * 8)
    assert not refill.wants_another(make_group(0, [1.0, 1.0], [short, long]))
    assert refill.wants_another(make_group(0, [0.0, 1.0], [short, long]))


def test_the_bound_is_kept_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """After ``max_refills`` groups what comes is kept, with one warning a round; the next round starts anew."""
    refill, group = Refill(plain, 2), make_group(3, [1.0, 1.0])
    with caplog.at_level(logging.WARNING):
        first = [refill.wants_another(group) for _ in range(4)]
        refill.start_round()
        second = [refill.wants_another(group) for _ in range(4)]
    assert first == second == [True, True, False, False]
    assert sum("advantage.max_refills" in record.getMessage() for record in caplog.records) == 2


def test_the_configuration_decides() -> None:
    """``keep`` refills nothing; a conventional round has the refills of its steps."""
    assert make_refill(Config(model="m")) is None
    advantage = AdvantageConfig(zero_variance="refill", max_refills=1)
    pipeline = PipelineConfig(mode="conventional", steps_per_round=2)
    refill = make_refill(Config(model="m", advantage=advantage, pipeline=pipeline))
    assert refill is not None
    assert [refill.wants_another(make_group(0, [1.0, 1.0])) for _ in range(3)] == [True, True, False]

from __future__ import annotations

import math
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from prl.config import TrainerConfig  # noqa: E402 -- after the check for torch
from prl.trainer.optimizer import learning_rate, make_optimizer, optimizer_tensors  # noqa: E402


def _rates(schedule: Any, warmup: int, num_steps: int) -> list[float]:
    config = TrainerConfig(learning_rate=2.0, warmup_steps=warmup, schedule=schedule)
    return [learning_rate(step, config, num_steps) for step in range(num_steps)]


def test_warm_up_rises_linearly_and_its_first_step_moves() -> None:
    """With 4 steps of warm-up the rates are 1/4, 2/4, 3/4 and 4/4 of the peak, then the peak."""
    assert _rates("constant", 4, 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_linear_and_cosine_fall_towards_zero_at_the_last_step() -> None:
    """The decay runs from the end of the warm-up to num_steps, and no step of the run has a rate of 0."""
    assert _rates("linear", 1, 5) == [2.0, 2.0, 1.5, 1.0, 0.5]
    assert _rates("cosine", 0, 4) == pytest.approx([1 + math.cos(math.pi * k / 4) for k in range(4)])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("warmup", "num_steps"), [(0, 1), (5, 3), (3, 3), (0, 0)])
def test_every_corner_is_finite(schedule: Any, warmup: int, num_steps: int) -> None:
    """Warm-up as long as the run or longer, runs of one or no step, and steps past the end give rates in [0, peak]."""
    config = TrainerConfig(learning_rate=2.0, warmup_steps=warmup, schedule=schedule)
    assert all(0.0 <= learning_rate(step, config, num_steps) <= 2.0 for step in range(10))


def test_decay_spares_norms_and_biases() -> None:
    """Weight decay pulls on the matrix and leaves the 1-D parameter alone; a zero gradient changes nothing else."""
    named = {"matrix": torch.nn.Parameter(torch.ones(2, 2)), "bias": torch.nn.Parameter(torch.ones(2))}
    optimizer = make_optimizer(named.values(), TrainerConfig(learning_rate=0.1, weight_decay=0.5))
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert named["matrix"].tolist() == [[pytest.approx(0.95)] * 2] * 2
    assert named["bias"].tolist() == [1.0, 1.0]


def test_small_updates_are_not_lost() -> None:
    """A weight of 1 and a rate of 1e-6 has moved by 1e-4 after 100 steps, which bfloat16 would swallow."""
    weight = torch.nn.Parameter(torch.ones(1, 1))
    optimizer = make_optimizer([weight], TrainerConfig(learning_rate=1e-6))
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert 1.0 - weight.item() == pytest.approx(1e-4, rel=0.02)


def test_other_master_types_are_refused() -> None:
    """Parameters in bfloat16 cannot become master weights."""
    with pytest.raises(TypeError, match="float32"):
        make_optimizer([torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], TrainerConfig())


def test_the_state_is_there_before_the_first_step_and_is_the_live_one() -> None:
    """A checkpoint has the same entries before and after training, and writing into them changes the optimiser."""
    weight = torch.nn.Parameter(torch.ones(1, 1))
    optimizer = make_optimizer([weight], TrainerConfig())
    entries = optimizer_tensors(optimizer, {"w": weight})
    assert sorted(entries) == ["w.exp_avg", "w.exp_avg_sq", "w.step"]
    entries["w.step"].fill_(9.0)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert optimizer_tensors(optimizer, {"w": weight})["w.step"].item() == 10.0

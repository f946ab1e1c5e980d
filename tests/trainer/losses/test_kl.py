"""The penalty to a reference: its estimators, and what a token's rest of the sequence costs."""

from __future__ import annotations

import math
import random
from typing import Any, Literal

import pytest

from tests.trainer.losses.reference import penalty

torch: Any = pytest.importorskip("torch")

from prl.trainer.losses.kl import cost_to_go, estimate  # noqa: E402 -- after the check for torch

Estimator = Literal["k1", "k2", "k3"]
ESTIMATORS = ["k1", "k2", "k3"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("spread", [1e-3, 1.0, 100.0])
def test_estimates_and_gradients_are_those_of_plain_python(estimator: Estimator, spread: float) -> None:
    """Value and derivative at each token in float64, up to log-ratios beyond their bound."""
    draw = random.Random(1)
    pi = [draw.uniform(-6, 0) for _ in range(40)]
    ref = [p + draw.gauss(0, spread) for p in pi]
    leaf = torch.tensor(pi, dtype=torch.float64, requires_grad=True)
    found = estimate(leaf, torch.tensor(ref, dtype=torch.float64), estimator)
    found.sum().backward()
    expected = [penalty(p, r, estimator) for p, r in zip(pi, ref, strict=True)]
    assert found.tolist() == pytest.approx([value for value, _ in expected], rel=1e-6, abs=1e-12)
    assert leaf.grad.tolist() == pytest.approx([slope for _, slope in expected], rel=1e-6, abs=1e-12)


def test_the_estimators_estimate_the_divergence() -> None:
    """Averaged over the policy itself, k1 and k3 are KL(pi || ref) exactly, and k2 is near it; k3 is never negative."""
    pi, ref = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.4, 0.4, 0.2]).double()
    exact = (pi * (pi / ref).log()).sum().item()
    means = {name: (pi * estimate(pi.log(), ref.log(), name)).sum().item() for name in ("k1", "k2", "k3")}
    assert means["k1"] == pytest.approx(exact)
    assert means["k3"] == pytest.approx(exact)
    assert means["k2"] == pytest.approx(exact, rel=0.1)
    assert (estimate(pi.log(), ref.log(), "k3") >= 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_equal_reference_costs_nothing(estimator: Estimator) -> None:
    """At log-ratio 0 the estimate is 0."""
    assert estimate(torch.tensor([-1.5]), torch.tensor([-1.5]), estimator).item() == 0.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_nan_is_not_hidden(estimator: Estimator) -> None:
    """NaN of the policy or of the reference stays NaN."""
    assert math.isnan(estimate(torch.tensor([math.nan]), torch.tensor([-1.0]), estimator).item())
    assert math.isnan(estimate(torch.tensor([-1.0]), torch.tensor([math.nan]), estimator).item())


def test_the_cost_to_go_stays_in_its_sequence() -> None:
    """Suffix sums by sequence; nothing for nothing."""
    costs = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    assert cost_to_go(costs, torch.tensor([0, 0, 1, 2, 2])).tolist() == [3.0, 2.0, 4.0, 24.0, 16.0]
    assert cost_to_go(costs[:0], torch.tensor([], dtype=torch.long)).tolist() == []

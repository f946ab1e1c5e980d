from __future__ import annotations

import math
import random
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from prl.trainer.loss import MAX_LOG_RATIO, LossTerms, policy_loss  # noqa: E402 -- after the check for torch


def _run(logp: list[float], mu: list[float], adv: list[float], mask: list[bool], b: int) -> tuple[Any, Any, LossTerms]:
    leaf = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    loss, terms = policy_loss(
        leaf,
        torch.tensor(mu, dtype=torch.float64),
        torch.tensor(adv, dtype=torch.float64),
        torch.full((len(logp),), 0.5, dtype=torch.float64),
        torch.tensor(mask),
        ratio_clip=5.0,
        num_sequences=b,
    )
    loss.backward()
    return loss, leaf.grad, terms


def test_value_gradient_and_sums_are_those_of_plain_python() -> None:
    """Loss, gradient and every sum equal a token-by-token computation in float64."""
    draw = random.Random(0)
    logp = [draw.uniform(-6, 0) for _ in range(50)]
    mu = [draw.uniform(-6, 0) for _ in range(50)]
    adv = [draw.uniform(-2, 2) for _ in range(50)]
    mask = [draw.random() < 0.7 for _ in range(50)]

    loss, grad, terms = _run(logp, mu, adv, mask, 6)

    rows = [(math.exp(p - m), a, p, m) for p, m, a, on in zip(logp, mu, adv, mask, strict=True) if on]
    assert loss.item() == pytest.approx(-sum(min(5.0, w) * a * p for w, a, p, _ in rows) / 6, abs=1e-12)
    gradients = iter(-min(5.0, w) * a / 6 for w, a, _, _ in rows)
    assert grad.tolist() == pytest.approx([next(gradients) if on else 0.0 for on in mask], abs=1e-12)
    assert terms.tokens.item() == len(rows)
    assert terms.ratio.item() == pytest.approx(sum(w for w, *_ in rows))
    assert terms.ratio_squared.item() == pytest.approx(sum(w * w for w, *_ in rows))
    assert terms.kl_behaviour.item() == pytest.approx(sum(m - p for *_, p, m in rows))
    assert terms.clipped.item() == sum(w > 5 for w, *_ in rows) > 0
    assert terms.entropy.item() == pytest.approx(0.5 * len(rows))


@pytest.mark.parametrize("bad", [-91.0, 91.0, math.inf, -math.inf, math.nan])
def test_a_masked_token_contributes_nothing_whatever_it_holds(bad: float) -> None:
    """A ratio that overflows, infinity and NaN at a masked position leave value and gradient untouched."""
    clean = _run([-1.0], [-1.5], [0.7], [True], 1)
    for logp, mu, adv in ((bad, -1.0, 0.0), (-1.0, bad, 0.0), (-1.0, -1.0, bad)):
        loss, grad, terms = _run([-1.0, logp], [-1.5, mu], [0.7, adv], [True, False], 1)
        assert loss.item() == clean[0].item()
        assert grad.tolist() == [clean[1].item(), 0.0]
        assert [term.item() for term in terms] == [term.item() for term in clean[2]]


def test_a_huge_ratio_is_bounded() -> None:
    """A trained token with a log-ratio of 89 gives finite numbers: the ratio is bounded before exp."""
    loss, grad, terms = _run([-2.0], [-91.0], [1.0], [True], 1)
    assert loss.item() == 10.0
    assert grad.item() == -5.0
    assert terms.ratio.item() == pytest.approx(math.exp(MAX_LOG_RATIO))


def test_nothing_trained_is_zero() -> None:
    """With everything masked and B = 0 the loss and the gradient are 0, not 0/0."""
    loss, grad, terms = _run([-1.0, -2.0], [-1.0, -1.0], [0.0, 0.0], [False, False], 0)
    assert loss.item() == 0.0
    assert grad.tolist() == [0.0, 0.0]
    assert terms.tokens.item() == 0


def test_a_trained_nan_is_not_hidden() -> None:
    """A trained token that is NaN makes the loss NaN, so that the step can be skipped."""
    loss, _, _ = _run([-1.0, math.nan], [-1.0, -1.0], [1.0, 1.0], [True, True], 2)
    assert math.isnan(loss.item())

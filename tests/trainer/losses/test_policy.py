"""The policy losses against plain Python: values, gradients, and where their bounds act."""

from __future__ import annotations

import inspect
import math
import random
from typing import Any

import pytest

from prl.config_algorithm import LOSS_OPTIONS
from tests.trainer.losses import reference
from tests.trainer.losses.reference import Token

torch: Any = pytest.importorskip("torch")

from prl.trainer.losses import LOSSES, policy  # noqa: E402 -- after the check for torch
from prl.trainer.losses.policy import TokenLosses, Tokens, sequence_mean  # noqa: E402

NAMES = sorted(LOSS_OPTIONS)


def draw_tokens(seed: int, lengths: tuple[int, ...] = (5, 1, 12, 30), spread: float = 1.0) -> list[Token]:
    """Sequences of random tokens whose three log-probabilities differ by about ``spread``."""
    draw = random.Random(seed)
    tokens = []
    for sequence, length in enumerate(lengths):
        advantage = draw.choice((-1, 1)) * draw.uniform(0.1, 2)
        for _ in range(length):
            pi = draw.uniform(-6, 0)
            mu, anchor = pi + draw.gauss(0, spread), pi + draw.gauss(0, spread / 3)
            tokens.append(Token(pi, mu, anchor, advantage, sequence))
    return tokens


def call(name: str, tokens: list[Token], options: dict[str, float] | None = None) -> tuple[TokenLosses, Any]:
    """The loss of these tokens, and the gradient of its sum."""
    pi, mu, anchor, advantages = (
        torch.tensor([token[field] for token in tokens], dtype=torch.float64) for field in range(4)
    )
    pi.requires_grad_(True)
    sequences = torch.tensor([token.sequence for token in tokens], dtype=torch.long)
    said = LOSSES.find(name)(Tokens(pi, mu, anchor, advantages, sequences), **(options or LOSS_OPTIONS[name]))
    (gradient,) = torch.autograd.grad(said.losses_N.sum(), pi)
    return said, gradient


TIGHT: dict[str, dict[str, float]] = {
    "reinforce": {"ratio_clip": 1.1},
    "ppo": {"clip_low": 0.1, "clip_high": 0.3},
    "cispo": {"clip_low": 0.2, "clip_high": 0.4},
    "gspo": {"clip_low": 0.1, "clip_high": 0.3},
    "decoupled_ppo": {"clip_low": 0.1, "clip_high": 0.3, "ratio_clip": 1.5},
    "masked_importance": {"mask_low": 0.9, "mask_high": 1.2},
}
"""Bounds that act often, none of them a default."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spread", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("bounds", [LOSS_OPTIONS, TIGHT], ids=["defaults", "tight"])
def test_values_and_gradients_are_those_of_plain_python(name: str, spread: float, bounds: Any) -> None:
    """Token by token, in float64, with every bound both acting and not acting over the cases."""
    tokens = draw_tokens(len(name), spread=spread)
    said, gradient = call(name, tokens, bounds[name])
    expected = [reference.LOSSES[name](tokens, at, **bounds[name]) for at in range(len(tokens))]
    assert said.losses_N.tolist() == pytest.approx([each.value for each in expected], rel=1e-9, abs=1e-12)
    slopes = [sum(each.slopes.get(at, 0.0) for each in expected) for at in range(len(tokens))]
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gap", [-100.0, -30.0, 30.0, 100.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_a_huge_log_ratio_has_a_defined_result(name: str, gap: float, advantage: float) -> None:
    """Log-ratios of +-100 are those of +-20: finite, and as plain Python says."""
    tokens = [Token(-101.0, -101.0 - gap, -101.0 - gap / 2, advantage, 0)]
    said, gradient = call(name, tokens)
    expected = reference.LOSSES[name](tokens, 0, **LOSS_OPTIONS[name])
    assert said.losses_N.item() == pytest.approx(expected.value, rel=1e-9)
    assert gradient.item() == pytest.approx(expected.slopes.get(0, 0.0), rel=1e-9)
    assert math.isfinite(said.losses_N.item())


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_is_not_hidden(name: str) -> None:
    """A NaN of pi, mu or A makes the token's loss NaN, so that the step can be skipped."""
    for field in ("pi", "mu", "advantage"):
        tokens = [Token(-1.0, -1.1, -1.05, 0.5, 0)._replace(**{field: math.nan})]
        assert math.isnan(call(name, tokens)[0].losses_N.item())


@pytest.mark.parametrize("name", NAMES)
def test_no_token_is_no_loss(name: str) -> None:
    """Empty in, empty out, with a gradient that exists."""
    said, gradient = call(name, [])
    assert said.losses_N.shape == said.bounded_N.shape == gradient.shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_every_loss_has_the_policy_gradient(name: str) -> None:
    """Where pi = mu = prox the gradient of each token is -A, and no bound acts (GSPO: spread over the sequence)."""
    tokens = [token._replace(mu=token.pi, anchor=token.pi) for token in draw_tokens(3)]
    said, gradient = call(name, tokens)
    assert gradient.tolist() == pytest.approx([-token.advantage for token in tokens], rel=1e-9)
    assert not said.bounded_N.any()


@pytest.mark.parametrize(
    ("name", "acts"),
    [
        ("reinforce", [False, False, True, True]),
        ("ppo", [False, True, True, False]),
        ("cispo", [False, False, True, True]),
        ("gspo", [False, True, True, False]),
        ("decoupled_ppo", [False, True, True, True]),
        ("masked_importance", [True, True, True, True]),
    ],
)
def test_what_is_counted_as_bounded(name: str, acts: list[bool]) -> None:
    """Ratios 1/10 and 10, each with a positive and a negative advantage: where each loss's bound acts."""
    cases = [(0.1, 1.0), (0.1, -1.0), (10.0, 1.0), (10.0, -1.0)]
    tokens = [
        Token(-3.0, -3.0 - math.log(ratio), -3.0 - math.log(ratio) / 2, advantage, sequence)
        for sequence, (ratio, advantage) in enumerate(cases)
    ]
    if name == "decoupled_ppo":  # its weight and its clip each see part of the ratio; let the weight see all at 10
        tokens[3] = tokens[3]._replace(anchor=-3.0)
    assert call(name, tokens)[0].bounded_N.tolist() == acts


def test_a_clip_takes_the_gradient_only_where_it_would_go_on() -> None:
    """Ratio 1.25 with a positive advantage: clipped at 0.2, not at DAPO's higher bound of 0.28."""
    tokens = [Token(-1.0, -1.0 - math.log(1.25), -1.0, 1.0, 0)]
    assert call("ppo", tokens, {"clip_low": 0.2, "clip_high": 0.2})[1].item() == 0.0
    assert call("ppo", tokens, {"clip_low": 0.2, "clip_high": 0.28})[1].item() == pytest.approx(-1.25)


def test_cispo_without_a_lower_bound_is_reinforce() -> None:
    """clip_low = 1 and clip_high = c - 1 give the truncation at c."""
    tokens = draw_tokens(5, spread=3.0)
    one, other = call("cispo", tokens, {"clip_low": 1.0, "clip_high": 4.0}), call("reinforce", tokens)
    assert torch.equal(one[0].losses_N, other[0].losses_N)
    assert torch.equal(one[1], other[1])


def test_decoupled_ppo_anchored_on_the_sampler_is_ppo() -> None:
    """With prox = mu its weight is 1 and its clip PPO's."""
    tokens = [token._replace(anchor=token.mu) for token in draw_tokens(6)]
    one, other = call("decoupled_ppo", tokens), call("ppo", tokens)
    assert torch.allclose(one[0].losses_N, other[0].losses_N, rtol=1e-12)
    assert torch.allclose(one[1], other[1], rtol=1e-12)


def test_decoupled_ppo_anchored_on_itself_has_the_gradient_of_reinforce() -> None:
    """With prox = pi, as in a run, its clip never acts: tokens are bounded where the truncation of the weight is."""
    tokens = [token._replace(anchor=token.pi) for token in draw_tokens(7, spread=3.0)]
    one, other = call("decoupled_ppo", tokens), call("reinforce", tokens)
    assert torch.allclose(one[1], other[1], rtol=1e-12)
    assert torch.equal(one[0].bounded_N, other[0].bounded_N)
    assert one[0].bounded_N.any()


def test_a_sequence_mean_knows_its_own_sequence_only() -> None:
    """Means by sequence, at each token."""
    values = torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0])
    assert sequence_mean(values, torch.tensor([0, 0, 1, 2, 2])).tolist() == [2.0, 2.0, 5.0, 8.0, 8.0]


def test_the_table_of_options_is_what_the_functions_read() -> None:
    """The configuration's table names exactly the keyword arguments of each loss."""
    for name, options in LOSS_OPTIONS.items():
        parameters = inspect.signature(getattr(policy, name)).parameters.values()
        assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == set(options)

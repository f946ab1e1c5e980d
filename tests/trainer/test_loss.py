from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from prl.config import Config
from prl.config_algorithm import LOSS_OPTIONS
from prl.errors import PluginError
from tests.trainer.losses import reference
from tests.trainer.losses.reference import Token

torch: Any = pytest.importorskip("torch")

from prl.trainer.loss import Loss, LossTerms  # noqa: E402 -- after the check for torch
from prl.trainer.losses.policy import MAX_LOG_RATIO, TokenLosses, Tokens  # noqa: E402
from prl.trainer.microbatch import MicroBatch  # noqa: E402

MAX_TOKENS = 16
ENTROPY = 0.5


def config_of(loss: dict[str, Any] | None = None, kl: dict[str, Any] | None = None) -> Config:
    """A configuration with these tables."""
    tree = {"model": "m", "loss": loss or {}, "kl": kl or {}, "sampling": {"max_tokens": MAX_TOKENS}}
    return msgspec.convert(tree, Config)


def run(
    tokens: list[Token], mask: list[bool], num_sequences: int, ref: list[float] | None = None, **tables: Any
) -> tuple[float, list[float], list[float], LossTerms]:
    """The loss of a micro-batch in float64: value, gradients by log-probability and by entropy, and the sums."""

    def double(values: list[float]) -> Any:
        return torch.tensor(values, dtype=torch.float64)

    logprobs = double([token.pi for token in tokens]).requires_grad_(True)
    entropy = torch.full_like(logprobs, ENTROPY, requires_grad=True)
    unread = torch.zeros(0)
    batch = MicroBatch(
        token_ids_RL=unread,
        positions_RL=unread,
        until_RL=None,
        at_U=unread,
        targets_UK=unread,
        slot_N=unread,
        behaviour_N=double([token.mu for token in tokens]),
        advantages_N=double([token.advantage for token in tokens]),
        versions_N=torch.zeros(len(tokens)),
        sequence_N=torch.tensor([token.sequence for token in tokens]),
        trained_N=torch.tensor(mask),
    )
    loss, terms = Loss(config_of(**tables))(
        logprobs, entropy, batch, reference_N=None if ref is None else double(ref), num_sequences=num_sequences
    )
    by_logprob, by_entropy = torch.autograd.grad(loss, [logprobs, entropy], allow_unused=True)
    return loss.item(), by_logprob.tolist(), by_entropy.tolist(), terms


def draw_tokens(seed: int) -> tuple[list[Token], list[bool], list[float]]:
    """Three sequences with a masked token in two of them, and a reference's log-probabilities."""
    draw = random.Random(seed)
    tokens = []
    for sequence, length in enumerate((6, 1, 9)):
        for _ in range(length):
            pi = draw.uniform(-6, 0)
            tokens.append(Token(pi, pi + draw.gauss(0, 1), pi, draw.uniform(-2, 2), sequence))
    mask = [at not in {2, 10} for at in range(len(tokens))]
    return tokens, mask, [token.pi + draw.gauss(0, 0.5) for token in tokens]


def expected_of(
    tokens: list[Token], mask: list[bool], ref: list[float], num_sequences: int, config: Config
) -> tuple[float, list[float]]:
    """Value and gradient as the configuration's tables say, written out over single tokens."""
    trained = [token for token, on in zip(tokens, mask, strict=True) if on]
    references = [value for value, on in zip(ref, mask, strict=True) if on]
    loss, kl, value, slopes = config.loss, config.kl, 0.0, [0.0] * len(trained)
    costs = [reference.penalty(t.pi, r, kl.estimator or "k3") for t, r in zip(trained, references, strict=True)]
    if kl.where == "reward":
        trained = [
            token._replace(
                advantage=token.advantage
                - kl.coefficient
                * sum(costs[later][0] for later in range(at, len(trained)) if trained[later].sequence == token.sequence)
            )
            for at, token in enumerate(trained)
        ]
    options = {name: getattr(loss, name) for name in LOSS_OPTIONS[loss.name]}
    for at, token in enumerate(trained):
        length = sum(mate.sequence == token.sequence for mate in trained)
        weight = reference.weight(length, num_sequences, MAX_TOKENS, loss.aggregation)
        said = reference.LOSSES[loss.name](trained, at, **options)
        value += weight * (said.value - loss.entropy_bonus * ENTROPY)
        for index, slope in said.slopes.items():
            slopes[index] += weight * slope
        if kl.where == "loss":
            value += weight * kl.coefficient * costs[at][0]
            slopes[at] += weight * kl.coefficient * costs[at][1]
    gradients = iter(slopes)
    return value, [next(gradients) if on else 0.0 for on in mask]


@pytest.mark.parametrize("name", sorted(LOSS_OPTIONS))
@pytest.mark.parametrize("aggregation", ["token_sum", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("kl", [{}, {"coefficient": 0.3}, {"coefficient": 0.3, "where": "reward", "estimator": "k1"}])
def test_value_and_gradient_are_those_of_plain_python(name: str, aggregation: str, kl: dict[str, Any]) -> None:
    """Every loss with every aggregation and penalty, an entropy bonus and masked tokens, in float64."""
    loss = {"name": name, "aggregation": aggregation, "entropy_bonus": 0.01}
    if name == "decoupled_ppo":
        loss["anchor"] = "recomputed"
    tokens, mask, ref = draw_tokens(1)
    value, gradient, by_entropy, _ = run(tokens, mask, 5, ref if kl else None, loss=loss, kl=kl)
    expected, slopes = expected_of(tokens, mask, ref, 5, config_of(loss, kl))
    assert value == pytest.approx(expected, rel=1e-9)
    assert gradient == pytest.approx(slopes, rel=1e-9, abs=1e-14)
    lengths = [
        sum(on and mate.sequence == token.sequence for mate, on in zip(tokens, mask, strict=True)) for token in tokens
    ]
    weights = [reference.weight(length, 5, MAX_TOKENS, aggregation) for length in lengths]
    assert by_entropy == pytest.approx([-0.01 * w if on else 0.0 for w, on in zip(weights, mask, strict=True)])


def test_the_sums_are_those_of_plain_python() -> None:
    """Every reported sum, over the trained tokens only."""
    tokens, mask, ref = draw_tokens(2)
    _, _, _, terms = run(tokens, mask, 3, ref, loss={"ratio_clip": 1.2}, kl={"coefficient": 0.1, "estimator": "k2"})
    rows = [(math.exp(t.pi - t.mu), t, r) for t, r, on in zip(tokens, ref, mask, strict=True) if on]
    assert terms.tokens.item() == len(rows)
    assert terms.ratio.item() == pytest.approx(sum(w for w, _, _ in rows))
    assert terms.ratio_squared.item() == pytest.approx(sum(w * w for w, _, _ in rows))
    assert terms.kl_behaviour.item() == pytest.approx(sum(t.mu - t.pi for _, t, _ in rows))
    assert terms.clipped.item() == sum(w > 1.2 for w, _, _ in rows) > 0
    assert terms.entropy.item() == pytest.approx(ENTROPY * len(rows))
    assert terms.kl_reference.item() == pytest.approx(sum((r - t.pi) ** 2 / 2 for _, t, r in rows))


@pytest.mark.parametrize("name", sorted(LOSS_OPTIONS))
@pytest.mark.parametrize("bad", [-91.0, 91.0, math.inf, -math.inf, math.nan])
def test_a_masked_token_contributes_nothing_whatever_it_holds(name: str, bad: float) -> None:
    """A ratio that overflows, infinity and NaN at a masked position leave value, gradient and sums untouched."""
    loss = {"name": name, "aggregation": "sequence_mean"}
    clean = Token(-1.0, -1.1, -1.0, 0.7, 0)
    value, gradient, _, terms = run([clean], [True], 1, loss=loss)
    for broken in (clean._replace(pi=bad), clean._replace(mu=bad), clean._replace(advantage=bad)):
        found = run([clean, broken], [True, False], 1, loss=loss)
        assert found[0] == value
        assert found[1] == [*gradient, 0.0]
        assert [term.item() for term in found[3]] == [term.item() for term in terms]


@pytest.mark.parametrize("name", sorted(LOSS_OPTIONS))
def test_nothing_trained_is_zero(name: str) -> None:
    """With everything masked and B = 0 the loss and the gradient are 0, not 0/0."""
    tokens = [Token(-1.0, -1.0, -1.0, 0.0, 0), Token(-2.0, -1.0, -1.0, 0.0, 0)]
    value, gradient, _, terms = run(
        tokens, [False, False], 0, [-1.0, -1.0], loss={"name": name}, kl={"coefficient": 1.0}
    )
    assert value == 0.0
    assert gradient == [0.0, 0.0]
    assert [term.item() for term in terms] == [0.0] * len(terms)


@pytest.mark.parametrize("name", sorted(LOSS_OPTIONS))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["pi", "mu", "advantage"])
def test_a_trained_number_that_is_not_finite_shows(name: str, bad: float, field: str) -> None:
    """Whatever its loss makes of it, some sum is not finite, so that the step can be skipped."""
    tokens = [Token(-1.0, -1.0, -1.0, 1.0, 0), Token(-1.0, -1.1, -1.0, 1.0, 0)._replace(**{field: bad})]
    _, _, _, terms = run(tokens, [True, True], 1, loss={"name": name})
    assert not all(math.isfinite(term.item()) for term in terms)


def test_a_huge_ratio_is_bounded() -> None:
    """A trained token with a log-ratio of 89 gives finite numbers: the ratio is bounded before exp."""
    value, gradient, _, terms = run([Token(-2.0, -91.0, 0.0, 1.0, 0)], [True], 1)
    assert value == 10.0
    assert gradient == [-5.0]
    assert terms.ratio.item() == pytest.approx(math.exp(MAX_LOG_RATIO))


# A loss of one's own --------------------------------------------------------------------------------------------------


def halved(tokens: Tokens, *, factor: float = 0.5) -> TokenLosses:
    """REINFORCE without importance weights, times ``factor``."""
    losses_N = -factor * tokens.advantages_N * tokens.logprobs_N
    return TokenLosses(losses_N, torch.zeros_like(losses_N, dtype=torch.bool))


def scalar(tokens: Tokens) -> Any:
    """No loss per token."""
    return tokens.logprobs_N.sum()


def test_a_loss_of_ones_own_is_named_by_its_path() -> None:
    """``package.module:name`` with its options; aggregation and masking are those of every loss."""
    tokens = [Token(-2.0, -1.0, 0.0, 3.0, 0), Token(-5.0, -1.0, 0.0, 3.0, 0)]
    own = {"name": f"{__name__}:halved"}
    assert run(tokens, [True, False], 2, loss=own)[0] == pytest.approx(1.5)
    assert run(tokens, [True, False], 2, loss={**own, "options": {"factor": 1.0}})[0] == pytest.approx(3.0)


def test_a_loss_that_returns_something_else_is_refused() -> None:
    """The message names the loss and what it should have returned."""
    with pytest.raises(PluginError, match=r"test_loss:scalar.*must return TokenLosses of 1 tokens"):
        run([Token(-2.0, -1.0, 0.0, 3.0, 0)], [True], 1, loss={"name": f"{__name__}:scalar"})


def test_a_loss_that_does_not_exist_is_an_error() -> None:
    """With the closest name."""
    with pytest.raises(PluginError, match=r"no loss 'cipso'.*did you mean 'cispo'"):
        Loss(config_of({"name": "cipso"}))

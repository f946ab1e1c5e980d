from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prl.engines.transformers_sampling import Sampler

LOGITS = torch.tensor([0.3, -1.0, 2.0, -torch.inf, 0.0])


def rows(kwargs: list[dict[str, Any]], positions: list[int]) -> list[Any]:
    """What the manager hands over for rows with these arguments."""
    return [
        SimpleNamespace(state=SimpleNamespace(logit_processor_kwargs=args, position_offset=position))
        for args, position in zip(kwargs, positions, strict=True)
    ]


def draw(sampler: Sampler, kwargs: list[dict[str, Any]], positions: list[int]) -> torch.Tensor:
    """One token per row, all rows with the same logits."""
    args = sampler.prepare_tensor_args(rows(kwargs, positions))
    left = sampler(LOGITS.repeat(len(kwargs), 1), args)
    assert torch.isfinite(left).sum(-1).tolist() == [1] * len(kwargs)
    return left.argmax(-1)


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_tempered_distribution(temperature: float, seeded: bool) -> None:
    """Frequencies agree with softmax(logits / T) within five standard errors; the impossible token is never drawn."""
    count = 20_000
    sampler = Sampler(seed=1)
    kwargs = [{"temperature": temperature, "seed": 3} if seeded else {"temperature": temperature}] * count
    tokens = draw(sampler, kwargs, list(range(count)))
    probabilities = (LOGITS / temperature).softmax(-1)
    frequencies = torch.bincount(tokens, minlength=5) / count
    assert ((frequencies - probabilities).abs() <= 5 * (probabilities * (1 - probabilities) / count).sqrt()).all()
    expected = (LOGITS / temperature).log_softmax(-1)[tokens]
    assert torch.allclose(torch.tensor(sampler.logprobs), expected, atol=1e-6)


def test_greedy_rows_stand_beside_sampled_ones() -> None:
    """Temperature 0 draws the most likely token with its log-probability at temperature 1."""
    sampler = Sampler(seed=1)
    tokens = draw(sampler, [{"temperature": 0.0}, {"temperature": 1.0}] * 50, [1] * 100)
    assert tokens[::2].tolist() == [2] * 50
    assert len(set(tokens[1::2].tolist())) > 1
    assert sampler.logprobs[::2] == pytest.approx([float(LOGITS.log_softmax(-1)[2])] * 50)


def test_rows_without_a_new_token() -> None:
    """Rows beyond those with arguments draw nothing and say nothing."""
    sampler = Sampler(seed=1)
    args = sampler.prepare_tensor_args(rows([{"temperature": 0.0}], [1]))
    left = sampler(LOGITS.repeat(3, 1), args)
    assert left.shape == (3, 5)
    assert left[0].argmax() == 2
    assert len(sampler.logprobs) == 1


def test_seed_and_position_decide() -> None:
    """The same seed and position draw the same token whatever the sampler and the other rows; positions differ."""
    args = {"temperature": 1.0, "seed": 11}
    first = draw(Sampler(seed=1), [args] * 30, list(range(30)))
    second = draw(Sampler(seed=2), [{"temperature": 1.0}, *[args] * 30], [0, *range(30)])
    assert second[1:].tolist() == first.tolist()
    assert len(set(first.tolist())) > 1


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (1 - 2**-53, 4)])
def test_ends_of_the_unit_interval(uniform: float, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest and the largest uniform number draw the first and the last possible token."""
    sampler = Sampler(seed=1)
    monkeypatch.setattr(sampler._random, "random", lambda: uniform)
    assert draw(sampler, [{"temperature": 1.0}], [1]).tolist() == [token]

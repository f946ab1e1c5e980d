"""What samples begin with in common is computed once, and nothing else changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.cases import VOCABULARY, make_config, masked, sample

torch: Any = pytest.importorskip("torch")

from prl.trainer import model as model_module  # noqa: E402 -- after the check for torch
from prl.trainer.learner import Learner  # noqa: E402
from prl.trainer.microbatch import pack  # noqa: E402
from prl.trainer.model import Policy, check_policy, load_policy  # noqa: E402
from prl.types import Sample  # noqa: E402
from tests.trainer import rank_session  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_rank")
CPU = torch.device("cpu")
KINDS = ["tied", "untied"]


def with_turns(token_ids: list[int], trained: list[int]) -> Sample:
    """A sample of several turns, of which the tokens at ``trained`` were sampled."""
    on = [int(t in trained) for t in range(len(token_ids))]
    return Sample(
        token_ids=token_ids,
        loss_mask=on,
        logprobs=[-2.5 * each for each in on],
        versions=[each - 1 for each in on],
        advantages=[0.75 * each for each in on],
    )


FAMILY = [
    sample([5, 6, 7, 8, 9, 10], 3, 0.5),
    sample([5, 6, 7, 8, 9, 10], 3, -0.5),  # the same answer
    sample([5, 6, 7, 8], 3, 1.0),  # of one token, with which others go on
    sample([5, 6, 7, 40], 3, -1.5),
    sample([5, 6, 7, 8, 20, 21, 22, 23, 24], 3, 0.25),
    sample([5, 6, 30, 31, 32], 2, 0.6),  # its prompt is the beginning of the others'
    with_turns([5, 6, 7, 8, 50, 51, 52, 53, 54, 55], [3, 4, 7, 8]),
    masked(sample([5, 6, 7, 8, 9, 11], 3, 0.0)),
    sample([12, 13, 14], 1, -0.3),
    sample([60, 13, 14, 15], 2, -0.4),
]
"""All that a tree must bear."""


def _whole(folder: Path) -> Policy:
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return Policy(lm.double().eval())


def _looked_at(policy: Policy, batches: list[Any]) -> tuple[list[float], list[float], dict[str, Any]]:
    """Log-probabilities, entropies, and the gradient of some function of both, which weighs every target otherwise."""
    parts = [policy(batch, 0.8, entropy_gradient=True) for batch in batches]
    logprobs, entropies = (torch.cat(each) for each in zip(*parts, strict=True))
    weights = torch.linspace(-1, 2, len(logprobs))
    (weights @ logprobs + weights.flip(0) @ entropies).backward()
    gradient = {name: parameter.grad.clone() for name, parameter in policy.lm.named_parameters()}
    policy.lm.zero_grad()
    return logprobs.tolist(), entropies.tolist(), gradient


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_and_gradients_are_those_of_each_sample_alone(models: dict[str, Path], kind: str) -> None:
    """Same prompts, same answers, one-token answers, prompts within prompts, turns: all as one by one, to 1e-6."""
    policy = _whole(models[kind])
    together = policy.pack(FAMILY, CPU)
    assert together.token_ids_RL.numel() < sum(len(each.token_ids) for each in FAMILY) / 2
    found = _looked_at(policy, [together])
    expected = _looked_at(policy, [pack([each], CPU) for each in FAMILY if any(each.loss_mask)])
    assert found[0] == pytest.approx(expected[0], abs=1e-6)
    assert found[1] == pytest.approx(expected[1], abs=1e-6)
    for name, gradient in expected[2].items():
        assert torch.allclose(found[2][name], gradient, rtol=1e-5, atol=1e-6 * gradient.abs().max()), name


def test_no_answer_sees_another(models: dict[str, Path]) -> None:
    """Other tokens in one answer, behind where it parts from the rest, leave the log-probabilities of all others."""
    policy = _whole(models["tied"])
    before = policy.score(policy.pack(FAMILY, CPU), 1.0)
    numbers = [number for number, each in enumerate(FAMILY) for _ in range(sum(each.loss_mask))]
    for changed, parted in ((4, 4), (6, 4), (5, 2), (9, 1)):
        token_ids = FAMILY[changed].token_ids
        others = [*token_ids[:parted], *((t + 17) % VOCABULARY for t in token_ids[parted:])]
        moved = [sample(others, 1, 0.0) if at == changed else each for at, each in enumerate(FAMILY)]
        batch = policy.pack(moved, CPU)
        after = policy.score(batch, 1.0)
        of_moved = [number for number, each in enumerate(moved) for _ in range(sum(each.loss_mask))]
        assert [p for p, at in zip(after.tolist(), of_moved, strict=True) if at != changed] == pytest.approx(
            [p for p, at in zip(before.tolist(), numbers, strict=True) if at != changed], abs=1e-6
        )


def test_all_layers_hold_one_mask(models: dict[str, Path]) -> None:
    """Whether tokens are shared or not: what the backward pass keeps does not hold a mask for each layer."""
    policy = _whole(models["tied"])
    apart = [sample([at, *range(10, 10 + length)], 1, 0.5) for at, length in enumerate((9, 4, 3))]
    for samples in (FAMILY, apart):
        batch = policy.pack(samples, CPU)
        num_rows, width = batch.token_ids_RL.shape
        held: dict[int, Any] = {}

        def keep(tensor: Any, held: dict[int, Any] = held, shape: tuple[int, ...] = (num_rows, width, width)) -> Any:
            if tensor.ndim == 4 and (tensor.shape[0], *tensor.shape[2:]) == shape:
                held[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            policy(batch, 1.0)[0].sum().backward()
        assert len(held) == 1


@pytest.fixture(scope="module")
def learner(models: dict[str, Path], one_rank: None) -> Learner:
    """A learner with a reference, one step away from it."""
    return rank_session.penalised(models["tied"])


def _gradient(learner: Learner, microbatches: list[list[Sample]]) -> tuple[Any, Any]:
    sums = learner.accumulate(microbatches, len(FAMILY))
    whole = rank_session.whole(rank_session.gradients(learner), "g")
    return sums, torch.cat([each.flatten() for each in whole.values()])


@pytest.mark.parametrize("variant", ["cispo", "gspo"])
def test_no_loss_depends_on_what_is_shared(learner: Learner, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and gradient are those without sharing, for any cut and order, penalty and entropy bonus included."""
    rank_session.take_loss(learner, variant)
    with monkeypatch.context() as patched:
        patched.setattr(learner.policy, "pairs_per_token", 0)
        sums, gradient = _gradient(learner, [FAMILY])
    for microbatches in ([FAMILY], [FAMILY[::-1]], [FAMILY[::2], [], FAMILY[1::2]], [[each] for each in FAMILY]):
        found_sums, found = _gradient(learner, microbatches)
        assert torch.allclose(found_sums, sums, rtol=1e-5, atol=1e-5)
        assert (found - gradient).norm() <= 2e-6 * gradient.norm()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000))
def test_a_log_probability_belongs_to_its_token(learner: Learner, seed: int) -> None:
    """Groups of ragged answers over few tokens: each target has the log-probability that it has alone."""
    draw = random.Random(seed)
    samples = []
    for _ in range(draw.randint(1, 3)):
        prompt = [draw.randrange(3) for _ in range(draw.randint(1, 5))]
        for _ in range(draw.randint(1, 5)):
            answer = [draw.randrange(2) for _ in range(draw.randint(1, 6))]
            samples.append(sample([*prompt, *answer], len(prompt), 0.0))
    found = learner.policy.score(learner.policy.pack(samples, CPU), 1.0).tolist()
    alone = [
        learner.rescore([each.token_ids], 1.0, None)[0][sum(m == 0 for m in each.loss_mask) - 1 :] for each in samples
    ]
    assert found == pytest.approx([value for each in alone for value in each], abs=1e-5)


def test_a_model_that_does_not_take_the_mask_shares_nothing(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where answers see one another the check says so in the log, and every sample is computed in full."""
    policy = load_policy(str(models["tied"]), CPU, torch.float32)
    check_policy(policy, CPU, torch.float32)
    assert policy.pairs_per_token == 96
    assert "differ" not in capsys.readouterr().err
    own = model_module.attention_mask
    monkeypatch.setattr(
        model_module, "attention_mask", lambda *given: torch.triu(torch.full_like(own(*given), -1e9), 1)
    )
    check_policy(policy, CPU, torch.float32)
    assert policy.pairs_per_token == 0
    assert "Qwen3ForCausalLM: log-probabilities differ by" in capsys.readouterr().err
    assert policy.pack(FAMILY, CPU).until_RL is None


def test_only_attention_to_everything_before_shares() -> None:
    """A window, an attention that takes no mask, or one that takes another kind of mask: nothing is shared."""
    from transformers import LlamaConfig, MistralConfig, Qwen3Config

    def pairs(config: Any, attention: str = "sdpa") -> int:
        config._attn_implementation = attention
        return model_module._pairs_per_token(config)

    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "num_hidden_layers": 2}
    assert [pairs(LlamaConfig(hidden_size=32), name) for name in ("sdpa", "eager", "flash_attention_2")] == [96, 0, 0]
    assert [pairs(MistralConfig(hidden_size=32, sliding_window=size)) for size in (None, 4)] == [96, 0]
    assert [pairs(Qwen3Config(hidden_size=32, **more)) for more in ({}, window)] == [96, 0]


def test_sharing_can_be_switched_off(models: dict[str, Path]) -> None:
    """``trainer.share_prefixes = false`` computes every sample in full."""
    config = make_config(models["tied"], trainer={"share_prefixes": False})
    assert Learner(config, str(models["tied"]), None, CPU).policy.pack(FAMILY, CPU).until_RL is None

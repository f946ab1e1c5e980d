"""The losses that TRL's ``GRPOTrainer`` defines too: the same tensors in, the same number and gradient out.

TRL is one of the packages that the tests need (the extra ``dev``): where it is missing this fails, it is not skipped.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.losses.reference import Token
from tests.trainer.test_loss import MAX_TOKENS, run

torch: Any = pytest.importorskip("torch")

pytestmark = [
    # about the versions of packages that this comparison does not use
    pytest.mark.filterwarnings("ignore:TRL currently supports vLLM"),
    # TRL's dependencies import names that others have deprecated
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LENGTHS = (6, 1, 9)


def tensors(seed: int = 0) -> dict[str, Any]:
    """Padded log-probabilities of three sequences under policy, sampler and reference, mask and advantages."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    width = max(LENGTHS)
    pi = -2 + normal(3, width)
    return {
        "pi": pi.requires_grad_(True),
        "mu": pi.detach() + 0.5 * normal(3, width),
        "ref": pi.detach() + 0.5 * normal(3, width),
        "mask": torch.tensor([[t < length for t in range(width)] for length in LENGTHS]),
        "advantages": normal(3),
    }


def trl_loss(given: dict[str, Any], **settings: Any) -> tuple[float, Any, Any]:
    """What ``GRPOTrainer`` makes of these log-probabilities, its gradient, and its metrics."""
    from trl import GRPOTrainer

    trainer = object.__new__(GRPOTrainer)
    same = SimpleNamespace(gather=lambda x: x, reduce=lambda x, **_: x, num_processes=1, sync_gradients=True)
    vars(trainer).update(
        _get_per_token_logps_and_entropies=lambda *_, **__: (given["pi"], torch.zeros_like(given["mu"]), None),
        accelerator=same,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=MAX_TOKENS,
        **{"importance_sampling_level": "token", "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.28, **settings},
    )
    mask = given["mask"].long()
    inputs = {
        "prompt_ids": torch.ones(3, 1, dtype=torch.long),
        "prompt_mask": torch.ones(3, 1, dtype=torch.long),
        "completion_ids": torch.ones_like(mask),
        "completion_mask": mask,
        "advantages": given["advantages"],
        "old_per_token_logps": given["mu"],
        "ref_per_token_logps": given["ref"],
        "num_items_in_batch": torch.tensor(float(len(LENGTHS))),
    }
    loss = trainer._compute_loss(None, inputs)
    (gradient,) = torch.autograd.grad(loss, given["pi"])
    return loss.item(), gradient[given["mask"]], trainer._metrics["train"]


CLIP = {"clip_low": 0.2, "clip_high": 0.28}


@pytest.mark.parametrize(
    ("loss", "beta", "theirs"),
    [
        ({"name": "ppo", **CLIP, "aggregation": "sequence_mean"}, 0.0, {"loss_type": "grpo"}),
        ({"name": "ppo", **CLIP, "aggregation": "sequence_mean"}, 0.3, {"loss_type": "grpo"}),
        ({"name": "ppo", **CLIP, "aggregation": "fixed_length"}, 0.0, {"loss_type": "dr_grpo"}),
        # what benchmarks/vs_trl.py trains with: prl's default aggregation
        ({"name": "ppo", **CLIP, "aggregation": "token_sum"}, 0.0, {"loss_type": "luspo"}),
        (
            {"name": "gspo", **CLIP, "aggregation": "sequence_mean"},
            0.0,
            {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        ),
        # theirs is divided by the tokens of the batch, which the test sets to B, and its bound is not relative to 1
        ({"name": "cispo", "clip_low": 1.0, "clip_high": 0.5}, 0.0, {"loss_type": "cispo", "epsilon_high": 1.5}),
        ({"name": "cispo", "clip_low": 1.0, "clip_high": 0.5}, 0.3, {"loss_type": "cispo", "epsilon_high": 1.5}),
    ],
    ids=["grpo", "grpo with kl", "dr_grpo", "luspo by token", "gspo", "cispo", "cispo with kl"],
)
def test_same_tensors_same_number(loss: dict[str, Any], beta: float, theirs: dict[str, Any]) -> None:
    """Value and gradient agree to 1e-9, and so does the divergence that is reported."""
    given = tensors()
    expected, gradient, metrics = trl_loss(given, beta=beta, **theirs)
    rows = given["mask"].nonzero().tolist()
    tokens = [
        Token(given["pi"][i, t].item(), given["mu"][i, t].item(), 0.0, given["advantages"][i].item(), i)
        for i, t in rows
    ]
    ref = [given["ref"][i, t].item() for i, t in rows] if beta else None
    value, slopes, _, terms = run(tokens, [True] * len(tokens), len(LENGTHS), ref, loss=loss, kl={"coefficient": beta})
    assert value == pytest.approx(expected, rel=1e-9)
    assert slopes == pytest.approx(gradient.tolist(), rel=1e-9, abs=1e-12)
    if beta:
        assert terms.kl_reference.item() / len(tokens) == pytest.approx(metrics["kl"][0], rel=1e-6)
    if "clip_ratio/region_mean" in metrics and loss["name"] == "ppo":
        assert terms.clipped.item() / len(tokens) == pytest.approx(metrics["clip_ratio/region_mean"][0], rel=1e-6)
        assert terms.clipped.item() > 0

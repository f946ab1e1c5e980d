"""The losses that TRL's ``GRPOTrainer`` defines too: the same tensors in, the same number and gradient out.

The trainer is TRL's own class without a model: its methods make the importance weights of a generated batch and the
loss of a step; what a model, an engine and rewards would say is given to them. Up to the factors named in the cases,
these coincide:

- ``ppo``: ``grpo`` (sequence mean), ``dr_grpo`` (fixed length), ``dapo`` and ``bnpo`` (token sum), the sampler being
  the old policy; ``gspo``: the same at the level of sequences, and ``luspo``, which weighs them by their length.
- ``cispo`` without a lower bound: ``cispo``, which has none.
- ``reinforce``: TRL on policy with ``token_truncate``. Its ``cispo`` loss gives the value, too; its others give the
  gradient alone, since they write ``exp(log pi - sg(log pi))`` where REINFORCE writes ``log pi``.
- ``masked_importance``: likewise with ``token_mask``.
- ``decoupled_ppo``: TRL's clip around an old policy that is not the sampler, with ``token_truncate``.
- ``entropy_bonus``: TRL's is a mean over tokens whatever the loss, so prl's where the loss is one, too.

Not compared, since one side has no such thing: ``cispo`` with a lower bound, the estimators k1 and k2 and a penalty in
the reward (prl alone); ``sapo``, ``vespo``, two-sided clipping (``delta``), off-policy and entropy masks, a penalty
weighted by the ratio (``use_bias_correction_kl``), and ``sequence_truncate`` and ``sequence_mask``, whose weight is the
product of a sequence's ratios: the ratio of ``gspo`` is their geometric mean and carries a gradient (TRL alone). prl
bounds log-ratios at +-20, far outside of what is drawn here; TRL does not.

TRL is one of the packages that the tests need (the extra ``dev``): where it is missing this fails, it is not skipped.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.losses.reference import Token
from tests.trainer.test_loss import ENTROPY, MAX_TOKENS, run

torch: Any = pytest.importorskip("torch")

from prl.trainer.losses import policy  # noqa: E402 -- after the check for torch

pytestmark = [
    # about the versions of packages that this comparison does not use
    pytest.mark.filterwarnings("ignore:TRL currently supports vLLM"),
    # TRL's dependencies import names that others have deprecated
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LENGTHS = (6, 1, 9)
GIVEN = (2, slice(3, 5))
"""Two tokens in the middle of the longest sequence that nobody sampled: a tool's answer."""
NUM_TRAINED = sum(LENGTHS) - 2


def tensors() -> dict[str, Any]:
    """Three sequences, padded: log-probabilities under policy, older policy, sampler and reference; advantages.

    Every bound acts below: tokens and whole sequences are clipped on either side.
    """
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    width = max(LENGTHS)
    pi = -2 + normal(3, width)
    trained = torch.tensor([[t < length for t in range(width)] for length in LENGTHS])
    trained[GIVEN] = False
    return {
        "pi": pi.requires_grad_(True),
        # TRL reads what the engine recorded as float32
        "mu": (pi.detach() + 0.5 * normal(3, width)).float().double(),
        "ref": pi.detach() + 0.5 * normal(3, width),
        "older": pi.detach() + 0.3 * normal(3, width),
        "entropy": torch.full_like(pi, ENTROPY).requires_grad_(True),
        "trained": trained,
        "advantages": torch.tensor([0.8, -1.1, 1.3], dtype=torch.float64),
    }


DEFAULTS: dict[str, Any] = {
    "importance_sampling_level": "token",
    "beta": 0.0,
    "epsilon_low": 0.2,
    "epsilon_high": 0.28,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "aux_loss_enabled": False,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_clip_min": None,
    "num_iterations": 2,  # of the optimiser on one batch: TRL asks what the policy said when it was sampled
    "current_gradient_accumulation_steps": 1,
    "max_completion_length": MAX_TOKENS,
    "num_generations": len(LENGTHS),
    "multi_objective_aggregation": "sum_then_normalize",
    "scale_rewards": "none",
    "reward_func_names": ["given"],
    "mask_truncated_completions": False,
    "pad_to_multiple_of": None,
    "environments": None,
    "environment_factories": None,
    "tools": None,
}
ARGUMENTS = SimpleNamespace(
    delta=None,
    use_bias_correction_kl=False,
    steps_per_generation=1,
    gradient_accumulation_steps=1,
    per_device_train_batch_size=len(LENGTHS),
    gradient_checkpointing_kwargs=None,
    report_to=[],
)
ALONE = SimpleNamespace(
    gather=lambda x: x,
    reduce=lambda x, **_: x,
    device="cpu",
    num_processes=1,
    process_index=0,
    sync_gradients=True,
    is_main_process=True,
)


def trainer_of(given: dict[str, Any], old: str, settings: dict[str, Any]) -> Any:
    """A ``GRPOTrainer`` whose policy said ``old`` when the batch was sampled, and says ``pi`` in the step."""
    from trl import GRPOTrainer

    model, reference = (SimpleNamespace(training=True, is_gradient_checkpointing=False) for _ in range(2))

    def score(scored: Any, *_: Any, compute_entropy: bool = False, **__: Any) -> Any:
        if compute_entropy:
            return given["pi"], given["entropy"], None
        return given["ref" if scored is reference else old].detach(), None, None

    trainer = object.__new__(GRPOTrainer)
    vars(trainer).update(
        DEFAULTS | settings,
        _generate=lambda _: generated(given),
        _calculate_rewards=lambda *_: torch.zeros(len(LENGTHS), 1),
        _get_per_token_logps_and_entropies=score,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _metrics={"train": defaultdict(list)},
        _logs=defaultdict(list, rewards=defaultdict(list)),
        _pending_extra_logs={},
        _pending_metrics={},
        _entropy_bonus_enabled="entropy_coef" in settings,
        accelerator=ALONE,
        args=ARGUMENTS,
        model=model,
        ref_model=reference,
        state=SimpleNamespace(global_step=0),
        reward_weights=torch.ones(1),
    )
    return trainer


def generated(given: dict[str, Any]) -> Any:
    """What TRL's ``_generate`` returns: token ids, which of them were sampled, their recorded log-probabilities."""
    rows = range(len(LENGTHS))
    ids = [[7] * length for length in LENGTHS]
    sampled = [given["trained"][i, : LENGTHS[i]].long().tolist() for i in rows]
    recorded = [given["mu"][i, : LENGTHS[i]].tolist() for i in rows]
    return [[1]] * len(LENGTHS), ids, sampled, [""] * len(LENGTHS), recorded, {}, None, None


def trl_loss(given: dict[str, Any], old: str, settings: dict[str, Any]) -> tuple[float, Any, Any, Any]:
    """What TRL makes of these tensors, its gradients by log-probability and by entropy, and its metrics."""
    trainer = trainer_of(given, old, settings)
    inputs = trainer._generate_and_score_completions([{"prompt": ""}] * len(LENGTHS))
    loss = trainer._compute_loss(None, {**inputs, "advantages": given["advantages"]})
    gradients = torch.autograd.grad(loss, [given["pi"], given["entropy"]], allow_unused=True, materialize_grads=True)
    return loss.item(), *gradients, trainer._metrics["train"]


def rows_of(values: Any) -> list[float]:
    """The numbers that stand at tokens, sequence by sequence, without the padding."""
    return [values[i, t].item() for i, length in enumerate(LENGTHS) for t in range(length)]


def prl_loss(given: dict[str, Any], beta: float, loss: dict[str, Any]) -> tuple[float, list[float], list[float], Any]:
    """What prl makes of them."""
    sequences = [i for i, length in enumerate(LENGTHS) for _ in range(length)]
    tokens = [
        Token(pi, mu, 0.0, given["advantages"][i].item(), i)
        for pi, mu, i in zip(rows_of(given["pi"]), rows_of(given["mu"]), sequences, strict=True)
    ]
    trained = [bool(each) for each in rows_of(given["trained"])]
    ref = rows_of(given["ref"]) if beta else None
    return run(tokens, trained, len(LENGTHS), ref, loss=loss, kl={"coefficient": beta})


CLIP = {"clip_low": 0.2, "clip_high": 0.28}
BY_SEQUENCE = {"importance_sampling_level": "sequence"}
NO_LOW = {"name": "cispo", "clip_low": 1.0, "clip_high": 0.5}
CISPO = {"loss_type": "cispo", "epsilon_high": 1.5}
"""TRL's bound is not relative to 1."""
TRUNCATED = {
    "use_vllm": True,
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 1.3,
}
MASKED = {
    "use_vllm": True,
    "vllm_importance_sampling_mode": "token_mask",
    "vllm_importance_sampling_clip_min": 0.9,
    "vllm_importance_sampling_clip_max": 1.3,
}
ANCHORED = {"name": "decoupled_ppo", "anchor": "recomputed", "ratio_clip": 1.3, **CLIP}
PER_TOKEN = len(LENGTHS) / NUM_TRAINED
"""TRL divides by the trained tokens of the batch where prl divides by its sequences: a constant, once the batch is."""

CASES: dict[str, tuple[dict[str, Any], float, str, dict[str, Any], float]] = {
    # prl's loss, the penalty's coefficient, TRL's old policy, TRL's settings, the factor between the two
    "grpo": ({"name": "ppo", **CLIP, "aggregation": "sequence_mean"}, 0.0, "mu", {"loss_type": "grpo"}, 1.0),
    "grpo with kl": ({"name": "ppo", **CLIP, "aggregation": "sequence_mean"}, 0.3, "mu", {"loss_type": "grpo"}, 1.0),
    "dr_grpo": ({"name": "ppo", **CLIP, "aggregation": "fixed_length"}, 0.0, "mu", {"loss_type": "dr_grpo"}, 1.0),
    "dapo": ({"name": "ppo", **CLIP}, 0.0, "mu", {"loss_type": "dapo"}, PER_TOKEN),
    "dapo with kl": ({"name": "ppo", **CLIP}, 0.3, "mu", {"loss_type": "dapo"}, PER_TOKEN),
    "bnpo": ({"name": "ppo", **CLIP}, 0.0, "mu", {"loss_type": "bnpo"}, PER_TOKEN),
    "bnpo with entropy": (
        {"name": "ppo", **CLIP, "entropy_bonus": 0.01},
        0.0,
        "mu",
        {"loss_type": "bnpo", "entropy_coef": 0.01},
        PER_TOKEN,
    ),
    # what benchmarks/vs_trl.py trains with: prl's default aggregation
    "luspo by token": ({"name": "ppo", **CLIP}, 0.0, "mu", {"loss_type": "luspo"}, 1.0),
    "gspo": (
        {"name": "gspo", **CLIP, "aggregation": "sequence_mean"},
        0.0,
        "mu",
        {"loss_type": "grpo", **BY_SEQUENCE},
        1.0,
    ),
    "gspo with kl": (
        {"name": "gspo", **CLIP, "aggregation": "sequence_mean"},
        0.3,
        "mu",
        {"loss_type": "grpo", **BY_SEQUENCE},
        1.0,
    ),
    "luspo": ({"name": "gspo", **CLIP}, 0.0, "mu", {"loss_type": "luspo", **BY_SEQUENCE}, 1.0),
    "cispo": (NO_LOW, 0.0, "mu", CISPO, PER_TOKEN),
    "cispo with kl": (NO_LOW, 0.3, "mu", CISPO, PER_TOKEN),
    "reinforce": ({"name": "reinforce", "ratio_clip": 1.3}, 0.0, "pi", {**CISPO, **TRUNCATED}, PER_TOKEN),
    "reinforce with kl": ({"name": "reinforce", "ratio_clip": 1.3}, 0.3, "pi", {**CISPO, **TRUNCATED}, PER_TOKEN),
    "icepop": (
        {"name": "masked_importance", "mask_low": 0.9, "mask_high": 1.3},
        0.0,
        "pi",
        {**CISPO, **MASKED},
        PER_TOKEN,
    ),
    "areal": (
        {**ANCHORED, "aggregation": "sequence_mean"},
        0.0,
        "pi",
        {"loss_type": "grpo", **TRUNCATED},
        1.0,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_same_tensors_same_number(case: str) -> None:
    """Value and gradients agree to 1e-9, and so do the reported divergence and clip fraction."""
    loss, beta, old, theirs, factor = CASES[case]
    given = tensors()
    expected, by_logprob, by_entropy, metrics = trl_loss(given, old, {"beta": beta, **theirs})
    value, slopes, entropy_slopes, terms = prl_loss(given, beta, loss)
    assert value * factor == pytest.approx(expected, rel=1e-9)
    assert [slope * factor for slope in slopes] == pytest.approx(rows_of(by_logprob), rel=1e-9, abs=1e-12)
    assert [slope * factor for slope in entropy_slopes] == pytest.approx(rows_of(by_entropy), rel=1e-9)
    if beta:
        assert terms.kl_reference.item() / NUM_TRAINED == pytest.approx(metrics["kl"][0], rel=1e-6)
    assert 0 < terms.clipped.item() < NUM_TRAINED
    if loss["name"] == "ppo":
        assert terms.clipped.item() / NUM_TRAINED == pytest.approx(metrics["clip_ratio/region_mean"][0], rel=1e-6)
    if loss["name"] in {"ppo", "gspo"}:
        assert metrics["clip_ratio/low_mean"][0] > 0
        assert metrics["clip_ratio/high_mean"][0] > 0


@pytest.mark.parametrize(
    ("aggregation", "loss_type", "factor"),
    [
        ("sequence_mean", "grpo", 1.0),
        ("fixed_length", "dr_grpo", 1.0),
        ("token_sum", "luspo", 1.0),
        ("token_sum", "dapo", PER_TOKEN),
    ],
)
@pytest.mark.parametrize(
    ("loss", "correction"),
    [
        ({"name": "reinforce", "ratio_clip": 1.3}, TRUNCATED),
        ({"name": "masked_importance", "mask_low": 0.9, "mask_high": 1.3}, MASKED),
    ],
    ids=["reinforce", "icepop"],
)
def test_on_policy_trl_s_clipped_losses_have_the_same_gradient(
    loss: dict[str, Any], correction: dict[str, Any], aggregation: str, loss_type: str, factor: float
) -> None:
    """What TRL trains with by default, its engine's mismatch corrected by token, and prl's weights."""
    given = tensors()
    _, gradient, _, _ = trl_loss(given, "pi", {"loss_type": loss_type, **correction})
    _, slopes, _, _ = prl_loss(given, 0.0, {**loss, "aggregation": aggregation})
    assert [slope * factor for slope in slopes] == pytest.approx(rows_of(gradient), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("sign", "clipped"), [(1, "high"), (-1, "low")])
def test_decoupled_ppo_around_an_older_policy_is_trl_s_corrected_clip(sign: int, clipped: str) -> None:
    """An anchor that is neither the sampler nor the policy itself, so that weight and clip both act."""
    given = tensors()
    given["advantages"] *= sign
    expected, gradient, _, metrics = trl_loss(given, "older", {"loss_type": "dapo", **TRUNCATED})
    at = given["trained"].nonzero(as_tuple=True)
    tokens = policy.Tokens(given["pi"][at], given["mu"][at], given["older"][at], given["advantages"][at[0]], at[0])
    said = policy.decoupled_ppo(tokens, ratio_clip=1.3, **CLIP)
    value = said.losses_N.sum() / NUM_TRAINED
    (slopes,) = torch.autograd.grad(value, given["pi"])
    assert value.item() == pytest.approx(expected, rel=1e-9)
    assert rows_of(slopes) == pytest.approx(rows_of(gradient), rel=1e-9, abs=1e-12)
    assert metrics[f"clip_ratio/{clipped}_mean"][0] > 0

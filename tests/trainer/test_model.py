from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.cases import VOCABULARY, random_samples

torch: Any = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402 -- after the check for torch
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402 -- the same
from torch.utils._pytree import tree_leaves  # noqa: E402 -- the same

from prl.errors import TrainerError  # noqa: E402
from prl.trainer import model as model_module  # noqa: E402
from prl.trainer.microbatch import pack  # noqa: E402
from prl.trainer.model import Policy, check_policy, load_policy, parameters_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_rank")
CPU = torch.device("cpu")
KINDS = ["tied", "untied"]
SAMPLES = random_samples(1, 4)


def _plain(folder: Path, attention: str = "sdpa") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()


def _reference(lm: Any, temperature: float) -> tuple[list[float], list[float]]:
    """Log-probability and entropy of each trained token, one padded batch with an explicit attention mask."""
    length = max(len(each.token_ids) for each in SAMPLES)
    ids = torch.tensor([each.token_ids + [0] * (length - len(each.token_ids)) for each in SAMPLES])
    real = torch.tensor([[1] * len(each.token_ids) + [0] * (length - len(each.token_ids)) for each in SAMPLES])
    with torch.no_grad():
        logits = lm(input_ids=ids, attention_mask=real, use_cache=False).logits.double() / temperature
    logprobs = torch.log_softmax(logits, -1)
    spots = [(b, t) for b, each in enumerate(SAMPLES) for t, mask in enumerate(each.loss_mask) if mask]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return (
        [logprobs[b, t - 1, ids[b, t]].item() for b, t in spots],
        [entropy[b, t - 1].item() for b, t in spots],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_packed_padded_and_one_by_one_agree(
    models: dict[str, Path], kind: str, attention: str, temperature: float
) -> None:
    """Packed rows, prefix trees, one row, a padded batch and single sequences: the same log-probabilities to 1e-5."""
    lm = _plain(models[kind], attention)
    policy = Policy(lm)
    one_row = policy(pack(SAMPLES, CPU, single_row=True), temperature)[0].tolist()
    as_trees, tree_entropy = (part.tolist() for part in policy(policy.pack(SAMPLES, CPU), temperature))
    packed_logprobs, packed_entropy = (part.tolist() for part in policy(pack(SAMPLES, CPU), temperature))
    single = [value for each in SAMPLES for value in policy(pack([each], CPU), temperature)[0].tolist()]
    logprobs, entropy = _reference(lm, temperature)
    assert packed_logprobs == pytest.approx(logprobs, abs=1e-5)
    assert one_row == pytest.approx(logprobs, abs=1e-5)
    assert as_trees == pytest.approx(logprobs, abs=1e-5)
    assert tree_entropy == pytest.approx(entropy, abs=1e-5)
    assert single == pytest.approx(logprobs, abs=1e-5)
    assert packed_entropy == pytest.approx(entropy, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_sharding_and_small_pieces_change_nothing(
    models: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sharded, with a head that works on 3 positions at a time and recomputed blocks: same values, same gradients."""
    whole = Policy(_plain(models[kind]))
    whole(pack(SAMPLES, CPU), 1.0, direct=True)[0].sum().backward()
    monkeypatch.setattr(model_module, "MAX_LOGITS", 3 * VOCABULARY)
    sharded = load_policy(str(models[kind]), CPU, torch.float32, activation_checkpointing=True)
    logprobs = sharded(pack(SAMPLES, CPU), 1.0)[0]
    logprobs.sum().backward()
    assert logprobs.tolist() == pytest.approx(whole(pack(SAMPLES, CPU), 1.0)[0].tolist(), abs=1e-6)
    expected = {name: parameter.grad for name, parameter in whole.lm.named_parameters()}
    assert list(expected) == list(sharded.tensors)
    for name, parameter in parameters_of(sharded).items():
        assert torch.allclose(parameter.grad.full_tensor(), expected[name], atol=1e-5, rtol=1e-5), name


def test_logits_of_a_whole_micro_batch_never_exist(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of the head, in the forward or the backward pass, gets more positions than the bound allows."""
    policy = load_policy(str(models["tied"]), CPU, torch.float32)
    monkeypatch.setattr(model_module, "MAX_LOGITS", 5 * VOCABULARY + 1)
    sizes: list[int] = []
    policy.lm.get_output_embeddings().register_forward_hook(lambda *args: sizes.append(args[2].shape[0]))
    batch = pack(SAMPLES, CPU)
    policy(batch, 1.0)[0].sum().backward()
    assert max(sizes) == 5
    assert sum(sizes) == 2 * len(batch.at_U)


class _Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes, those of a parameter's shape aside."""

    def __init__(self, parameters: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.numel = 0
        self._parameters = parameters

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tuple(tensor.shape) not in self._parameters:
                self.numel = max(self.numel, tensor.numel())
        return result


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_nothing_as_large_as_the_logits_of_a_micro_batch_exists(
    monkeypatch: pytest.MonkeyPatch, entropy_gradient: bool
) -> None:
    """At a vocabulary of 20,000 no operation of forward and backward pass makes a tensor above the bound."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 20_000, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    lm = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=1, tie_word_embeddings=True)).eval()
    policy, batch = Policy(lm), pack(SAMPLES, CPU)
    shapes = {
        shape for parameter in lm.parameters() for shape in (tuple(parameter.shape), tuple(parameter.shape[::-1]))
    }

    def largest() -> int:
        with _Largest(shapes) as seen:
            logprobs, entropy = policy(batch, 1.0, entropy_gradient=entropy_gradient)
            (logprobs.sum() + (entropy.sum() if entropy_gradient else 0)).backward()
        return seen.numel

    assert largest() == len(batch.at_U) * 20_000, "as large as that, where the bound allows it"
    monkeypatch.setattr(model_module, "MAX_LOGITS", 4 * 20_000)
    assert largest() == 4 * 20_000


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_the_checkpoints_and_tied_ones_come_once(models: dict[str, Path], kind: str) -> None:
    """The canonical list has every tensor of the safetensors file once, as float32 shards, embedding and head tied."""
    policy = load_policy(str(models[kind]), CPU, torch.float32)
    stored = load_file(models[kind] / "model.safetensors")
    assert set(policy.tensors) == set(stored)
    assert ("lm_head.weight" in policy.tensors) == (kind == "untied")
    same = policy.lm.get_input_embeddings().weight is policy.lm.get_output_embeddings().weight
    assert same == (kind == "tied")
    for name, tensor in policy.tensors.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor.full_tensor(), stored[name])


def test_bfloat16_computes_in_bfloat16_on_float32_masters(models: dict[str, Path]) -> None:
    """The head sees bfloat16, while log-probabilities, parameters and gradients are float32."""
    policy = load_policy(str(models["tied"]), CPU, torch.bfloat16)
    seen: set[Any] = set()
    policy.lm.get_output_embeddings().register_forward_hook(lambda *args: seen.add(args[2].dtype))
    logprobs, entropy = policy(pack(SAMPLES, CPU), 1.0)
    logprobs.sum().backward()
    assert seen == {torch.bfloat16}
    assert {logprobs.dtype, entropy.dtype} == {torch.float32}
    parameters = parameters_of(policy).values()
    assert {each.dtype for each in parameters} | {each.grad.dtype for each in parameters} == {torch.float32}
    check_policy(policy, CPU, torch.bfloat16)
    assert policy.pairs_per_token == 96, "prefixes are still shared"


def test_scoring_leaves_the_shards_registered(models: dict[str, Path]) -> None:
    """After a forward pass without gradient the module holds its shards again, so an update finds what it must."""
    policy = load_policy(str(models["tied"]), CPU, torch.float32)
    scores = policy.score(pack(SAMPLES, CPU), 1.0)
    assert not scores.requires_grad
    for name, parameter in policy.lm.named_parameters():
        assert parameter is policy.tensors[name]


def test_a_model_that_mixes_packed_sequences_is_refused(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With restarting positions ignored the check names the model's class and the difference."""
    policy = load_policy(str(models["tied"]), CPU, torch.float32)
    check_policy(policy, CPU, torch.float32)
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda *_: None)
    with pytest.raises(TrainerError, match="Qwen3ForCausalLM cannot be trained on packed rows"):
        check_policy(policy, CPU, torch.float32)


def test_a_head_that_is_more_than_linear_is_refused(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that the model's own forward pass bends afterwards are not what the piecewise head computes."""
    policy = load_policy(str(models["tied"]), CPU, torch.float32)
    own = policy.lm.forward

    def capped(**row: Any) -> Any:
        out = own(**row)
        out.logits = torch.tanh(out.logits)
        return out

    monkeypatch.setattr(policy.lm, "forward", capped)
    with pytest.raises(TrainerError, match="one linear layer"):
        check_policy(policy, CPU, torch.float32)


def test_missing_weights_are_named(models: dict[str, Path], tmp_path: Path) -> None:
    """A checkpoint without one of the model's tensors is refused; it would be random otherwise."""
    folder = tmp_path / "broken"
    shutil.copytree(models["tied"], folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match=r"1 missing keys .* model\.norm\.weight"):
        load_policy(str(folder), CPU, torch.float32)


def test_an_impossible_token_gets_minus_infinity_and_a_finite_entropy() -> None:
    """A probability of exactly 0 adds 0 to the entropy, not NaN."""
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    logprobs, entropy = model_module._judge(logits, torch.tensor([[2]]), 1.0)
    assert logprobs.item() == -math.inf
    assert entropy.item() == pytest.approx(math.log(2))


def test_the_gradient_of_the_entropy_is_exact_and_finite() -> None:
    """By the logits it is -p (log p + H) / temperature in float32; a probability of 0 has a gradient of 0, not NaN."""
    logits = torch.tensor([[1.0, -2.0, 0.5, -math.inf, -300.0]], requires_grad=True)
    _, entropy = model_module._judge(logits, torch.tensor([[0]]), 0.5, entropy_gradient=True)
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    p = torch.softmax(logits.detach().double()[0] / 0.5, -1)
    log_p = p.log().clamp(min=-1e4)
    expected = -p * (log_p - (p * log_p).sum()) / 0.5
    assert gradient[0].tolist() == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-7)


def test_the_entropy_has_a_gradient_only_where_one_is_asked_for() -> None:
    """Without a bonus its graph is not kept."""
    logits = torch.zeros(1, 3, requires_grad=True)
    for wanted in (False, True):
        logprobs, entropy = model_module._judge(logits, torch.tensor([[0]]), 1.0, entropy_gradient=wanted)
        assert logprobs.requires_grad
        assert entropy.requires_grad is wanted

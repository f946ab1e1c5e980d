from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.trainer.cases import make_batch, make_config, random_samples

torch: Any = pytest.importorskip("torch")
peft: Any = pytest.importorskip("peft")

from safetensors.torch import load_file  # noqa: E402 -- after the checks

from prl.adapters import Base  # noqa: E402
from prl.config_lora import LoraConfig  # noqa: E402
from prl.errors import CheckpointError, MissingExtraError, TrainerError  # noqa: E402
from prl.process import free_port  # noqa: E402
from prl.trainer import lora  # noqa: E402
from prl.trainer.learner import Learner  # noqa: E402
from prl.trainer.microbatch import pack  # noqa: E402
from prl.trainer.model import Policy, load_policy  # noqa: E402
from prl.trainer.publish import gathered  # noqa: E402
from tests.trainer import lora_session, rank_session  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_rank")
CPU = torch.device("cpu")
SAMPLES = random_samples(1, 5)


@pytest.fixture(scope="module")
def one(models: dict[str, Path], one_rank: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the session as one rank."""
    folder = tmp_path_factory.mktemp("one")
    lora_session.session(models["tied"], folder)
    return folder


@pytest.fixture(scope="module")
def two(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the session as two ranks."""
    folder = tmp_path_factory.mktemp("two")
    port = str(free_port("127.0.0.1"))
    base = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.trainer.lora_session", str(models["tied"]), str(folder)]
    ranks = [
        subprocess.Popen(command, env={**base, "RANK": str(rank)}, stderr=subprocess.PIPE, start_new_session=True)
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=150)
            assert rank.returncode == 0, errors.decode()[-2000:]
        yield folder
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.fixture(scope="module")
def trained(models: dict[str, Path], one_rank: None) -> Learner:
    """A learner two steps from its base, which no test changes."""
    learner = lora_session.make_learner(models["tied"])
    for step in range(2):
        rank_session.train(learner, make_batch(step, 1))
    return learner


def tensors(folder: Path, prefix: str) -> dict[str, Any]:
    """What a session left under ``prefix``."""
    every = load_file(folder / "tensors.safetensors")
    return {name.removeprefix(f"{prefix}/"): value for name, value in every.items() if name.startswith(f"{prefix}/")}


def plain(folder: Path) -> Any:
    """The model as transformers reads it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def by_peft(model: Path, adapter: Path) -> Any:
    """The base with the adapter merged, all by peft itself."""
    return peft.PeftModel.from_pretrained(plain(model), adapter).merge_and_unload()


# What learns ----------------------------------------------------------------------------------------------------------


def test_only_adapters_learn(one: Path, models: dict[str, Path]) -> None:
    """Gradients, moments and checkpoints are of A and B in each linear layer but the head; the base stays as it was."""
    stored = load_file(models["tied"] / "model.safetensors")
    linear = [name.removesuffix(".weight") for name in stored if "proj" in name]
    halves = {f"{layer}.lora_{half}.weight" for layer in linear for half in "AB"}
    assert set(tensors(one, "gradient")) == halves
    assert all(gradient.any() for gradient in tensors(one, "gradient").values())
    kept = set(tensors(one, "straight"))
    moments = {f"optimizer/{half}.{entry}" for half in halves for entry in ("step", "exp_avg", "exp_avg_sq")}
    assert kept == {f"model/{half}" for half in halves} | moments | {"base"}
    base = tensors(one, "base")
    assert base.keys() == stored.keys()
    assert all(torch.equal(base[name], stored[name]) for name in stored)


def test_two_ranks_learn_what_one_learns(one: Path, two: Path) -> None:
    """From the same adapters, with recomputed activations on two: gradient, and weights after six steps."""
    for prefix, tolerance in (("gradient", 1e-5), ("straight", 1e-4)):
        alone, together = tensors(one, prefix), tensors(two, prefix)
        assert alone.keys() == together.keys()
        assert torch.equal(alone.pop("base", torch.zeros(())), together.pop("base", torch.zeros(())))
        for name, tensor in alone.items():
            assert (together[name] - tensor).norm() <= tolerance * tensor.norm() + 1e-7, name


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_resumed_run_goes_on_bit_for_bit(request: pytest.FixtureRequest, num_ranks: int) -> None:
    """Six steps and 3 + resume + 3 have equal adapters, moments and reports, the penalty to the base among them."""
    folder: Path = request.getfixturevalue("one" if num_ranks == 1 else "two")
    straight, resumed = tensors(folder, "straight"), tensors(folder, "resumed")
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    numbers = msgspec.json.decode((folder / "rank-0.json").read_bytes())
    for a, b in zip(numbers["reports"][3:], numbers["reports_resumed"], strict=True):
        assert {**a, "train_s": 0, "phases": []} == {**b, "train_s": 0, "phases": []}
        assert a["kl_reference"] > 0


def test_in_bfloat16_the_base_is_rounded_and_the_adapters_are_not(
    one: Path, two: Path, models: dict[str, Path]
) -> None:
    """One rank or two hold the same base in the compute dtype, and float32 adapters."""
    assert torch.equal(tensors(one, "rounded")["bits"], tensors(two, "rounded")["bits"])
    policy = load_policy(str(models["tied"]), CPU, torch.bfloat16, adapter=LoraConfig(rank=2))
    assert {tensor.dtype for tensor in policy.tensors.values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in lora.halves(policy.adapters).values()} == {torch.float32}
    logprobs, _ = policy(pack(SAMPLES, CPU), 1.0)
    logprobs.sum().backward()
    assert {adapter.up.grad.dtype for adapter in policy.adapters.values()} == {torch.float32}


# The reference --------------------------------------------------------------------------------------------------------


def test_the_reference_is_the_policy_without_its_adapters(trained: Learner, models: dict[str, Path]) -> None:
    """It answers as the model that the run started from, before and after; the policy answers as something else."""
    batch = pack(SAMPLES, CPU)
    expected = Policy(plain(models["tied"])).score(batch, 0.8)
    before = trained.policy.score(batch, 0.8)
    assert trained._reference is not None
    assert torch.allclose(trained._reference(batch, 0.8), expected, atol=1e-5)
    assert (before - expected).abs().max() > 1e-3
    assert torch.equal(trained.policy.score(batch, 0.8), before)


def _held() -> int:
    """Bytes of all tensors that are alive, each storage once."""
    gc.collect()
    alive = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    storages = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in alive}
    return sum(storages.values())


def test_there_is_no_second_copy_of_the_model(models: dict[str, Path]) -> None:
    """With a reference, a learner of adapters holds the base once, and the adapters with two moments."""
    before = _held()
    learner = lora_session.make_learner(models["untied"])
    rank_session.train(learner, make_batch(0, 1))
    held = _held() - before
    base = sum(tensor.numel() for tensor in learner.policy.tensors.values()) * 4
    adapters = sum(tensor.numel() for tensor in learner.parameters.values()) * 4
    assert base < held < base + 3 * adapters + base // 4


# What is sent and kept ------------------------------------------------------------------------------------------------


def test_merged_weights_are_those_of_peft(one: Path, models: dict[str, Path], trained: Learner, tmp_path: Path) -> None:
    """What is sent under the names of a run without LoRA is what ``merge_and_unload`` makes, to 1e-6."""
    without = Learner(make_config(models["tied"]), str(models["tied"]), None, CPU)
    assert trained.ready().manifest == without.ready().manifest
    trained.export(tmp_path / "export")
    expected = by_peft(models["tied"], tmp_path / "export" / "adapter").state_dict()
    base = load_file(models["tied"] / "model.safetensors")
    for name, tensor in gathered(trained._publisher._tensors, torch.float32):
        assert torch.allclose(tensor, expected[name], rtol=0, atol=1e-6), name
        assert torch.equal(tensor, base[name]) is ("proj" not in name)


def test_merging_leaves_the_policy_as_it_is(trained: Learner) -> None:
    """A hundred times sent, the weights are those of the first time, bit for bit."""
    first = dict(gathered(trained._publisher._tensors, torch.float32))
    for _ in range(98):
        for _ in gathered(trained._publisher._tensors, torch.float32):
            pass
    last = dict(gathered(trained._publisher._tensors, torch.float32))
    assert all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_sent_alone_amount_to_the_same_weights(trained: Learner, models: dict[str, Path], dtype: Any) -> None:
    """Merged with the model's files by the receiver they are, bit for bit, what the trainer would have sent whole."""
    thin = dict(gathered(lora.sent(trained.policy.adapters), torch.float32))
    received = Base(str(models["tied"])).merged(2, thin, dtype)
    whole = dict(gathered(trained._publisher._tensors, dtype))
    assert set(received) == {name for name in whole if "proj" in name}
    assert all(torch.equal(tensor, whole[name]) for name, tensor in received.items())
    assert sum(tensor.numel() for tensor in thin.values()) == sum(p.numel() for p in trained.parameters.values())


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_an_export_loads_both_ways(request: pytest.FixtureRequest, models: dict[str, Path], num_ranks: int) -> None:
    """The merged model in transformers, and the adapter in peft on the base: the same log-probabilities."""
    folder: Path = request.getfixturevalue("one" if num_ranks == 1 else "two") / "export"
    batch = pack(SAMPLES, CPU)
    merged = Policy(plain(folder)).score(batch, 1.0)
    adapted = peft.PeftModel.from_pretrained(plain(models["tied"]), folder / "adapter").eval()
    found = Policy(adapted.base_model.model).score(batch, 1.0)
    assert torch.allclose(merged, found, atol=1e-5)
    assert (merged - Policy(plain(models["tied"])).score(batch, 1.0)).abs().max() > 1e-2
    straight = tensors(folder.parent, "straight")
    for name, tensor in load_file(folder / "adapter" / "adapter_model.safetensors").items():
        assert torch.equal(tensor, straight[f"model/{name.removeprefix('base_model.model.')}"])


def test_adapters_of_another_base_are_refused(one: Path, models: dict[str, Path], tmp_path: Path) -> None:
    """A checkpoint is taken up on the very weights that its adapters were trained on, and of the same rank, or not."""
    other = plain(models["tied"])
    other.model.norm.weight.data[3] += 0.5
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(
        CheckpointError, match=r"step-000003 holds adapters of another base: 1 tensors .* model\.norm\.weight"
    ):
        lora_session.make_learner(tmp_path / "other", one / "step-000003")
    with pytest.raises(CheckpointError, match="does not fit"):
        lora_session.make_learner(models["tied"], one / "step-000003", rank=4)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "targets", "told"),
    [
        ("tied", ["q_proj", "w_proj"], "is called 'w_proj'; its linear ones are down_proj, gate_proj, k_proj"),
        ("tied", ["q_norm"], "lora.target_modules = .*q_norm"),
        ("tied", ["embed_tokens"], "embed_tokens is no linear layer; leave it out"),
        ("tied", ["lm_head"], "the output head shares the weight of the embedding; leave it out"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:.*tie_word_embeddings:UserWarning", "ignore:Model has `tie_word_embeddings:UserWarning"
)
def test_a_layer_that_cannot_have_an_adapter_is_named(
    models: dict[str, Path], kind: str, targets: list[str], told: str
) -> None:
    """A name that fits nothing, a norm, an embedding, a tied head: one line each."""
    with pytest.raises(TrainerError, match=told):
        load_policy(str(models[kind]), CPU, torch.float32, adapter=LoraConfig(rank=2, target_modules=targets))


def test_named_layers_alone_get_adapters(models: dict[str, Path]) -> None:
    """Two projections and a head of its own: these and no others."""
    targets = ["q_proj", "layers.1.self_attn.v_proj", "lm_head"]
    policy = load_policy(str(models["untied"]), CPU, torch.float32, adapter=LoraConfig(rank=2, target_modules=targets))
    assert set(policy.adapters) == {
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.v_proj.weight",
        "lm_head.weight",
    }
    policy(pack(SAMPLES, CPU), 1.0)[0].sum().backward()
    assert all(adapter.up.grad.full_tensor().any() for adapter in policy.adapters.values())


def test_without_peft_the_extra_is_named(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is imported where adapters are made, and nowhere else."""
    monkeypatch.setitem(sys.modules, "peft", None)
    load_policy(str(models["tied"]), CPU, torch.float32)
    with pytest.raises(MissingExtraError, match=r"lora.rank = 2 needs .*prl-train\[lora\]"):
        load_policy(str(models["tied"]), CPU, torch.float32, adapter=LoraConfig(rank=2))

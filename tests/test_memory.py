"""What a run needs and what the machine has, read from headers and from the system."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.config import Config, EngineConfig, TrainerConfig
from prl.config_algorithm import KlConfig
from prl.config_lora import LoraConfig
from prl.errors import ConfigError
from prl.memory import (
    GIB,
    ModelShape,
    estimate,
    gpu_memory,
    machine_memory,
    num_adapter_parameters,
    read_shape,
)
from tests.model_folder import NUM_PARAMETERS, make_model_folder

BIG = ModelShape(
    num_parameters=7_600_000_000, num_layers=28, hidden=3584, vocabulary=152_064, kv_width=512, max_positions=131_072
)


def test_the_shape_is_read_from_headers_alone(tmp_path: Path) -> None:
    """Parameters are counted tensor by tensor; the cache's width is that of the key-value heads."""
    shape = read_shape(make_model_folder(tmp_path))
    expected = ModelShape(
        num_parameters=NUM_PARAMETERS,
        num_layers=2,
        hidden=16,
        vocabulary=64,
        kv_width=16,
        max_positions=512,
        linears={"model.layers.0.self_attn.q_proj": [16, 16]},
    )
    assert shape == expected


def test_several_files_are_added_up(tmp_path: Path) -> None:
    """As large models are stored."""
    folder = make_model_folder(tmp_path)
    (folder / "model-2.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert read_shape(folder).num_parameters == 2 * NUM_PARAMETERS


def test_stretched_positions_set_no_limit(tmp_path: Path) -> None:
    """A rotary scaling factor makes max_position_embeddings something else than the longest context."""
    folder = make_model_folder(tmp_path, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert read_shape(folder).max_positions is None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "config.json").unlink(), "cannot be read"),
        (lambda f: (f / "config.json").write_text("{"), "is not valid JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object, not a list"),
        (lambda f: (f / "config.json").write_text('{"hidden_size": 4}'), "has no 'num_attention_heads'"),
        (lambda f: make_model_folder(f, hidden_size="x"), "does not describe a causal language model"),
        (lambda f: (f / "model.safetensors").unlink(), "has no *.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "is no safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60)), "is no safetensors file"),
        (lambda f: (f / "model.safetensors").write_text("version https://git-lfs"), "is no safetensors file"),
        (lambda f: os.truncate(f / "model.safetensors", 3000), "has 3000 bytes of "),
    ],
)
def test_a_damaged_folder_names_the_file(tmp_path: Path, damage: object, said: str) -> None:
    """What a broken download or a pointer file looks like, found before anything starts."""
    folder = make_model_folder(tmp_path)
    damage(folder)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=f"^{folder}") as caught:
        read_shape(folder)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_estimate_is_the_sum_of_terms_that_can_be_checked_by_hand() -> None:
    """Seven billion parameters on four GPUs: weights of 2 bytes, state of 16 a parameter over the ranks."""
    config = Config(
        model="m",
        engine=EngineConfig(count=4, dtype="bfloat16", max_model_len=4096),
        trainer=TrainerConfig(
            num_ranks=4, dtype="bfloat16", max_tokens_per_microbatch=8192, activation_checkpointing=True
        ),
    )
    need = estimate(config, BIG, on_gpu=True)
    one_sequence = 4096 * 2 * 28 * 512 * 2
    assert need.engine == 7_600_000_000 * 2 + one_sequence
    state, activations, logits = 7_600_000_000 * 16 // 4, 8192 * 28 * 3584 * 2 * 2, 2 * 8192 * 152_064 * 4
    assert need.rank == state + activations + logits
    assert need.total > 4 * (need.engine + need.rank)
    with_reference = msgspec.structs.replace(config, kl=KlConfig(coefficient=0.1))
    assert estimate(with_reference, BIG, on_gpu=True).rank == need.rank + 7_600_000_000 * 4 // 4


LINEARS = {"layers.0.q_proj": [8, 4], "layers.0.up_proj": [16, 8], "lm_head": [64, 8]}


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("all-linear", 12 + 24),
        (["q_proj"], 12),
        (["layers.0.q_proj", "lm_head"], 12 + 72),
        (["q_proj", "0.q_proj"], 12),
    ],
)
def test_adapters_are_counted(targets: Any, expected: int) -> None:
    """Rank times (out + in) for each layer that is named, once; the head only by name."""
    shape = msgspec.structs.replace(BIG, linears=LINEARS)
    assert num_adapter_parameters(LoraConfig(rank=3, target_modules=targets), shape) == 3 * expected


def test_a_layer_that_the_model_does_not_have_is_named() -> None:
    """With the nearest and all there are."""
    shape = msgspec.structs.replace(BIG, linears=LINEARS)
    with pytest.raises(ConfigError, match=r"'q_porj' \(did you mean 'q_proj'\?\); it has lm_head, q_proj, up_proj"):
        num_adapter_parameters(LoraConfig(rank=3, target_modules=["q_proj", "q_porj"]), shape)


def test_under_lora_the_base_is_held_once_in_the_compute_dtype() -> None:
    """State of 16 bytes for each parameter of the adapters, 2 for each of the base in bfloat16, and no reference."""
    full = Config(model="m", trainer=TrainerConfig(num_ranks=4, dtype="bfloat16"), kl=KlConfig(coefficient=0.1))
    shape = msgspec.structs.replace(BIG, linears=LINEARS)
    saved = estimate(full, shape, on_gpu=True).rank
    saved -= estimate(msgspec.structs.replace(full, lora=LoraConfig(rank=4)), shape, on_gpu=True).rank
    assert saved == (7_600_000_000 * (16 + 4 - 2) - 4 * 36 * 16) // 4


def test_on_a_cpu_the_cache_is_as_large_as_configured_at_most() -> None:
    """``kv_cache_gib`` bounds it; few short sequences need less."""
    small = Config(model="m", engine=EngineConfig(kv_cache_gib=0.5, max_num_seqs=64, max_model_len=4096))
    weights = BIG.num_parameters * 4
    assert estimate(small, BIG, on_gpu=False).engine == weights + GIB // 2
    few = Config(model="m", engine=EngineConfig(kv_cache_gib=0.5, max_num_seqs=1, max_model_len=16))
    assert estimate(few, BIG, on_gpu=False).engine == weights + 16 * 2 * 28 * 512 * 4


def test_a_second_copy_is_counted_where_updates_are_staged() -> None:
    """The weights of each engine once more, and nothing where they are received into place."""
    config = Config(model="m", engine=EngineConfig(count=4, dtype="bfloat16"))
    plain, staged = (estimate(config, BIG, on_gpu=True, is_staged=is_staged) for is_staged in (False, True))
    assert (plain.staged, staged.staged) == (0, 7_600_000_000 * 2)
    assert staged.total - plain.total == 4 * staged.staged


def test_the_machine_has_memory() -> None:
    """Available is part of the total."""
    total, available = machine_memory()
    assert 0 < available <= total


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for the driver's program")
def test_gpus_are_those_that_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes, the visible ones; none without the program, with a failing one, or where none may be seen."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\nfor word; do case $word in --id=1) echo 81559; exit;; esac; done\necho 81559; echo 7\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_memory() == [81559 << 20, 7 << 20]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_memory() == [81559 << 20]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_memory() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    program.write_text("#!/bin/sh\nexit 9\n")
    assert gpu_memory() == []
    program.unlink()
    assert gpu_memory() == []

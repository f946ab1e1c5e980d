"""A weight as two thin matrices: what a pair amounts to, where the base is read, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402 -- after the check for torch

from prl import adapters  # noqa: E402
from prl.adapters import Base  # noqa: E402
from prl.errors import WeightSyncError  # noqa: E402
from prl.types import TensorSpec  # noqa: E402

WEIGHT, A, B = "l.q.weight", "l.q.lora_A.weight", "l.q.lora_B.weight"


def spec(name: str, *shape: int) -> TensorSpec:
    """One line of a manifest."""
    return TensorSpec(name=name, dtype="float32", shape=list(shape))


def halves(rows: int = 3, rank: int = 2, columns: int = 4) -> dict[str, Any]:
    """A pair of halves."""
    torch.manual_seed(1)
    return {A: torch.randn(rank, columns), B: torch.randn(rows, rank)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of two files, of which the index names the second only."""
    save_file({WEIGHT: torch.zeros(3, 4)}, tmp_path / "consolidated.safetensors")
    save_file({WEIGHT: torch.ones(3, 4, dtype=torch.bfloat16), "n": torch.ones(2)}, tmp_path / "model-1.safetensors")
    index = {"weight_map": {WEIGHT: "model-1.safetensors", "n": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_a_pair_is_added_to_the_weight_in_the_files(folder: Path) -> None:
    """W + B A, in float32 and rounded once to the engine's dtype; the base is as the file has it, and stays so."""
    base = Base(str(folder))
    given = halves()
    expected = 1 + given[B] @ given[A]
    assert set(base) == {WEIGHT, "n"}
    for dtype in (torch.float32, torch.bfloat16):
        merged = base.merged(1, given, dtype)
        assert list(merged) == [WEIGHT]
        assert merged[WEIGHT].dtype == dtype
        assert torch.allclose(merged[WEIGHT], expected.to(dtype))
    assert torch.equal(base[WEIGHT], torch.ones(3, 4, dtype=torch.bfloat16))


def test_without_an_index_all_files_are_read(folder: Path) -> None:
    """As small models are stored."""
    (folder / "model.safetensors.index.json").unlink()
    (folder / "consolidated.safetensors").unlink()
    assert set(Base(str(folder))) == {WEIGHT, "n"}


def test_a_base_without_files_or_without_the_weight_is_refused(folder: Path, tmp_path: Path) -> None:
    """Both say what to do instead."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightSyncError, match=r"no \*\.safetensors .* lora.publish = 'merged'"):
        Base(str(tmp_path / "empty"))
    other = {name.replace("l.q", "l.k"): half for name, half in halves().items()}
    with pytest.raises(WeightSyncError, match=r"no l\.k\.weight .* lora.publish = 'merged'"):
        Base(str(folder)).merged(1, other, torch.float32)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (halves(columns=5), r"brings \[3, 2\] x \[2, 5\] for l.q.weight, which is \[3, 4\]"),
        ({A: halves()[A], B: torch.ones(3, 3)}, r"brings \[3, 3\] x \[2, 4\]"),
        ({A: halves()[A] * torch.inf, B: halves()[B]}, "not finite"),
    ],
    ids=["width", "rank", "inf"],
)
def test_halves_that_do_not_fit_are_refused(folder: Path, given: dict[str, Any], told: str) -> None:
    """With both shapes, before anything is returned."""
    with pytest.raises(WeightSyncError, match=told):
        Base(str(folder)).merged(1, given, torch.float32)


def test_a_manifest_of_halves_amounts_to_weights() -> None:
    """One line a pair, in order; a lone half or something else among them is refused."""
    pairs = [spec(A, 2, 4), spec(B, 3, 2), spec("m.lora_A.weight", 2, 5), spec("m.lora_B.weight", 6, 2)]
    assert [(each.name, each.shape) for each in adapters.weights_of(pairs)] == [(WEIGHT, [3, 4]), ("m.weight", [6, 5])]
    for odd in (pairs[:1], pairs[1:], [*pairs, spec("norm.weight", 3)]):
        with pytest.raises(WeightSyncError, match="has no other"):
            adapters.weights_of(odd)


def test_adapters_are_known_by_their_names() -> None:
    """An update of whole weights has none."""
    assert adapters.are_in([WEIGHT, A])
    assert not adapters.are_in([WEIGHT, "lm_head.weight"])

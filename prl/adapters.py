"""Adapters on the wire: a weight that travels as two thin matrices and is made whole by the engine that serves it.

    X.weight = (X.weight in the model's files) + X.lora_B.weight X.lora_A.weight     (arXiv 2106.09685, equation 3)

with the factor alpha / rank already in B. Invariants:

- What is served is the base plus the product, added in float32 and rounded once. The base is never what is served now,
  so a thousand updates leave no drift.
- The base is that of the files, unrounded. Where ``trainer.dtype`` holds every value of the files (float32, or that of
  the files) it is the trainer's too, and an engine serves what a whole update would have brought. Else the trainer has
  rounded its base (``trainer/lora.py``) and the engine has not: they differ by one rounding of the base, up to 2^-8 of
  a weight in bfloat16. An engine in bfloat16 rounds as far, and ``[weights]`` judges such a pair by the mean.
- The base is read from the model's own files, as mapped memory: an engine holds no second copy. The pages belong to the
  files, are shared by all engines of a host, and the system may drop and read them again.
- Merged weights are whole and checked before the first of them is served, so a load stays all or nothing. Until then an
  engine needs memory for them beside what it serves, never more than a whole update needs.

Why not vLLM's own LoRA: it adds the thin matrices' products to every decode step of every sequence, and it knows an
adapter by a request's id and a folder, while a version here must change between two decode steps under the sequences
that are running, and be stamped on their tokens. Merged weights cost decoding nothing and load the way all weights do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prl.errors import WeightSyncError
from prl.types import TensorSpec

_WEIGHT, _DOWN, _UP = ".weight", ".lora_A.weight", ".lora_B.weight"


def names_of(weight: str) -> tuple[str, str]:
    """Under which names the two halves of ``weight`` travel: A (rank x in), B (out x rank)."""
    layer = weight.removesuffix(_WEIGHT)
    return layer + _DOWN, layer + _UP


def are_in(names: Iterable[str]) -> bool:
    """Whether an update of ``names`` brings adapters; it brings nothing else then."""
    return any(name.endswith((_DOWN, _UP)) for name in names)


def weights_of(manifest: Sequence[TensorSpec]) -> list[TensorSpec]:
    """What the halves in ``manifest`` amount to: one line a weight, without a dtype of its own.

    Raises:
        WeightSyncError: something else is among them, or half of a pair is missing.
    """
    shapes = {spec.name: spec.shape for spec in manifest}
    weights = [name.removesuffix(_DOWN) + _WEIGHT for name in shapes if name.endswith(_DOWN)]
    if odd := set(shapes) ^ {half for weight in weights for half in names_of(weight)}:
        raise WeightSyncError(f"an update of adapters must bring an A and a B of each weight: {min(odd)} has no other")
    halves = [[shapes[half] for half in names_of(weight)] for weight in weights]
    return [
        TensorSpec(name=weight, dtype="", shape=[up[0], down[1]])
        for weight, (down, up) in zip(weights, halves, strict=True)
    ]


def merge(weight: Tensor, down_RI: Tensor, up_OR: Tensor) -> Tensor:
    """``weight`` (O x I) with the product of the halves added, float32; the arguments stay as they are."""
    return torch.addmm(weight.float(), up_OR.float(), down_RI.float())


class Base:
    """The weights in a model's safetensors files, by name; nothing is read before it is asked for.

    Args:
        model: a folder, or a hub name that is on this machine.

    Raises:
        WeightSyncError: there are no such files.
    """

    def __init__(self, model: str) -> None:
        from safetensors import safe_open  # noqa: PLC0415 -- only where adapters are served

        self._model = model
        self._files: dict[str, Any] = {}
        for path in _files(model):
            file: Any = safe_open(path, framework="pt")
            self._files |= dict.fromkeys(file.keys(), file)
        if not self._files:
            raise WeightSyncError(f"{model} has no *.safetensors to add adapters to: take lora.publish = 'merged'")

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __getitem__(self, name: str) -> Tensor:
        """A weight, in the dtype of the file, on the CPU; not to be written to."""
        if name not in self._files:
            raise WeightSyncError(
                f"the files of {self._model} hold no {name} to add an adapter to, such as {min(self._files)}:"
                " take lora.publish = 'merged'"
            )
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    @torch.no_grad()
    def merged(self, version: int, received: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The weights that the halves ``received`` amount to, in ``dtype``.

        Raises:
            WeightSyncError: a half does not fit, or a result is not finite.
        """
        manifest = [TensorSpec(name=name, dtype="", shape=list(tensor.shape)) for name, tensor in received.items()]
        whole: dict[str, Tensor] = {}
        for spec in weights_of(manifest):
            weight = self[spec.name]
            down_RI, up_OR = (received[half] for half in names_of(spec.name))
            if list(weight.shape) != spec.shape or down_RI.shape[0] != up_OR.shape[1]:
                raise WeightSyncError(
                    f"version {version} brings {list(up_OR.shape)} x {list(down_RI.shape)} for {spec.name}, which is"
                    f" {list(weight.shape)} in {self._model}"
                )
            whole[spec.name] = merge(weight, down_RI, up_OR).to(dtype)
            if not torch.isfinite(whole[spec.name]).all():
                raise WeightSyncError(f"version {version} of {spec.name} holds a value that is not finite")
        return whole


def _files(model: str) -> list[Path]:
    """The files that hold the model: those of its index, where it has one, or all."""
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download  # noqa: PLC0415 -- only for hub names

        folder = Path(snapshot_download(model, local_files_only=True))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    return sorted(folder.glob("*.safetensors"))

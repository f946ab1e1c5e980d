"""LoRA through peft: adapters in the policy's linear layers, which learn while everything else stands still.

Invariants:

- The model stays transformers' own. peft puts its layers into it and gives the weights in them longer names; the rest
  of the trainer, the wire and the files know every weight by the name that the checkpoint has for it.
- Adapters are float32, whatever computes. The base never changes, so it is held in the compute dtype: a float32 master
  serves updates, and there are none.
- A merged weight is W + (alpha / rank) B A, computed for one weight at a time from the base as it was loaded: no merged
  model ever exists beside the policy, and nothing has to be taken out again.
- The policy with its adapters disabled is the model that the run started from: the reference of ``[kl]`` is free.
- Every rank begins with the same adapters, those of rank 0: the model spreads them like all its tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from prl.adapters import merge, names_of
from prl.config_lora import LoraConfig
from prl.errors import CheckpointError, MissingExtraError, TrainerError
from prl.trainer.mesh import counts
from prl.trainer.publish import Computed

_NAME = "default"
"""peft's own name of the one adapter that a layer has here."""


class Adapter(NamedTuple):
    """What is added to one weight (O x I): scale times up times down."""

    down: Tensor
    """A, rank x in."""
    up: Tensor
    """B, out x rank."""
    scale: float


def inject(lm: Any, config: LoraConfig, model: str, dtype: torch.dtype) -> None:
    """Freeze ``lm``, hold it in ``dtype``, and give the layers that ``config`` names their adapters.

    Raises:
        MissingExtraError: peft is not installed.
        TrainerError: a name fits no layer, or one that is not linear or whose weight another module shares.
    """
    try:
        from peft import inject_adapter_in_model  # noqa: PLC0415 -- optional, seconds to import
    except ImportError as error:
        raise MissingExtraError("peft", "lora", f"lora.rank = {config.rank}") from error
    for parameter in lm.parameters():
        parameter.data = parameter.data.to(dtype)
    _check_names(lm, config, model)
    try:
        inject_adapter_in_model(_peft_config(config, model, config.target_modules), lm)
    except ValueError as error:
        raise TrainerError(f"{model}: lora.target_modules = {config.target_modules!r}: {error}") from error
    wrong = [name for name, layer in _layers(lm) if not isinstance(layer.get_base_layer(), nn.Linear)]
    tied = lm.config.tie_word_embeddings and hasattr(lm.get_output_embeddings(), "get_base_layer")
    if wrong or tied:
        what = f"{wrong[0]} is no linear layer" if wrong else "the output head shares the weight of the embedding"
        raise TrainerError(f"{model}: lora.target_modules = {config.target_modules!r}: {what}; leave it out")
    for name, parameter in lm.named_parameters():
        parameter.requires_grad_(".lora_" in name)
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def base_name(name: str) -> str:
    """The checkpoint's name of a weight of the base."""
    return name.replace(".base_layer.", ".")


def adapters_of(lm: Any) -> dict[str, Adapter]:
    """Every adapter by the name of the weight that it is added to; none without LoRA."""
    return {
        f"{name}.weight": Adapter(layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight, layer.scaling[_NAME])
        for name, layer in _layers(lm)
    }


@contextmanager
def disabled(lm: Any) -> Iterator[None]:
    """Compute with the base alone in here. Without a gradient only: peft's own switch would also stop the training."""
    layers = [layer for _, layer in _layers(lm)]
    try:
        for layer in layers:
            layer._disable_adapters = True  # noqa: SLF001 -- see above
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False  # noqa: SLF001


def halves(adapters: Mapping[str, Adapter]) -> dict[str, Tensor]:
    """What learns, by name."""
    return {
        half: tensor
        for weight, adapter in adapters.items()
        for half, tensor in zip(names_of(weight), adapter[:2], strict=True)
    }


def sent(adapters: Mapping[str, Adapter]) -> dict[str, Tensor | Computed]:
    """What travels of the adapters where they travel alone: A as it is, B with the factor."""

    def scaled(adapter: Adapter) -> Computed:
        return Computed(adapter.up.shape, (adapter.up,), lambda up: adapter.scale * up)

    tensors: dict[str, Tensor | Computed] = {}
    for weight, adapter in adapters.items():
        down, up = names_of(weight)
        tensors |= {down: adapter.down, up: scaled(adapter)}
    return tensors


def merged(tensors: Mapping[str, Tensor], adapters: Mapping[str, Adapter]) -> dict[str, Tensor | Computed]:
    """The model's tensors, those with an adapter to be merged when their turn comes."""

    def whole(name: str, base: Tensor) -> Tensor | Computed:
        if name not in adapters:
            return base
        down, up, scale = adapters[name]
        return Computed(base.shape, (base, down, up), lambda w, a, b: merge(w, a, scale * b))

    return {name: whole(name, base) for name, base in tensors.items()}


def base_bits(tensors: Mapping[str, Tensor]) -> Tensor:
    """One number for each tensor of the base, the sum of its bits, whatever the number of ranks. A collective.

    A checkpoint of adapters means something only together with the base that they were trained on.
    """
    sums = []
    for tensor in tensors.values():
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        whole = local.contiguous().reshape(-1).view(torch.int16 if local.element_size() % 2 == 0 else torch.uint8)
        sums.append(counts(tensor) * whole.sum(dtype=torch.int64))
    bits = torch.stack(sums)
    dist.all_reduce(bits)
    return bits


def check_base(folder: Path, model: str, names: Iterable[str], bits: Tensor, saved: Tensor) -> None:
    """Compare the base of a policy with that of a checkpoint, both as ``base_bits``. Raises CheckpointError."""
    differing = [name for name, same in zip(names, (bits == saved).tolist(), strict=True) if not same]
    if differing:
        raise CheckpointError(
            f"{folder} holds adapters of another base: {len(differing)} tensors of {model} are not those that they were"
            f" trained on, such as {differing[0]}; resume with the same model and trainer.dtype"
        )


def save_adapter(folder: Path, adapters: Mapping[str, Tensor], config: LoraConfig, model: str) -> None:
    """Write ``adapters`` (whole tensors, named as in ``halves``) for ``peft.PeftModel.from_pretrained``."""
    from safetensors.torch import save_file  # noqa: PLC0415 -- the end of a run

    layers = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in adapters}
    targets = config.target_modules if isinstance(config.target_modules, list) else sorted(layers)
    _peft_config(config, model, targets).save_pretrained(folder)
    tensors = {f"base_model.model.{name}": tensor for name, tensor in adapters.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _peft_config(config: LoraConfig, model: str, targets: Any) -> Any:
    import peft  # noqa: PLC0415 -- optional, seconds to import

    return peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=model,
    )


def _layers(lm: Any) -> list[tuple[str, Any]]:
    """The layers that peft put in, by name; where there are none, peft need not be installed."""
    return [(name, module) for name, module in lm.named_modules() if hasattr(module, "lora_A")]


def _check_names(lm: Any, config: LoraConfig, model: str) -> None:
    """Refuse a name that fits nothing, which peft accepts beside one that fits."""
    if not isinstance(config.target_modules, list):
        return
    modules = [name for name, _ in lm.named_modules()]
    for target in config.target_modules:
        if not any(name == target or name.endswith(f".{target}") for name in modules):
            linear = {name.rpartition(".")[2] for name, module in lm.named_modules() if isinstance(module, nn.Linear)}
            raise TrainerError(
                f"lora.target_modules: no layer of {model} is called {target!r}; its linear ones are"
                f" {', '.join(sorted(linear))}"
            )

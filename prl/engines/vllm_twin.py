"""New weights of a vLLM model made ready beside the model that is serving, so that the swap is a change of pointers.

A twin is a copy of the model's module tree with tensors of its own. It is filled as vLLM fills a model at its start:
``load_weights``, then what each layer derives from its weights (on a CPU: the packed copy that it multiplies by). The
model itself is not touched until ``swap``.

Invariants:

- A twin shares no memory that a load writes with the model: parameters and persistent buffers are its own.
- Every parameter starts as NaN, so a tensor that the update lacks, or a part of a fused one, is found, like any value
  that is not finite, by one look at what was loaded.
- Tied tensors stay tied: what is one tensor in the model is one in the twin, and both packed copies are made from it.
- Only models all of whose layers are known to keep nothing else of their weights have a twin (``has_twin``): plain
  linear layers, embeddings and attention, on a CPU. Anything else is reloaded in place by vLLM.
"""

# ruff: noqa: SLF001 -- what a torch module holds has no public name

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.attention import Attention, is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor
from vllm.model_executor.model_loader.reload.sanitize import layer_ref_sentinel
from vllm.v1.attention.backend import AttentionImplBase

from prl.errors import WeightSyncError

_METHODS = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)


def has_twin(model: Any) -> bool:
    """Whether all that ``model`` computes with is its tensors and the packed copies of its linear layers."""
    return all(tensor.device.type == "cpu" for tensor in model.parameters()) and all(map(_is_plain, model.modules()))


def _is_plain(module: Any) -> bool:
    method = getattr(module, "quant_method", None)
    if is_deferred_attention_layer(module):
        return type(module) is Attention and method is None and _derives_nothing(module.impl)
    if method is None:
        return not hasattr(module, "process_weights_after_loading")
    shapes = [tensor.ndim for tensor in get_layerwise_info(module).restore_metadata[0].values()]
    return type(method) in _METHODS and max(shapes, default=0) <= 2  # noqa: PLR2004 -- of a convolution vLLM keeps more


def _derives_nothing(attention: Any) -> bool:
    process = type(attention).process_weights_after_loading
    return process is AttentionImplBase.process_weights_after_loading and getattr(attention, "sinks", None) is None


class Twin:
    """The next version of ``model``'s weights. Made and filled in any thread; swapped in while the model rests."""

    def __init__(self, model: Any) -> None:
        self._pairs: dict[int, tuple[Any, Any]] = {}
        """Every module and its twin, by the module's identity."""
        self._model = self._twin_of(model, {})

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Fill it with ``tensors`` (checkpoint names) and derive what is derived.

        Raises:
            WeightSyncError: a tensor is missing, or a value is not finite.
        """
        names = {name for name, _ in self._model.named_parameters()}
        loaded = self._model.load_weights(tensors)
        if missing := sorted(names - set(names if loaded is None else loaded)):
            raise WeightSyncError(f"the update lacks tensors for {len(missing)} parameters, such as {missing[0]}")
        for name, parameter in self._model.named_parameters():
            if parameter.is_floating_point() and not torch.isfinite(parameter).all():
                raise WeightSyncError(f"{name} is not whole: a part of it is missing, or a value is not finite")
        for _, twin in self._pairs.values():
            if getattr(twin, "quant_method", None) is not None:
                twin.quant_method.process_weights_after_loading(twin)

    def swap(self) -> None:
        """Give the model what was loaded. The twin then holds what the model had: drop it where nobody waits."""
        swapped = set()
        for module, twin in self._pairs.values():
            if hasattr(module, "cpu_linear"):
                module.cpu_linear, twin.cpu_linear = twin.cpu_linear, module.cpu_linear
            for tensor, other in _own_tensors(module, twin):
                if id(tensor) not in swapped:
                    tensor.data, other.data = other.data, tensor.data
                    swapped.add(id(tensor))

    def _twin_of(self, module: Any, tensors: dict[int, Tensor]) -> Any:
        """``tensors``: the twins of those that have one already, by the identity of what they are twins of."""
        if id(module) in self._pairs:
            return self._pairs[id(module)][1]
        twin = copy.copy(module)
        self._pairs[id(module)] = module, twin
        for kind in ("_parameters", "_buffers", "_modules"):
            setattr(twin, kind, dict(getattr(module, kind)))
        for name, child in module._modules.items():
            twin._modules[name] = child if child is None else self._twin_of(child, tensors)
        metadata = get_layerwise_info(module).restore_metadata[0]
        for name, tensor in module._parameters.items():
            if tensor is not None:
                fresh = tensors.get(id(tensor))
                like = metadata.get(name, tensor)  # vLLM adds a bias after it took its notes
                twin._parameters[name] = _fresh(like, module, twin) if fresh is None else fresh
                tensors[id(tensor)] = twin._parameters[name]
        for name, tensor in module._buffers.items():
            if tensor is not None and name not in module._non_persistent_buffers_set:
                twin._buffers[name] = tensors.setdefault(id(tensor), tensor.clone())
        return twin


def _fresh(like: Tensor, module: Any, twin: Any) -> Tensor:
    """A parameter like ``like``, of ``module``, in all but its values, which are not there, and its owner."""
    tensor: Tensor = materialize_meta_tensor(like)
    for name, value in tensor.__dict__.items():
        while getattr(value, "__name__", None) == "online_process_loader":  # left by a reload, and deaf outside one
            value = value.__wrapped__  # noqa: PLW2901 -- unwrapped
        owner = getattr(value, "__self__", None)
        bound = isinstance(value, MethodType) and (owner is module or owner is layer_ref_sentinel)
        tensor.__dict__[name] = MethodType(value.__func__, twin) if bound else value
    return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor


def _own_tensors(module: Any, twin: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """What both have of their own, pair by pair."""
    for kind in ("_parameters", "_buffers"):
        for name, tensor in getattr(module, kind).items():
            other = getattr(twin, kind)[name]
            if tensor is not other:
                yield tensor, other

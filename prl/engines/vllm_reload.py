"""New weights of a vLLM model put in place of the old ones, layer by layer as vLLM reloads a model.

Invariants:

- A reload that fails (a name the model does not know, a tensor it misses) leaves no half-buffered layer behind, so that
  the next one starts clean and overwrites everything.
- What vLLM derived from a weight is derived again. Its layer-wise reload does that for each layer that received a
  tensor; a tied output head receives none, so it is done here (see ``repack_tied_heads``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from prl.errors import WeightSyncError


@torch.no_grad()
def load_weights(model: Any, model_config: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Replace all weights of a vLLM model by ``tensors`` (checkpoint names), in place.

    Raises:
        WeightSyncError: a parameter of the model received nothing, or a fused one not all of its parts.
    """
    expected = {name for name, _ in model.named_parameters()}
    initialize_layerwise_reload(model)
    try:
        loaded = model.load_weights(iter(tensors))
        partial = [name for name, module in model.named_modules() if _is_partial(module)]
    finally:
        # Also after a failure: it takes the loaders' wrappers off again and drops what they had buffered.
        finalize_layerwise_reload(model, model_config)
    missing = partial + ([] if loaded is None else sorted(expected - set(loaded)))
    if missing:
        raise WeightSyncError(f"the update lacks tensors for {len(missing)} parameters, such as {missing[0]}")
    repack_tied_heads(model)


def _is_partial(module: Any) -> bool:
    """Whether a linear layer fused of several tensors received some of them only.

    vLLM completes such a layer with memory that nothing was written to. Other modules may rightly stay short of their
    size: an embedding is padded.
    """
    info = get_layerwise_info(module)
    return isinstance(module, LinearBase) and info.can_load() and info.load_numel > 0


def repack_tied_heads(model: Any) -> None:
    """Derive a tied output head's packed weight again.

    On a CPU vLLM multiplies by a packed copy of each linear weight (``cpu_linear``). The reload packs anew where a
    tensor was loaded. A tied head shares the embedding's tensor and receives none of its own, so its packed copy would
    stay the old one, and every update would report success while the head kept serving old weights.
    """
    embeddings = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    num_owners = Counter(id(module.weight) for module in embeddings)
    for module in embeddings:
        if num_owners[id(module.weight)] > 1 and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)

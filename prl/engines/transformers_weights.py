"""The model of the transformers engine: loading it, replacing its weights in place, scoring with it.

Invariants:

- A replacement that is staged is all or nothing: everything is received and checked before the first tensor of the
  model is touched. One that is received in place needs no second copy; where it fails half-way the model is of no use
  until another has succeeded.
- A manifest must name every tensor of the model once; tied tensors are one tensor, under any of their names.
- An update of adapters is merged with the model's files (``prl/adapters.py``); what it does not name stays as it is.
- Tensors travel in the dtype that the manifest declares and are converted to the engine's when they are copied.
- The weight group stays in step with its other ranks whatever the model thinks of a manifest.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from prl import adapters
from prl.engines.host_protocol import Start
from prl.errors import WeightSyncError
from prl.transfer import GlooGroup, finite
from prl.types import WeightUpdate


def load_model(start: Start) -> Any:
    """The checkpoint's model, in evaluation mode, on a GPU where there is one."""
    logging.disable_progress_bar()  # it would fill the log's last lines
    model = AutoModelForCausalLM.from_pretrained(
        start.model, dtype=getattr(torch, start.config.dtype), attn_implementation="sdpa"
    )
    if torch.cuda.is_available():
        model = model.to(torch.device("cuda", start.devices[0] % torch.cuda.device_count()))
    return model.eval().requires_grad_(requires_grad=False)


class Arrived:
    """``update`` as a whole: received and checked when this returns, which may be beside generation.

    Raises:
        WeightSyncError: the manifest does not fit the model, the transfer failed, or a tensor is not finite.
    """

    def __init__(self, model: Any, update: WeightUpdate, group: GlooGroup) -> None:
        self._version, self._device = update.version, model.device
        self._targets = _targets_or_decline(model, update, group)
        self._tensors = dict(finite(update.version, list(group.receive(update.version, update.manifest))))
        if _is_thin(update):
            base = adapters.Base(model.config.name_or_path)
            self._tensors = base.merged(update.version, self._tensors, model.dtype)

    @torch.no_grad()
    def put_in_place(self, version: int) -> None:
        """Copy it into the model, which must stand still. Raises WeightSyncError where it is not ``version``."""
        if version != self._version:
            raise WeightSyncError(f"version {self._version} was staged, not version {version}")
        for name, tensor in self._tensors.items():
            self._targets[name].copy_(tensor)
        _wait_for(self._device)


@torch.no_grad()
def receive_in_place(model: Any, update: WeightUpdate, group: GlooGroup) -> None:
    """Copy each tensor of ``update`` into the model, which must stand still, as it comes. Adapters are merged first.

    Raises:
        WeightSyncError: the manifest does not fit the model, the transfer failed, or a tensor is not finite.
    """
    if _is_thin(update):
        Arrived(model, update, group).put_in_place(update.version)
        return
    targets = _targets_or_decline(model, update, group)
    with contextlib.closing(group.receive(update.version, update.manifest)) as tensors:
        for name, tensor in finite(update.version, tensors):
            targets[name].copy_(tensor)
    _wait_for(model.device)


def _wait_for(device: torch.device) -> None:
    """The generation thread computes on a stream of its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _is_thin(update: WeightUpdate) -> bool:
    return adapters.are_in(spec.name for spec in update.manifest)


def _targets_or_decline(model: Any, update: WeightUpdate, group: GlooGroup) -> dict[str, Tensor]:
    """The model's tensors by the manifest's names. Raises WeightSyncError on every rank where they do not fit."""
    try:
        return _targets(model, update, thin=_is_thin(update))
    except WeightSyncError:
        # Announcing something else than the sender is how a rank declines: every rank fails now, nobody waits.
        with contextlib.suppress(WeightSyncError):
            list(group.receive(update.version, []))
        raise


def _targets(model: Any, update: WeightUpdate, *, thin: bool) -> dict[str, Tensor]:
    """The model's tensor for each weight that the manifest brings, be it as an adapter."""
    manifest = adapters.weights_of(update.manifest) if thin else update.manifest
    tensors: dict[str, Tensor] = model.state_dict(keep_vars=True)
    named: dict[int, str] = {}
    for spec in manifest:
        tensor = tensors.get(spec.name)
        if tensor is None:
            raise WeightSyncError(
                f"version {update.version} brings {spec.name}, which the engine's model does not have"
            )
        if list(tensor.shape) != list(spec.shape):
            raise WeightSyncError(
                f"version {update.version} brings {spec.name} of shape {list(spec.shape)}, the engine's has "
                f"{list(tensor.shape)}"
            )
        if (other := named.setdefault(id(tensor), spec.name)) != spec.name:
            raise WeightSyncError(f"version {update.version} brings {other} and {spec.name}, which are tied: send one")
    missing = sorted({name for name, tensor in tensors.items() if id(tensor) not in named})
    if missing and not thin:
        raise WeightSyncError(
            f"version {update.version} lacks {len(missing)} of the engine model's tensors, such as {missing[0]}"
        )
    return {spec.name: tensors[spec.name] for spec in manifest}


@torch.no_grad()
def score(model: Any, token_ids: list[int]) -> list[float]:
    """Log-probability at temperature 1 of each of the L token ids after the first (length L - 1)."""
    ids = torch.tensor([token_ids], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    logprobs: list[float] = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist()
    return logprobs

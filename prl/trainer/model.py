"""The policy: a Hugging Face causal language model, sharded with FSDP2, that answers with log-probabilities.

Invariants:

- What is trained is float32 and sharded over the ranks; the forward and backward pass computes in the compute dtype,
  and gradients are summed over ranks in float32. They are summed, not averaged: the loss already has its global
  denominator.
- The model is only ever called through ``Policy.forward``, the root of the sharding, which is where FSDP gathers the
  embedding and the head. So the head can be applied in pieces, and the logits of a whole micro-batch never exist.
- One list of names, that of ``named_parameters`` (tied tensors once) and the persistent buffers, in one order on every
  rank. The tensors under these names stay the same objects for the policy's whole life.
- Samples of a packed row do not see one another. transformers keeps them apart by their restarting positions, but only
  without a cache; where tokens may be shared a mask of ``microbatch.py`` does, which transformers hands to ``sdpa`` as
  it is. ``check_policy`` proves both at the start on the model at hand.
- Under LoRA the base is frozen and the adapters are what is trained (``lora.py``); nothing else here differs.
- Dropout is off: with it the trainer's distribution would not be the engine's.

With ``sdpa``, rows that hold several samples cost an attention mask of R x L x L numbers a micro-batch (tokens times
the length of a row); ``flash_attention_2`` needs none, shares nothing, and is taken where it is installed and can be
used.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from prl.config_lora import LoraConfig
from prl.errors import TrainerError
from prl.trainer import lora
from prl.trainer.mesh import make_mesh
from prl.trainer.microbatch import MicroBatch, attention_mask, pack, scored
from prl.types import Sample

MAX_LOGITS = 1 << 25
"""Most logits that exist at once: 128 MiB in float32, a few times over while a piece is worked on."""
MIN_LOGPROB = -1e4
"""exp of this is 0 in float64 too."""


class Policy(nn.Module):
    """The model with its head applied piecewise."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm
        self.single_row = lm.config._attn_implementation == "flash_attention_2"  # noqa: SLF001 -- no public name
        """Whether the attention keeps samples apart by itself and takes everything in one row: see ``layout``."""
        self.pairs_per_token = _pairs_per_token(lm.config)
        """What a token costs beside attention, in pairs of tokens that attend to one another; 0: none is shared."""
        self.tensors: dict[str, Tensor] = {}
        """Every tensor of a checkpoint by its canonical name: sharded parameters, then persistent buffers."""
        self.adapters: dict[str, lora.Adapter] = {}
        """Sharded, by the name of the tensor that each is added to; empty without LoRA."""

    def pack(self, samples: Sequence[Sample], device: torch.device) -> MicroBatch:
        """Lay samples out as is best for this model."""
        return pack(samples, device, single_row=self.single_row, pairs_per_token=self.pairs_per_token)

    def forward(
        self, batch: MicroBatch, temperature: float, *, direct: bool = False, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-probability (with gradient) and entropy of ``batch``'s N targets, float32.

        Both are of log_softmax(logits / temperature). ``direct`` takes the logits from the model's own forward pass
        instead of the piecewise head: the reference of ``check_policy``. The entropy has a gradient only where one is
        asked for: it costs as much again as that of the log-probabilities.
        """
        rows = {"input_ids": batch.token_ids_RL, "position_ids": batch.positions_RL, "use_cache": False}
        if batch.until_RL is not None:
            # numbers, not booleans: sdpa would make numbers of those in each layer, and keep them for the backward pass
            rows["attention_mask"] = attention_mask(batch.until_RL, self.lm.get_input_embeddings().weight.dtype)
        if direct:
            logits_UV = self.lm(**rows).logits.flatten(0, 1)[batch.at_U]
            logprobs_UK, entropy_U = _judge(logits_UV, batch.targets_UK, temperature, entropy_gradient=entropy_gradient)
        else:
            hidden_UD = self.lm.base_model(**rows).last_hidden_state.flatten(0, 1)[batch.at_U]
            size = max(1, MAX_LOGITS // self.lm.config.vocab_size)
            judge = partial(checkpoint, self._head, use_reentrant=False)
            pieces = [
                judge(hidden, targets, temperature, entropy_gradient=entropy_gradient)
                for hidden, targets in zip(
                    torch.split(hidden_UD, size), torch.split(batch.targets_UK, size), strict=True
                )
            ]
            logprobs_UK, entropy_U = (torch.cat(part) for part in zip(*pieces, strict=True))
        return logprobs_UK.flatten()[batch.slot_N], entropy_U[batch.slot_N // batch.targets_UK.shape[1]]

    def _head(
        self, hidden_UD: Tensor, targets_UK: Tensor, temperature: float, *, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        head = self.lm.get_output_embeddings()
        return _judge(head(hidden_UD), targets_UK, temperature, entropy_gradient=entropy_gradient)

    def score(self, batch: MicroBatch, temperature: float, *, direct: bool = False, base: bool = False) -> Tensor:
        """Log-probabilities of ``batch``'s targets, without gradient; ``base``: without adapters."""
        with lora.disabled(self.lm) if base else nullcontext():
            return self.look(batch, temperature, direct=direct)[0]

    @torch.no_grad()
    def look(self, batch: MicroBatch, temperature: float, *, direct: bool = False) -> tuple[Tensor, Tensor]:
        """What ``forward`` gives, without gradient."""
        try:
            found: tuple[Tensor, Tensor] = self(batch, temperature, direct=direct)
        finally:
            if isinstance(self, FSDPModule):
                self.reshard()  # without a backward pass nothing else would give the gathered root back
        return found


def _judge(
    logits_UV: Tensor, targets_UK: Tensor, temperature: float, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    logits_UV = logits_UV.float()
    if temperature != 1.0:
        logits_UV = logits_UV / temperature
    logprobs_UV = torch.log_softmax(logits_UV, dim=-1)
    del logits_UV  # nothing else holds it, and at a large vocabulary it counts
    logprobs_UK = logprobs_UV.gather(1, targets_UK)
    # The entropy comes last: a checkpoint computes again what the backward pass needs and nothing behind it.
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        # the bound turns 0 * -inf into 0, in the value and in the gradient, where a token's probability is 0
        entropy_U = -torch.linalg.vecdot(logprobs_UV.exp(), logprobs_UV.clamp(min=MIN_LOGPROB))
    return logprobs_UK, entropy_U


def load_policy(
    model: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    activation_checkpointing: bool = False,
    adapter: LoraConfig | None = None,
    num_replicas: int = 1,
) -> Policy:
    """Load ``model`` (a folder or hub name) and shard it over all ranks of the default process group.

    With ``num_replicas`` > 1 it is sharded so many times, each time over that share of the ranks (``mesh.py``).

    Rank 0 reads the files; the others allocate memory that they never touch, and get their shards from rank 0.

    Raises:
        TrainerError: the checkpoint lacks weights, or the model is of a kind that cannot be trained here, or has no
            place for the adapters that are asked for.
        MissingExtraError: adapters are asked for and peft is not installed.
    """
    attention = _attention(device, dtype)
    lm = _read(model, attention) if dist.get_rank() == 0 else _allocate(model, attention)
    if adapter is not None and adapter.rank:
        lora.inject(lm, adapter, model, dtype)
    policy = Policy(lm.eval())
    mesh = make_mesh(device.type, num_replicas)
    _shard(policy, mesh, device, dtype, activation_checkpointing=activation_checkpointing)
    persistent = lm.state_dict().keys()
    policy.adapters = lora.adapters_of(lm)
    parameters = {lora.base_name(name): tensor for name, tensor in lm.named_parameters() if ".lora_" not in name}
    buffers = {name: buffer for name, buffer in lm.named_buffers() if name in persistent}
    policy.tensors = {**parameters, **buffers}
    if lm.config.tie_word_embeddings and lm.get_input_embeddings().weight is not lm.get_output_embeddings().weight:
        raise TrainerError(f"{model}: input embedding and output head are tied in the config but not after sharding")
    return policy


def parameters_of(policy: Policy) -> dict[str, Tensor]:
    """The trainable tensors by name, as shards."""
    if policy.adapters:
        return lora.halves(policy.adapters)
    return {name: tensor for name, tensor in policy.tensors.items() if isinstance(tensor, nn.Parameter)}


def check_policy(policy: Policy, device: torch.device, dtype: torch.dtype) -> None:
    """Prove on short sequences that packing keeps them apart and that the piecewise head is the model's own.

    Every rank must call it. Where a sequence that shares its beginning with others differs from itself alone, nothing
    is shared from here on. Raises TrainerError where a sequence in a packed row, through the piecewise head, differs
    from the same sequence alone through the model's own forward pass.
    """
    vocabulary = policy.lm.config.vocab_size
    tolerance = 1e-3 if dtype == torch.float32 else 0.25
    one, other = ([(7 * t + start) % vocabulary for t in range(6)] for start in (1, 3))

    def gap(sequences: Sequence[Sequence[int]], **layout: Any) -> float:
        parts = [scored(each) for each in sequences]
        together = policy.score(pack(parts, device, **layout), 1.0)
        alone = torch.cat([policy.score(pack([part], device), 1.0, direct=True) for part in parts])
        return (together - alone).abs().max().item()

    apart = gap([one, other], single_row=True)
    if not apart <= tolerance:
        raise TrainerError(
            f"{type(policy.lm).__name__} cannot be trained on packed rows: log-probabilities of two sequences in one"
            f" row differ by {apart:.3g} from those of each alone (at most {tolerance:g} is accepted). Its layers mix"
            f" neighbouring sequences, or its head does more than one linear layer"
        )
    if policy.pairs_per_token:
        shared = gap([one, one[:3] + other, other, one[:4] + other[:2]], pairs_per_token=policy.pairs_per_token)
        if not shared <= tolerance:
            policy.pairs_per_token = 0
            print(  # noqa: T201 -- the rank's log
                f"{type(policy.lm).__name__}: log-probabilities differ by {shared:.3g} where sequences share their"
                f" beginning (at most {tolerance:g} is accepted), so every sequence is computed in full",
                file=sys.stderr,
            )


def _pairs_per_token(config: Any) -> int:
    """What ``lay_out`` wants to know; 0 where a mask of this module's would not be all that restricts attention.

    A layer of hidden size D usually takes 12 D^2 multiplications a token and 2 D a pair. Those of a pair are half as
    fast: with 3 D in place of 6 D a step on a CPU is shortest.
    """
    kinds = getattr(config, "layer_types", None)
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    everywhere = set(kinds) == {"full_attention"} if kinds else not any(windows)
    return 3 * config.hidden_size if everywhere and config._attn_implementation == "sdpa" else 0  # noqa: SLF001 -- see above


def _attention(device: torch.device, dtype: torch.dtype) -> str:
    flash = device.type == "cuda" and dtype != torch.float32 and importlib.util.find_spec("flash_attn") is not None
    return "flash_attention_2" if flash else "sdpa"


def _read(model: str, attention: str) -> Any:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 -- seconds to import

    lm, info = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation=attention, output_loading_info=True
    )
    for kind in ("missing_keys", "mismatched_keys"):
        if info[kind]:
            names = ", ".join(map(str, sorted(info[kind])[:5]))
            raise TrainerError(f"{model}: {len(info[kind])} {kind.replace('_', ' ')} in the checkpoint: {names}, ...")
    return lm


def _allocate(model: str, attention: str) -> Any:
    """The same module with uninitialised storage: pages that nobody touches cost no memory."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 -- seconds to import

    config = AutoConfig.from_pretrained(model)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    made: dict[int, nn.Parameter] = {}  # tied parameters are one object, and stay one
    for module in lm.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            empty = nn.Parameter(torch.empty_like(parameter, device="cpu"))
            setattr(module, name, made.setdefault(id(parameter), empty))
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(
                name,
                torch.empty_like(buffer, device="cpu"),
                persistent=name not in module._non_persistent_buffers_set,  # noqa: SLF001 -- no public way to ask
            )
    return lm


def _shard(
    policy: Policy, mesh: DeviceMesh, device: torch.device, dtype: torch.dtype, *, activation_checkpointing: bool
) -> None:
    lm = policy.lm
    kinds = set(lm._no_split_modules or ())  # noqa: SLF001 -- transformers' own list of what sharding must keep whole
    blocks = [module for module in lm.base_model.modules() if type(module).__name__ in kinds]
    if not blocks:
        raise TrainerError(f"{type(lm).__name__} names no decoder blocks (_no_split_modules), so it cannot be sharded")
    full = {name: parameter.detach() for name, parameter in lm.named_parameters()}  # stays where it is: on the host
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in blocks:
        if activation_checkpointing:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    _spread(full, dict(lm.named_parameters()), lm.buffers(), device)


@torch.no_grad()
def _spread(
    full: dict[str, Tensor], sharded: dict[str, Tensor], buffers: Iterable[Tensor], device: torch.device
) -> None:
    """Fill every rank's shards and buffers with rank 0's values, one tensor at a time."""
    if dist.get_world_size() == 1:
        return
    for name, shard in sharded.items():
        assert isinstance(shard, DTensor)
        tensor = full.pop(name).detach().to(device)
        dist.broadcast(tensor, src=0)
        mine = distribute_tensor(tensor, shard.device_mesh, shard.placements, src_data_rank=None)
        shard.to_local().copy_(mine.to_local())
    for buffer in buffers:
        dist.broadcast(buffer, src=0)

"""transformers' continuous batching, set up so that every token has an exact version and its own temperature.

Invariants:

- Batching is synchronous: a decode step, its sampling and its delivery lie between two looks at the pause, so the
  version that the router holds at delivery is the one that sampled. (Asynchronous batching has a step in flight.)
- Blocks of KV cache are never shared between requests, so no request reads what an older version wrote.
- Each request has its own temperature; 0 takes the most likely token. A token's log-probability is that of the
  distribution it was drawn from, log_softmax(logits / temperature); a greedy token's is therefore 0.
- The cache holds ``max_num_seqs`` sequences of ``max_model_len`` tokens where the memory granted allows; where it does
  not, the manager computes the cache of the youngest sequences again later, and no token is lost.
- A request that fails inside the loop is a bug or broken weights: the process ends, with the traceback in its log.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingTemperatureLogitsWarper as TemperatureWarper,
)
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestState, RequestStatus

from prl.engines.transformers_protocol import Delta, Generate, Start, Tokens
from prl.types import Finish

PAGE_TOKENS = 32
"""Granularity of the KV cache: a sequence wastes half of it on average."""
MAX_BATCH_TOKENS = 512
"""Tokens of one step, prefill included. The attention mask is this times the tokens in the cache."""


class _TemperatureOrGreedy(TemperatureWarper):  # type: ignore[misc]  # transformers is untyped
    """Divides each row by its request's temperature; at 0, leaves the most likely token only."""

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Process ``scores`` [num_rows, vocab]; ``tensor_arg`` holds the rows' float32 temperatures as int32."""
        temperatures = tensor_arg[: scores.size(0)].view(dtype=torch.float32).unsqueeze(-1)
        greedy = temperatures == 0
        if not greedy.any():
            return scores / temperatures
        only_best = torch.full_like(scores, -torch.inf).scatter_(-1, scores.argmax(-1, keepdim=True), 0.0)
        return torch.where(greedy, only_best, scores / torch.where(greedy, 1.0, temperatures))


def make_manager(model: Any, start: Start) -> Any:
    """The manager for ``model``, not yet started.

    Raises:
        ValueError: the memory granted does not hold one sequence of ``max_model_len``.
    """
    wanted = start.max_num_seqs * _blocks(start.max_model_len)
    granted = _granted_bytes(model, start) // _bytes_per_block(model)
    if granted < _blocks(start.max_model_len):
        raise ValueError(
            f"the KV cache granted holds {granted * PAGE_TOKENS} tokens, fewer than engine.max_model_len = "
            f"{start.max_model_len}; raise engine.kv_cache_gib (CPU) or engine.gpu_memory_utilization"
        )
    manager = model.init_continuous_batching(
        # A default temperature other than 1 is what makes transformers build the per-request processor at all.
        generation_config=GenerationConfig(do_sample=True, temperature=0.5, top_k=0, top_p=1.0, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=min(wanted, granted),
            max_batch_tokens=max(MAX_BATCH_TOKENS, start.max_num_seqs),
            max_requests_per_batch=start.max_num_seqs,
            max_blocks_per_request=0,
            max_memory_percent=start.gpu_memory_utilization,
            safety_margin=0.0 if granted >= wanted else None,
            allow_block_sharing=False,
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
            per_request_processors=True,
            return_logprobs=True,
            seed=start.seed,
        ),
    )
    processors = manager.logit_processor.logits_processor
    if [type(processor) for processor in processors] != [TemperatureWarper]:
        raise ValueError(f"expected the temperature as the only logits processor, got {processors}")
    processors[0] = _TemperatureOrGreedy(processors[0])
    return manager


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_TOKENS)


def _bytes_per_block(model: Any) -> int:
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * PAGE_TOKENS * model.dtype.itemsize)


def _granted_bytes(model: Any, start: Start) -> int:
    """On a GPU half of the free memory granted: the keys and values that a step reads are copied."""
    if model.device.type != "cuda":
        return start.kv_cache_bytes
    free, total = torch.cuda.mem_get_info(model.device)
    return int(free - (1 - start.gpu_memory_utilization) * total) // 2


class _Stream:
    """One open request: its stop tokens, how much of it was sent, and the newest state of it."""

    def __init__(self, stop_token_ids: list[int]) -> None:
        self.stop_token_ids = frozenset(stop_token_ids)
        self.num_sent = 0
        self.newest: GenerationOutput | None = None


class TokenRouter:
    """Takes the place of the manager's output router: stamps each step's tokens and sends them in one message.

    ``deliver_batch`` runs in the generation thread after each step; everything else in the command thread.
    """

    def __init__(self, manager: Any, send: Callable[[Tokens], None], stream_interval: int) -> None:
        self.version = 0
        """The weights that the next step samples with; set between two steps only, after ``flush``."""
        self._manager, self._send, self._interval = manager, send, stream_interval
        self._streams: dict[str, _Stream] = {}
        self._num_steps = 0
        self._lock = threading.Lock()
        manager.output_router = self

    def add(self, message: Generate) -> None:
        """Open a stream and hand it to the manager."""
        decoding = message.decoding
        with self._lock:
            self._streams[str(message.stream)] = _Stream(decoding.stop_token_ids)
        accepted = self._manager.add_request(
            message.token_ids,
            request_id=str(message.stream),
            max_new_tokens=decoding.max_tokens,
            eos_token_id=decoding.stop_token_ids,
            streaming=True,
            temperature=float(decoding.temperature),
        )
        if accepted is None:
            end_process("the generation loop has ended and takes no request")

    def cancel(self, stream: int) -> None:
        """Forget a stream and free its cache; of no effect on one that ended."""
        with self._lock:
            known = self._streams.pop(str(stream), None)
        if known is not None:
            self._manager.cancel_request(str(stream))

    def flush(self) -> None:
        """Send what is held back by the stream interval."""
        with self._lock:
            self._send_new(list(self._streams))

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        """Take one decode step's state of every stream that got a token."""
        with self._lock:
            self._num_steps += 1
            for output in outputs:
                if (stream := self._streams.get(output.request_id)) is not None:
                    stream.newest = output
            due = self._num_steps % self._interval == 0
            self._send_new(list(self._streams) if due else [o.request_id for o in outputs if o.is_finished()])

    def deliver(self, output: GenerationOutput) -> None:
        """Only failures come one by one."""
        end_process(f"stream {output.request_id} failed: {output.error}")

    def fail_and_deliver(self, state: RequestState, error: Exception) -> None:
        """A request failed inside the loop."""
        end_process(f"stream {state.request_id} failed: {error}")

    def _send_new(self, names: list[str]) -> None:
        deltas = [delta for name in names if (delta := self._delta(name)) is not None]
        if deltas:
            self._send(Tokens(version=self.version, deltas=deltas))

    def _delta(self, name: str) -> Delta | None:
        """What of a stream was not sent yet; an ended stream is forgotten with its last tokens."""
        stream = self._streams.get(name)
        if stream is None or (newest := stream.newest) is None:
            return None
        first, stream.num_sent, stream.newest = stream.num_sent, len(newest.generated_tokens), None
        finish: Finish | None = None
        if newest.status == RequestStatus.FINISHED:
            del self._streams[name]
            finish = "stop" if newest.generated_tokens[-1] in stream.stop_token_ids else "length"
        return Delta(int(name), newest.generated_tokens[first:], newest.logprobs[first:], finish)


def end_process(reason: str) -> None:
    """End this process from any thread; the controller reports the end with the last lines of the log."""
    sys.stderr.write(f"transformers engine: {reason}\n")
    sys.stderr.flush()
    os._exit(1)

"""transformers' continuous batching, set up so that every token has an exact version.

Invariants:

- Batching is synchronous: a decode step, its sampling and its delivery lie between two looks at the pause, so the
  version that the router holds at delivery is the one that sampled. (Asynchronous batching has a step in flight.)
- Blocks of KV cache are never shared between requests, so no request reads what an older version wrote.
- The cache holds ``max_num_seqs`` sequences of ``max_model_len`` tokens where the memory granted allows; where it does
  not, the manager computes the cache of the youngest sequences again later, and no token is lost.
- A request that fails inside the loop is a bug or broken weights: the process ends, with the traceback in its log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestState, RequestStatus

from prl.engines.host_protocol import Delta, Generate, Start, Tokens
from prl.engines.host_side import end_process
from prl.engines.transformers_sampling import Sampler
from prl.types import Finish

PAGE_TOKENS = 32
"""Granularity of the KV cache: a sequence wastes half of it on average."""
MAX_BATCH_TOKENS = 512
"""Tokens of one step, prefill included. The attention mask is this times the tokens in the cache."""


def make_manager(model: Any, start: Start, sampler: Sampler) -> Any:
    """The manager for ``model``, not yet started.

    Raises:
        ValueError: the memory granted does not hold one sequence of ``max_model_len``.
    """
    wanted = start.config.max_num_seqs * _blocks(start.config.max_model_len)
    granted = _granted_bytes(model, start) // _bytes_per_block(model)
    if granted < _blocks(start.config.max_model_len):
        raise ValueError(
            f"the KV cache granted holds {granted * PAGE_TOKENS} tokens, fewer than engine.max_model_len = "
            f"{start.config.max_model_len}; raise engine.kv_cache_gib (CPU) or engine.gpu_memory_utilization"
        )
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),  # the sampler leaves one token to find
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=min(wanted, granted),
            max_batch_tokens=max(MAX_BATCH_TOKENS, start.config.max_num_seqs),
            max_requests_per_batch=start.config.max_num_seqs,
            max_blocks_per_request=0,
            max_memory_percent=start.config.gpu_memory_utilization,
            safety_margin=0.0 if granted >= wanted else None,
            allow_block_sharing=False,
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
            seed=0,
        ),
    )
    manager.logit_processor = sampler.as_list()
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
        return int(start.config.kv_cache_gib * 2**30)
    free, total = torch.cuda.mem_get_info(model.device)
    return int(free - (1 - start.config.gpu_memory_utilization) * total) // 2


class _Stream:
    """One open request: its stop tokens, and its tokens that were not sent yet."""

    def __init__(self, stop_token_ids: list[int]) -> None:
        self.stop_token_ids = frozenset(stop_token_ids)
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish: Finish | None = None

    def take(self, token: int, logprob: float, *, ended: bool) -> None:
        """One more token."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if ended:
            self.finish = "stop" if token in self.stop_token_ids else "length"


class TokenRouter:
    """Takes the place of the manager's output router: stamps each step's tokens and sends them in one message.

    ``deliver_batch`` runs in the generation thread after each step; everything else in the command thread.
    """

    def __init__(self, manager: Any, sampler: Sampler, send: Callable[[Tokens], None], stream_interval: int) -> None:
        self.version = 0
        """The weights that the next step samples with; set between two steps only, after ``flush``."""
        self._manager, self._sampler, self._send, self._interval = manager, sampler, send, stream_interval
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
            **({} if decoding.seed is None else {"seed": decoding.seed}),
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
            self._send_from(list(self._streams))

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        """Take one decode step: each stream's output ends with the step's token, in the order of the sampler's rows."""
        with self._lock:
            for output, logprob in zip(outputs, self._sampler.logprobs, strict=True):
                if (stream := self._streams.get(output.request_id)) is not None:  # else it was just cancelled
                    ended = output.status == RequestStatus.FINISHED
                    stream.take(output.generated_tokens[-1], logprob, ended=ended)
            self._num_steps += 1
            due = self._num_steps % self._interval == 0
            self._send_from(list(self._streams) if due else [o.request_id for o in outputs if o.is_finished()])

    def deliver(self, output: GenerationOutput) -> None:
        """Only failures come one by one."""
        end_process(f"stream {output.request_id} failed: {output.error}")

    def fail_and_deliver(self, state: RequestState, error: Exception) -> None:
        """A request failed inside the loop."""
        end_process(f"stream {state.request_id} failed: {error!r}")

    def _send_from(self, names: list[str]) -> None:
        """Send the new tokens of these streams; one that ended is forgotten with its last tokens."""
        deltas = []
        for name in names:
            stream = self._streams.get(name)
            if stream is not None and stream.token_ids:
                deltas.append(Delta(int(name), stream.token_ids, stream.logprobs, stream.finish))
                stream.token_ids, stream.logprobs = [], []
                if stream.finish is not None:
                    del self._streams[name]
        if deltas:
            self._send(Tokens(version=self.version, deltas=deltas))

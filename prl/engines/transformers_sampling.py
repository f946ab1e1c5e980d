"""Sampling for transformers' continuous batching, with a temperature and a seed for each stream.

The manager draws for a whole step at once, with one temperature rule and one generator, so this takes its place: it is
a logits processor that draws, keeps each token's log-probability, and leaves only the token drawn for the manager's
argmax to find.

Invariants:

- A token is drawn from softmax(logits / temperature) by inverting its cumulative sum at a uniform number; at
  temperature 0 it is the most likely one.
- A token's log-probability is log_softmax(logits / temperature) of it, in float32; a greedy one's at temperature 1.
- With a seed, the number is a function of the seed and the token's position alone: not of what else is in the step,
  which engine it is, or whether the sequence was preempted. Without one it comes from the engine's generator.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.requests import FutureRequestState


class Sampler(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]  # transformers is untyped
    """Draws one token per row of logits. Synchronous batching only: the arguments are those of the coming step."""

    supported_kwargs: dict[str, type] = {"temperature": float, "seed": int}  # noqa: RUF012 -- the base class's contract
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, seed: int) -> None:
        self.logprobs: list[float] = []
        """Of the last step's tokens, in the order of its requests."""
        self._random = Random(seed)  # noqa: S311 -- samples tokens, guards nothing
        self._temperatures: list[float] = []
        self._uniforms: list[float] = []

    def as_list(self) -> Any:
        """What a manager takes as its ``logit_processor``."""
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self]))
        processors.tensors_required = 1
        return processors

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Nothing is read from the manager's storage: its float32 is too coarse for a uniform number."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> Tensor:
        """Note temperature and uniform number of each row of the coming step."""
        states = [request.state for request in requests_with_new_token]
        self._temperatures = [state.logit_processor_kwargs["temperature"] for state in states]
        self._uniforms = [
            self._random.random() if seed is None else _uniform(seed, state.position_offset)
            for state in states
            for seed in [state.logit_processor_kwargs.get("seed")]
        ]
        return torch.zeros(len(states), dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:  # noqa: ARG002 -- see fill_defaults
        """Draw a token per row of ``scores`` [num_rows, vocab] and return rows that are 0 there and -inf elsewhere.

        Rows beyond those that were noted stand for prompts that are not read to their end; nobody reads them.
        """
        left, scores = torch.full_like(scores, -torch.inf), scores[: len(self._temperatures)]
        temperatures = torch.tensor(self._temperatures, device=scores.device)[:, None]
        uniforms = torch.tensor(self._uniforms, dtype=torch.float64, device=scores.device)[:, None]
        greedy = temperatures == 0
        scaled = scores / torch.where(greedy, 1.0, temperatures)
        cumulative = scaled.double().softmax(-1).cumsum(-1)
        drawn = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
        tokens = torch.where(greedy, scores.argmax(-1, keepdim=True), drawn.clamp(max=scores.size(-1) - 1))
        self.logprobs = scaled.log_softmax(-1).gather(-1, tokens)[:, 0].tolist()
        return left.scatter_(-1, tokens, 0.0)


def _uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    digest = blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53

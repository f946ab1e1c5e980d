"""The learning rate as a function of the step, and AdamW with its whole state there from the start.

Invariants:

- The learning rate of a step depends on the step's number alone, so a resumed run cannot advance it twice and a skipped
  step advances it like any other.
- Master weights, gradients and both moments are float32, whatever type the forward pass computes in: in bfloat16 an
  update of 1e-6 to a weight of 1 would vanish.
- Every parameter has its state before the first step, so that a checkpoint always has the same entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from prl.config import TrainerConfig


def learning_rate(step: int, config: TrainerConfig, num_steps: int) -> float:
    """The rate of step ``step`` (counted from 0) of a run of ``num_steps``: peak * warm-up * decay.

    warm-up = min(1, (step + 1) / warmup_steps), so the first step already moves. With p = (step - warmup_steps) /
    (num_steps - warmup_steps), clipped to [0, 1]: decay = 1 (constant), 1 - p (linear), (1 + cos(pi p)) / 2 (cosine).
    """
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    progress = min(1.0, max(0, step - config.warmup_steps) / max(1, num_steps - config.warmup_steps))
    match config.schedule:
        case "constant":
            decay = 1.0
        case "linear":
            decay = 1.0 - progress
        case "cosine":
            decay = (1.0 + math.cos(math.pi * progress)) / 2.0
    return config.learning_rate * warmup * decay


def make_optimizer(parameters: Iterable[Tensor], config: TrainerConfig) -> torch.optim.AdamW:
    """AdamW over ``parameters``; weight decay pulls on matrices and embeddings, not on norms and biases (1-D)."""
    parameters = list(parameters)
    if wrong := {parameter.dtype for parameter in parameters} - {torch.float32}:
        raise TypeError(f"master weights must be float32, got {wrong}")
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=config.betas,
        fused=True,
    )
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer


def optimizer_tensors(optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The optimiser's state as one flat dictionary, ``<parameter>.<entry>``; its tensors may be written in place."""
    return {
        f"{name}.{entry}": value
        for name, parameter in named.items()
        for entry, value in optimizer.state[parameter].items()
    }

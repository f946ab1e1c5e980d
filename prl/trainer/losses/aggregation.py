"""What the loss of one token weighs in the loss of the batch.

Invariant: a weight depends on the token's own sequence and on numbers of the whole batch only, all counted after
masking. A micro-batch holds whole sequences, so sums over micro-batches and ranks add up to the same gradient however
the batch is cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prl.config_algorithm import LossConfig


def token_weights(sequence_N: Tensor, config: LossConfig, *, num_sequences: int, max_tokens: int) -> Tensor:
    """The factor of each of N trained tokens, float64.

    With B the sequences of the batch that have a trained token, and T the trained tokens of a sequence:

    - ``token_sum``: 1 / B (PipelineRL);
    - ``sequence_mean``: 1 / (B T) (GRPO, arXiv 2402.03300, equation 3);
    - ``fixed_length``: 1 / (B L), L = ``sampling.max_tokens`` (Dr. GRPO, arXiv 2503.20783).

    B = 0 (nothing is trained anywhere) counts as 1.
    """
    weight_N = torch.full_like(sequence_N, 1 / max(1, num_sequences), dtype=torch.float64)
    match config.aggregation:
        case "token_sum":
            return weight_N
        case "sequence_mean":
            return weight_N / torch.bincount(sequence_N)[sequence_N] if len(sequence_N) else weight_N
        case "fixed_length":
            return weight_N / max_tokens

"""What a step minimises, in pure functions on tensors: policy losses, aggregation, and the penalty to a reference.

This file only says where each loss is, so that the configuration can be checked without torch.
"""

from __future__ import annotations

from prl.config_algorithm import LOSS_OPTIONS
from prl.plugins import Registry

LOSSES = Registry("loss", "prl.losses", {name: f"prl.trainer.losses.policy:{name}" for name in LOSS_OPTIONS})

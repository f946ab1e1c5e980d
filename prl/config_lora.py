"""The table ``[lora]``: train two thin matrices beside each weight instead of the weight (LoRA, arXiv 2106.09685).

Invariants:

- Without a rank the other keys are absent, and ``check.py`` refuses them; with one, those that nobody gave take their
  defaults when the table is made, so the resolved configuration shows every number.
- There is no dropout. A dropped input changes the trainer's distribution and not the engine's, so the ratio of a token
  that was sampled on policy would not be 1, and the losses correct for what never happened.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from prl.config_fields import NonNegative, PositiveFloat, Table, fill


class LoraConfig(Table, frozen=True, kw_only=True):
    """``[lora]``: adapters, in place of the whole model, are what learns."""

    rank: NonNegative = 0
    """r: rows of A and columns of B; 0 trains the whole model. Adapters want a learning rate about ten times larger."""
    alpha: PositiveFloat | None = None
    """The adapter counts alpha / rank times (32)."""
    target_modules: Literal["all-linear"] | Annotated[list[str], Meta(min_length=1)] | None = None
    """Which layers get an adapter: every linear one but the output head (``all-linear``, the default), or names such as
    ``["q_proj", "v_proj"]``, as peft understands them."""
    publish: Literal["merged", "adapters"] | None = None
    """What travels into the engines: ``merged`` weights, all of them, over every transport (the default), or the
    ``adapters`` alone, over gloo, which each engine adds to the weights in the model's files (``adapters.py``); where
    ``trainer.dtype`` is coarser than these files, the trainer's own base is theirs, rounded."""

    def __post_init__(self) -> None:
        if self.rank > 0:
            fill(self, {"alpha": 32.0, "target_modules": "all-linear", "publish": "merged"})

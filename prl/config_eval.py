"""The table of evaluation, ``[eval]``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from prl.config_fields import NonNegative, Positive, PositiveFloat, Table


class EvalConfig(Table, frozen=True, kw_only=True):
    """``[eval]``: held-out prompts, before the first step, after the last, and every n steps beside training."""

    every: NonNegative = 0
    """Steps between evaluations; 0 evaluates only before and after. In conventional mode, at the next push."""
    num_samples: NonNegative = 128
    """Held-out prompts; 0 evaluates never."""
    num_answers: Positive = 1
    """n: answers sampled for each prompt."""
    pass_at: tuple[Positive, ...] | None = None
    """The k of pass@k, each at most ``num_answers``; absent: 1 and ``num_answers`` where that is above 1."""
    pass_reward: float = 1.0
    """An answer passes when its reward (the weighted sum of all) is at least this."""
    temperature: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """0 is greedy; several answers of one prompt need more."""
    max_tokens: Positive | None = None
    """Most tokens of one answer; absent: ``sampling.max_tokens``."""
    path: str | None = None
    """Held-out rows: a JSONL, CSV or Parquet file by its ending, or a dataset's folder. Absent: generated problems are
    such as training never sees, what is read from a path sets its last rows aside."""
    split: str | None = None
    """Held-out split of the ``dataset`` that is trained on, such as ``test``, in place of its last rows."""
    timeout_s: PositiveFloat = 300.0
    """Deadline of one evaluation. It stands still while no answer can come, since the trainer or a reward is mended."""
    max_block_s: PositiveFloat = 60.0
    """Longest that training waits for an evaluation that runs beside it: the next weights are not pushed before its
    answers are there. Past this it is given up, counted and reported as incomplete."""

"""The table of the data, ``[data]``: one source or several mixed by weight, what is filtered, and the curriculum.

Invariant: a key that belongs to one kind of source is absent or has its default for every other; ``check_data.py``
refuses it there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from prl.config_fields import Fraction, NonNegative, Positive, PositiveFloat, Table

SourceKind = Literal["arithmetic", "word_problems", "jsonl", "csv", "parquet", "dataset", "reasoning_gym", "verifiers"]
READ_FROM_PATH: tuple[SourceKind, ...] = ("jsonl", "csv", "parquet", "dataset")
"""Kinds whose rows somebody else wrote: they have a path and columns."""


class SourceTable(Table, frozen=True, kw_only=True):
    """What names one source of prompts."""

    source: SourceKind = "arithmetic"
    """``arithmetic`` and ``word_problems`` generate seeded problems; ``jsonl``, ``csv`` and ``parquet`` read a file;
    ``dataset`` reads a Hugging Face dataset, from a folder or the hub; ``reasoning_gym`` is one of reasoning-gym's
    tasks, judged by the reward of that name; ``verifiers`` gives the prompts of the environment of that name, which
    ``[environment]`` plays. A row has ``prompt`` or ``messages``."""
    path: str | None = None
    """The file, relative to the working directory; for ``dataset`` a folder or a hub name."""
    subset: str | None = None
    """Configuration of a ``dataset``, such as ``main``; absent: its only one."""
    split: str | None = None
    """Split of a ``dataset``; absent: ``train``."""
    task: str | None = None
    """Name of the reasoning-gym task, such as ``chain_sum``."""
    options: dict[str, Any] = field(default_factory=dict)
    """Parameters of that task, such as ``max_terms``."""
    columns: dict[str, str] = field(default_factory=dict)
    """Field of prl to column of the file: ``prompt = "question"``. Columns that are not named keep their names."""
    answer_after: str | None = None
    """The answer is what stands behind the last of this in its column, such as ``####`` for GSM8K."""
    level: Annotated[int, Meta(ge=1, le=6)] = 1
    """Kind of generated problems: 1 to 5 as in the tables of ``arithmetic.py`` and ``word_problems.py``, and of the
    arithmetic source 6, with a long tail of lengths."""
    num_prompts: Positive = 100_000
    """Length of one epoch of generated problems, those of reasoning-gym included."""


class SourceConfig(SourceTable, frozen=True, kw_only=True):
    """``[[data.sources]]``: one of several sources."""

    weight: PositiveFloat = 1.0
    """Share of the prompts, relative to the other sources' weights. Each source goes through its rows at its own pace
    and begins again when it has given all of them out."""


class FilterConfig(Table, frozen=True, kw_only=True):
    """``[data.filter]``: prompts that are not trained on. Held-out prompts are not filtered."""

    min_tokens: NonNegative = 0
    """Fewest tokens of a prompt, chat template included."""
    max_tokens: Positive | None = None
    """Most tokens of a prompt; absent: what ``engine.max_model_len`` and ``sampling.max_tokens`` leave."""
    solve_rate_field: str = "solve_rate"
    """The field with a solve rate that was measured before, from 0 to 1."""
    min_solve_rate: Fraction | None = None
    """Rows that were solved less often are left out, as are rows without the field."""
    max_solve_rate: Fraction | None = None
    """Rows that were solved more often are left out, as are rows without the field."""


class CurriculumConfig(Table, frozen=True, kw_only=True):
    """``[data.curriculum]``: prompts that the model solves too often or too seldom rest for some epochs."""

    band: tuple[Fraction, Fraction] | None = None
    """Lowest and highest solve rate at which a prompt is asked again in the next epoch; absent: no curriculum. The
    solve rate is the share of a prompt's latest group that reached ``pass_reward``."""
    rest_epochs: Positive = 1
    """Epochs after the one in which it was measured outside the band that a prompt is passed over; then it is tried
    again."""
    pass_reward: float = 1.0
    """A completion solves its prompt when its reward (the weighted sum of all) is at least this."""


class DataConfig(SourceTable, frozen=True, kw_only=True):
    """``[data]``: where prompts come from."""

    sources: list[SourceConfig] = field(default_factory=list)
    """Several sources, mixed by weight; ``columns`` and ``answer_after`` above then hold for each that has none."""
    shuffle: bool = True
    """Order each epoch by (seed, epoch); false keeps the order of the rows."""
    system: str | None = None
    """System message put before a row that has only a ``prompt``; absent: the chat template's own, if it has one."""
    skip_bad_rows: bool = False
    """Skip and count malformed rows instead of refusing the file."""
    extra_fields: Literal["tell", "refuse"] = "tell"
    """What is done about fields of a file's rows that nothing asks for by name: no reward (``required_fields``), and no
    key here. ``tell`` says so in a line, with the name that may be meant; ``refuse`` takes such a row for a malformed
    one. Name in ``columns`` what your own code reads besides."""
    filter: FilterConfig = FilterConfig()
    curriculum: CurriculumConfig = CurriculumConfig()

"""Prompt sources: an endless, reproducible order of prompts, with a cursor that can be saved.

- The prompt at a position of that order is a pure function of (data, seed, position): epoch e holds every row once, in
  an order drawn from (seed, e). Nothing has to be replayed to go on from a saved cursor.
- A prompt's id is its position. Positions whose prompt is too long are passed over and counted, so ids increase and may
  have gaps.
- Too long means prompt + ``sampling.max_tokens`` > ``engine.max_model_len``, measured in ids after templating; for a
  held-out prompt it is prompt + ``eval.max_tokens`` where that is given.
- Held-out prompts are never admitted: problems of a split of their own, a file of their own, or the file's last rows.
- Rows are checked when the source is opened; templates are applied when a prompt is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from prl import arithmetic, word_problems
from prl.config import Config
from prl.errors import ConfigError, DataError
from prl.jsonl import Rows
from prl.shuffle import Permutation
from prl.tokenizer import Tokenizer
from prl.types import Prompt

MEASURED_AT_OPEN = 2_000
"""Rows whose length is measured when the source is opened (about a second); those after them when they come up."""

HELD_OUT_SHARE = 5
"""Without ``eval.path``, at most one row in this many is set aside from a JSONL file."""


class SourceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a source holds and has met so far."""

    num_rows: int
    """Prompts of one epoch, the too long ones included."""
    num_held_out: int
    num_too_long: int
    """Distinct rows found too long, training and held out."""
    num_bad: int
    """Malformed rows skipped (``data.skip_bad_rows``)."""
    epoch: int
    """Epoch of the next prompt, from 0."""
    warnings: list[str]
    """One line for people per thing that was left out."""


class PromptSource(Protocol):
    """Where prompts come from."""

    cursor: int
    """Position of the next prompt; save it, ``seek`` to it later."""

    def next(self) -> Prompt:
        """The next prompt. Endless; raises DataError when no prompt of a whole epoch fits the context."""
        ...

    def get(self, prompt_id: int) -> Prompt:
        """The prompt with this id, again, without moving the cursor."""
        ...

    def seek(self, cursor: int) -> None:
        """Go on from a saved cursor."""
        ...

    def held_out(self, n: int) -> list[Prompt]:
        """Up to ``n`` prompts for evaluation, the same at every call, with ids 0, 1, ... of their own."""
        ...

    def statistics(self) -> SourceStatistics:
        """Counters and warnings."""
        ...


class Table(Protocol):
    """Rows by index, each a dict of fields with ``prompt`` or ``messages`` among them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def where(self, index: int) -> str:
        """The row's place, for messages."""
        ...


GENERATORS = {"arithmetic": arithmetic.problem, "word_problems": word_problems.problem}
"""What ``data.source`` may name besides files."""


class Problems:
    """Generated problems as a table."""

    def __init__(self, config: Config, split: arithmetic.Split, num_rows: int) -> None:
        self._source, self._problem = config.data.source, GENERATORS[config.data.source]
        self._level, self._seed, self._split, self._num_rows = config.data.level, config.seed, split, num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        problem = self._problem(self._level, index, self._seed, self._split)
        return {"prompt": problem.question, "answer": problem.answer, "level": problem.level}

    def where(self, index: int) -> str:
        """Level, split and index."""
        return f"{self._source} problem {index} of level {self._level} ({self._split})"


class Part:
    """Some consecutive rows of a table."""

    def __init__(self, table: Table, rows: range) -> None:
        self._table, self._rows = table, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._table[self._rows[index]]

    def where(self, index: int) -> str:
        """As the whole table says it."""
        return self._table.where(self._rows[index])


class Room(NamedTuple):
    """How long a prompt may be."""

    context: int
    key: str
    """Which key says how long a completion may be."""
    max_tokens: int

    @property
    def for_prompt(self) -> int:
        """Most tokens of a prompt."""
        return self.context - self.max_tokens


class TablePrompts:
    """The prompt source over a table to train on and a table to evaluate on."""

    def __init__(
        self, config: Config, tokenizer: Tokenizer, train: Table, held_out: Table, *, files: Sequence[Rows] = ()
    ) -> None:
        """``files`` are what the tables were read from, for their counts. Raises DataError where no prompt fits."""
        self._config, self._tokenizer, self._files = config, tokenizer, files
        self._train, self._held_out = train, held_out
        self._train_room = Room(config.engine.max_model_len, "sampling.max_tokens", config.sampling.max_tokens)
        self._held_out_room = self._train_room
        if config.eval.max_tokens is not None:
            self._held_out_room = Room(config.engine.max_model_len, "eval.max_tokens", config.eval.max_tokens)
        self._too_long: dict[str, tuple[Room, int]] = {}
        self._order: tuple[int, Permutation] | None = None
        self.cursor = 0
        self._measure(MEASURED_AT_OPEN if files else 1)

    def _measure(self, num_rows: int) -> None:
        """Look at the first rows, and at more of them until one fits."""
        fits = False
        for index in range(len(self._train)):
            if fits and index >= num_rows:
                break
            fits = self._render(self._train, index, 0) is not None or fits
        if not fits:
            raise self._nothing_fits()

    def next(self) -> Prompt:
        """See ``PromptSource``."""
        for _ in range(2 * len(self._train)):
            position = self.cursor
            self.cursor += 1
            prompt = self._render(self._train, self._row_at(position), position)
            if prompt is not None:
                return prompt
        raise self._nothing_fits()

    def get(self, prompt_id: int) -> Prompt:
        """See ``PromptSource``."""
        row = self._row_at(prompt_id)
        prompt = self._render(self._train, row, prompt_id)
        if prompt is None:
            raise DataError(f"{self._train.where(row)}: prompt {prompt_id} does not fit the context any more")
        return prompt

    def seek(self, cursor: int) -> None:
        """See ``PromptSource``."""
        if cursor < 0:
            raise ValueError(f"a cursor is a position >= 0, got {cursor}")
        self.cursor = cursor

    def held_out(self, n: int) -> list[Prompt]:
        """See ``PromptSource``."""
        prompts: list[Prompt] = []
        for index in range(len(self._held_out)):
            if len(prompts) == n:
                break
            prompt = self._render(self._held_out, index, len(prompts))
            if prompt is not None:
                prompts.append(prompt)
        return prompts

    def statistics(self) -> SourceStatistics:
        """See ``PromptSource``."""
        warnings = [
            f"{file.num_bad} bad rows of {file.path} are left out; the first: {file.first_bad}"
            for file in self._files
            if file.num_bad
        ]
        if self._too_long:
            warnings.append(self._too_long_warning())
        return SourceStatistics(
            num_rows=len(self._train),
            num_held_out=len(self._held_out),
            num_too_long=len(self._too_long),
            num_bad=sum(file.num_bad for file in self._files),
            epoch=self.cursor // len(self._train),
            warnings=warnings,
        )

    def _too_long_warning(self) -> str:
        where, (room, length) = next(iter(self._too_long.items()))
        return (
            f"{len(self._too_long)} prompts are too long and left out: engine.max_model_len = {room.context} less"
            f" {room.key} = {room.max_tokens} leaves {room.for_prompt} tokens for a prompt; the first, {where}, has"
            f" {length}"
        )

    def _row_at(self, position: int) -> int:
        epoch, index = divmod(position, len(self._train))
        if not self._config.data.shuffle:
            return index
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, Permutation(len(self._train), self._config.seed, epoch)
        return self._order[1][index]

    def _render(self, table: Table, index: int, prompt_id: int) -> Prompt | None:
        """The prompt of a row, or None (and noted) where it is too long."""
        fields = table[index]
        text = fields.pop("prompt", None)
        messages = fields.pop("messages", None) or self._conversation(text)
        if messages:
            text = self._tokenizer.render_text(messages)
            token_ids = self._tokenizer.encode_rendered(text)
        else:
            token_ids = self._tokenizer.encode(text)
        room = self._held_out_room if table is self._held_out else self._train_room
        if len(token_ids) > room.for_prompt:
            self._too_long[table.where(index)] = room, len(token_ids)
            return None
        return Prompt(id=prompt_id, token_ids=token_ids, text=text, messages=messages, fields=fields)

    def _conversation(self, text: str) -> list[dict[str, str]]:
        """A prompt is the user's message where the model has a chat template, and plain text where it has none."""
        system = self._config.data.system
        if not self._tokenizer.has_template and system is None:
            return []
        turns = [] if system is None else [{"role": "system", "content": system}]
        return [*turns, {"role": "user", "content": text}]

    def _nothing_fits(self) -> DataError:
        return DataError(f"no prompt is left to train on: {self._too_long_warning()}")


def open_source(config: Config, tokenizer: Tokenizer, required_fields: Sequence[str] = ()) -> PromptSource:
    """The source that ``[data]`` and ``[eval]`` describe, its rows checked.

    ``required_fields`` are those that the rewards need (``Scorer.required_fields``). Raises DataError or ConfigError.
    """
    num_eval = config.eval.num_samples
    files = []
    held_out: Table | None = None
    if config.eval.path is not None and num_eval:
        files.append(_read(config, config.eval.path, required_fields))
        held_out = files[0]
    if config.data.source in GENERATORS:
        missing = [field for field in required_fields if field not in Problems(config, "train", 1)[0]]
        if missing:
            raise ConfigError(
                f"a reward needs the field {missing[0]!r}, which {config.data.source} prompts do not have"
            )
        train = Problems(config, "train", config.data.num_prompts)
        return TablePrompts(config, tokenizer, train, held_out or Problems(config, "eval", num_eval), files=files)
    if config.data.path is None:
        raise ConfigError("data.source = 'jsonl' needs data.path, the file to read")
    rows = _read(config, config.data.path, required_fields)
    files.append(rows)
    num_train = len(rows) if held_out else len(rows) - min(num_eval, len(rows) // HELD_OUT_SHARE)
    aside = Part(rows, range(num_train, len(rows)))
    return TablePrompts(config, tokenizer, Part(rows, range(num_train)), held_out or aside, files=files)


def _read(config: Config, path: str, required_fields: Sequence[str]) -> Rows:
    return Rows(Path(path), required_fields=required_fields, skip_bad_rows=config.data.skip_bad_rows)

"""The prompts of a run: rows in the order of ``mix.py``, rendered once, what does not fit passed over by the rules.

- The prompt at a position is a pure function of (data, seed, position), and a prompt's id is its position. Which
  positions are passed over depends on the row's length, and under a curriculum on what was measured
  (``curriculum.py``); each is reported once with its id and the reason, so no id is unaccounted for.
- Too long means prompt + ``sampling.max_tokens`` > ``engine.max_model_len``, measured in ids after templating, or more
  than ``data.filter.max_tokens``; for a held-out prompt it is prompt + ``eval.max_tokens`` where that is given.
- Held-out prompts are never admitted. Rows are checked when they are read; templates are applied when a prompt is asked
  for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from prl.config import Config
from prl.data.curriculum import Curriculum, Rates
from prl.data.mix import Mix, Place
from prl.data.room import Room, Unfit
from prl.data.rows import Fields, Table
from prl.errors import DataError
from prl.records import Measured
from prl.tokenizer import Tokenizer
from prl.types import Group, Prompt

MEASURED_AT_OPEN = 2_000
"""Rows of a source whose length is measured when it is opened (about a second); the others when they come up."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """One source with its rows read and checked."""

    key: str
    """Its table in the configuration, such as ``data.sources.0``."""
    name: str
    """For people."""
    train: Table
    held_out: Table
    weight: float = 1.0
    num_bad: int = 0
    filtered: Mapping[str, int] = {}
    """Rows that a filter left out when they were read, by reason."""
    warnings: Sequence[str] = ()
    avoid: frozenset[str] = frozenset()
    """Questions that are held out and might come up in training again."""
    is_generated: bool = False
    """Rows cost something and there are many: only the first one's length is measured at the start."""

    @property
    def num_measured(self) -> int:
        """Rows whose length is measured at the start, at least."""
        return min(len(self.train), 1 if self.is_generated else MEASURED_AT_OPEN)


class SourceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a source holds and has met so far."""

    num_rows: int
    """Prompts of one epoch, those that are too long included."""
    num_held_out: int
    num_too_long: int
    """Distinct rows found too long, training and held out."""
    num_bad: int
    """Malformed rows skipped (``data.skip_bad_rows``)."""
    filtered: dict[str, int]
    """Rows left out by ``data.filter``, by reason; those that depend on the length as far as rows were met."""
    epoch: int
    """Epochs that every source has behind it."""
    warnings: list[str]
    """One line for people per thing that was left out."""


class MixedPrompts:
    """The prompt source of a run; see ``prompts.PromptSource``."""

    def __init__(self, config: Config, tokenizer: Tokenizer, sources: Sequence[Opened], held_out: Table) -> None:
        """Raises DataError for a source of which no prompt fits."""
        self._config, self._tokenizer, self.sources, self._held_out = config, tokenizer, sources, held_out
        context, wanted = config.engine.max_model_len, config.data.filter
        self.room = Room(
            context, "sampling.max_tokens", config.sampling.max_tokens, wanted.min_tokens, wanted.max_tokens
        )
        self._held_out_room = Room(context, "sampling.max_tokens", config.sampling.max_tokens)
        if config.eval.max_tokens is not None:
            self._held_out_room = Room(context, "eval.max_tokens", config.eval.max_tokens)
        self._unfit: dict[str, Unfit] = {}
        lengths = [len(source.train) for source in sources]
        self.mix = Mix(lengths, [source.weight for source in sources], seed=config.seed, shuffle=config.data.shuffle)
        self._first_rows = [0, *accumulate(lengths)]
        self._curriculum = Curriculum(config.data.curriculum, {})
        self._passed_over: list[tuple[int, str]] = []
        self.cursor = 0
        for source in sources:
            self._measure(source)

    def _measure(self, source: Opened) -> None:
        """Look at the first rows, and at more of them until one fits."""
        fits = False
        for index in range(len(source.train)):
            if fits and index >= source.num_measured:
                break
            fits = self._render(source.train, index, 0, self.room, source.avoid) is not None or fits
        if not fits:
            raise self._nothing_fits(source)

    def follow(self, rates: Rates) -> None:
        """Let the curriculum decide by these measurements, the ledger's own."""
        self._curriculum = Curriculum(self._config.data.curriculum, rates)

    def next(self) -> Prompt:
        """See ``PromptSource``."""
        longest_rest = self._config.data.curriculum.rest_epochs + 1
        for _ in range(self.mix.span * (longest_rest + 1)):
            position = self.cursor
            self.cursor += 1
            found = self._at(position)
            if isinstance(found, Prompt):
                return found
            self._passed_over.append((position, found))
        raise self._nothing_fits(self.sources[0])

    def passed_over(self) -> list[tuple[int, str]]:
        """See ``PromptSource``."""
        found, self._passed_over = self._passed_over, []
        return found

    def get(self, prompt_id: int) -> Prompt:
        """See ``PromptSource``."""
        place = self.mix.place(prompt_id)
        source = self.sources[place.source]
        prompt = self._render(source.train, place.row, prompt_id, self.room, source.avoid)
        if prompt is None:
            where = source.train.where(place.row)
            raise DataError(f"{where}: prompt {prompt_id} does not fit the context any more")
        return prompt

    def where(self, prompt_id: int) -> str:
        """The place of the row of a prompt, for people."""
        place = self.mix.place(prompt_id)
        return self.sources[place.source].train.where(place.row)

    def seek(self, cursor: int) -> None:
        """See ``PromptSource``."""
        if cursor < 0:
            raise ValueError(f"a cursor is a position >= 0, got {cursor}")
        self.cursor = cursor
        self._passed_over = []

    def measure(self, group: Group) -> Measured | None:
        """See ``PromptSource``."""
        place = self.mix.place(group.prompt.id)
        return self._curriculum.measure(group, self._key(place), place)

    def held_out(self, n: int) -> list[Prompt]:
        """See ``PromptSource``."""
        prompts: list[Prompt] = []
        for index in range(len(self._held_out)):
            if len(prompts) == n:
                break
            prompt = self._render(self._held_out, index, len(prompts), self._held_out_room)
            if prompt is not None:
                prompts.append(prompt)
        return prompts

    def fingerprint(self) -> dict[str, str]:
        """See ``PromptSource``."""
        weights = ":".join(map(str, self.mix.counts))
        how = "shuffled" if self._config.data.shuffle else "in the order of the rows"
        mixed = f", mixed {weights}" if len(self.sources) > 1 else ""
        order = f"seed {self._config.seed}, {how}{mixed}"
        return {"order": order, **{source.key: source.train.fingerprint() for source in self.sources}}

    def statistics(self) -> SourceStatistics:
        """See ``PromptSource``."""
        by_reason = Counter(unfit.reason for unfit in self._unfit.values())
        filtered = Counter(by_reason)
        num_too_long = filtered.pop("too_long", 0)
        for source in self.sources:
            filtered.update(source.filtered)
        return SourceStatistics(
            num_rows=sum(len(source.train) for source in self.sources),
            num_held_out=len(self._held_out),
            num_too_long=num_too_long,
            num_bad=sum(source.num_bad for source in self.sources),
            filtered=dict(filtered),
            epoch=self.mix.epoch(self.cursor),
            warnings=[
                *(warning for source in self.sources for warning in source.warnings),
                *(self._said(reason, count) for reason, count in sorted(by_reason.items())),
            ],
        )

    def _said(self, reason: str, count: int) -> str:
        """How many rows are passed over for a reason, and the first of them."""
        where, first = next((where, unfit) for where, unfit in self._unfit.items() if unfit.reason == reason)
        what = {"too_long": "are too long and", "too_short": "are too short and"}.get(reason, "are")
        return (
            f"{count} prompts {what} left out: {first.room.explained(reason)}; the first, {where}, has {first.length}"
        )

    def _key(self, place: Place) -> int:
        """The row's number among those of all sources."""
        return self._first_rows[place.source] + place.row

    def _at(self, position: int) -> Prompt | str:
        """The prompt at a position, or why it is passed over now."""
        place = self.mix.place(position)
        if rests := self._curriculum.rests(self._key(place), place.epoch):
            return rests
        source = self.sources[place.source]
        prompt = self._render(source.train, place.row, position, self.room, source.avoid)
        return self._unfit[source.train.where(place.row)].reason if prompt is None else prompt

    def _render(
        self, table: Table, index: int, prompt_id: int, room: Room, avoid: frozenset[str] = frozenset()
    ) -> Prompt | None:
        """The prompt of a row, or None (and noted) where it is not asked."""
        fields: Fields = table[index]
        text = fields.pop("prompt", None)
        messages = fields.pop("messages", None) or self._conversation(text)
        is_held_out = text in avoid
        if messages:
            text = self._tokenizer.render_text(messages)
            token_ids = self._tokenizer.encode_rendered(text)
        else:
            token_ids = self._tokenizer.encode(text)
        reason = "held_out" if is_held_out else room.refuses(len(token_ids))
        if reason is not None:
            self._unfit[table.where(index)] = Unfit(reason, len(token_ids), room)
            return None
        return Prompt(id=prompt_id, token_ids=token_ids, text=text, messages=messages, fields=fields)

    def _conversation(self, text: str) -> list[dict[str, str]]:
        """A prompt is the user's message where the model has a chat template, and plain text where it has none."""
        system = self._config.data.system
        if not self._tokenizer.has_template and system is None:
            return []
        turns = [] if system is None else [{"role": "system", "content": system}]
        return [*turns, {"role": "user", "content": text}]

    def _nothing_fits(self, source: Opened) -> DataError:
        reasons = Counter(unfit.reason for unfit in self._unfit.values())
        said = "; ".join(self._said(reason, count) for reason, count in sorted(reasons.items()))
        return DataError(f"{source.name}: no prompt is left to train on: {said}")

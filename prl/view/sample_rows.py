"""The rows that a line of ``samples.jsonl`` becomes in the index, and the tables that they go to.

Neighbouring lines of one step with the same ``group`` (where there is none, of one prompt) are a group. Its means
are over its samples, its mean reward over those that have one.
"""

from __future__ import annotations

import sqlite3
import zlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from prl.view.files import Line

PROMPT_SHOWN = 200
TEXT_INDEXED = 20_000
"""Characters of a text that can be searched."""
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

SCHEMA = """
CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
CREATE TABLE groups (
  id INTEGER PRIMARY KEY, step INTEGER, key TEXT, prompt_id TEXT, prompt TEXT, doc INTEGER, n INTEGER,
  num_judged INTEGER, reward_sum REAL, reward_mean REAL, reward_min REAL, reward_max REAL, length_sum INTEGER,
  length_mean REAL, finish TEXT, size INTEGER, crc INTEGER);
CREATE INDEX groups_step ON groups (step);
CREATE INDEX groups_reward ON groups (reward_mean);
CREATE INDEX groups_length ON groups (length_mean);
CREATE INDEX groups_doc ON groups (doc);
CREATE TABLE samples (
  id INTEGER PRIMARY KEY, size INTEGER, grp INTEGER, member INTEGER, reward REAL, finish TEXT, length INTEGER,
  doc INTEGER);
CREATE INDEX samples_grp ON samples (grp);
CREATE INDEX samples_doc ON samples (doc, grp);
CREATE TABLE finishes (word TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5 (text, content='', detail=none);
"""


class Sample(msgspec.Struct):
    """What the index needs of a line."""

    step: Int64
    token_ids: msgspec.Raw
    prompt_id: int | str | None = None
    prompt: str = ""
    completion: str = ""
    finish: str | None = None
    reward: float | None = None
    group: int | str | None = None
    member: Int64 | None = None

    @property
    def key(self) -> str:
        """What a group's lines have in common."""
        return f"p{self.prompt_id}" if self.group is None else f"g{self.group}"

    @property
    def length(self) -> int:
        """Tokens, counted without reading them."""
        ids = bytes(self.token_ids)
        return ids.count(b",") + 1 if len(ids) > len(b"[]") else 0


class Group(msgspec.Struct):
    """A row of ``groups`` while samples are added to it; the names are the columns'."""

    id: int
    step: int
    key: str
    prompt_id: str | None
    prompt: str
    doc: int
    n: int = 0
    num_judged: int = 0
    reward_sum: float = 0.0
    reward_mean: float | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    length_sum: int = 0
    length_mean: float = 0.0
    finish: str = "{}"
    size: int = 0
    crc: int = 0

    def add(self, reward: float | None, length: int, finish: str) -> None:
        """Count a sample."""
        self.n += 1
        if reward is not None:
            self.num_judged += 1
            self.reward_sum += reward
            self.reward_mean = self.reward_sum / self.num_judged
            self.reward_min = reward if self.reward_min is None else min(self.reward_min, reward)
            self.reward_max = reward if self.reward_max is None else max(self.reward_max, reward)
        self.length_sum += length
        self.length_mean = self.length_sum / self.n
        counts: dict[str, int] = msgspec.json.decode(self.finish)
        counts[finish] = counts.get(finish, 0) + 1
        self.finish = msgspec.json.encode(counts).decode()


_COLUMNS = ", ".join(Group.__struct_fields__)
_PLACES = ", ".join("?" * len(Group.__struct_fields__))
_PUT_GROUP = f"INSERT OR REPLACE INTO groups ({_COLUMNS}) VALUES ({_PLACES})"  # noqa: S608 -- names of ours
_DECODER = msgspec.json.Decoder(Sample)


class Rows:
    """Rows of some lines, behind the group that the lines before ended with."""

    def __init__(self, group: Group | None, doc: int) -> None:
        """``doc`` is the number of the last text that can be searched."""
        self.doc, self.num_malformed = doc, 0
        self._group = group
        self._groups: dict[int, Group] = {}
        self._samples: list[tuple[Any, ...]] = []
        self._words: list[tuple[int, str]] = []

    def add(self, line: Line) -> None:
        """Take a line, or count it where it is no sample."""
        try:
            sample = _DECODER.decode(line.text)
        except (msgspec.MsgspecError, RecursionError):
            self.num_malformed += 1
            return
        group, key = self._group, sample.key
        if group is None or group.step != sample.step or group.key != key:
            group = self._group = self._new_group(line, sample, key)
        length, finish = sample.length, sample.finish or ""
        member = group.n if sample.member is None else sample.member
        doc = self._text(sample.completion)
        self._samples.append((line.offset, len(line.text), group.id, member, sample.reward, finish, length, doc))
        group.add(sample.reward, length, finish)
        self._groups[group.id] = group

    def put(self, base: sqlite3.Connection) -> None:
        """Write them, in the transaction that is open."""
        base.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?)", self._samples)
        base.executemany(_PUT_GROUP, map(msgspec.structs.astuple, self._groups.values()))
        base.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", self._words)
        base.executemany("INSERT OR IGNORE INTO finishes VALUES (?)", {(row[5],) for row in self._samples})

    def _new_group(self, line: Line, sample: Sample, key: str) -> Group:
        return Group(
            id=line.offset,
            step=sample.step,
            key=key,
            prompt_id=None if sample.prompt_id is None else str(sample.prompt_id),
            prompt=sample.prompt[:PROMPT_SHOWN],
            doc=self._text(sample.prompt),
            size=len(line.text),
            crc=zlib.crc32(line.text),
        )

    def _text(self, text: str) -> int:
        """The number of a text that can be searched from now on."""
        self.doc += 1
        self._words.append((self.doc, text[:TEXT_INDEXED]))
        return self.doc


def last_group(base: sqlite3.Connection) -> Group | None:
    """The one that the next line may belong to."""
    row = base.execute(f"SELECT {_COLUMNS} FROM groups ORDER BY id DESC LIMIT 1").fetchone()  # noqa: S608 -- ours
    return None if row is None else Group(*row)

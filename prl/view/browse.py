"""Groups and samples, found by what people look for.

A group's reward and length are means over its samples; ``finish`` asks for groups of which a sample ended so. A search
finds groups whose prompt has all the words, or of which one completion has; the last word may be only begun.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

import msgspec

from prl.errors import NotFoundError, RefusedError
from prl.view.files import MAX_LINE_BYTES, read_at
from prl.view.samples import Samples, words_of

MAX_HITS = 10_000
"""Texts of one search, the newest; with more, ``total`` is a least number."""
MAX_MEMBERS = 2000
PREVIEW_CHARS = 200
_CLEARED = (
    "CREATE TEMP TABLE IF NOT EXISTS hits (doc INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE IF NOT EXISTS found (grp INTEGER PRIMARY KEY)",
    "DELETE FROM temp.hits",
    "DELETE FROM temp.found",
)
_FOUND = (  # from the few hits to the many rows, which SQLite would not guess
    "INSERT OR IGNORE INTO temp.found SELECT grp FROM temp.hits CROSS JOIN samples ON samples.doc = hits.doc",
    "INSERT OR IGNORE INTO temp.found SELECT id FROM temp.hits CROSS JOIN groups ON groups.doc = hits.doc",
)
_ORDER = {"step": "step", "reward": "reward_mean", "length": "length_mean"}


class Wanted(NamedTuple):
    """What is looked for. Ranges include their ends; steps are those of training."""

    first: int | None = None
    last: int | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    length_min: float | None = None
    length_max: float | None = None
    finish: str = ""
    text: str = ""
    sort: str = "step"
    """``step``, ``reward`` or ``length``, with ``-`` before it downwards."""
    offset: int = 0
    limit: int = 50


def groups(samples: Samples, wanted: Wanted) -> dict[str, Any]:
    """A page of groups, and how many there are.

    Raises:
        RefusedError: a search, where this Python's SQLite has none.
    """
    where, given = _conditions(wanted)
    column, way = _ORDER[wanted.sort.removeprefix("-")], "DESC" if wanted.sort.startswith("-") else "ASC"
    is_all_counted = True
    with samples.lock:
        base = samples.database
        if wanted.text:
            is_all_counted = _search(base, wanted.text) < MAX_HITS
            where.append("id IN temp.found")
        condition = f"WHERE {' AND '.join(where)}" if where else ""
        total = base.execute(f"SELECT count(*) FROM groups {condition}", given).fetchone()[0]  # noqa: S608 -- ours
        rows = base.execute(
            "SELECT id, step, prompt_id, prompt, n, reward_mean, reward_min, reward_max, length_mean, finish"  # noqa: S608
            f" FROM groups {condition} ORDER BY {column} {way}, id {way} LIMIT ? OFFSET ?",
            [*given, wanted.limit, wanted.offset],
        ).fetchall()
        finishes = [word for (word,) in base.execute("SELECT word FROM finishes ORDER BY word")]
    return {
        "total": total,
        "is_all_counted": is_all_counted,
        "finishes": finishes,
        "groups": [_group(row) for row in rows],
    }


def group(samples: Samples, number: int) -> dict[str, Any]:
    """One group with its samples.

    Raises:
        NotFoundError: there is none of this number.
    """
    with samples.lock:
        base = samples.database
        found = base.execute("SELECT step, prompt_id, finish FROM groups WHERE id = ?", (number,)).fetchone()
        rows = base.execute(
            "SELECT id, size, member, reward, finish, length FROM samples WHERE grp = ? ORDER BY id LIMIT ?",
            (number, MAX_MEMBERS),
        ).fetchall()
    if found is None:
        raise NotFoundError(f"there is no group {number}: it was cut by a resume, or its number is mistyped")
    lines = [_line(samples, row[0], row[1]) for row in rows]
    return {
        "group": number,
        "step": found[0],
        "prompt_id": _id(found[1]),
        "prompt": lines[0].get("prompt", ""),
        "samples": [
            {
                "sample": offset,
                "member": member,
                "reward": reward,
                "finish": finish,
                "length": length,
                "parts": line.get("parts", {}),
                "preview": str(line.get("completion", ""))[:PREVIEW_CHARS],
            }
            for (offset, _, member, reward, finish, length), line in zip(rows, lines, strict=True)
        ],
    }


def sample(samples: Samples, number: int) -> dict[str, Any]:
    """A sample's whole line, with ``sample``, ``group`` and the numbers of those before and after it in its group.

    Raises:
        NotFoundError: there is none of this number.
    """
    with samples.lock:
        row = samples.database.execute("SELECT size, grp FROM samples WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise NotFoundError(f"there is no sample {number}: it was cut by a resume, or its number is mistyped")
        members = [
            found
            for (found,) in samples.database.execute(
                "SELECT id FROM samples WHERE grp = ? ORDER BY id LIMIT ?", (row[1], MAX_MEMBERS)
            )
        ]
    at = members.index(number) if number in members else len(members)
    return {
        "member": at,
        **_line(samples, number, row[0]),
        "sample": number,
        "group": row[1],
        "previous": members[at - 1] if at > 0 else None,
        "next": members[at + 1] if at + 1 < len(members) else None,
    }


def _conditions(wanted: Wanted) -> tuple[list[str], list[Any]]:
    limits = (
        ("step >= ?", wanted.first),
        ("step <= ?", wanted.last),
        ("reward_mean >= ?", wanted.reward_min),
        ("reward_mean <= ?", wanted.reward_max),
        ("length_mean >= ?", wanted.length_min),
        ("length_mean <= ?", wanted.length_max),
        ("instr(finish, ?)", f'"{wanted.finish}":' if wanted.finish else None),
    )
    given = [(condition, value) for condition, value in limits if value is not None]
    return [condition for condition, _ in given], [value for _, value in given]


def _search(base: sqlite3.Connection, text: str) -> int:
    """Put the groups of the texts with all these words into ``temp.found``; how many texts there are."""
    query = words_of(text)
    for statement in _CLEARED:
        base.execute(statement)
    if not query:
        return 0
    try:
        num_hits = base.execute(
            "INSERT INTO temp.hits SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?",
            (query, MAX_HITS),
        ).rowcount
    except sqlite3.OperationalError as error:
        raise RefusedError(f"q = {text!r} cannot be searched: {error}; use other words") from error
    for statement in _FOUND:
        base.execute(statement)
    return num_hits


def _group(row: tuple[Any, ...]) -> dict[str, Any]:
    number, step, prompt_id, prompt, n, mean, least, largest, length, finish = row
    return {
        "group": number,
        "step": step,
        "prompt_id": _id(prompt_id),
        "prompt": prompt,
        "n": n,
        "reward_mean": mean,
        "reward_min": least,
        "reward_max": largest,
        "length_mean": length,
        "finish": msgspec.json.decode(finish),
    }


def _id(text: str | None) -> int | str | None:
    """A prompt's id as it stood in the file."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else text  # noqa: PLR2004 -- int64


def _line(samples: Samples, offset: int, size: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(
            read_at(samples.path, offset, min(size, MAX_LINE_BYTES)), type=dict[str, Any]
        )
    except (OSError, msgspec.MsgspecError) as error:
        raise NotFoundError(f"{samples.path.name} has changed meanwhile: ask again") from error
    return found

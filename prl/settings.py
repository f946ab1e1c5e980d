"""From a TOML file and ``--set`` overrides to a ``Config``, and back.

The file and the overrides are merged once and the result is judged once, so that an override is checked exactly like
a key in the file. Every message names the file or the override, the path of the key, the value, and what is allowed.
``to_toml`` writes every knob, defaults included, and loads back to an equal ``Config``.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from prl import schema
from prl.config import Config
from prl.errors import ConfigError
from prl.hidden import without_secrets

UNSET = "unset"
"""``--set key=unset`` takes a key away, as TOML has no null."""
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_DATES = (dt.datetime, dt.date, dt.time)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read ``path``, apply ``overrides`` (each ``a.b=value``, value in TOML or a bare string) and validate.

    Raises:
        ConfigError: one line per problem.
    """
    path = Path(path)
    tree = _parse(path)
    assignments = [_Assignment(text) for text in overrides]
    for assignment in assignments:
        assignment.apply(tree)
    found = [f"{_origin(problem.path, assignments, path)}: {_said(problem)}" for problem in schema.problems(tree)]
    if found:
        raise ConfigError("\n".join(found))
    return msgspec.convert(tree, Config)


def validate(config: Config) -> None:
    """Judge a ``Config`` that was made in Python, where msgspec does not.

    Raises:
        ConfigError: one line per problem.
    """
    try:
        tree = msgspec.to_builtins(config, builtin_types=_DATES)
    except TypeError as error:
        raise ConfigError(f"the configuration holds a value that TOML cannot: {error}") from error
    found = [_said(problem) for problem in schema.problems(tree)]
    if found:
        raise ConfigError("\n".join(found))


def to_toml(config: Config) -> str:
    """The whole configuration as TOML; what is None is left out."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(config, builtin_types=_DATES)))


def to_toml_without_secrets(config: Config) -> str:
    """The same with secrets hidden, for every file that is kept: it loads back, but they have to be given again."""
    return tomli_w.dumps(without_secrets(_without_none(msgspec.to_builtins(config, builtin_types=_DATES))))


def _said(problem: schema.Problem) -> str:
    link = ": " if problem.message.startswith(("unknown", "missing")) else " = "
    return schema.dotted(problem.path) + link + problem.message


def _origin(path: schema.Path, assignments: Iterable[_Assignment], file: Path) -> str:
    """The override that speaks of ``path``, or the file."""
    for assignment in assignments:
        common = min(len(path), len(assignment.path))
        if path[:common] == assignment.path[:common]:
            return f"--set {assignment.text}"
    return str(file)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _parse(path: Path) -> dict[str, Any]:
    raw = _read(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8"
        ) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_malformed(path, text, str(error))) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: not usable TOML: its values are nested too deeply") from error


def _malformed(path: Path, text: str, message: str) -> str:
    place = _TOML_PLACE.search(message)
    lines = text.splitlines() or [""]
    line, column = str(len(lines)), str(len(lines[-1]) + 1)
    if place and place[1]:
        line, column = place[1], place[2]
    return f"{path}:{line}:{column}: not valid TOML: {_TOML_PLACE.sub('', message)}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder; name a TOML file in it") from error
    except FileNotFoundError as error:
        siblings = [str(each) for each in sorted(path.parent.glob("*.toml"))]
        close = difflib.get_close_matches(str(path), siblings, n=1)
        raise ConfigError(f"{path}: no such file" + (f", did you mean {close[0]}?" if close else "")) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{str(path)!r} cannot be read: {reason}") from error


class _Assignment:
    """One override: where, and what."""

    def __init__(self, text: str) -> None:
        self.text = text if text.isprintable() else repr(text)
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {self.text}: must be KEY=VALUE, such as engine.count=2")
        self.path = self._key(key)
        self.value = self._value(value.strip())

    def _key(self, key: str) -> schema.Path:
        """TOML's own dotted key, so that a part in quotes may hold a dot."""
        try:
            node: Any = tomllib.loads(f"{key}=0")
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"--set {self.text}: {key!r} is no key; write it like engine.count") from error
        parts: list[str] = []
        while isinstance(node, dict):
            (part, node), *others = node.items()
            if others:
                raise ConfigError(f"--set {self.text}: one key at a time")
            parts.append(part)
        return tuple(int(part) if part.isascii() and part.isdigit() else part for part in parts)

    def _value(self, value: str) -> Any:
        if not value:
            raise ConfigError(f"--set {self.text}: the value is missing; '{UNSET}' takes a key away")
        try:
            tree = tomllib.loads(f"value={value}")
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            if value[0] in "\"'[{":
                raise ConfigError(f"--set {self.text}: the value is not valid TOML: {error}") from error
            return value
        return tree["value"] if len(tree) == 1 else value

    def apply(self, tree: dict[str, Any]) -> None:
        """Set (or take away) the value in ``tree``, making the tables on the way."""
        node: Any = tree
        for depth, part in enumerate(self.path[:-1]):
            fresh: Any = [] if isinstance(self.path[depth + 1], int) else {}
            node = self._enter(node, depth, part, fresh)
        last = len(self.path) - 1
        if self.value == UNSET:
            self._take_away(node, last)
        elif isinstance(node, list):
            self._enter(node, last, self.path[-1], None)
            node[int(self.path[-1])] = self.value
        elif isinstance(node, dict):
            node[str(self.path[-1])] = self.value
        else:
            raise ConfigError(f"--set {self.text}: {schema.dotted(self.path[:-1])} is {schema.shown(node)}, no table")

    def _enter(self, node: Any, depth: int, part: str | int, fresh: Any) -> Any:
        here = schema.dotted(self.path[:depth])
        if isinstance(node, dict):
            return node.setdefault(str(part), fresh)
        if isinstance(node, list):
            if isinstance(part, str) or part > len(node):
                raise ConfigError(f"--set {self.text}: {here} has {len(node)} entries, counted from 0; no {part!r}")
            if part == len(node):
                node.append(fresh)
            return node[part]
        raise ConfigError(f"--set {self.text}: {here} is {schema.shown(node)}, no table")

    def _take_away(self, node: Any, depth: int) -> None:
        part = self.path[depth]
        if isinstance(node, dict):
            node.pop(str(part), None)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            del node[part]


def flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no table, by its dotted path; tables in lists by their index, an empty table as a value."""
    if isinstance(tree, Mapping) and (tree or not path):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list) and any(isinstance(item, Mapping) for item in tree):
        items = [(str(index), value) for index, value in enumerate(tree)]
    else:
        yield path, tree
        return
    for key, value in items:
        yield from flat(value, f"{path}.{key}" if path else key)

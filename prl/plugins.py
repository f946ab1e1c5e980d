"""Finding a plug-in by its name, in one place for every kind of plug-in.

- A name is looked up in a fixed order: registered in this process, built in, entry point, ``package.module:name``.
- Nothing is imported before it is asked for; a built-in that needs a heavy package costs nothing to a run without it.
- A name that cannot be found is a PluginError of one line that has the closest name and the whole list.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from prl.errors import PluginError
from prl.hidden import with_secrets, without_secrets

T = TypeVar("T")


def nearest(name: str, known: list[str]) -> str:
    """`` (did you mean 'x'?)`` where a known name is close, else nothing: the tail of a message."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class Registry:
    """The plug-ins of one kind."""

    def __init__(self, kind: str, group: str, builtin: Mapping[str, str]) -> None:
        """Plug-ins of ``kind`` (a word for messages), the entry-point ``group``, built-ins as ``name: module:name``."""
        self._kind, self._group, self._builtin = kind, group, dict(builtin)
        self._registered: dict[str, Any] = {}

    def register(self, name: str, target: T) -> T:
        """Make ``target`` known as ``name``. The same definition may come again (a module run twice), no other."""
        if not name or ":" in name:
            raise PluginError(f"a {self._kind} cannot be named {name!r}: give it a name that has no colon")
        if name in self._builtin:
            raise PluginError(f"the {self._kind} {name!r} is built in: give yours another name")
        before = self._registered.get(name)
        if before is not None and _origin(before) != _origin(target):
            raise PluginError(
                f"two {self._kind}s are named {name!r}: {'.'.join(_origin(before))} and {'.'.join(_origin(target))}"
            )
        self._registered[name] = target
        return target

    def names(self) -> list[str]:
        """Every name that ``find`` knows, sorted."""
        return sorted({*self._registered, *self._builtin, *(entry.name for entry in self._entry_points())})

    def find(self, name: str) -> Any:
        """The object that ``name`` stands for. Raises PluginError."""
        if name in self._registered:
            return self._registered[name]
        if name in self._builtin:
            module, _, attribute = self._builtin[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        if ":" in name:
            return self._from_path(name)
        matches = [entry for entry in self._entry_points() if entry.name == name]
        if len({entry.value for entry in matches}) > 1:
            values = ", ".join(sorted(entry.value for entry in matches))
            raise PluginError(
                f"several installed packages offer the {self._kind} {name!r} ({values}): name one of these"
            )
        if matches:
            return self._guard(name, matches[0].load)
        known = self.names()
        raise PluginError(
            f"there is no {self._kind} {name!r}{nearest(name, known)}; known: {', '.join(known)}; "
            f"one of your own is named 'package.module:name'"
        )

    def _entry_points(self) -> list[EntryPoint]:
        return list(entry_points(group=self._group))

    def _from_path(self, path: str) -> Any:
        module_name, _, attribute = path.partition(":")
        if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
            raise PluginError(f"the {self._kind} {path!r} does not read as 'package.module:name'")
        look_here()
        module = self._guard(path, lambda: importlib.import_module(module_name))
        if not hasattr(module, attribute):
            public = [name for name in vars(module) if not name.startswith("_")]
            where = getattr(module, "__file__", None) or module_name
            raise PluginError(f"the {self._kind} {path!r}: {where} has no {attribute!r}{nearest(attribute, public)}")
        return getattr(module, attribute)

    def _guard(self, name: str, load: Callable[[], T]) -> T:
        """Whatever goes wrong while foreign code is imported is one line here, with its cause chained."""
        try:
            return load()
        except Exception as error:
            raise PluginError(
                f"the {self._kind} {name!r} cannot be imported: {type(error).__name__}: {error}"
            ) from error


def look_here() -> None:
    """Like ``python -m``: what lies in the working directory can be imported, whichever script started this process."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _origin(target: Any) -> tuple[str, str]:
    return getattr(target, "__module__", "?"), getattr(target, "__qualname__", repr(target))


def call_of(target: Any) -> Any:
    """What a call of a plug-in runs: a function itself, or the ``__call__`` that a class defines.

    None where it cannot be called, such as for a class of which calling only makes an instance.
    """
    if not inspect.isclass(target):
        return target if callable(target) else None
    return next((vars(base)["__call__"] for base in target.__mro__ if "__call__" in vars(base)), None)


def check_takes(kind: str, name: str, target: Any, what: tuple[str, str]) -> None:
    """Raise PluginError unless a plug-in (or an instance of it) can be called with these two, options as keywords."""
    parameters = [p for p in inspect.signature(call_of(target)).parameters.values() if p.kind != p.KEYWORD_ONLY]
    signature = inspect.Signature(parameters[1:] if inspect.isclass(target) else parameters)
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise PluginError(
            f"the {kind} {name!r} must take ({', '.join(what)}), and options as keywords only; it takes {signature}"
        ) from error


def made(kind: str, name: str, target: Any, options: Mapping[str, Any]) -> Any:
    """An instance of a class, or a function with its options bound; secrets in options are filled in.

    Raises PluginError for options that are not its own, and whatever a constructor raises.
    """
    arguments = bind_options(kind, name, target, with_secrets(options, f"the {kind} {name!r}: options"))
    return target(**arguments) if inspect.isclass(target) else functools.partial(target, **arguments)


def bind_options(kind: str, name: str, target: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the ``kind`` (a word for messages) ``name``, checked by the parameters of ``target``.

    Raises:
        PluginError: one is unknown, missing, or of the wrong type.
    """
    constructor = target.__init__ if inspect.isclass(target) else target
    parameters = {
        p.name: p
        for p in inspect.signature(target).parameters.values()
        if p.kind == p.KEYWORD_ONLY or (inspect.isclass(target) and p.kind == p.POSITIONAL_OR_KEYWORD)
    }
    for key in options:
        if key not in parameters:
            takes = f"it takes {', '.join(parameters)}" if parameters else "it takes none"
            raise PluginError(f"the {kind} {name!r} has no option {key!r}{nearest(key, list(parameters))}; {takes}")
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise PluginError(f"the {kind} {name!r} needs the option {missing[0]!r}")
    hints = get_type_hints(constructor, include_extras=True) if options else {}
    checked = {}
    for key, value in options.items():
        try:
            checked[key] = msgspec.convert(value, hints.get(key, Any))
        except msgspec.ValidationError as error:
            got = without_secrets({key: value})[key]
            raise PluginError(f"the {kind} {name!r}, option {key!r}: {error}; got {got!r}") from error
    return checked

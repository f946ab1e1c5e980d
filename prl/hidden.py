"""Secrets in the options of rewards and other plug-ins: where they come from, and that no file of a run holds one.

- ``"env:NAME"`` stands for what the environment variable NAME holds when the plug-in is made; what is written down is
  the reference.
- A string whose key says that it is a secret (``api_key``, ``password``, ...), and every string in a table named
  ``headers``, is hidden wherever the configuration is written. What was hidden has to be given again.
- Messages of failures are cleared of what was hidden: a service may name the key that it refuses. That is the whole
  value and, where it is a scheme with a credential (``Bearer KEY``, ``Basic ...``) or pairs (``session=KEY; ...``),
  each of these by itself.
- So are events and the run's error: what a reward raised is raised as it was, and written down without secrets.
- What is cut is cleared before and at the cut: a secret that a limit cuts through is hidden as far as it goes.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from prl.errors import ConfigError

ENVIRONMENT = "env:"
HIDDEN = "(hidden)"
_MIN_PART = 6
"""Characters of a part of a secret that is hidden by itself: shorter ones stand in any text."""
_MIN_ANYWHERE = 4
"""Characters of a secret that is hidden wherever it stands, also where nobody would quote it."""
_SCHEME = re.compile(r"\s*[A-Za-z][\w-]*\s+(?P<credential>\S.*)", re.DOTALL)
_PAIR = re.compile(r"[^=;,\s]+=\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<plain>[^;,\s]+))")
_SECRET = re.compile(
    r"(api|access|private|secret)[_-]?key|secret|passw(or)?d|passphrase|credential|authorization|cookie"
    r"|(^|[_-])(auth|bearer|token)$",
    re.IGNORECASE,
)


def is_secret(key: str) -> bool:
    """Whether an option of this name holds a secret; ``api_key_env`` holds the name of a variable that does."""
    return key.lower() == "headers" or (not is_reference(key) and _SECRET.search(key) is not None)


def is_reference(key: str) -> bool:
    """Whether an option of this name names the environment variable that has the secret."""
    return key.lower().endswith("_env")


def without_secrets(tree: Any, *, within: bool = False) -> Any:
    """``tree`` with every secret hidden; references to the environment stay. ``within``: the key of ``tree`` is one."""
    if isinstance(tree, Mapping):
        return {key: without_secrets(value, within=within or is_secret(str(key))) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [without_secrets(value, within=within) for value in tree]
    return HIDDEN if within and isinstance(tree, str) and not tree.startswith(ENVIRONMENT) else tree


def with_secrets(tree: Any, key: str, environment: Mapping[str, str] = os.environ) -> Any:
    """``tree``, the value of ``key``, with references to the environment replaced by what they stand for.

    Raises:
        ConfigError: a variable is not set, or a value was hidden when the configuration was written.
    """
    if isinstance(tree, Mapping):
        return {name: with_secrets(value, f"{key}.{name}", environment) for name, value in tree.items()}
    if isinstance(tree, list):
        return [with_secrets(value, f"{key}.{index}", environment) for index, value in enumerate(tree)]
    if tree == HIDDEN:
        raise ConfigError(
            f"{key} was hidden when this configuration was written: set it to 'env:NAME', a variable's name"
        )
    if not isinstance(tree, str) or not tree.startswith(ENVIRONMENT):
        return tree
    name = tree.removeprefix(ENVIRONMENT)
    if name not in environment:
        raise ConfigError(f"{key} = {tree!r}, and the environment variable {name} is not set")
    return environment[name]


def secrets_of(tree: Any, environment: Mapping[str, str] = os.environ) -> set[str]:
    """Every secret that is no empty string, as it is and in its parts: what messages must be cleared of."""
    parts = {part for value in _secrets(tree, environment, within=False) for part in parts_of(value)}
    return {form for part in parts for form in (part, json.dumps(part, ensure_ascii=False)[1:-1], repr(part)[1:-1])}


def clearer_of(tree: Any) -> Callable[[str], str]:
    """What takes the secrets of a whole configuration out of any text of its run.

    Those of fewer than four characters stay: they stand in every text.
    """
    secrets = {secret for secret in secrets_of(tree) if len(secret) >= _MIN_ANYWHERE}
    return lambda text: cleared(text, secrets)


def parts_of(secret: str) -> set[str]:
    """A secret, and what of it is one by itself: the credential behind a scheme, its password, the values of pairs."""
    found = {secret, secret.strip()} - {""}
    if scheme := _SCHEME.fullmatch(secret):
        credential = scheme["credential"].strip()
        found |= {part for part in (credential, *_basic(credential)) if len(part) >= _MIN_PART}
    values = (pair["quoted"] or pair["plain"] or "" for pair in _PAIR.finditer(secret))
    return found | {value for value in values if len(value) >= _MIN_PART}


def _basic(credential: str) -> Iterator[str]:
    """``user:password`` behind its encoding, and the password."""
    try:
        plain = base64.b64decode(credential, validate=True).decode()
    except ValueError:
        return
    if ":" in plain:
        yield plain
        yield plain.partition(":")[2]


def cleared(text: str, secrets: Collection[str]) -> str:
    """``text`` without these."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def cleared_start(text: str, secrets: Collection[str], limit: int, *, is_whole: bool = True) -> str:
    """The first ``limit`` characters of ``text`` without these.

    Args:
        text: what is shown.
        secrets: as for ``cleared``.
        limit: most characters.
        is_whole: whether ``text`` ends where it did; else its end may be the beginning of a secret, and is hidden.
    """
    found = cleared(text, secrets)
    if not is_whole:
        ends = [length for secret in secrets if (length := _length_of_start_at_end(found, secret))]
        found = found[: len(found) - max(ends)] + HIDDEN if ends else found
    return found[:limit]


def _length_of_start_at_end(text: str, secret: str) -> int:
    """How many characters at the end of ``text`` are the beginning of ``secret``; 0: none, or too few to tell."""
    longest = min(len(secret) - 1, len(text))
    return next((n for n in range(longest, 2, -1) if text.endswith(secret[:n])), 0)


def _secrets(tree: Any, environment: Mapping[str, str], *, within: bool) -> Iterator[str]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if is_reference(str(key)) and isinstance(value, str):
                yield environment.get(value, "")
            else:
                yield from _secrets(value, environment, within=within or is_secret(str(key)))
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _secrets(value, environment, within=within)
    elif isinstance(tree, str) and tree.startswith(ENVIRONMENT):
        yield environment.get(tree.removeprefix(ENVIRONMENT), "")
    elif within and isinstance(tree, str):
        yield tree

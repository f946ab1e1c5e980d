"""Secrets in the options of rewards and other plug-ins: where they come from, and that no file of a run holds one.

- ``"env:NAME"`` stands for what the environment variable NAME holds when the plug-in is made; what is written down is
  the reference.
- A string whose key says that it is a secret (``api_key``, ``password``, ...), and every string in a table named
  ``headers``, is hidden wherever the configuration is written. What was hidden has to be given again.
- Messages of failures are cleared of what was hidden: a service may name the key that it refuses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from prl.errors import ConfigError

ENVIRONMENT = "env:"
HIDDEN = "(hidden)"
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
    """Every secret that is no empty string, as it is: what messages must be cleared of."""
    return {value for value in _secrets(tree, environment, within=False) if value}


def cleared(text: str, secrets: set[str]) -> str:
    """``text`` without these."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


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

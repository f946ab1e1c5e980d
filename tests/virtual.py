"""A decorator for tests whose time is virtual."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

from prl import virtual_time


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a virtual-time loop of its own: a hang is a DeadlockError, and no wait costs time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        virtual_time.run(test(*args, **kwargs))

    return run

"""What every test starts from."""

from __future__ import annotations

import gc
import signal
from collections import Counter
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Ctrl-C is heeded, by the processes that tests start as well: a shell has what it starts with ``&`` ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until everything is imported: see pytest_collection_finish


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the workers of pytest-xdist the files that may take longest come first, then those with the most tests.

    So no worker is left with a long file when the others have nothing more to do. What a test may take is its own
    ``timeout``; ``--no-loadscope-reorder`` keeps the order.
    """
    if not hasattr(config, "workerinput"):
        return
    num_tests, limits = Counter(item.path for item in items), dict[Path, float]()
    for item in items:
        mark = item.get_closest_marker("timeout")
        limits[item.path] = max(limits.get(item.path, 0.0), mark.args[0] if mark else 0.0)
    items.sort(key=lambda item: (-limits[item.path], -num_tests[item.path]))


def pytest_collection_finish() -> None:
    """What the tests import stays: no run that a test starts looks through it for garbage, half a second each."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """And goes when Python ends: some libraries complain of what is left of them then."""
    gc.unfreeze()

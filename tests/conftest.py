"""What every test starts from."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C is heeded, by the processes that tests start as well: a shell has what it starts with ``&`` ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

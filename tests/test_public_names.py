"""What ``import prl`` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import prl


def test_every_public_name_is_there() -> None:
    """Each name in ``__all__`` can be imported, and is documented."""
    for name in prl.__all__:
        assert getattr(prl, name).__doc__, name


def test_an_unknown_name_says_which_there_are() -> None:
    """A misspelt name is an AttributeError that lists the public ones."""
    with pytest.raises(AttributeError, match="Pipeline"):
        prl.Pipelin  # noqa: B018 -- the lookup is the test


@pytest.mark.parametrize("statement", ["import prl", "import prl; prl.load_config; prl.Pipeline; prl.reward"])
def test_importing_reaches_neither_torch_nor_vllm(statement: str) -> None:
    """The controller's side is light: no torch, vllm or transformers in the process."""
    heavy = "{name.partition('.')[0] for name in sys.modules} & {'torch', 'vllm', 'transformers'}"
    code = f"import sys; {statement}; print({heavy})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "set()"


def test_importing_is_quick() -> None:
    """``import prl`` takes under 0.3 s of processor time (best of three; the interpreter's own start included)."""
    command = [sys.executable, "-c", "import time; t = time.process_time(); import prl; print(time.process_time() - t)"]
    seconds = min(
        float(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout) for _ in range(3)
    )
    assert seconds < 0.3, time.strftime("%X")

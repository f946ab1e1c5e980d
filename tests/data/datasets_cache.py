"""The ``datasets`` library with a cache of the test's own, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def isolate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """The library, writing to ``folder`` and asking nobody."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return datasets

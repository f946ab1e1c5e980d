"""What the tests of the page share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.view import recorded

NUM_STEPS, NUM_SAMPLES = 30, 480


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run that has ended. Nobody may change it."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    recorded.make(path, num_steps=NUM_STEPS, num_samples=NUM_SAMPLES)
    return path

"""Runs in virtual time under random faults keep every promise, whatever happens and whenever.

``python -m tests.faults.chances`` looks at thousands of seeds; ``PRL_FAULT_SEEDS`` is how many are looked at here.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.chances import look_at

NUM_SEEDS = int(os.environ.get("PRL_FAULT_SEEDS", "60"))


@pytest.mark.timeout(600)
def test_every_promise_is_kept(tmp_path: Path) -> None:
    """Engines, trainer, rewards and disk fail at random: no hang, no prompt lost or trained twice, no token too old.

    Most runs go on by themselves to their end; the others end with an error that says why, and are resumed.
    """
    ends = Counter(look_at(seed, tmp_path / str(seed)) for seed in range(NUM_SEEDS))
    assert ends["done"] > NUM_SEEDS / 2
    assert ends.total() == NUM_SEEDS
    assert all(name.endswith("Error") for name in ends if name != "done")

"""The fault matrix: it is whole, its page is that of its results, and a few of its cells on real processes.

All of it is run by ``make faults``.
"""

from __future__ import annotations

import itertools

import pytest

from tests.faults import table
from tests.faults.cells import BLOWS, CELLS, MOMENTS, ROLES, SAYS, Cell, chains, expected
from tests.faults.judge import run_chain

SHOWN = [
    Cell("engine host", "SIGKILL", "generation"),
    Cell("engine core", "SIGSTOP", "update"),
    Cell("trainer rank 1", "SIGKILL", "step"),
    Cell("trainer rank 0", "SIGSTOP", "checkpoint"),
]
"""An engine that dies and one that hangs, a rank that dies and one that hangs: one after another in one run."""


def test_every_combination_is_a_cell() -> None:
    """Each role, signal and moment is one cell with an outcome that the page explains, in one chain of one job."""
    combinations = [Cell(*combination) for combination in itertools.product(ROLES, BLOWS, MOMENTS)]
    assert combinations == CELLS
    assert {expected(cell) for cell in CELLS} == set(SAYS)
    assert sorted(cell for chain in chains(CELLS) for cell in chain) == sorted(CELLS)


def test_the_page_is_made_of_the_results() -> None:
    """``docs/faults.md`` is what the results say; every cell is in it, has been run and has passed."""
    results, page = table.read(), table.TABLE.read_text()
    assert page == table.render(results)
    assert [str(cell) for cell in CELLS] == [result.name for result in results if result.passed]
    rows = [line for line in page.splitlines() if line.startswith(tuple(f"| {role} |" for role in ROLES))]
    assert [row.count(" | ") for row in rows] == [1 + len(MOMENTS)] * len(ROLES) * len(BLOWS)


@pytest.mark.timeout(600)
def test_roles_that_are_struck() -> None:
    """Field notes H, a dead child is not noticed: each is noticed and replaced, the other side's processes stay.

    Steps go on; at the end every step is there once, the lag within its bound, no process left and no prompt lost.
    """
    said: list[str] = []
    results = run_chain(SHOWN, said.append)
    assert [result.name for result in results if result.passed] == [str(cell) for cell in SHOWN], "\n".join(said)

"""The fault matrix: it is whole, its page is that of its results, and one of its cells on real processes.

All of it is run by ``make faults``.
"""

from __future__ import annotations

import itertools

import pytest

from tests.faults import table
from tests.faults.cells import BLOWS, CELLS, MOMENTS, ROLES, SAYS, Cell, chains, expected
from tests.faults.judge import run_chain

SHOWN = [Cell("engine core", "SIGSTOP", "update")]


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


@pytest.mark.timeout(400)
def test_a_role_that_is_struck() -> None:
    """Field notes H, a dead child is not noticed: a core that hangs in an update.

    Another takes its place and the steps go on; at the end no process is left and no prompt is lost. Deaths by other
    signals are in ``test_faults.py``, and all of them in the matrix.
    """
    said: list[str] = []
    results = run_chain(SHOWN, said.append)
    assert [result.name for result in results if not result.passed] == [], "\n".join(said)

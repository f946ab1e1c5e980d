"""The results of the matrix as a file, and as the table of ``docs/faults.md``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.faults.cells import BLOWS, CELLS, COMMON, LATE_START_S, MOMENTS, ROLES, SAYS, STOPPED_S, Cell, expected
from tests.faults.job import ROOT
from tests.faults.judge import Result

RESULTS = ROOT / "docs/faults.json"
TABLE = ROOT / "docs/faults.md"
_ABOUT = """\
# What a run survives

Every role of a run, struck with every signal at every moment, on real processes: `make faults` runs the default job
(`configs/math.toml`, shortened), brings it to the moment, strikes from inside the controller, and judges what comes of
it. This page is generated from `docs/faults.json`, which holds what was seen. A number is the seconds from the blow
until the run was two steps further with everything back in place; or, where the run has to end, until no process was
left. **failed** is a cell in which what must happen was not seen.

Cells of a role and a signal follow one another on one run, which is resumed where a blow ended it. At the end of the
run every step has to be there once, no sample trained with a lag above the bound, and `prl audit` has to account for
every prompt; where it does not, none of the run's cells has passed.

The moments: *start-up* is a second after the process appeared; *generation*, 30 ms into a wait of the trainer for its
batch; *step*, 30 ms into a training step; *update*, when the engines have begun to receive a new version and the
trainer is about to send it; *checkpoint*, when the folder of a checkpoint exists and is not complete.
"""
_ROLES = """\
The *engine host* is the process that the controller starts, the *engine core* is vLLM's below it. With one worker the
core computes by itself. The core that was struck was one of two engines'; where another role is struck there is one
engine, so that a death at its start leaves nobody to go on with. The *engine worker* below a core was struck on an
engine that spans two (`tensor_parallel_size = 2`). The *verifier worker* is one of the `math` reward's. The
answers are judged a second late, so that a job leaves the processor to whoever is started again.
"""


def read(path: Path = RESULTS) -> list[Result]:
    """What was seen so far."""
    return msgspec.json.decode(path.read_bytes(), type=list[Result]) if path.exists() else []


def write(results: Iterable[Result]) -> None:
    """Keep the results, and make the page of them."""
    RESULTS.parent.mkdir(exist_ok=True)
    ordered = sorted(results, key=lambda result: [str(cell) for cell in CELLS].index(result.name))
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    TABLE.write_text(render(ordered))


def merge(before: Iterable[Result], found: Iterable[Result]) -> list[Result]:
    """The newer result of each cell, of those that the matrix has."""
    known = {str(cell) for cell in CELLS}
    both = {result.name: result for result in [*before, *found]}
    return [result for name, result in both.items() if name in known]


def render(results: Sequence[Result]) -> str:
    """The page."""
    by_name = {result.name: result for result in results}
    rows = ["| role | signal | " + " | ".join(MOMENTS) + " |", "|---|---|" + "---|" * len(MOMENTS)]
    for role in ROLES:
        for blow in BLOWS:
            cells = [_shown(cell, by_name.get(str(cell))) for cell in (Cell(role, blow, moment) for moment in MOMENTS)]
            rows.append(f"| {role} | {blow} | " + " | ".join(cells) + " |")
    passed = sum(result.passed for result in results)
    legend = [f"- **{kind}**: {text}" for kind, text in SAYS.items()]
    deadlines = ", ".join(f"`{key} = {value}`" for key, value in COMMON.items() if key.endswith("_s"))
    about_stops = (
        "SIGSTOP lasts until the run has killed who was stopped; the controller is woken after "
        f"{STOPPED_S:g} s.\nThe deadlines of the job: {deadlines}. Whoever is stopped at start-up\nis late after "
        f"{LATE_START_S} s."
    )
    failed = [result for result in results if not result.passed]
    summary = f"{passed} of {len(CELLS)} cells passed, {len(failed)} failed, {len(CELLS) - len(results)} were not run."
    return "\n".join([_ABOUT, _ROLES, about_stops, "", summary, "", *rows, "", "What must happen:", "", *legend, ""])


def _shown(cell: Cell, result: Result | None) -> str:
    if result is None:
        return f"{expected(cell)}: not run"
    return f"{expected(cell)}: {result.seconds:g} s" if result.passed else f"{expected(cell)}: **failed**"

"""Which clocks prl reads."""

from __future__ import annotations

import ast
from pathlib import Path

import prl

WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}


def wall_clocks(path: Path) -> list[str]:
    """The calls in a module that ask what time of day it is."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    names = (node.func for node in calls if isinstance(node.func, ast.Attribute))
    return [
        f"{name.value.id}.{name.attr}"
        for name in names
        if isinstance(name.value, ast.Name) and (name.value.id, name.attr) in WALL
    ]


def test_no_deadline_moves_with_the_clock_on_the_wall() -> None:
    """A step of the system's clock (NTP, daylight saving, a suspended machine) ends no wait and begins none.

    Every deadline is of a monotonic clock: the event loop's or ``time.monotonic``. The time of day is only told.
    """
    package = Path(prl.__file__).parent
    found = {str(path.relative_to(package)): wall_clocks(path) for path in package.rglob("*.py")}
    assert {path: calls for path, calls in found.items() if calls} == {
        "log.py": ["datetime.now"],
        "watchdog.py": ["datetime.now"],  # the name of a file
        "gateway/replies.py": ["time.time"],  # a field of the protocol
        "blocked.py": ["time.time"],  # since when, for another process
        "asking.py": ["datetime.now"] * 2,  # how long ago another process wrote a line: there is no other common clock
        "timeline.py": ["time.time"] * 2,  # what people read beside other logs
        "view/run_lines.py": ["time.time"],  # how long ago another machine wrote a file
        "report/page.py": ["datetime.now"],  # when it was made
        "trackers/mlflow.py": ["time.time"],  # a field of the protocol, as the next
        "trackers/event_file.py": ["time.time"] * 3,
    }

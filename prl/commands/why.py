"""``prl why``: who waits for whom in a run, at this moment."""

from __future__ import annotations

import argparse
from pathlib import Path

from prl.commands.arguments import FAILED, OK

HELP = "say what a run waits for"
ABOUT = """\
Ask a run that goes on what it waits for, down to the engine, rank or reward that has to move, and since when. Of a run
that has ended, say how."""
EXAMPLES = """\
examples:
  prl why runs/math
  prl why runs/math --stacks        and write down where every process of the run is
  prl why runs/math --json          the same as one JSON object

exit codes:
  0 it goes on, or has ended well   1 it failed, is blocked or does not answer   2 there is no such run"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl why`` takes."""
    parser.add_argument("run", metavar="RUN", help="a run folder, such as runs/math")
    parser.add_argument("--stacks", action="store_true", help="write the stacks of every process of the run to a file")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of lines")


def run(arguments: argparse.Namespace) -> int:
    """Print what is known; the exit code."""
    import msgspec  # noqa: PLC0415 - --help stays quick

    from prl import asking  # noqa: PLC0415 - the same

    told = asking.ask(Path(arguments.run), stacks=arguments.stacks)
    print(msgspec.json.encode(told).decode() if arguments.json else "\n".join(asking.lines_of(told)))  # noqa: T201
    return OK if told.is_well else FAILED

"""``prl watch``: look on at a run, in a terminal."""

from __future__ import annotations

import argparse
from pathlib import Path

from prl.commands.arguments import OK

HELP = "look on at a run, in a terminal"
ABOUT = """\
Show a run: its curves, lag, engines, who waits for whom, and the last events. It goes on whether anybody looks or not:
come and leave as often as you like, from several terminals, also over ssh. Of a run that has ended, or was killed, its
folder is shown."""
EXAMPLES = """\
examples:
  prl watch runs/math
  prl watch runs/math --once        print what there is now, and end
  ssh -t node7 prl watch runs/math  there

q or ctrl-C leaves; the run goes on. Where the output is no terminal it is printed once.

exit codes:
  0 shown   2 there is no such run"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl watch`` takes."""
    parser.add_argument("run", metavar="RUN", help="a run folder, such as runs/math")
    parser.add_argument("--once", action="store_true", help="print it once, in plain lines")


def run(arguments: argparse.Namespace) -> int:
    """Look on until somebody leaves; the exit code."""
    from prl.panel import make_console, show  # noqa: PLC0415 - --help stays quick
    from prl.watch import terminal  # noqa: PLC0415 - the same
    from prl.watch.screen import render  # noqa: PLC0415 - the same
    from prl.watch.seen import Watched  # noqa: PLC0415 - the same

    watched, console = Watched(Path(arguments.run)), make_console()
    if arguments.once:
        show(console, render(watched.look(), console.width, terminal.PLAIN_HEIGHT))
    else:
        terminal.watch(watched, console)
    return OK

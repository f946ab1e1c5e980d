"""``prl plan``: what to run on so many accelerators."""

from __future__ import annotations

import argparse

from prl.commands.arguments import OK, add_config

HELP = "find the set-up for so many accelerators"
ABOUT = """\
Search how to divide N accelerators between engines and ranks, how many sequences to have in flight, how far to let them
lag and how much to buffer. The best candidates are simulated with the real controller, and told with what limits
each."""
EXAMPLES = """\
examples:
  prl plan configs/simulate-paper.toml --accelerators 128
  prl plan configs/math.toml --accelerators 2 --set simulate.run=runs/math simulate.num_accelerators=2
  prl plan CONFIG --accelerators 8 --json

how it is ranked:
  By samples per second times ESS: throughput times effectiveness. simulate.drift says how fast ESS falls with lag.
  With simulate.num_accelerators set, engines and ranks share the accelerators and stay as many as they are.
  engine.count is the number of engines, wherever they run: of engine.servers list as many.

exit codes:
  0 done   2 bad input, or nothing fits"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl plan`` takes."""
    add_config(parser)
    parser.add_argument("--accelerators", metavar="N", type=int, required=True, help="GPUs, or cores, in all")
    parser.add_argument("--best", metavar="K", type=int, default=3, help="how many set-ups to show (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON list in place of lines")


def run(arguments: argparse.Namespace) -> int:
    """Search and show; the exit code."""
    import msgspec  # noqa: PLC0415 - --help stays quick

    from prl.errors import ConfigError  # noqa: PLC0415 - the same
    from prl.settings import load_config  # noqa: PLC0415 - the same
    from prl.simulate.calibrate import measured_for  # noqa: PLC0415 - the same
    from prl.simulate.plan import lines_of, plan  # noqa: PLC0415 - the same

    if arguments.accelerators < 1 or arguments.best < 1:
        raise ConfigError(f"--accelerators {arguments.accelerators} and --best {arguments.best} must be 1 at least")
    config = load_config(arguments.config, arguments.set)
    measured = measured_for(config)
    planned = plan(config, arguments.accelerators, measured, num_simulated=2 * arguments.best)[: arguments.best]
    print(msgspec.json.encode(planned).decode() if arguments.json else "\n".join(lines_of(planned)))  # noqa: T201
    return OK

"""``prl simulate``: what a configuration would do on a machine, in virtual time."""

from __future__ import annotations

import argparse

from prl.commands.arguments import OK, add_config

HELP = "say what a configuration would do on a machine, without one"
ABOUT = """\
Run CONFIG in virtual time: the controller, its buffer, its rollouts and its weight updates are those of a run, and only
the engines, the trainer and the rewards are replaced by the times that [simulate] gives them. Nothing is started or
written."""
EXAMPLES = """\
examples:
  prl simulate configs/simulate-paper.toml
  prl simulate configs/simulate-paper.toml --set trainer.num_ranks=100 engine.count=28
  prl simulate configs/math.toml --set simulate.run=runs/math simulate.num_accelerators=2 pipeline.max_lag=4
  prl simulate CONFIG --json                           the same as one JSON object

what is simulated:
  Lengths, decode steps, training and updates are named in [simulate], or measured in the run folder simulate.run;
  engine.count, engine.max_num_seqs, trainer.num_ranks and [pipeline] mean what they mean in a run.

exit codes:
  0 done   1 the run would fail, and how   2 bad input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl simulate`` takes."""
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object in place of lines")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and report; the exit code."""
    import msgspec  # noqa: PLC0415 - --help stays quick

    from prl.check import cross_check  # noqa: PLC0415 - the same
    from prl.settings import load_config  # noqa: PLC0415 - the same
    from prl.simulate import costs_of, report_of, simulate  # noqa: PLC0415 - the same
    from prl.simulate.calibrate import measured_for  # noqa: PLC0415 - the same
    from prl.simulate.words import lines_of  # noqa: PLC0415 - the same

    config = load_config(arguments.config, arguments.set)
    cross_check(config)
    costs = costs_of(config, measured_for(config))
    report = report_of(config, costs, simulate(config, costs))
    print(msgspec.json.encode(report).decode() if arguments.json else "\n".join(lines_of(config, report)))  # noqa: T201
    return OK

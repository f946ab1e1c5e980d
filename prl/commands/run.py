"""``prl run``: train as a TOML file says, or look at everything and start nothing (``--check``)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prl.commands.arguments import OK, add_config, said

if TYPE_CHECKING:
    from prl.preflight_model import Finding

HELP = "train as a TOML file says"
ABOUT = "Train as CONFIG says."
EXAMPLES = """\
examples:
  prl run configs/math.toml
  prl run configs/math.toml --set trainer.learning_rate=1e-4 --set engine.count=1
  prl run configs/math.toml --set model=Qwen/Qwen2.5-0.5B-Instruct --set rewards.0.weight=2
  prl run configs/math.toml --set pipeline.max_lag=unset          the paper's mode: lag follows from the load
  prl run configs/math.toml --run-dir runs/try --resume           go on where that run was saved

what happens:
  The first Ctrl-C finishes the step, saves and leaves with 0; the second ends everything at once.
  Results are in the run folder: metrics.jsonl, samples.jsonl, checkpoints/, export/, summary.json.

exit codes:
  0 done or stopped   1 the run failed   2 bad input, nothing started   130 interrupted"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl run`` takes."""
    add_config(parser)
    parser.add_argument("--run-dir", metavar="DIR", help="where the run goes; else the next free runs/NAME")
    parser.add_argument("--resume", action="store_true", help="go on from the newest complete checkpoint of the run")
    parser.add_argument(
        "--accept-changes", action="store_true", help="resume although model, data or seed are not those of the run"
    )
    parser.add_argument(
        "--check", action="store_true", help="look at model, data, rewards, ports and memory; start nothing"
    )
    parser.add_argument("--plain", action="store_true", help="plain lines in place of the live panel")


def run(arguments: argparse.Namespace) -> int:
    """Train, or check; the exit code."""
    from prl.settings import load_config  # noqa: PLC0415 - --help stays quick

    config = load_config(arguments.config, arguments.set)
    if arguments.check:
        from prl import preflight  # noqa: PLC0415 - the same

        _show_findings(preflight.check(config))
        return OK
    from prl.job import Job  # noqa: PLC0415 - the same

    job = Job(
        config,
        said("run", arguments),
        run_dir=arguments.run_dir,
        resume=arguments.resume,
        accept_changes=arguments.accept_changes,
        plain=arguments.plain,
    )
    return job.run()


def _show_findings(findings: Sequence[Finding]) -> None:
    """What ``--check`` found, one line each."""
    from rich.table import Table  # noqa: PLC0415 - --help stays quick
    from rich.text import Text  # noqa: PLC0415 - the same

    from prl.panel import make_console, show  # noqa: PLC0415 - the same

    table = Table.grid(padding=(0, 2))
    for finding in findings:
        mark = Text("note", "yellow") if finding.is_note else Text("ok", "green")
        table.add_row(mark, finding.topic, Text(finding.text))
    console = make_console()
    show(console, table)
    show(console, "Nothing was started.")

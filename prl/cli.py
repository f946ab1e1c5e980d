"""argv -> Config -> event loop -> exit code.

- Exit 0: done, or stopped by the first SIGINT or SIGTERM after finishing the step and saving. 1: the run failed.
  2: bad input, one line on stderr for each fault, nothing started. 130: ended at start-up, or by the second signal.
- An error that prl raises on purpose is a message, never a traceback; a traceback is a bug, in prl or in a reward.
- ``prl --help`` imports nothing heavy: whatever a command needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NoReturn

from prl.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from prl.preflight import Finding

OK, BAD_INPUT, INTERRUPTED = 0, 2, 130
_THREADS_TIMEOUT_S = 2.0

_DESCRIPTION = """\
Train a language model by reinforcement learning while it is still generating: engines keep sampling, the trainer
learns from finished answers, and every new version of the weights goes into the engines in the middle of their
sequences (PipelineRL, arXiv 2509.19128)."""

_EXAMPLES = """\
examples:
  prl run configs/math.toml                             teach a small model arithmetic, on any machine
  prl run configs/math.toml --check                     look at everything, start nothing
  prl run configs/math.toml --set run.num_steps=20      change a key for this run
  prl run --help                                        more about running"""

_RUN_EXAMPLES = """\
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names and return its exit code."""
    _tolerate_any_text()
    arguments = _arguments(argv)
    try:
        code = _run(arguments)
    except (ConfigError, MissingExtraError) as error:
        _complain(str(error))
        code = BAD_INPUT
    except KeyboardInterrupt:
        _complain("interrupted")
        code = INTERRUPTED
    if argv is None:
        _leave_hung_threads(code)
    return code


def _leave_hung_threads(code: int) -> None:
    """End the process where the interpreter would wait for ever for a thread that hangs, in a reward for one."""
    deadline = time.monotonic() + _THREADS_TIMEOUT_S
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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


def _run(arguments: argparse.Namespace) -> int:
    from prl.settings import load_config  # noqa: PLC0415 - --help stays quick

    config = load_config(arguments.config, arguments.set)
    if arguments.check:
        from prl import preflight  # noqa: PLC0415 - the same

        _show_findings(preflight.check(config))
        return OK
    from prl.job import Job  # noqa: PLC0415 - the same

    overrides = [word for override in arguments.set for word in ("--set", override)]
    command = shlex.join(["prl", "run", arguments.config, *overrides])
    return Job(config, command, run_dir=arguments.run_dir, resume=arguments.resume, plain=arguments.plain).run()


class _Parser(argparse.ArgumentParser):
    """Keeps the examples' lines as they are, and says what is wrong in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"prl: {message} (see {self.prog} --help)\n")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """``--set a=1 b=2`` is ``--set a=1 --set b=2``, wherever CONFIG stands."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if unknown := [word for word in rest if word.startswith("-") or "=" not in word or not arguments.set]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    arguments.set = [*arguments.set, *rest]
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="prl", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"prl {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    about = "Train as CONFIG says."
    run = commands.add_parser("run", help="train as a TOML file says", description=about, epilog=_RUN_EXAMPLES)
    run.add_argument("config", metavar="CONFIG", help="a TOML file, such as configs/math.toml")
    run.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key: value in TOML or a bare word; 'unset' takes the key away; may be given again",
    )
    run.add_argument("--run-dir", metavar="DIR", help="where the run goes; else the next free runs/NAME")
    run.add_argument("--resume", action="store_true", help="go on from the newest complete checkpoint of the run")
    run.add_argument(
        "--check", action="store_true", help="look at model, data, rewards, ports and memory; start nothing"
    )
    run.add_argument("--plain", action="store_true", help="plain lines in place of the live panel")
    return parser


def _version() -> str:
    try:
        return version("prl-train")
    except PackageNotFoundError:
        return "(not installed)"


def _tolerate_any_text() -> None:
    """A model may say, and a file may be named, what the terminal's encoding has not."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(message: str) -> None:
    """Each line of ``message`` on stderr."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write("".join(f"prl: {line}\n" for line in message.splitlines()))
        sys.stderr.flush()

"""argv -> a command of ``commands/`` -> exit code.

- Exit 0: done, or stopped by the first SIGINT or SIGTERM after finishing the step and saving. 1: the run failed.
  2: bad input, one line on stderr for each fault, nothing started. 130: ended at start-up, or by the second signal.
  141: whoever read the output closed it.
- An error that prl raises on purpose is a message, never a traceback; a traceback is a bug, in prl or in a reward.
- ``prl --help`` imports nothing heavy: whatever a command needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from prl.errors import ConfigError, MissingExtraError

BAD_INPUT, INTERRUPTED, CLOSED = 2, 130, 141
_COMMANDS = (
    "run",
    "data",
    "eval",
    "export",
    "doctor",
    "audit",
    "why",
    "watch",
    "view",
    "report",
    "engines",
    "score",
    "launch",
    "simulate",
    "plan",
)
"""Modules of ``prl.commands``, in the order of ``prl --help``."""
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
  prl data configs/math.toml                            what a run would see of its data, token by token
  prl why runs/math                                     what that run waits for, at this moment
  prl run --help                                        more about running"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names and return its exit code."""
    _tolerate_any_text()
    arguments = _arguments(argv)
    try:
        code: int = arguments.command(arguments)
    except (ConfigError, MissingExtraError) as error:
        _complain(str(error))
        code = BAD_INPUT
    except KeyboardInterrupt:
        _complain("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:  # who reads has seen enough, as in `prl why RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = CLOSED
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
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    arguments.set = [*arguments.set, *rest]
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="prl", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"prl {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _COMMANDS:
        module = importlib.import_module(f"prl.commands.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.ABOUT, epilog=module.EXAMPLES)
        module.add_arguments(command)
        command.set_defaults(command=module.run, set=[], parser=command)
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

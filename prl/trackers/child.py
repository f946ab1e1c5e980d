"""The process of one tracker: ``python -m prl.trackers.child RUN_DIR INDEX PART FIRST_STEP``.

It reads the run's files as they grow and passes on what is new, in order, until ``summary.json`` says how it ended.

- The run cannot be held up by it: nothing waits for this process but, for a bounded time, the run's end.
- What the tracker does not take now is tried again after a pause, which doubles. A point that it refuses ``MAX_TRIES``
  times is dropped and counted, and this process ends: another begins anew behind it. Once the run has ended the pauses
  are short and the tries few.
- The state file is written before and after every call, so that whoever looks sees a call that hangs.
- Messages are cleared of the secrets among the tracker's options.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from prl.config import Config
from prl.config_trackers import TrackerConfig
from prl.hidden import cleared, secrets_of
from prl.process import die_with_parent
from prl.run_folder import EVALUATIONS
from prl.settings import load_config
from prl.tail import Tail
from prl.trackers import state as state_file
from prl.trackers.base import TrackedRun, Tracker, labels_of, make_tracker
from prl.trackers.names import curves_of_evaluation, curves_of_step

POLL_S = 0.5
MAX_TRIES = 5
MAX_TRIES_AT_END = 3
EXIT_TIMEOUT_S = 5
"""For what a tracker's package does at the exit of the interpreter, when all is sent."""
_FIRST_PAUSE_S, _MAX_PAUSE_S, _PAUSE_AT_END_S = 1.0, 60.0, 0.5
_BATCH = 32
"""Points between two notes of how far it is: at most so many are sent twice by a process that follows a killed one."""
_NICENESS = 10
Curves = Callable[[Mapping[str, Any]], dict[str, float]]
_FILES: dict[str, Curves] = {"metrics.jsonl": curves_of_step, EVALUATIONS: curves_of_evaluation}


class GivenUpError(Exception):
    """The tracker did not take something, however often it was tried."""


class Sender:
    """See the module.

    Args:
        run_dir: the run's folder.
        config: of the run, as ``config.toml`` says.
        index: which of ``config.trackers``.
        part: names the controller's process.
        first_step: steps that were done when that began.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Config,
        index: int,
        *,
        part: str,
        first_step: int,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run_dir, self._config, self._pause = run_dir, config, pause
        self._tracker_config: TrackerConfig = config.trackers[index]
        self._label = labels_of(config.trackers)[index]
        self._secrets = secrets_of(self._tracker_config.options)
        self._part, self._first_step = part, first_step
        self._state = state_file.read(run_dir, self._label)
        self._tails = {name: Tail(run_dir / name) for name in _FILES}
        self._tracker: Tracker

    def run(self) -> int:
        """Send everything until the run has ended; the exit code, 1 where something was given up."""
        self._state.is_finished = False
        try:
            self._attempt("open", self._open, give_up=False)
            while not self._sent_to_the_end():
                pass
            self._attempt("finish", lambda: self._tracker.finish(self._summary()))
        except GivenUpError:
            return 1
        self._state.is_finished = True
        self._note("")
        return 0

    def _has_ended(self) -> bool:
        return (self._run_dir / "summary.json").exists()

    def _summary(self) -> dict[str, Any]:
        return msgspec.json.decode((self._run_dir / "summary.json").read_bytes(), type=dict[str, Any])

    # ---- the curves --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        state = self._state
        # What this part has sent is its own, also where a process of this part came before.
        first_step = state.sent_step if state.part == self._part else self._first_step
        tracker = make_tracker(self._tracker_config)
        opened = tracker.open(
            TrackedRun(
                run_dir=self._run_dir,
                name=self._config.run.name,
                config=_without_none(msgspec.to_builtins(self._config)),
                id=state.id,
                first_step=max(0, first_step),
                sent_step=state.sent_step,
            )
        )
        self._tracker = tracker
        state.id, state.url, state.part = opened.id, opened.url, self._part
        state.sent = {name: min(step, opened.last_step) for name, step in state.sent.items()}

    def _sent_to_the_end(self) -> bool:
        """Send what is there, or wait a moment where there is nothing; whether the run has ended and that was all."""
        has_ended = self._has_ended()  # before the files are read: nothing is appended after it
        is_all = True
        for name, curves in _FILES.items():
            lines = [line for line in self._tails[name].read() if self._is_new(name, line)]
            is_all = is_all and not lines
            for at in range(0, len(lines), _BATCH):
                self._send(name, [(line["step"], curves(line)) for line in lines[at : at + _BATCH]])
        if is_all and not has_ended:
            self._pause(POLL_S)
        return is_all and has_ended

    def _is_new(self, name: str, line: Mapping[str, Any]) -> bool:
        step = line.get("step")
        return isinstance(step, int) and step > self._state.sent.get(name, -1)

    def _send(self, name: str, points: list[tuple[int, dict[str, float]]]) -> None:
        for step, values in points:
            if values:
                try:
                    self._attempt("log", lambda step=step, values=values: self._tracker.log(step, values))  # type: ignore[misc]
                except GivenUpError:
                    self._state.num_dropped += 1
                    self._state.sent[name] = step
                    self._note("")
                    raise
            self._state.sent[name] = step
        self._attempt("log", self._tracker.flush)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _attempt(self, what: str, call: Callable[[], Any], *, give_up: bool = True) -> None:
        """Call until it goes well. Raises GivenUpError after too many tries."""
        pause_s, tries, tries_at_end = _FIRST_PAUSE_S, 0, 0
        while True:
            self._note(what)
            try:
                call()
            except Exception as error:  # noqa: BLE001 -- whatever a tracker, or its package, raises
                self._failed(error)
                tries += 1
            else:
                self._state.error = ""
                self._note("")
                return
            if self._has_ended():
                tries_at_end += 1
                pause_s = _PAUSE_AT_END_S
            if tries_at_end == MAX_TRIES_AT_END or (give_up and tries == MAX_TRIES):
                raise GivenUpError
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _failed(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(cleared(text, self._secrets))
        sys.stderr.flush()
        self._state.error = cleared(f"{type(error).__name__}: {error}", self._secrets)
        self._state.num_errors += 1
        self._note("")

    def _note(self, doing: str) -> None:
        """Write how far it is. A disk that takes nothing is the run's business."""
        self._state.doing, self._state.since = doing, time.monotonic()
        try:
            state_file.write(self._run_dir, self._label, self._state)
        except OSError as error:
            sys.stderr.write(f"the state cannot be written: {error}\n")


def _without_none(tree: Any) -> Any:
    """A trackers' table has no null, as TOML has none."""
    if isinstance(tree, dict):
        return {key: _without_none(value) for key, value in tree.items() if value is not None}
    return [_without_none(value) for value in tree] if isinstance(tree, list) else tree


def main(arguments: list[str]) -> int:
    """See the module."""
    die_with_parent()
    os.nice(_NICENESS)  # the engines need the processor more
    run_dir, index, part, first_step = Path(arguments[0]), int(arguments[1]), arguments[2], int(arguments[3])
    config = load_config(run_dir / "config.toml")
    code = Sender(run_dir, config, index, part=part, first_step=first_step).run()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(EXIT_TIMEOUT_S)  # the kernel's, so that it also ends what hangs in C code with the interpreter lock
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

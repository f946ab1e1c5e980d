"""What a run waits for, asked from outside: of the run itself while it answers, else of what it left in its folder.

Invariants:

- Every state of a run has an answer within ``ANSWER_TIMEOUT_S``: one that goes on, one whose event loop is blocked, one
  that is stopped, one that ended, one that was killed without a word.
- Nothing in the folder is changed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from prl import blocked
from prl.chain import Waiting, duration, lines
from prl.check_control import CONTROL_TOKEN
from prl.control import address
from prl.control.address import GoneError
from prl.control.client import Client, Unanswered
from prl.errors import ConfigError, PrlError
from prl.run_folder import Summary
from prl.watchdog import FOLDER, Why

ANSWER_TIMEOUT_S = 5.0
STACKS_TIMEOUT_S = 15.0
_TAIL_BYTES = 1 << 16


class Told(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is known of a run."""

    state: str
    """``running``, ``blocked``, ``silent``, ``killed``, or how it ended: ``done``, ``stopped``, ``failed``."""
    chain: str = ""
    """Who waits for whom, or why it does not go on, in one line."""
    waits: Why | None = None
    steps: int | None = None
    last_event: str | None = None
    last_event_age_s: float | None = None
    error: str | None = None
    stacks: str | None = None
    """Where the stacks were written that were asked for, or those of the last stall."""

    @property
    def is_well(self) -> bool:
        """Whether it goes on, or ended as it should."""
        return self.state in {"running", "done", "stopped"}


def ask(run_dir: Path, *, stacks: bool = False) -> Told:
    """Ask the run in ``run_dir``, or look what is left of it.

    Raises:
        ConfigError: there is no run, or it is not to be asked from here.
    """
    if not (run_dir / "config.toml").exists():
        raise ConfigError(
            f"{run_dir} holds no run (it has no config.toml): name the folder of a run, such as runs/math"
        )
    try:
        where = address.read(run_dir)
    except GoneError:
        return _left_behind(run_dir, was_killed=True)
    except ConfigError:
        if (run_dir / address.CONTROL_FILE).exists():
            raise
        return _left_behind(run_dir, was_killed=False)
    try:
        waits: Why = _client(where, ANSWER_TIMEOUT_S).ask("GET", "/why", Why)
        told = Told(state="running", chain=waits.chain, waits=waits)
    except PrlError as error:
        told = _does_not_answer(run_dir, where, error)
    if stacks and told.waits is not None:
        try:
            told.stacks = _client(where, STACKS_TIMEOUT_S).ask("POST", "/stacks", dict[str, str])["stacks"]
        except PrlError as error:
            told.error = f"the stacks were asked for and not told: {error}"
    return _with_history(run_dir, told)


def lines_of(told: Told) -> list[str]:
    """For people."""
    out = [told.chain or f"the run is {told.state}"]
    if told.waits is not None:
        out += ["", *lines(told.waits.run, "  "), *_of_loops(told.waits.loops)]
    known = {
        "steps done": told.steps,
        "last event": told.last_event and f"{told.last_event}, {duration(told.last_event_age_s or 0.0)} ago",
        "error": told.error,
        "stacks": told.stacks,
    }
    return [*out, "", *(f"{name:12}{value}" for name, value in known.items() if value is not None)]


def _of_loops(loops: list[Waiting]) -> list[str]:
    """The loops, and how many groups are under way."""
    groups = [each for each in loops if each.who.startswith("group ")]
    told = ["", "beside it"] + [line for each in loops if each not in groups for line in lines(each, "  ")]
    return told + ([f"  {len(groups)} groups are rolled out"] if groups else [])


def _client(where: address.ControlAddress, timeout_s: float) -> Client:
    token = where.token or os.environ.get(CONTROL_TOKEN, "")
    return Client(where.url, token, where.url, timeout_s=timeout_s)


def _does_not_answer(run_dir: Path, where: address.ControlAddress, error: PrlError) -> Told:
    """It lives, as far as its file says, and gives no answer: its event loop is blocked, or it is stopped."""
    if not isinstance(error, Unanswered):
        return Told(state="silent", chain=f"the run refuses to answer: {error}")
    with suppress(OSError, msgspec.MsgspecError):
        seen = msgspec.json.decode((run_dir / blocked.FILE).read_bytes(), type=blocked.Blocked)
        if seen.pid == where.pid:
            since = duration(datetime.now(UTC).timestamp() - seen.since)
            return Told(state="blocked", chain=f"the controller's event loop is blocked in {seen.where} for {since}")
    state = _state_of(where.pid)
    return Told(state="silent", chain=f"the run (process {where.pid}, {state}) does not answer: {error}")


def _state_of(pid: int) -> str:
    import psutil  # noqa: PLC0415 - where it is needed

    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone or on another machine"


def _left_behind(run_dir: Path, *, was_killed: bool) -> Told:
    """A run that listens nowhere: it ended, was killed, or is not to be asked."""
    summary: Summary | None = None
    with suppress(OSError, msgspec.MsgspecError):
        summary = msgspec.json.decode((run_dir / "summary.json").read_bytes(), type=Summary)
    if was_killed:  # a summary is then that of an earlier part
        told = Told(state="killed", chain="the run was killed: its process is gone and has not said how it ended")
    elif summary is None:
        why = "it starts, was killed at its start, or runs with control.enabled = false"
        told = Told(state="silent", chain=f"nobody can be asked, and no end is told: {why}")
    else:
        how = {"done": "is done", "stopped": "was stopped, and can be resumed"}.get(summary.status, "failed")
        told = Told(state=summary.status, chain=f"the run {how}", error=summary.error)
    return _with_history(run_dir, told)


def _with_history(run_dir: Path, told: Told) -> Told:
    """Its last step and event, and the last stall."""
    told.steps = _last_line(run_dir / "metrics.jsonl").get("step")
    event = _last_line(run_dir / "events.jsonl")
    with suppress(KeyError, ValueError, TypeError):
        told.last_event = str(event["event"])
        at = datetime.fromisoformat(event["time"])
        told.last_event_age_s = max(0.0, (datetime.now(UTC) - at).total_seconds())
    if told.stacks is None and (dumps := sorted((run_dir / FOLDER).glob("*.txt"))):
        told.stacks = str(dumps[-1])
    return told


def _last_line(path: Path) -> dict[str, Any]:
    """The last whole object of a file of lines; empty without one."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        for line in reversed(file.read().splitlines()):
            with suppress(msgspec.MsgspecError):
                found = msgspec.json.decode(line)
                if isinstance(found, dict):
                    return found
    return {}

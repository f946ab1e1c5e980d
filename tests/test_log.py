"""Events: what the file holds, what people see, and what the host keeps."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from prl import log


class Screen:
    """A console that remembers what was printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def print(self, *objects: Any, style: str | None = None, markup: bool | None = None) -> None:
        """Keep it."""
        assert markup is False
        self.lines.append(" ".join(map(str, objects)))


@pytest.fixture
def screen() -> Screen:
    """A console."""
    return Screen()


@pytest.fixture
def events(tmp_path: Path, screen: Screen) -> Iterator[log.EventLog]:
    """An open log."""
    with log.configure(tmp_path, screen) as opened:
        yield opened


def lines(opened: log.EventLog) -> list[dict[str, Any]]:
    """What the file says, parsed by a parser that takes no NaN."""
    opened.flush()

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in opened.path.read_text().splitlines()]


def test_an_event_is_one_line_of_json(events: log.EventLog) -> None:
    """Time, level, event, logger and fields, in this order."""
    log.get_logger("prl.engines.pool").info("engine ready", engine="engine-0", start_s=1.5)
    (line,) = lines(events)
    assert list(line) == ["time", "level", "event", "logger", "engine", "start_s"]
    assert line["time"].endswith("+00:00")
    assert (line["level"], line["event"], line["logger"]) == ("info", "engine ready", "engines.pool")


def test_a_bound_logger_keeps_its_fields(events: log.EventLog) -> None:
    """``bind`` adds to every event."""
    log.get_logger("x").bind(engine="engine-1").info("hello")
    assert lines(events)[0]["engine"] == "engine-1"


def test_whatever_the_values_are_the_line_is_json(events: log.EventLog) -> None:
    """Not finite, not UTF-8, not serialisable, not even finite in depth: a line all the same, and no exception."""
    loop: list[Any] = []
    loop.append(loop)
    logger = log.get_logger("x")
    logger.info("a", number=float("nan"), path=Path("/x"), items={1, 2}, odd=object())
    logger.info("b", name="\ud800", number=float("inf"))
    logger.info("c", loop=loop, mixed={1: 2, (3,): 4}, huge=1 << 80)
    first, second, third = lines(events)
    assert first["number"] is None
    assert first["path"] == "PosixPath('/x')"
    assert first["items"] == [1, 2]
    assert (second["name"], second["number"]) == ("\\ud800", None)
    assert (third["event"], third["loop"]) == ("c", "[[...]]")


def test_an_exception_brings_its_traceback(events: log.EventLog, screen: Screen) -> None:
    """In the file and on the screen."""
    try:
        int("seven")
    except ValueError:
        log.get_logger("x").exception("it failed")
    assert lines(events)[0]["exception"].endswith("invalid literal for int() with base 10: 'seven'")
    assert screen.lines[0].startswith("error: it failed\nTraceback")


def test_people_see_warnings_and_worse(events: log.EventLog, screen: Screen) -> None:
    """Info stays in the file."""
    logger = log.get_logger("x")
    logger.info("quiet")
    logger.warning("look", engine="[bold]engine-0")
    assert screen.lines == ["warning: look  engine=[bold]engine-0"]
    assert len(lines(events)) == 2


def test_a_flood_of_one_warning_is_shown_once(
    events: log.EventLog, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen says how many were kept back; the file has them all."""
    now = 100.0
    monkeypatch.setattr("prl.log.time.monotonic", lambda: now)
    logger = log.get_logger("x")
    for prompt in range(50):
        logger.warning("rollout dropped", prompt=prompt)
    logger.warning("something else")
    assert screen.lines == ["warning: rollout dropped  prompt=0", "warning: something else"]
    now += 60
    logger.warning("rollout dropped", prompt=50)
    assert screen.lines[-1] == "warning: rollout dropped  prompt=50  not_shown=49"
    assert len(lines(events)) == 52


def test_a_warning_is_on_disk_at_once(events: log.EventLog) -> None:
    """Info may wait a second; what may be the last word does not."""
    logger = log.get_logger("x")
    logger.info("first")
    logger.error("second")
    assert len(events.path.read_text().splitlines()) == 2


def test_info_is_on_disk_within_a_second(events: log.EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next event after a second brings the earlier ones along."""
    now = 100.0
    monkeypatch.setattr("prl.log.time.monotonic", lambda: now)
    events.flush()
    logger = log.get_logger("x")
    logger.info("first")
    assert events.path.read_text() == ""
    now += 1.5
    logger.info("second")
    assert len(events.path.read_text().splitlines()) == 2


def test_threads_do_not_mix_lines(events: log.EventLog) -> None:
    """Every line of every thread arrives whole, and each thread's in order."""

    def work(thread: int) -> None:
        for number in range(200):
            log.get_logger("x").info("e", thread=thread, number=number, padding="x" * 500)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = lines(events)
    for index in range(4):
        assert [line["number"] for line in found if line["thread"] == index] == list(range(200))


def test_a_full_disk_costs_lines_and_not_the_run(
    events: log.EventLog, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning, a count, and no exception."""
    monkeypatch.setattr(events, "_fd", os.open("/dev/full", os.O_WRONLY))
    logger = log.get_logger("x")
    for _ in range(3):
        logger.error("again")
    assert events.num_lost == 3
    assert [line for line in screen.lines if "events are lost" in line] == [
        f"warning: events are lost: {events.path}: No space left on device"
    ]


def test_a_second_run_appends(tmp_path: Path) -> None:
    """A resumed run adds to the events of the first."""
    for word in ("first", "second"):
        with log.configure(tmp_path):
            log.get_logger("x").info(word)
    assert [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_bytes().splitlines()] == [
        "first",
        "second",
    ]


def test_the_host_keeps_its_own_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Used as a library, prl touches no global configuration; its warnings go to the logger ``prl``."""
    with log.configure(tmp_path):
        log.get_logger("x").warning("look", engine=1)
    log.get_logger("x").warning("after the run")
    assert [record.getMessage() for record in caplog.records] == ["look  engine=1", "after the run"]
    assert {record.name for record in caplog.records} == {"prl"}
    assert not structlog.is_configured()


def test_a_library_user_without_logging_sees_nothing() -> None:
    """No handler, no output: not even the standard library's last resort."""
    code = "from prl.log import get_logger; get_logger('x').error('oh')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert (run.stdout, run.stderr) == (b"", b"")


def test_the_program_captures_what_other_libraries_say(
    events: log.EventLog, screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their warnings go to the file only, their errors to people too, Python's warnings to the file."""
    with log.captured():
        logging.getLogger("some_library.engine").warning("slow %s", "tokenizer")
        logging.getLogger("some_library.engine").error("dead")
        structlog.get_logger().info("from a reward", x=1)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert [line["event"].split(":")[-1].strip() for line in lines(events)][:3] == [
        "slow tokenizer",
        "dead",
        "from a reward",
    ]
    assert "DeprecationWarning: old" in lines(events)[3]["event"]
    assert screen.lines == ["error: dead"]
    assert not structlog.is_configured()
    assert capsys.readouterr().err == ""


def test_before_there_is_a_folder_a_warning_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that other libraries warn of is lost."""
    with log.captured():
        logging.getLogger("some_library").warning("old model")
    assert capsys.readouterr().err == "warning: some_library: old model\n"

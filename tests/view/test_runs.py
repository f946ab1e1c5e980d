"""The folder that is served: which runs are in it, how each is, and that no name leads out of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from prl.control import address as control_file
from prl.control.address import ControlAddress
from prl.errors import ConfigError, NotFoundError
from prl.view.run_lines import state_of
from prl.view.runs import MAX_TOLD, Runs


def run_in(path: Path) -> Path:
    """A run that has just begun."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text('model = "builtin:tiny-math"\n[run]\nnum_steps = 7\n')
    return path


def test_the_runs_of_a_folder_are_found_at_any_near_depth(tmp_path: Path) -> None:
    """Those of a sweep too, but no run within a run, nothing hidden, and what is no run is none."""
    for name in ("a", "sweep/b", "sweep/deep/c", "too/deep/by/d", ".hidden/e", "a/inner"):
        run_in(tmp_path / name)
    (tmp_path / "empty").mkdir()
    runs = Runs(tmp_path)
    assert runs.names() == ["a", "sweep/b", "sweep/deep/c"]
    assert runs.path("sweep/b") == (tmp_path / "sweep/b").resolve()


def test_a_single_run_is_served_under_its_own_name_and_nothing_beside_it(tmp_path: Path) -> None:
    """Its neighbours in the folder are nobody's business, but that their curves may be compared with its own."""
    for name in ("one", "two", "deep/three", "no-run/x"):
        run_in(tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    runs = Runs(tmp_path / "one")
    assert runs.names() == ["one"]
    assert [line.run for line in runs.lines()] == ["one"]
    for name in ("two", "deep/three", "link", "no-run", ".."):
        with pytest.raises(NotFoundError):
            runs.path(name)
        if name != "two":
            with pytest.raises(NotFoundError):
                runs.path(name, beside=True)
    assert runs.path("two", beside=True) == tmp_path / "two"


def test_of_many_siblings_the_newest_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many of those with some text in their names, and how many there are; never those of another user."""
    for number in range(MAX_TOLD + 20):
        os.utime(run_in(tmp_path / f"run-{number:03}") / "config.toml", (number, number))
    run_in(tmp_path / "other")
    runs = Runs(tmp_path / "run-000")
    total, told = runs.siblings("run-000", "RUN")
    assert (total, [line.run for line in told]) == (MAX_TOLD + 19, [f"run-{n:03}" for n in range(119, 19, -1)])
    assert [line.run for line in runs.siblings("run-000", "run-11")[1]][:2] == ["run-119", "run-118"]
    of_folder = Runs(tmp_path).siblings("other", "run-00")
    assert (of_folder[0], of_folder[1][0].run) == (10, "run-009")
    users = iter(range(10_000))
    with monkeypatch.context() as another:
        another.setattr(Path, "lstat", lambda self: os.stat_result((0o40755, 1, 1, 1, next(users), 1, 1, 1, 1, 1)))
        assert runs.siblings("run-000", "") == (0, [])


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../secret",
        "in/../../secret",
        ".",
        "",
        "in/",
        "/etc",
        "in//x",
        "in\0",
        "..\\secret",
        "link",
        "a" * 300,
        "in/x/y/z",
    ],
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    """Neither by dots nor by a link; a name that no file can have is no run either."""
    run_in(tmp_path / "secret")
    run_in(tmp_path / "served" / "in")
    (tmp_path / "served" / "link").symlink_to(tmp_path / "secret")
    runs = Runs(tmp_path / "served")
    assert runs.names() == ["in"]
    with pytest.raises(NotFoundError, match="there is no run"):
        runs.path(name)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    """One line that says what to name."""
    with pytest.raises(ConfigError, match="no such folder; name a run folder"):
        Runs(tmp_path / "missing")


def test_how_a_run_is_is_told_from_its_files(tmp_path: Path) -> None:
    """By its summary where it ended, else by its process; one of another machine by when it last wrote."""
    run = run_in(tmp_path / "a")
    assert state_of(run) == "killed"
    (run / "lock").write_text(f"{os.getpid()}\n")
    assert state_of(run) == "live"
    (run / "lock").write_text("no number\n")
    assert state_of(run) == "killed"
    here = control_file.of_this_process("http://127.0.0.1:1", None)
    control_file.write(run, here)
    assert state_of(run) == "live"
    control_file.write(run, msgspec.structs.replace(here, pid=2**22 + 1))
    assert state_of(run) == "killed"
    control_file.write(run, ControlAddress(url=here.url, token=None, pid=1, host=f"not-{socket.gethostname()}"))
    assert state_of(run) == "live"
    os.utime(run / "config.toml", (1, 1))
    assert state_of(run) == "killed"
    for status, state in {"done": "completed", "stopped": "stopped", "failed": "failed", "odd": "failed"}.items():
        (run / "summary.json").write_text(msgspec.json.encode({"status": status}).decode())
        assert state_of(run) == state


def test_the_list_says_how_far_each_run_is(tmp_path: Path, whole: Path) -> None:
    """From the ends of its files, again only when these have changed; what is half written is not there yet."""
    run = run_in(tmp_path / "a")
    runs = Runs(tmp_path)
    (line,) = runs.lines()
    assert (line.step, line.num_steps, line.reward_last, line.started) == (None, 7, None, None)
    (run / "events.jsonl").write_text('{"time": "2026-01-01T00:00:00+00:00"}\n')
    (run / "evaluations.jsonl").write_text(
        '{"step": 0, "complete": true, "reward_mean": 0.25}\n{"step": 2, "complete": false}\n'
    )
    (run / "metrics.jsonl").write_text('{"step": 1, "reward_mean": 0.5}\n{"step": 2')
    (line,) = runs.lines()
    assert (line.step, line.reward_last, line.eval_last, line.started) == (1, 0.5, 0.25, 1767225600.0)
    assert not line.eval_is_accuracy
    told = Runs(whole).line("whole")
    assert (told.state, told.step, told.num_steps) == ("completed", 30, 30)

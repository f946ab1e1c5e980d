"""What a tracker's process sends, when, and what it does where the tracker does not take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.config_trackers import TrackerConfig
from prl.trackers import state as state_file
from prl.trackers.child import MAX_TRIES, MAX_TRIES_AT_END, POLL_S, Sender
from tests.trackers.fakes import notes
from tests.trackers.recorded import add_steps, begin, config_with, end

LABEL = "tests-trackers-fakes-Notebook"


class Time:
    """In place of a pause: notes it, and lets the run do its next thing."""

    def __init__(self, *events: Callable[[], None]) -> None:
        self.pauses: list[float] = []
        self._events: Iterator[Callable[[], None]] = iter(events)

    def __call__(self, seconds: float) -> None:
        """Let it pass."""
        self.pauses.append(seconds)
        next(self._events, lambda: None)()


def sender(
    folder: Path, pause: Callable[[float], None], *, part: str = "a", first_step: int = 0, **options: Any
) -> Sender:
    """The process of a Notebook, for the run in ``folder``."""
    config = config_with(
        TrackerConfig(name="tests.trackers.fakes:Notebook", options={"path": str(folder / "notes"), **options})
    )
    if not (folder / "config.toml").exists():
        begin(folder, config)
    return Sender(folder, config, 0, part=part, first_step=first_step, pause=pause)


def test_points_are_sent_as_they_come_until_the_run_ends(tmp_path: Path) -> None:
    """What is there, then what is appended, then the end; half a line waits for its other half."""

    def half() -> None:
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 3, "lo')

    def other_half() -> None:
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('ss": 9.0}\n')

    time = Time(lambda: add_steps(tmp_path, [1]), half, other_half, lambda: end(tmp_path))
    begin(tmp_path, config_with())
    add_steps(tmp_path, [0])
    assert sender(tmp_path, time).run() == 0
    losses = [["log", 0, 0.5], ["log", 0, None], ["log", 1, 1.5], ["log", 3, 9.0]]  # the second is an evaluation
    assert notes(tmp_path / "notes") == [["open", "", 0, -1], *losses, ["finish", "done"]]
    assert time.pauses == [POLL_S] * 4


def test_a_call_that_fails_comes_again(tmp_path: Path) -> None:
    """After pauses that double, with nothing lost and nothing sent twice; the secret is in no message."""
    begin(tmp_path, config_with())
    add_steps(tmp_path, [1])
    seen: list[str] = []
    look = [lambda: seen.append(state_file.read(tmp_path, LABEL).error)] * 3
    time = Time(*look, lambda: end(tmp_path))
    assert sender(tmp_path, time, num_failures=3, api_token="sesame-open").run() == 0
    assert seen == ["ConnectionError: no answer with the key (hidden)"] * 3
    assert time.pauses == [1.0, 2.0, 4.0, POLL_S]
    assert notes(tmp_path / "notes")[1:] == [["log", 1, 1.5], ["finish", "done"]]
    state = state_file.read(tmp_path, LABEL)
    assert (state.num_errors, state.num_dropped, state.error) == (3, 0, "")


def test_a_point_that_is_refused_is_dropped_and_counted(tmp_path: Path) -> None:
    """The process ends, and one that follows it goes on behind that point."""
    begin(tmp_path, config_with())
    add_steps(tmp_path, [1, 3, 5])
    time = Time()
    assert sender(tmp_path, time, refuse_step=3).run() == 1
    assert len(time.pauses) == MAX_TRIES - 1
    assert sender(tmp_path, Time(lambda: end(tmp_path)), refuse_step=3).run() == 0
    opened = [["open", "", 0, -1], ["log", 1, 1.5], ["open", "notebook-1", 3, 3]]
    assert notes(tmp_path / "notes") == [*opened, ["log", 5, 5.5], ["finish", "done"]]
    assert state_file.read(tmp_path, LABEL).num_dropped == 1


def test_at_the_end_little_is_tried(tmp_path: Path) -> None:
    """A tracker that is away when the run has ended is given up soon."""
    begin(tmp_path, config_with())
    add_steps(tmp_path, [1])
    end(tmp_path)
    time = Time()
    assert sender(tmp_path, time, num_failures=99).run() == 1
    assert len(time.pauses) == MAX_TRIES_AT_END - 1
    state = state_file.read(tmp_path, LABEL)
    assert (state.num_dropped, state.is_finished) == (1, False)


@pytest.mark.parametrize("takes_back", [False, True])
def test_after_an_older_checkpoint_no_step_is_drawn_twice(tmp_path: Path, takes_back: bool) -> None:
    """A tracker that takes back gets the new values of those steps, another none of them."""
    begin(tmp_path, config_with())
    add_steps(tmp_path, [1, 3, 5])
    end(tmp_path, "stopped")
    assert sender(tmp_path, Time(), takes_back=takes_back).run() == 0
    begin(tmp_path, config_with(), 1)
    add_steps(tmp_path, [3, 5, 7], loss=0.25)
    end(tmp_path)
    assert sender(tmp_path, Time(), part="b", first_step=1, takes_back=takes_back).run() == 0
    again = [["log", 3, 3.25], ["log", 5, 5.25]] if takes_back else []
    second = [["open", "notebook-1", 1, 5], *again, ["log", 7, 7.25], ["finish", "done"]]
    assert notes(tmp_path / "notes")[5:] == second


def test_a_process_that_was_killed_is_followed_where_it_was(tmp_path: Path) -> None:
    """Within a part nothing is taken back: the next process is told that what was sent is this run's."""
    begin(tmp_path, config_with())
    add_steps(tmp_path, [1, 3])

    def killed(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sender(tmp_path, killed, takes_back=True).run()
    end(tmp_path)
    assert sender(tmp_path, Time(), takes_back=True).run() == 0
    assert notes(tmp_path / "notes")[3:] == [["open", "notebook-1", 3, 3], ["finish", "done"]]


def test_a_damaged_state_begins_anew(tmp_path: Path) -> None:
    """Curves are then a new run's, from the first step on."""
    path = state_file.path_of(tmp_path, "x")
    state_file.write(tmp_path, "x", state_file.State(id="1"))
    assert state_file.read(tmp_path, "x").id == "1"
    path.write_bytes(path.read_bytes()[:5])
    assert state_file.read(tmp_path, "x") == state_file.State()
    assert msgspec.json.encode(state_file.State())

"""What a running job looks like, in a terminal and without one."""

from __future__ import annotations

import io
import re
from typing import Any

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from prl.estimates import Estimate
from prl.evaluate import Evaluation
from prl.metrics import StepReport
from prl.panel import LivePanel, PlainLines, make_console, make_panel, show
from prl.progress import Progress, duration, sparkline
from tests.factories import make_answer, make_evaluation


def report(step: int, **changes: Any) -> StepReport:
    """One step of a plausible run."""
    fields: dict[str, Any] = dict.fromkeys(StepReport.__struct_fields__, 0.0)
    fields |= {"step": step, "version": step, "samples": 64, "tokens_generated": 6000, "tokens_trained": 5000}
    fields |= {"lag_max": 1, "lag_mean": 0.5, "versions_max": 1, "time_s": 2.0, "reward_mean": step / 10, "ess": 0.98}
    fields |= {"gen_tok_s": 3000.0, "train_tok_s": 2500.0, "trainer_busy": 0.6, "engine_busy": 0.9}
    fields |= dict.fromkeys(("streams_moved", "streams_handed_over", "engine_restarts", "trainer_restarts"), 0)
    fields |= {"lag_histogram": [2500, 2500], "ratio_histogram": [], "length_max": 40}
    fields |= {
        "wait_batch_s": 0.5,
        "pause_s": 0.04,
        "dropped": {},
        "rewards": {},
        "reward_retries": 0,
        "evals_incomplete": 0,
    }
    return msgspec.convert({**fields, **changes}, StepReport)


def evaluation(reward: float, version: int = 0) -> Evaluation:
    """A result on held-out prompts."""
    return make_evaluation(version=version, reward_mean=reward, interval=(reward - 0.05, reward + 0.04))


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock."""
    return Clock()


def plain_console() -> tuple[Console, io.StringIO]:
    """A console that is no terminal, and what it was told."""
    out = io.StringIO()
    return Console(file=out, width=120), out


def terminal(width: int = 100) -> tuple[Console, io.StringIO]:
    """A console that says it is a terminal."""
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=True, color_system=None, legacy_windows=False), out


def draw(panel: LivePanel, width: int = 100) -> list[str]:
    """The panel's lines as they stand now, without the frame's sides."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(panel)
    return [line.strip("│ ").rstrip() for line in out.getvalue().splitlines()]


def test_without_a_terminal_there_are_plain_lines() -> None:
    """And wherever they are asked for, or the terminal cannot move its cursor."""
    console, _ = plain_console()
    assert isinstance(make_panel(console, title="x", num_steps=1), PlainLines)
    console, _ = terminal()
    assert isinstance(make_panel(console, title="x", num_steps=1, plain=True), PlainLines)
    live = make_panel(console, title="x", num_steps=1)
    live.close()
    assert isinstance(live, LivePanel)


def test_a_plain_line_has_the_facts_of_a_step(clock: Clock) -> None:
    """Step, reward, lag, tokens a second, who waits for whom, ESS, time left: on one line however long."""
    console, out = plain_console()
    panel = PlainLines(console, title="math", num_steps=10, clock=clock)
    panel.update(report(1))
    title, line = out.getvalue().splitlines()
    assert title == "prl: math, 10 steps"
    assert line.split(" | ") == [
        "step 1/10",
        "reward 0.100",
        "lag max 1 mean 0.50",
        "tok/s generated 3000 trained 2500",
        "trainer busy 60% waits for batch 25% engines busy 90% paused for weights 2%",
        "ess 0.980",
        "left 0:18",
    ]


def test_the_page_is_named_wherever_the_run_says_what_it_does(clock: Clock) -> None:
    """A line of its own, so that it can be opened; in the live panel from the start on and beside the steps."""
    console, out = plain_console()
    PlainLines(console, title="math", num_steps=10, clock=clock).page("http://127.0.0.1:8471/")
    assert out.getvalue().splitlines()[-1] == "page  http://127.0.0.1:8471/"
    panel = LivePanel(terminal()[0], title="math", num_steps=10, clock=clock)
    panel.page("http://127.0.0.1:8471/")
    assert "page  http://127.0.0.1:8471/" in draw(panel)
    panel.update(report(1))
    assert any(line.split() == ["page", "http://127.0.0.1:8471/"] for line in draw(panel))
    panel.close()


def test_plain_lines_are_ascii(clock: Clock) -> None:
    """A log may be read with any encoding."""
    console, out = plain_console()
    panel = PlainLines(console, title="math", num_steps=10, clock=clock)
    panel.stage("starting")
    panel.update(report(1, dropped={"reward_timeout": 2}))
    panel.evaluated(evaluation(0.5))
    panel.close()
    assert out.getvalue().isascii()
    assert "dropped 2" in out.getvalue()


def test_plain_steps_are_printed_once_a_second_and_the_last_always(clock: Clock) -> None:
    """A fast run does not fill the log, and its end is not missing."""
    console, out = plain_console()
    panel = PlainLines(console, title="math", num_steps=100, clock=clock)
    for step in range(1, 24):
        panel.update(report(step))
        clock.now += 0.125
    panel.close()
    panel.close()
    printed = [int(match[1]) for match in re.finditer(r"^step (\d+)/", out.getvalue(), re.MULTILINE)]
    assert printed == [1, 9, 17, 23]


def test_plain_stages_say_when(clock: Clock) -> None:
    """Each phase of the start with the time since the beginning; an evaluation with what it found."""
    console, out = plain_console()
    panel = PlainLines(console, title="math", num_steps=1, clock=clock)
    panel.stage("starting 2 engines")
    clock.now += 65
    panel.stage("sending the first weights")
    panel.evaluated(evaluation(0.25))
    panel.update(report(1))
    panel.evaluated(evaluation(0.75, version=1))
    assert out.getvalue().splitlines()[1:4] == [
        "[0:00] starting 2 engines",
        "[1:05] sending the first weights",
        "held out: 0.250 (0.200 to 0.290) at step 0 (128 prompts)",
    ]
    last = out.getvalue().splitlines()[-1]
    assert last == "held out: 0.250 before, 0.750 (0.700 to 0.790) at step 1 (128 prompts)"


def test_pass_at_k_is_shown_where_it_was_asked_for(clock: Clock) -> None:
    """With several answers a prompt: how many, how many failed, and each k; the answers themselves are not kept."""
    console, out = plain_console()
    panel = PlainLines(console, title="math", num_steps=1, clock=clock)
    several = make_evaluation(
        make_answer(),
        pass_at={k: Estimate(mean=k / 5, low=0.1, high=0.9) for k in (1, 4)},
        num_answers=510,
        num_failed=2,
    )
    panel.evaluated(several)
    assert out.getvalue().splitlines()[-1] == (
        "held out: 0.500 (0.400 to 0.600), pass@1 0.200, pass@4 0.800 at step 0 (128 prompts, 510 answers, 2 failed)"
    )
    assert panel._progress.evaluations == [(0, msgspec.structs.replace(several, answers=[]))]


def test_the_live_panel_lists_the_stages_of_the_start(clock: Clock) -> None:
    """Those that are over with their time, the one under way with its time so far."""
    panel = LivePanel(terminal()[0], title="math", num_steps=10, clock=clock)
    panel.stage("starting 2 engines")
    clock.now += 33
    panel.stage("sending the first weights")
    clock.now += 2
    top, first, second, bottom = draw(panel)
    panel.close()
    assert "prl  math" in top
    assert first == "✓  starting 2 engines  0:33"
    assert second.endswith("sending the first weights  0:02")
    assert "0:35" in bottom


def test_the_live_panel_shows_the_facts_of_the_run(clock: Clock) -> None:
    """Progress, reward with its history, held out, lag, speed, waits, drops; the stages of the start are gone."""
    panel = LivePanel(terminal()[0], title="math", num_steps=10, clock=clock)
    panel.stage("starting")
    panel.evaluated(evaluation(0.25))
    for step in range(1, 5):
        panel.update(report(step, dropped={"timeout": 1}))
    panel.evaluated(evaluation(0.5, version=4))
    lines = draw(panel)
    panel.close()
    rows = {line.split("  ")[0].strip(): line for line in lines[1:-1]}
    assert rows["step"].endswith("4/10  40%  0:12 left")
    assert "0.400  ▁▃▆█  0.100 at first" in rows["reward"]
    assert "0.250 before, 0.500 (0.450 to 0.540) at step 4" in rows["held out"]
    assert "max 1  mean 0.50   ESS 0.980" in rows["lag"]
    assert "3,000 generated   2,500 trained" in rows["tokens/s"]
    assert "trainer busy 60%   waits for batch 25%   engines busy 90%   paused for weights 2%" in rows["time"]
    assert "4 completions" in rows["dropped"]
    assert "starting" not in "".join(lines)


def test_the_live_panel_says_what_goes_on_between_steps(clock: Clock) -> None:
    """An evaluation, a save, the end: with its time, until the next step."""
    panel = LivePanel(terminal()[0], title="math", num_steps=10, clock=clock)
    panel.update(report(1))
    panel.stage("evaluating 128 held-out prompts")
    clock.now += 3
    assert any(line.startswith("now") and line.endswith("held-out prompts  0:03") for line in draw(panel))
    panel.update(report(2))
    assert not any(line.startswith("now") for line in draw(panel))
    panel.close()


@pytest.mark.parametrize("width", [40, 60, 200])
def test_the_live_panel_fits_any_width(clock: Clock, width: int) -> None:
    """Rows are cut, never wrapped: the panel keeps its height."""
    panel = LivePanel(terminal()[0], title="a name that is long [bold]and odd", num_steps=10, clock=clock)
    panel.update(report(1))
    lines = draw(panel, width)
    panel.close()
    assert len(lines) == 7


def test_the_live_panel_gives_the_terminal_back(clock: Clock) -> None:
    """The cursor is shown again, and closing twice is fine."""
    console, out = terminal()
    panel = LivePanel(console, title="math", num_steps=10, clock=clock)
    panel.update(report(1))
    panel.close()
    panel.close()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_a_warning_is_printed_above_the_live_panel(clock: Clock) -> None:
    """Through the same console, so that neither tears the other."""
    console, out = terminal()
    panel = LivePanel(console, title="math", num_steps=10, clock=clock)
    console.print("warning: look")
    panel.close()
    assert out.getvalue().index("warning: look") < out.getvalue().rindex("╭─ prl")


def test_shares_are_over_the_last_steps_by_their_time() -> None:
    """A long step counts for more than a short one, and what is long ago for nothing."""
    progress = Progress(100)
    for step in range(1, 20):
        progress.add(report(step, trainer_busy=0.0, time_s=50.0))
    for step in range(20, 30):
        progress.add(report(step, trainer_busy=float(step % 2), time_s=3.0 if step % 2 else 1.0, wait_batch_s=1.0))
    assert progress.mean("trainer_busy") == pytest.approx(0.75)
    assert progress.share("wait_batch_s") == pytest.approx(0.5)
    assert progress.seconds_left == pytest.approx(71 * 2.0)


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 8, ""),
        ([0.5], 8, "▄"),
        ([0.5, 0.5, 0.5], 8, "▄▄▄"),
        ([0.0, 1.0], 8, "▁█"),
        (list(range(8)), 8, "▁▂▃▄▅▆▇█"),
        (list(range(800)), 8, "▁▂▃▄▅▆▇█"),
        ([0.0, 0.0, 1.0, 1.0, 0.0, 0.0], 3, "▁█▁"),
        ([0.1, 0.1 + 1e-17], 4, "▄▄"),
    ],
)
def test_a_sparkline_scales_and_averages(values: list[float], width: int, expected: str) -> None:
    """From the lowest to the highest of the run, as many blocks as fit."""
    assert sparkline(values, width) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.4, "0:00"), (7, "0:07"), (750, "12:30"), (10921, "3:02:01"), (-1, "0:00")]
)
def test_durations_read_like_a_clock(seconds: float, expected: str) -> None:
    """Minutes and seconds, hours where there are any."""
    assert duration(seconds) == expected


def test_a_pipe_is_wide_and_has_no_trailing_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    """Reports go to logs as people would type them."""
    console = make_console()
    table = Table.grid(padding=(0, 2))
    table.add_row("short", "text")
    table.add_row("longer", "y" * 100)
    show(console, table)
    assert console.width == 120
    assert capsys.readouterr().out == "short   text\nlonger  " + "y" * 100 + "\n"

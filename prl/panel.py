"""What a running job looks like: a live panel in a terminal, plain lines anywhere else. Both say the same.

- Nothing here is on the training path: the panel is told, it never asks, and it keeps no more than ``Progress`` does.
- Plain lines are ASCII, one fact after the other, at most one step a second; the last step is always printed.
- Text that comes from outside is printed as it is, never read as markup.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.box import ROUNDED
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from prl.evaluate import Evaluation
from prl.metrics import StepReport
from prl.progress import Progress, duration, held_out, num_asked, percent, sparkline

PLAIN_INTERVAL_S = 1.0
PLAIN_WIDTH = 120
REFRESH_PER_SECOND = 4
SPARKLINE_WIDTH = 40
"""Characters of a curve, and of the bar of steps."""

Clock = Callable[[], float]


class Panel(Protocol):
    """Where a run says what it does."""

    def stage(self, text: str) -> None:
        """A phase begins, and the one before it ends: ``starting 2 vllm engines``."""
        ...

    def page(self, url: str) -> None:
        """The run can be looked at there."""
        ...

    def update(self, report: StepReport) -> None:
        """A step is done."""
        ...

    def evaluated(self, evaluation: Evaluation) -> None:
        """The held-out prompts were answered."""
        ...

    def close(self) -> None:
        """Show the last state and give the terminal back. Idempotent."""
        ...


def show(console: Console, content: RenderableType) -> None:
    """Print ``content``; where there is no terminal, without the blanks that fill its lines."""
    if console.is_terminal:
        console.print(content, highlight=False)
        return
    with console.capture() as captured:
        console.print(content, highlight=False)
    for line in captured.get().splitlines():
        say(console, line.rstrip())


def say(console: Console, line: str) -> None:
    """Print a line as it is: no markup, no colours, and not broken, so that it can be copied."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_console() -> Console:
    """Standard output; a pipe or a file is as wide as a wide terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def make_panel(console: Console, *, title: str, num_steps: int, plain: bool = False) -> Panel:
    """The live panel where ``console`` is a terminal that can show one, plain lines elsewhere."""
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return PlainLines(console, title=title, num_steps=num_steps)
    return LivePanel(console, title=title, num_steps=num_steps)


class PlainLines:
    """One line a fact, for logs and pipes."""

    def __init__(self, console: Console, *, title: str, num_steps: int, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._progress = Progress(num_steps)
        self._started_at = clock()
        self._printed_at = -PLAIN_INTERVAL_S
        self._unprinted = False
        say(console, f"prl: {title}, {num_steps} steps")

    def stage(self, text: str) -> None:
        """Print it with the time since the start."""
        self._catch_up()
        say(self._console, f"[{duration(self._clock() - self._started_at)}] {text}")

    def page(self, url: str) -> None:
        """Print it."""
        say(self._console, f"page  {url}")

    def update(self, report: StepReport) -> None:
        """Print the step, unless another was printed within the second."""
        self._progress.add(report)
        self._unprinted = True
        if self._clock() - self._printed_at >= PLAIN_INTERVAL_S:
            self._catch_up()

    def evaluated(self, evaluation: Evaluation) -> None:
        """Print the result."""
        self._progress.evaluated(evaluation)
        self._catch_up()
        say(self._console, f"held out: {held_out(self._progress)} ({num_asked(evaluation)})")

    def close(self) -> None:
        """Print the last step if it was passed over."""
        self._catch_up()

    def _catch_up(self) -> None:
        if self._unprinted:
            say(self._console, step_line(self._progress))
            self._printed_at, self._unprinted = self._clock(), False


def step_line(progress: Progress) -> str:
    """The latest step on one line."""
    report = progress.latest
    assert report is not None
    shares = " ".join(f"{name} {percent(share)}" for name, share in progress.waits())
    parts = [
        f"step {report.step}/{progress.num_steps}",
        f"reward {report.reward_mean:.3f}",
        f"lag max {report.lag_max} mean {report.lag_mean:.2f}",
        f"tok/s generated {progress.mean('gen_tok_s'):.0f} trained {progress.mean('train_tok_s'):.0f}",
        shares,
        f"ess {report.ess:.3f}",
        f"left {duration(progress.seconds_left or 0)}",
    ]
    if progress.num_dropped:
        parts.append(f"dropped {progress.num_dropped}")
    return " | ".join(parts)


class _Stage:
    """A phase with its time."""

    def __init__(self, text: str, began_at: float) -> None:
        self.text, self.began_at = text, began_at
        self.ended_at: float | None = None
        self.spinner = Spinner("dots")


class LivePanel:
    """A panel that stays in place and is redrawn a few times a second by a thread of rich's."""

    def __init__(self, console: Console, *, title: str, num_steps: int, clock: Clock = time.monotonic) -> None:
        self._title, self._clock = title, clock
        self._progress = Progress(num_steps)
        self._started_at = clock()
        self._stages: list[_Stage] = []
        self._page: str | None = None
        self._lock = threading.Lock()
        self._live = Live(self, console=console, refresh_per_second=REFRESH_PER_SECOND, vertical_overflow="crop")
        self._live.start()

    def stage(self, text: str) -> None:
        """Begin a phase; before the first step all phases are listed, later only the one under way."""
        with self._lock:
            self._end_stage()
            self._stages.append(_Stage(text, self._clock()))

    def page(self, url: str) -> None:
        """Show it from the next redraw on."""
        with self._lock:
            self._page = url

    def update(self, report: StepReport) -> None:
        """Show the step at the next redraw."""
        with self._lock:
            self._end_stage()
            self._progress.add(report)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Show the result at the next redraw."""
        with self._lock:
            self._end_stage()
            self._progress.evaluated(evaluation)

    def close(self) -> None:
        """Draw once more and leave the panel standing above what follows."""
        with self._lock:
            self._end_stage()
        self._live.stop()

    def _end_stage(self) -> None:
        if self._stages and self._stages[-1].ended_at is None:
            self._stages[-1].ended_at = self._clock()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            now = self._clock()
            rows = Table.grid(padding=(0, 2))
            rows.add_column(style="dim", no_wrap=True)
            rows.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
            if self._progress.latest is None:
                for stage in self._stages:
                    rows.add_row(*self._stage_row(stage, now))
            else:
                for label, content in step_rows(self._progress, self._progress.latest):
                    rows.add_row(label, content)
                if self._stages[-1:] and self._stages[-1].ended_at is None:
                    rows.add_row("now", f"{self._stages[-1].text}  {duration(now - self._stages[-1].began_at)}")
            if self._page is not None:
                rows.add_row("page", self._page)
            elapsed = duration(now - self._started_at)
        title = Text.assemble(("prl", "bold"), f"  {self._title}")
        yield Frame(rows, title=title, title_align="left", subtitle=elapsed, subtitle_align="right", box=ROUNDED)

    def _stage_row(self, stage: _Stage, now: float) -> tuple[RenderableType, Text]:
        if stage.ended_at is None:
            return stage.spinner, Text(f"{stage.text}  {duration(now - stage.began_at)}")
        return Text("✓", "green"), Text(f"{stage.text}  {duration(stage.ended_at - stage.began_at)}", "dim")


def step_rows(
    progress: Progress, report: StepReport, *, width: int = SPARKLINE_WIDTH
) -> Iterator[tuple[str, RenderableType]]:
    """The latest step and what led to it, a label and its content each; bars and curves are ``width`` wide."""
    yield "step", _bar(progress, report.step, width)
    yield "reward", _reward(progress, width)
    if progress.evaluations:
        yield "held out", held_out(progress)
    yield "lag", f"max {report.lag_max}  mean {report.lag_mean:.2f}   ESS {report.ess:.3f}"
    yield "tokens/s", f"{progress.mean('gen_tok_s'):,.0f} generated   {progress.mean('train_tok_s'):,.0f} trained"
    yield "time", "   ".join(f"{name} {percent(share)}" for name, share in progress.waits())
    if progress.num_dropped:
        yield "dropped", Text(f"{progress.num_dropped} completions: see metrics.jsonl and events.jsonl", "yellow")


def _bar(progress: Progress, step: int, width: int) -> Table:
    total, left = max(1, progress.num_steps), progress.seconds_left or 0
    row = Table.grid(padding=(0, 2))
    for _ in range(4):
        row.add_column(no_wrap=True)
    bar = ProgressBar(total=total, completed=step, width=width)
    row.add_row(bar, f"{step}/{progress.num_steps}", percent(step / total), f"{duration(left)} left")
    return row


def _reward(progress: Progress, width: int) -> Text:
    line = sparkline(progress.rewards, width)
    first, last = progress.rewards[0], progress.rewards[-1]
    return Text.assemble((f"{last:.3f}", "bold"), "  ", (line, "cyan"), f"  {first:.3f} at first")

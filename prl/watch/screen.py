"""How a run looks in a terminal of any size: pure, from what was seen to what rich draws.

- A narrow terminal gets shorter curves and cut lines, a low one no curves but the reward's, and fewer events; nothing
  wraps but the chain of who waits for whom.
- What a state means stands there in words, never in colour alone.
- Texts of the run are printed without control characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel as Frame
from rich.table import Table
from rich.text import Text

from prl.engines.seat import EngineStatus
from prl.panel import step_rows
from prl.progress import duration, sparkline
from prl.status import Status
from prl.watch.seen import Seen

LEAVE = "q leaves; the run goes on"
MIN_CURVE, MAX_CURVE = 4, 60
_LABELS_WIDTH, _FRAME_WIDTH, _NUMBERS_WIDTH = 10, 6, 26
_FRAME_HEIGHT = 3
_NARROW, _MIN_TEXT = 72, 16
_MAX_EVENTS, _MAX_CHAIN = 8, 4
_CURVES = {
    "entropy": "entropy",
    "grad_norm": "grad norm",
    "lag_mean": "lag mean",
    "length_mean": "length",
    "gen_tok_s": "tok/s",
}
_STYLES = {"running": "green", "done": "green", "stopped": "yellow"}
_HIDDEN = frozenset({"time", "level", "event", "logger", "exception"})


def render(seen: Seen, width: int, height: int, *, footer: str = "") -> RenderableType:
    """The whole view, at most ``height`` lines where leaving out curves and events suffices for it."""
    found = list(_rows(seen, width))
    if len(found) > height - _FRAME_HEIGHT:
        found = [(label, content) for label, content in found if label not in _CURVES.values()]
    rows = _grid(max(len(label) for label, _ in found))
    for label, content in found:
        rows.add_row(label, content)
    state = Text(seen.told.state, _STYLES.get(seen.told.state, "red"))
    title = Text.assemble(("prl watch", "bold"), f"  {plain(seen.name)}  ", state)
    frame = Frame(
        rows, title=title, title_align="left", subtitle=footer or None, subtitle_align="right", box=ROUNDED, width=width
    )
    num_events = max(0, min(_MAX_EVENTS, height - rows.row_count - _FRAME_HEIGHT - 1))
    return Group(frame, *_events(seen.events[-num_events:] if num_events else [], width))


def plain(text: str) -> str:
    """``text`` on one line, without what a terminal takes for a command."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _grid(labels_width: int) -> Table:
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="dim", no_wrap=True, min_width=labels_width)
    rows.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    return rows


def _rows(seen: Seen, width: int) -> Iterator[tuple[str, RenderableType]]:
    curve = max(MIN_CURVE, min(MAX_CURVE, width - _LABELS_WIDTH - _FRAME_WIDTH - _NUMBERS_WIDTH))
    status, progress = seen.status, seen.progress
    if status is not None:
        yield "now", f"{plain(status.stage)}  {duration(status.stage_s)}"
    chain = wrap(plain(seen.told.chain), max(_MIN_TEXT, width - _LABELS_WIDTH - _FRAME_WIDTH))[:_MAX_CHAIN]
    for at, line in enumerate(chain):  # whole, since what has to move stands at its end
        label = "" if at else "waits" if status is not None else "state"
        yield label, Text(line, "" if seen.told.is_well else "red")
    if progress.latest is None:
        yield "step", "none yet"
    else:
        yield from step_rows(progress, progress.latest, width=curve)
        for name, label in _CURVES.items():
            values = [value for value in seen.curves[name] if value == value]  # noqa: PLR0124 -- no NaN
            if values:
                yield label, Text.assemble((f"{values[-1]:<9.4g}", "bold"), " ", (sparkline(values, curve), "cyan"))
    if status is not None:
        yield from _of_status(status, width)
    if seen.summary is not None and seen.summary.error:
        yield "error", Text(plain(seen.summary.error), "red")
    if not seen.told.is_well and seen.told.stacks:
        yield "stacks", plain(seen.told.stacks)


def _of_status(status: Status, width: int) -> Iterator[tuple[str, RenderableType]]:
    if (slots := status.slots) is not None:
        counts = f"{slots.running} running  {slots.finished} finished  {slots.taken} taken"
        yield "slots", f"{counts}   {slots.streams} streams, {slots.num_slots} slots"
    if status.trainer is not None:
        restarts = f", started again {status.trainer.restarts} times" if status.trainer.restarts else ""
        yield "trainer", f"{status.trainer.state}{restarts}"
    for engine in status.engines:
        yield engine.name, _engine(engine, width)


def _engine(engine: EngineStatus, width: int) -> Text:
    state = Text(f"{engine.state:9}", "green" if engine.state == "serving" else "yellow")
    text = Text.assemble(state, f" v{engine.version}  {engine.streams:3} streams")
    if width >= _NARROW:
        text.append(f"  {engine.tokens_generated:,} tokens")
    if engine.restarts:
        text.append(f"  {engine.restarts} restarts", "yellow")
    if engine.why and engine.state != "serving":
        text.append(f"  {plain(engine.why.splitlines()[0])}", "dim")
    return text


def _events(events: list[dict[str, Any]], width: int) -> Iterator[Text]:
    for event in events:
        level = str(event.get("level", "info"))
        facts = "  ".join(f"{key}={value}" for key, value in event.items() if key not in _HIDDEN)
        line = f"{str(event.get('time', ''))[11:19]} {level:7} {event.get('event', '')}  {facts}"
        style = {"warning": "yellow", "error": "red"}.get(level, "dim")
        text = Text(plain(line), style, no_wrap=True, overflow="ellipsis")
        text.truncate(width, overflow="ellipsis")
        yield text

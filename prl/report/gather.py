"""What a report says of one run, read from its folder."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from prl.errors import ConfigError
from prl.view import facts
from prl.view.columns import Columns
from prl.view.facts import Setting
from prl.view.files import last_lines, read_at
from prl.view.run import OpenRun
from prl.view.run_lines import state_of
from prl.view.runs import is_run

NUM_EVENTS = 30
_SAMPLE_BYTES = 1 << 20
_WITHOUT_LIMIT_S = 1e9


class Sample(msgspec.Struct):
    """What is shown of a line of ``samples.jsonl``."""

    step: int
    reward: float
    finish: str = ""
    prompt: str = ""
    completion: str = ""
    parts: dict[str, float | None] = {}
    token_ids: list[int] = []
    versions: list[int] = []


class Told(NamedTuple):
    """One run."""

    name: str
    path: Path
    state: str
    settings: list[Setting]
    versions: dict[str, Any]
    summary: dict[str, Any]
    columns: Columns
    evaluations: list[dict[str, Any]]
    events: list[dict[str, Any]]
    """The last warnings and errors, oldest first."""
    kinds: list[tuple[str, int]]
    """Events that are warnings or errors, by their sentence, the most frequent first."""
    samples: list[Sample]
    """A few of the first step that was written, and of the last."""
    skipped: dict[str, int]


def gather(path: Path) -> Told:
    """Read the run in ``path``.

    Raises:
        ConfigError: there is none.
    """
    if not path.is_dir() or not is_run(path):
        raise ConfigError(f"{path} holds no run (it has no config.toml): name the folder of a run, such as runs/math")
    path = path.resolve()
    run = OpenRun(path.name, path)
    try:
        with run.current("metrics.jsonl", "evaluations.jsonl", "events.jsonl", patience_s=_WITHOUT_LIMIT_S):
            page = run.events.page(is_newest_first=True, after=None, limit=10_000, level="warning", text="")
    finally:
        run.close()
    counts = Counter(str(event.get("event", "")) for event in page.events)
    return Told(
        name=path.name,
        path=path,
        state=state_of(path),
        settings=facts.settings(path),
        versions=facts.versions(path),
        summary=facts.summary(path) or {},
        columns=run.metrics,
        evaluations=run.evaluations.rows,
        events=page.events[:NUM_EVENTS][::-1],
        kinds=counts.most_common(NUM_EVENTS),
        samples=_samples(path / "samples.jsonl"),
        skipped=run.skipped(),
    )


def total(columns: Columns, name: str) -> float:
    """The sum of a column; 0 where there is none."""
    return float(np.nansum(columns.column(name)))


def dropped(columns: Columns) -> dict[str, int]:
    """Completions that came to nothing, by reason."""
    names = [name for name in columns.names if name.startswith("dropped_")]
    return {name.removeprefix("dropped_"): int(total(columns, name)) for name in names}


def _samples(path: Path) -> list[Sample]:
    """The best and the worst of the first lines' first step, and of the last lines' last."""
    first, last = _decoded(_first_lines(path)), _decoded(last_lines(path, _SAMPLE_BYTES))
    if not first or not last:
        return []
    at_first = [sample for sample in first if sample.step == first[0].step]
    at_last = [sample for sample in last if sample.step == last[-1].step]
    return _extremes(at_first) + (_extremes(at_last) if first[0].step != last[-1].step else [])


def _first_lines(path: Path) -> list[bytes]:
    try:
        found = read_at(path, 0, _SAMPLE_BYTES)
    except OSError:
        return []
    return found.rpartition(b"\n")[0].splitlines()


def _decoded(lines: list[bytes]) -> list[Sample]:
    found = []
    for line in lines:
        with suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=Sample))
    return found


def _extremes(samples: list[Sample]) -> list[Sample]:
    """The sample with the largest reward and that with the least, or one where they are equal."""
    best, worst = (choose(samples, key=lambda sample: sample.reward) for choose in (max, min))
    return [best] if best.reward == worst.reward else [best, worst]

"""What the page asks for: paths and their parameters, to what the readers say.

Every answer is made in a thread; nothing here waits for anything but files and, for its status, the run itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from prl.errors import ConfigError
from prl.trainer.base import LOG_RATIO_EDGES
from prl.view import browse, facts, series
from prl.view.live import Statuses
from prl.view.run import OpenRun
from prl.view.runs import Runs

MAX_KEYS, MAX_POINTS, MAX_LIMIT = 200, 5000, 500
_MAX_ID = 1 << 31
COMPARED = ("keys", "series", "evaluations")
"""What can be asked of a run that lies beside the one that is served."""
SORTS = ("step", "-step", "reward", "-reward", "length", "-length")
Query = Mapping[str, str]


class Asked:
    """The parameters of a request. Each method raises ConfigError, which names the parameter and its value."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def text(self, name: str) -> str:
        """As it is; empty where it is absent."""
        return self._query.get(name, "")

    def names(self, name: str) -> list[str]:
        """Between commas."""
        found = [part for part in self.text(name).split(",") if part]
        if len(found) > MAX_KEYS:
            raise ConfigError(f"{name} names {len(found)}; at most {MAX_KEYS} at once")
        return found

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of these, the first where it is absent."""
        found = self.text(name) or allowed[0]
        if found not in allowed:
            raise ConfigError(f"{name} = {found!r} must be one of {', '.join(filter(None, allowed))}")
        return found

    def number(self, name: str) -> float | None:
        """A finite number."""
        text = self.text(name)
        if not text:
            return None
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            raise ConfigError(f"{name} = {text!r} must be a number")
        return found

    def whole(self, name: str) -> int | None:
        """A whole number of 64 bits."""
        found = self.number(name)
        if found is None:
            return None
        text = self.text(name)
        if not text.lstrip("-").isdecimal() or abs(found) >= 2**63:
            raise ConfigError(f"{name} = {text!r} must be a whole number")
        return int(text)

    def count(self, name: str, default: int, most: int) -> int:
        """A number from 1 to ``most``."""
        found = self.whole(name)
        if found is None:
            return default
        if not 1 <= found <= most:
            raise ConfigError(f"{name} = {found} must be from 1 to {most}")
        return found


class Api:
    """See the module. Blocking; any thread may call."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.statuses = runs, Statuses()
        self.of_runs: dict[str, Callable[[OpenRun, Asked], Any]] = {
            "keys": self._keys,
            "series": self._series,
            "histograms": self._histograms,
            "evaluations": self._evaluations,
            "timeline": self._timeline,
            "groups": self._groups,
            "run": self._run,
            "events": self._events,
            "siblings": self._siblings,
        }
        """What can be asked of a run, by the last part of its path."""

    def list_runs(self) -> Any:
        """``/api/runs``."""
        return {"root": self.runs.shown, "runs": self.runs.lines()}

    def of_run(self, name: str, what: str, query: Query) -> Any:
        """``/api/{run}/{what}``. Raises NotFoundError, ConfigError, IndexingError."""
        return self.of_runs[what](self.runs.open(name, beside=what in COMPARED), Asked(query))

    def group(self, name: str, number: str) -> Any:
        """``/api/{run}/groups/{group}``. The same."""
        run = self.runs.open(name)
        with run.current("samples.jsonl"):
            return browse.group(run.samples, _number(number))

    def sample(self, name: str, number: str) -> Any:
        """``/api/{run}/samples/{id}``. The same."""
        run = self.runs.open(name)
        with run.current("samples.jsonl"):
            line = browse.sample(run.samples, _number(number))
        return {**line, "tokens": _texts(run, line.get("token_ids"))}

    def _keys(self, run: OpenRun, _: Asked) -> Any:
        with run.current("metrics.jsonl", "evaluations.jsonl", "gauges.jsonl"):
            return {
                "metrics": run.metrics.names,
                "rewards": series.rewards(run.metrics),
                "evaluations": run.evaluations.names,
                "histograms": run.metrics.histogram_names,
                "gauges": [name for name in run.gauges.names if name != "at"],
                "steps": run.metrics.num_rows,
            }

    def _series(self, run: OpenRun, asked: Asked) -> Any:
        with run.current("metrics.jsonl"):
            return series.series(
                run.metrics,
                asked.names("keys"),
                x=asked.one_of("x", series.AXES),
                first=asked.number("from"),
                last=asked.number("to"),
                points=asked.count("points", 1000, MAX_POINTS),
            )

    def _histograms(self, run: OpenRun, asked: Asked) -> Any:
        key = asked.one_of("key", ("lag_histogram", "ratio_histogram"))
        with run.current("metrics.jsonl"):
            steps, counts = series.histograms(
                run.metrics,
                key,
                first=asked.number("from"),
                last=asked.number("to"),
                points=asked.count("points", 200, MAX_POINTS),
            )
        is_lag = key == "lag_histogram"
        return {
            "step": steps,
            "edges": list(range(counts.shape[1] + 1)) if is_lag else LOG_RATIO_EDGES,
            "counts": counts,
        }

    def _evaluations(self, run: OpenRun, _: Asked) -> Any:
        with run.current("evaluations.jsonl"):
            return run.evaluations.rows

    def _timeline(self, run: OpenRun, asked: Asked) -> Any:
        first, last, points = asked.number("from"), asked.number("to"), asked.count("points", 2000, MAX_POINTS)
        recent = asked.number("recent")
        with run.current("timeline.jsonl", "gauges.jsonl"):
            if recent is not None and run.timeline.extent:
                last = run.timeline.extent[1]
                first = last - max(recent, 0.0)
            since, until, spans = run.timeline.shown(first, last, lanes=asked.names("lanes"), points=points)
            begin, end = run.timeline.extent or (None, None)
            found: dict[str, Any] = {
                "lanes": run.timeline.lanes,
                "begin": begin,
                "end": end,
                "from": since,
                "to": until,
                "spans": spans,
            }
            if asked.text("gauges") in {"1", "true"}:
                names = [name for name in run.gauges.names if name != "at"]
                told = series.series(run.gauges, names, x="at", by="at", first=first, last=last, points=points)
                means = {name: curve["mean"] for name, curve in told["series"].items()}
                found["gauges"] = {"at": told["x"], **means}
        return found

    def _groups(self, run: OpenRun, asked: Asked) -> Any:
        wanted = browse.Wanted(
            first=asked.whole("from"),
            last=asked.whole("to"),
            reward_min=asked.number("reward_min"),
            reward_max=asked.number("reward_max"),
            length_min=asked.number("length_min"),
            length_max=asked.number("length_max"),
            finish=asked.text("finish"),
            text=asked.text("q").strip(),
            sort=asked.one_of("sort", SORTS),
            offset=max(0, asked.whole("offset") or 0),
            limit=asked.count("limit", 50, MAX_LIMIT),
        )
        with run.current("samples.jsonl"):
            return browse.groups(run.samples, wanted)

    def _siblings(self, run: OpenRun, asked: Asked) -> Any:
        total, found = self.runs.siblings(run.name, asked.text("q").strip())
        return {"total": total, "runs": found}

    def _run(self, run: OpenRun, _: Asked) -> Any:
        status = self.statuses.of(run.path)
        return {
            **msgspec.structs.asdict(self.runs.line(run.name)),
            "config": facts.settings(run.path),
            "versions": facts.versions(run.path),
            "summary": facts.summary(run.path),
            "status": status,
            "why": status.get("why") if isinstance(status, dict) else None,
            "skipped": run.skipped(),
        }

    def _events(self, run: OpenRun, asked: Asked) -> Any:
        with run.current("events.jsonl"):
            return run.events.page(
                is_newest_first=asked.one_of("order", ("oldest", "newest")) == "newest",
                after=asked.whole("after"),
                limit=asked.count("limit", 200, MAX_LIMIT),
                level=asked.text("level"),
                text=asked.text("q").strip(),
            )._asdict()


def encode(answer: Any) -> bytes:
    """JSON; arrays of numpy are lists, and what is not finite is null."""
    return msgspec.json.encode(answer, enc_hook=_listed)


def _listed(value: Any) -> Any:
    return value.tolist()


def _texts(run: OpenRun, ids: Any) -> list[str] | None:
    """The text of each id; None where they are no ids, or there is no tokenizer."""
    are_ids = isinstance(ids, list) and all(type(each) is int and 0 <= each < _MAX_ID for each in ids)
    return run.tokens.texts(ids) if are_ids else None


def _number(text: str) -> int:
    found = Asked({"number": text}).whole("number")
    return -1 if found is None else found

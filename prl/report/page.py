"""The report as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from prl.progress import duration
from prl.report.curves import panels
from prl.report.gather import Sample, Told, dropped, total
from prl.report.style import STYLE
from prl.report.svg import svg
from prl.report.words import shown
from prl.view.columns import Columns

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_SUMMARY = (
    ("steps", "steps"),
    ("samples", "samples trained"),
    ("tokens_generated", "tokens generated"),
    ("tokens_trained", "tokens trained"),
    ("goodput", "trained / generated"),
    ("eval_before", "held out, before"),
    ("eval_after", "held out, after"),
    ("reward_first", "reward at the first step"),
    ("reward_last", "reward at the last step"),
    ("lag_max", "largest lag, steps"),
    ("lag_mean", "mean lag, steps"),
    ("ess_mean", "mean ESS"),
    ("num_engines", "engines"),
    ("engine_restarts", "engine restarts"),
    ("trainer_restarts", "trainer restarts"),
    ("evals_incomplete", "evaluations out of time"),
    ("error", "error"),
)
_MEANS = (
    ("gen_tok_s", "tokens generated per second"),
    ("train_tok_s", "tokens trained per second"),
    ("trainer_busy", "trainer busy, share"),
    ("engine_busy", "engines busy, share"),
)
_SUMS = (
    ("wait_batch_s", "trainer waited for batches, s"),
    ("pause_s", "engines paused for updates, s"),
    ("publish_s", "updates took, s"),
    ("eval_block_s", "updates waited for evaluations, s"),
    ("checkpoint_s", "training stood still for checkpoints, s"),
)
_MAX_VALUE_CHARS = 200


def report(runs: Sequence[Told]) -> str:
    """The whole file."""
    title = ", ".join(run.name for run in runs)
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f'<meta name="color-scheme" content="light dark">\n<title>{shown(title, 200)}</title>\n',
            f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n",
            f"<h1>{shown(title, 200)}</h1>\n<p>{_lead(runs)}</p>\n",
            *_sections(runs),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _lead(runs: Sequence[Told]) -> str:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    states = "; ".join(f"{run.name}: {run.state}" for run in runs) if len(runs) > 1 else f"State: {runs[0].state}"
    return f"{shown(states)}. Made by prl on {made}."


def _sections(runs: Sequence[Told]) -> Iterator[str]:
    yield _section("Facts", _table(["", *(run.name for run in runs)], _facts(runs)))
    yield _section("Curves", f'<div class="curves">{"".join(map(svg, panels(runs)))}</div>' + _note(runs))
    if len(runs) > 1:
        yield _section("What the runs differ in", _table(["key", *(run.name for run in runs)], _differences(runs)))
    for run in runs:
        name = f"{run.name}: " if len(runs) > 1 else ""
        rows = [[each.key, _value(each.value), _value(each.default)] for each in run.settings if each.differs]
        yield _section(f"{name}configuration that differs from the defaults", _table(["key", "value", "default"], rows))
        yield _section(f"{name}accounting", _table(["", ""], _accounting(run)))
        yield _section(f"{name}warnings and errors", _events(run))
        yield _section(f"{name}samples", "".join(map(_sample, run.samples)))


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{shown(title[:1].upper() + title[1:], 200)}</h2>\n{body or '<p>None.</p>'}\n</section>\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = list(rows)
    if not lines:
        return ""
    named = "".join(f'<th scope="col">{shown(each, 80)}</th>' for each in heads)
    head = f"<thead><tr>{named}</tr></thead>"
    body = "".join(
        f'<tr><th scope="row">{shown(row[0], _MAX_VALUE_CHARS)}</th>'
        + "".join(f"<td>{shown(value, _MAX_VALUE_CHARS)}</td>" for value in row[1:])
        + "</tr>"
        for row in lines
    )
    return f'<div class="wide"><table>{head if any(heads) else ""}<tbody>{body}</tbody></table></div>'


def _facts(runs: Sequence[Told]) -> Iterator[list[Any]]:
    yield ["state", *(run.state for run in runs)]
    yield ["model", *(_setting(run, "model") for run in runs)]
    for key, label in _SUMMARY:
        values = [run.summary.get(key) for run in runs]
        if any(value is not None for value in values):
            yield [label, *("-" if value is None else value for value in values)]
    yield ["time in steps", *(duration(total(run.columns, "time_s")) for run in runs)]
    for key in dict.fromkeys(key for run in runs for key in run.versions):
        yield [key, *(_version(run.versions.get(key)) for run in runs)]


def _setting(run: Told, key: str) -> Any:
    return next((each.value for each in run.settings if each.key == key), "-")


def _differences(runs: Sequence[Told]) -> Iterator[list[Any]]:
    values = [{each.key: each.value for each in run.settings} for run in runs]
    for key in dict.fromkeys(key for found in values for key in found):
        if any(found.get(key) != values[0].get(key) for found in values[1:]) and key != "run.name":
            yield [key, *(_value(found.get(key)) for found in values)]


def _accounting(run: Told) -> Iterator[list[Any]]:
    yield ["steps recorded", run.columns.num_rows]
    for reason, count in dropped(run.columns).items():
        yield [f"completions dropped: {reason}", count]
    for key, label in _MEANS:
        if (mean := _mean(run.columns, key)) is not None:
            yield [f"{label}, mean over steps", mean]
    for key, label in _SUMS:
        if key in run.columns.names:
            yield [label, total(run.columns, key)]
    for name, count in run.skipped.items():
        yield [f"lines of {name} that could not be read", count]


def _mean(columns: Columns, key: str) -> float | None:
    values = columns.column(key)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else None


def _note(runs: Sequence[Told]) -> str:
    if not any(run.columns.num_rows for run in runs):
        return "<p>No step was recorded.</p>"
    return (
        '<p class="unit">Lines are means of neighbouring steps; bands reach from the least to the largest of them, bars'
        " are 95% intervals.</p>"
    )


def _events(run: Told) -> str:
    counts = _table(["event", "times"], run.kinds)
    rows = [[event.get("time", ""), event.get("level", ""), _said(event)] for event in run.events]
    return counts and counts + "<h3>The last of them</h3>" + _table(["time", "level", "event"], rows)


def _said(event: dict[str, Any]) -> str:
    hidden = {"time", "level", "event", "logger", "id", "exception"}
    facts = [f"{key}={value}" for key, value in event.items() if key not in hidden]
    return "  ".join([str(event.get("event", "")), *facts])


def _sample(sample: Sample) -> str:
    told = {
        "step": sample.step,
        "reward": sample.reward,
        "finish": sample.finish,
        "tokens": len(sample.token_ids),
        "weight versions": f"{min(sample.versions, default='-')} to {max(sample.versions, default='-')}",
        **{f"part {name}": value for name, value in sample.parts.items()},
    }
    facts = ", ".join(f"{shown(name, 80)} {shown(value, 80)}" for name, value in told.items())
    return (
        f'<article><p class="unit">{facts}</p><h3>Prompt</h3><pre>{shown(sample.prompt)}</pre>'
        f"<h3>Completion</h3><pre>{shown(sample.completion)}</pre></article>"
    )


def _version(value: Any) -> Any:
    """Devices by their names."""
    if isinstance(value, list):
        return ", ".join(str(each.get("name", each)) if isinstance(each, dict) else str(each) for each in value)
    return "-" if value is None else value


def _value(value: Any) -> Any:
    return "unset" if value is None else value

"""``GET /metrics``: the run in the format of Prometheus, with the names that its conventions ask for.

- Every name begins with ``prl_`` and ends with its unit; what only grows ends with ``_total``. Labels take few values:
  engines, rewards, reasons, trackers; never a prompt, a step or a text.
- A scrape costs the event loop a copy of some counters; the text is made in a thread.
- What has no value yet is absent, and not 0.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from prl.control.route import Route
from prl.engines.seat import EngineStatus
from prl.errors import RefusedError
from prl.figures import STEP_BUCKETS_S, Snapshot
from prl.trackers.state import State

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import Metric

PATH = "/metrics"
_REWARD = re.compile(r"(?P<reward>.+)_(?P<what>mean|zero_share|latency_s)")
_OF_REWARDS = {
    "mean": ("prl_reward_part_mean", "What each reward gave the samples of the last step, on average"),
    "zero_share": ("prl_reward_zero_ratio", "Share of the samples of the last step that each reward gave 0"),
    "latency_s": ("prl_reward_latency_seconds", "Mean time of a call of each reward during the last step"),
}
_OF_STEP = {
    "reward_mean": ("prl_reward_mean", "Mean reward of the last step's samples"),
    "reward_std": ("prl_reward_stddev", "Standard deviation of the last step's rewards"),
    "lag_max": ("prl_lag_max_steps", "Lag of the oldest token that the last step trained on, in optimiser steps"),
    "lag_mean": ("prl_lag_mean_steps", "Mean lag of the tokens that the last step trained on"),
    "ess": ("prl_effective_sample_size_ratio", "Effective sample size of the last step over its samples"),
    "clip_frac": ("prl_clipped_ratio", "Share of the last step's tokens whose importance ratio was clipped"),
    "kl_behaviour": ("prl_kl_behaviour_nats", "Estimated divergence from the sampling to the trained policy"),
    "kl_reference": ("prl_kl_reference_nats", "Estimated divergence to the reference of [kl]"),
    "entropy": ("prl_entropy_nats", "Mean entropy of the policy on the last step's tokens"),
    "loss": ("prl_loss", "Loss of the last step"),
    "grad_norm": ("prl_gradient_norm", "Global gradient norm of the last step, before clipping"),
    "lr": ("prl_learning_rate", "Learning rate of the last step"),
    "length_mean": ("prl_completion_length_tokens", "Mean sampled tokens of the last step's sequences"),
    "loop_lag_ms": ("prl_event_loop_lag_seconds", "Longest delay of the controller's event loop in the last step"),
}
_SCALED = {"loop_lag_ms": 1e-3}
_OF_EVENTS = {
    "samples": ("prl_samples_trained", "Sequences trained on"),
    "tokens_trained": ("prl_tokens_trained", "Tokens trained on"),
    "evals_incomplete": ("prl_evaluations_incomplete", "Evaluations that ran out of time"),
    "reward_retries": ("prl_reward_retries", "Tries after the first of calls of rewards"),
}


def metrics_route(snapshot: Callable[[], Snapshot]) -> Route:
    """What answers ``GET /metrics``. A RefusedError where prometheus-client is not installed."""

    async def metrics(request: web.Request) -> Any:
        from aiohttp import web  # noqa: PLC0415 -- beside the event loop since the server began

        body, kind = await asyncio.to_thread(_encoded, snapshot(), request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    return Route("GET", PATH, metrics)


def _encoded(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 -- only where it is asked for
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 -- the same
    except ImportError as error:
        raise RefusedError(
            "/metrics needs the package 'prometheus-client': pip install 'prl-train[trackers]'"
        ) from error
    registry, (encode, kind) = CollectorRegistry(), choose_encoder(accept)
    registry.register(_Once(families(snapshot)))
    return encode(registry), kind


class _Once:
    """What prometheus-client calls a collector."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> list[Metric]:
        """The families."""
        return self._found

    describe = collect


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Every metric of a run."""
    yield from _of_run(snapshot)
    yield from _of_steps(snapshot)
    yield from _of_engines(snapshot)
    yield from _of_latest(snapshot)
    yield from _of_trackers(snapshot)


# ---- families ----------------------------------------------------------------------------------------------------


def _gauge(name: str, about: str, value: float | None) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 -- only where it is asked for

    if value is not None:
        yield GaugeMetricFamily(name, about, value=value)


def _counter(name: str, about: str, value: float) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 -- only where it is asked for

    yield CounterMetricFamily(name, about, value=value)


def _labelled(
    kind: str, name: str, about: str, labels: tuple[str, ...], values: Mapping[Any, float]
) -> Iterator[Metric]:
    """One metric with a value for each of its labels' values."""
    from prometheus_client import core  # noqa: PLC0415 -- only where it is asked for

    family: Any = {"gauge": core.GaugeMetricFamily, "counter": core.CounterMetricFamily}[kind](
        name, about, labels=labels
    )
    for of, value in values.items():
        family.add_metric(of, value)
    yield family


def _of_run(snapshot: Snapshot) -> Iterator[Metric]:
    status = snapshot.status
    about = (snapshot.run, snapshot.model, _version())
    yield from _labelled("gauge", "prl_run_info", "What runs; always 1", ("run", "model", "version"), {about: 1.0})
    yield from _gauge("prl_step", "Completed optimiser steps, those before a resume included", status.step)
    yield from _gauge("prl_steps_planned", "Optimiser steps that the run is to do", status.num_steps)
    yield from _gauge("prl_weight_version", "Version of the weights that the engines serve", status.version)
    yield from _gauge("prl_stage_seconds", "For how long the run has been doing what it does now", status.stage_s)
    if status.trainer is not None:
        yield from _gauge("prl_trainer_working", "1 while the trainer works", float(status.trainer.state == "works"))
        yield from _counter("prl_trainer_restarts", "Times that the trainer was started again", status.trainer.restarts)
    if status.slots is not None:
        slots = status.slots
        states = {("running",): slots.running, ("finished",): slots.finished, ("taken",): slots.taken}
        yield from _labelled("gauge", "prl_slots", "Prompts by what became of them so far", ("state",), states)
        yield from _gauge(
            "prl_slots_limit", "Slots: prompts under way at most, or streams in the paper's mode", slots.num_slots
        )
        yield from _gauge("prl_streams_open", "Sequences that are being sampled", slots.streams)


def _of_steps(snapshot: Snapshot) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415 -- only where it is asked for

    figures = snapshot.figures
    yield from _counter("prl_steps", "Optimiser steps that this process did", figures.num_steps)
    bounds = [*map(str, STEP_BUCKETS_S), "+Inf"]
    counts = [float(sum(figures.buckets[: at + 1])) for at in range(len(bounds))]
    yield HistogramMetricFamily(
        "prl_step_duration_seconds",
        "Wall time of a step",
        buckets=list(zip(bounds, counts, strict=True)),
        sum_value=figures.step_s,
    )
    phases = {(phase.removesuffix("_s"),): seconds for phase, seconds in figures.phase_s.items()}
    yield from _labelled(
        "counter", "prl_step_phase_seconds", "Time of the steps by phase: waits and transfers", ("phase",), phases
    )
    yield from _counter("prl_trainer_busy_seconds", "Time in which the trainer computed", figures.trainer_busy_s)
    for event, (name, about) in _OF_EVENTS.items():
        yield from _counter(name, about, figures.events[event])
    moved = {("lost",): figures.events["streams_moved"], ("removed",): figures.events["streams_handed_over"]}
    yield from _labelled(
        "counter",
        "prl_streams_moved",
        "Streams that went on elsewhere, by what their engine was",
        ("engine",),
        moved,
    )
    dropped = {(reason,): count for reason, count in figures.dropped.items()}
    yield from _labelled("counter", "prl_completions_dropped", "Completions that came to nothing", ("reason",), dropped)
    yield from _labelled(
        "counter",
        "prl_reward_failures",
        "Calls of rewards that failed",
        ("reward", "kind"),
        figures.reward_failures,
    )


def _of_engines(snapshot: Snapshot) -> Iterator[Metric]:
    engines = snapshot.status.engines
    told: list[tuple[str, str, str, Callable[[EngineStatus], float]]] = [
        ("gauge", "prl_engine_serving", "1 while the engine serves", lambda engine: engine.state == "serving"),
        ("gauge", "prl_engine_weight_version", "Version of the weights in the engine", lambda engine: engine.version),
        ("gauge", "prl_engine_streams", "Streams open in the engine", lambda engine: engine.streams),
        ("counter", "prl_tokens_generated", "Tokens sampled", lambda engine: engine.tokens_generated),
        ("counter", "prl_engine_busy_seconds", "Time with an open stream and not paused", lambda engine: engine.busy_s),
        ("counter", "prl_engine_restarts", "Times that the engine was started again", lambda engine: engine.restarts),
    ]
    for kind, name, about, value in told:
        values = {(engine.name,): float(value(engine)) for engine in engines}
        yield from _labelled(kind, name, about, ("engine",), values)


def _of_latest(snapshot: Snapshot) -> Iterator[Metric]:
    if (report := snapshot.figures.latest) is not None:
        for field, (name, about) in _OF_STEP.items():
            value = getattr(report, field)
            if value is not None and math.isfinite(value):
                yield from _gauge(name, about, value * _SCALED.get(field, 1.0))
        parts: dict[str, dict[tuple[str], float]] = {what: {} for what in _OF_REWARDS}
        for key, value in report.rewards.items():
            if (found := _REWARD.fullmatch(key)) is not None:
                parts[found["what"]][found["reward"],] = value
        for what, (name, about) in _OF_REWARDS.items():
            yield from _labelled("gauge", name, about, ("reward",), parts[what])
    if (evaluation := snapshot.evaluation) is not None:
        yield from _gauge("prl_eval_reward_mean", "Mean reward on the held-out prompts", evaluation.reward_mean)
        yield from _gauge("prl_eval_weight_version", "Version of the weights evaluated last", evaluation.version)
        passed = {(str(k),): found.mean for k, found in evaluation.pass_at.items()}
        yield from _labelled("gauge", "prl_eval_pass_ratio", "pass@k on the held-out prompts", ("k",), passed)


def _of_trackers(snapshot: Snapshot) -> Iterator[Metric]:
    states = snapshot.trackers
    told: list[tuple[str, str, str, Callable[[State], float]]] = [
        ("gauge", "prl_tracker_sent_step", "Last step that the tracker was sent", lambda state: state.sent_step),
        ("gauge", "prl_tracker_failing", "1 while the tracker takes nothing", lambda state: bool(state.error)),
        ("counter", "prl_tracker_points_dropped", "Points that the tracker refused", lambda state: state.num_dropped),
    ]
    for kind, name, about, value in told:
        values = {(label,): float(value(state)) for label, state in states.items()}
        yield from _labelled(kind, name, about, ("tracker",), values)


def _version() -> str:
    try:
        return version("prl-train")
    except PackageNotFoundError:
        return "unknown"

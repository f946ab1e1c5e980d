"""``/metrics``: what a scraper gets, who gets it, and that the dashboard asks for nothing else."""

from __future__ import annotations

import builtins
import json
import re
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

import prl
from prl.buffer import BufferStatistics
from prl.check import cross_check
from prl.check_control import CONTROL_TOKEN, METRICS_TOKEN
from prl.config import EvalConfig, SamplingConfig
from prl.config_control import ControlConfig
from prl.control import address as control_file
from prl.control import prometheus
from prl.engines.seat import EngineStatus
from prl.errors import ConfigError, RefusedError
from prl.estimates import Estimate
from prl.figures import Figures, Snapshot
from prl.status import Status, TrainerStatus
from prl.trackers.state import State
from tests.factories import make_evaluation
from tests.test_panel import report
from tests.test_pipeline import simulated

DASHBOARD = Path(__file__).parents[2] / "docs/grafana/prl.json"
STEERS, MEASURES = "correct-horse-battery", "staple-staple-staple"
Samples = dict[str, list[tuple[dict[str, str], float]]]


def engine(name: str, **changes: Any) -> EngineStatus:
    """One that serves."""
    fields: dict[str, Any] = {"state": "serving", "state_s": 9.0, "version": 7, "streams": 3, "tokens_generated": 500}
    return EngineStatus(**{"name": name, "busy_s": 12.5, "restarts": 0, "why": "", **fields, **changes})


def snapshot() -> Snapshot:
    """A run in which every metric has a value."""
    figures = Figures()
    rewards = {"math_mean": 0.5, "math_zero_share": 0.25, "math_latency_s": 0.1, "my_judge_failed_timeout": 2.0}
    for step, seconds in ((1, 0.2), (2, 3.0), (3, 2000.0)):
        figures.add(report(step, time_s=seconds, rewards=rewards, dropped={"timeout": 1}, kl_reference=0.1, lr=1e-4))
    slots = BufferStatistics(
        num_slots=16, streams=12, running=6, finished=1, taken=2, admitted=30, dropped=1, trained=20
    )
    status = Status(
        run_dir="/r",
        pid=1,
        stage="training",
        stage_s=5.0,
        step=3,
        num_steps=10,
        version=3,
        engines=[engine("engine-0"), engine("engine-1", state="lost", restarts=2, tokens_generated=40)],
        trainer=TrainerStatus(state="works", restarts=1),
        slots=slots,
        why="",
    )
    evaluation = make_evaluation(reward_mean=0.75, pass_at={4: Estimate(mean=0.9, low=0.8, high=1.0)})
    trackers = {"wandb": State(sent={"metrics.jsonl": 2}, error="away", num_dropped=1)}
    return Snapshot('a "run"\n', "m", status, figures, evaluation, trackers)


def parsed(text: str) -> Samples:
    """Samples by name, as Prometheus reads them."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def exposed() -> Samples:
    """What that run exposes."""
    body, kind = prometheus._encoded(snapshot(), "")
    assert kind.startswith("text/plain; version=")
    return parsed(body.decode())


def test_names_are_what_the_conventions_ask_for() -> None:
    """A prefix, base units, ``_total`` on what only grows, and labels for what there is several of."""
    found = exposed()
    assert found["prl_run_info"][0][0]["run"] == 'a "run"\n'
    generated = [({"engine": "engine-0"}, 500.0), ({"engine": "engine-1"}, 40.0)]
    assert found["prl_tokens_generated_total"] == generated
    assert found["prl_engine_serving"] == [({"engine": "engine-0"}, 1.0), ({"engine": "engine-1"}, 0.0)]
    assert found["prl_completions_dropped_total"] == [({"reason": "timeout"}, 3.0)]
    assert found["prl_reward_failures_total"] == [({"reward": "my_judge", "kind": "timeout"}, 6.0)]
    assert found["prl_step_duration_seconds_count"] == [({}, 3.0)]
    assert found["prl_step_duration_seconds_sum"] == [({}, 2003.2)]
    below = {labels["le"]: count for labels, count in found["prl_step_duration_seconds_bucket"]}
    assert (below["0.1"], below["0.25"], below["5.0"], below["1000.0"], below["+Inf"]) == (0, 1, 2, 2, 3)
    assert found["prl_tracker_failing"] == [({"tracker": "wandb"}, 1.0)]
    assert found["prl_eval_pass_ratio"] == [({"k": "4"}, 0.9)]
    for name in found:
        assert re.fullmatch(r"prl_[a-z][a-z_]*", name), name
        assert not name.endswith(("_ms", "_s", "_count_total")), name


def test_what_has_no_value_is_absent() -> None:
    """While a run starts there is little, and nothing of it is a 0 that was never measured."""
    full = snapshot()
    status = Status(
        **{
            **{name: getattr(full.status, name) for name in Status.__struct_fields__},
            "step": None,
            "version": None,
            "engines": [],
            "trainer": None,
            "slots": None,
        }
    )
    body, _ = prometheus._encoded(full._replace(status=status, figures=Figures(), evaluation=None, trackers={}), "")
    found = parsed(body.decode())
    assert "prl_reward_mean" not in found
    assert "prl_weight_version" not in found
    assert found["prl_steps_total"] == [({}, 0.0)]


def test_a_scrape_is_cheap() -> None:
    """Less than 20 ms of processor time, in a thread; the event loop pays for the copy alone (under 1 ms)."""
    full = snapshot()
    prometheus._encoded(full, "")
    seconds, copying = [], []
    for _ in range(5):
        begun = time.thread_time()
        full.figures.copied()
        copied = time.thread_time()
        prometheus._encoded(full, "")
        copying.append(copied - begun)
        seconds.append(time.thread_time() - copied)
    assert min(copying) < 0.001
    assert min(seconds) < 0.02


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the answer; the run goes on."""
    imported = builtins.__import__

    def fails(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", fails)
    with pytest.raises(RefusedError, match=r"prometheus-client.*\[trackers\]"):
        prometheus._encoded(snapshot(), "")


async def test_a_run_is_scraped_with_a_token_that_opens_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token that steers opens ``/metrics`` too; that of the scraper opens ``/metrics`` alone."""
    monkeypatch.setenv(CONTROL_TOKEN, STEERS)
    monkeypatch.setenv(METRICS_TOKEN, MEASURES)
    sampling, held_out = SamplingConfig(max_tokens=4), EvalConfig(num_samples=0)
    config = simulated(control=ControlConfig(), sampling=sampling, eval=held_out)
    async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline, aiohttp.ClientSession() as session:
        await pipeline.step()
        url = control_file.read(tmp_path / "run").url

        async def get(path: str, token: str) -> tuple[int, str]:
            async with session.get(url + path, headers={"Authorization": f"Bearer {token}"}) as answer:
                return answer.status, await answer.text()

        status, text = await get("/metrics", MEASURES)
        assert status == 200
        assert parsed(text)["prl_step"] == [({}, 1.0)]
        assert (await get("/metrics", STEERS))[0] == 200
        assert (await get("/metrics", "wrong"))[0] == 401
        assert (await get("/status", MEASURES))[0] == 401
        assert (await get("/metrics/x", MEASURES))[0] == 401


def test_a_scrapers_token_must_not_be_guessable() -> None:
    """As that which steers."""
    with pytest.raises(ConfigError, match=f"^{METRICS_TOKEN} must have at least 16 characters"):
        cross_check(simulated(control=ControlConfig()), {METRICS_TOKEN: "short"})


def targets() -> list[str]:
    """Every query of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def test_the_dashboard_asks_for_what_there_is() -> None:
    """Each metric that a query names is exposed, and each label that it shows or sums by is one of that metric's."""
    found = exposed()
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            names = re.findall(r"\bprl_\w+", target["expr"])
            assert names
            assert set(names) <= set(found), target["expr"]
            labels = {"instance", "le"} | {label for name in names for of, _ in found[name] for label in of}
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            summed = {label for some in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in some.split(", ")}
            assert shown | summed <= labels, target
            counted = [name for name in names if name.endswith(("_total", "_bucket"))]
            assert all(
                re.search(rf"(rate|increase)\({name}", target["expr"]) for name in counted if "points" not in name
            )
    queried = {name for query in targets() for name in re.findall(r"\bprl_\w+", query)}
    assert len(queried) > 35


def test_the_dashboard_has_the_shape_that_grafana_loads() -> None:
    """Panels have ids of their own and lie in the grid of 24 columns without overlap; variables are defined."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + column, place["y"] + row) for column in range(place["w"]) for row in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, panel["title"]
        taken |= cells
        assert panel["title"]
        refs = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(refs)) == len(refs)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) - {"__rate_interval"}
    assert used == variables

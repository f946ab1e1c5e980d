"""Calibration and planning on machines whose costs are known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from prl.config import Config
from prl.errors import ConfigError
from prl.settings import to_toml
from prl.simulate import Report, costs_of, report_of, simulate
from prl.simulate.calibrate import measured_for, measured_in
from prl.simulate.plan import lines_of, plan
from tests.simulate.test_run import small


def recorded(config: Config, folder: Path) -> Report:
    """Leave what a run of ``config`` on its own machine leaves, and say what it came to."""
    costs = costs_of(config)
    course = simulate(config, costs)
    lines = []
    for step in course.steps:
        line = step.report.line()
        line["tokens_generated"] *= costs.grain  # type: ignore[operator]
        line["tokens_trained"] *= costs.grain  # type: ignore[operator]
        if costs.transfer_s:  # as a run says it whose engines receive beside generation
            line["publish_s"] = line["eval_block_s"]
        lines.append(msgspec.json.encode(line))
    samples = [
        {"step": 1, "prompt_id": prompt, "prompt_token_ids": [1] * 10, "token_ids": [2] * costs.length_of(prompt, seed)}
        for prompt in range(200)
        for seed in range(4)
    ]
    folder.mkdir()
    (folder / "config.toml").write_text(to_toml(config))
    (folder / "metrics.jsonl").write_bytes(b"\n".join(lines))
    (folder / "samples.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, samples)))
    return report_of(config, costs, course)


@pytest.mark.parametrize("shared", [(), ("simulate.num_accelerators=2",)], ids=["apart", "shared"])
def test_calibrated_on_one_setting_it_predicts_others(shared: tuple[str, ...], tmp_path: Path) -> None:
    """Of a machine whose costs it is not told: the samples a second of three other bounds, within 10 %."""
    overrides = ("simulate.prompt_tokens=10", "simulate.update_s=0.2", "run.num_steps=32", *shared)
    measuring = small("pipeline.max_lag=2", *overrides)
    report = recorded(measuring, tmp_path / "run")
    measured = measured_in(tmp_path / "run", measuring.simulate.num_accelerators)
    assert measured.prompt_tokens == 10
    for bound in ("0", "1", "6"):
        config = small(f"pipeline.max_lag={bound}", *overrides)
        true = costs_of(config)
        blank = small(
            f"pipeline.max_lag={bound}",
            "run.num_steps=32",
            "simulate.decode.base_s=unset",
            "simulate.train.token_s=unset",
            "simulate.lengths.kind=unset",
            *shared,
        )
        costs = costs_of(blank, measured)
        predicted = report_of(blank, costs, simulate(blank, costs)).samples_per_s
        found = report_of(config, true, simulate(config, true)).samples_per_s
        assert predicted == pytest.approx(found, rel=0.1), (bound, report.samples_per_s)


@pytest.mark.parametrize("shared", [(), ("simulate.num_accelerators=2",)], ids=["apart", "shared"])
def test_calibrated_on_rounds_it_predicts_them_and_others(shared: tuple[str, ...], tmp_path: Path) -> None:
    """Steps that sample nothing, an update for four steps: conventional runs and one of the pipeline within 10 %.

    What is sent beside generation is for a round, too, and no part of what passes between two steps.
    """
    known = ("simulate.prompt_tokens=10", "run.num_steps=32", *shared)
    overrides = ("simulate.update_s=1", "simulate.transfer_s=3", "simulate.train.between_s=0.5", *known)
    measuring = ("pipeline.mode=conventional", "pipeline.steps_per_round=4")
    recorded(small(*measuring, *overrides), tmp_path / "run")
    measured = measured_in(tmp_path / "run", 2 if shared else None)
    found = measured.update_s, measured.transfer_s, measured.between_s
    assert found == pytest.approx((1.0, 3.0, 0.5), rel=0.1)
    for setting in (measuring, ("pipeline.mode=conventional", "pipeline.steps_per_round=1"), ("pipeline.max_lag=2",)):
        config = small(*setting, *overrides)
        costs = costs_of(config)
        samples_per_s = report_of(config, costs, simulate(config, costs)).samples_per_s
        unset = ("simulate.decode.base_s=unset", "simulate.train.token_s=unset", "simulate.lengths.kind=unset")
        blank = small(*setting, *known, *unset)
        costs = costs_of(blank, measured)
        predicted = report_of(blank, costs, simulate(blank, costs)).samples_per_s
        assert predicted == pytest.approx(samples_per_s, rel=0.1)


def test_a_folder_that_says_too_little_is_refused(tmp_path: Path) -> None:
    """Too few steps, or no run at all: an error that names the folder."""
    recorded(small("run.num_steps=4", "pipeline.max_lag=1"), tmp_path / "run")
    for run in (tmp_path / "run", tmp_path / "none"):
        with pytest.raises(ConfigError, match=run.name):
            measured_for(small(f"simulate.run={run}"))


def test_a_plan_is_ranked_and_each_says_what_limits_it() -> None:
    """On 8 accelerators where training is dear: most of them train, and the best is at least as good as the rest."""
    config = small("simulate.train.token_s=0.2")
    planned = plan(config, 8, None, num_simulated=3, num_samples=400)
    assert len(planned) == 3
    assert [one.worth for one in planned] == sorted((one.worth for one in planned), reverse=True)
    best = planned[0].candidate
    assert best.num_engines + best.num_ranks == 8
    assert best.num_ranks > best.num_engines
    text = "\n".join(lines_of(planned))
    assert f"engine.count={best.num_engines}" in text
    for one in planned:
        assert one.limit.split(":")[0] in {"training", "generation", "weight updates", "the lag bound", "the buffer"}
        assert one.limit in text


def test_what_passes_between_two_steps_is_reckoned_with() -> None:
    """Where next to all time is that, sampling more at once gains nothing: the fewest sequences are simulated first."""
    config = small("simulate.train.between_s=2000", "simulate.drift=0.05")
    (best,) = plan(config, 4, None, num_simulated=1, num_samples=100)
    assert best.candidate.num_engines * best.candidate.max_num_seqs == config.pipeline.group_size
    assert "between two steps" in best.limit


def test_who_shares_stays_as_many() -> None:
    """With shared accelerators the split is not searched; the rest is."""
    planned = plan(small("simulate.num_accelerators=2"), 2, None, num_simulated=3, num_samples=300)
    assert {(one.candidate.num_engines, one.candidate.num_ranks) for one in planned} == {(2, 2)}


def test_nothing_fits_on_one_accelerator() -> None:
    """An engine and a rank are two."""
    with pytest.raises(ConfigError, match="2 are the least"):
        plan(small(), 1, None)

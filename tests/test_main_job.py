"""The main job as the README runs it: real engines, a real trainer, and a model that visibly learns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prl.settings import load_config

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs/math.toml"


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.timeout(600)
def test_the_main_job_teaches_the_model_arithmetic(tmp_path: Path) -> None:
    """``prl run configs/math.toml`` ends with 0, in flight, within its lag bound, and right four times in five."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "prl", "run", str(CONFIG), "--plain", "--run-dir", str(run)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((run / "summary.json").read_text())
    config = load_config(CONFIG)
    assert summary["status"] == "done"
    assert summary["steps"] == config.run.num_steps
    assert summary["num_engines"] == 2
    assert config.pipeline.max_lag is not None
    assert summary["lag_max"] <= config.pipeline.max_lag
    assert summary["eval_after"] >= 0.8
    assert summary["eval_after"] - summary["eval_before"] >= 0.4
    assert "accuracy" in done.stdout
    assert done.stdout.count("expected") == 3, "three sample answers"

    metrics, samples = lines(run / "metrics.jsonl"), lines(run / "samples.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, config.run.num_steps + 1))
    size = config.pipeline.groups_per_step * config.pipeline.group_size
    trained_per_prompt: dict[int, int] = {}
    for sample in samples:
        trained_per_prompt[sample["prompt_id"]] = trained_per_prompt.get(sample["prompt_id"], 0) + 1
        assert len(sample["token_ids"]) == len(sample["versions"]) == len(sample["logprobs"])
        assert sample["versions"] == sorted(sample["versions"])
        assert max(sample["versions"]) < sample["step"], "trained by a step that its weights are older than"
    assert len(samples) == size * config.run.num_steps
    assert set(trained_per_prompt.values()) == {config.pipeline.group_size}, "each prompt trained once, whole"
    assert (run / "export" / "model.safetensors").is_file()
    assert (run / "export" / "tokenizer.json").is_file()


@pytest.mark.timeout(240)
def test_the_main_job_runs_without_vllm(tmp_path: Path) -> None:
    """The same job on the transformers engine, shortened: what runs where vLLM cannot be installed."""
    command = [sys.executable, "-m", "prl", "run", str(CONFIG), "--plain", "--run-dir", str(tmp_path / "run")]
    for setting in ("engine.kind=transformers", "run.num_steps=2", "eval.num_samples=16", "trainer.num_ranks=1"):
        command += ["--set", setting]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 transformers engines" in done.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"

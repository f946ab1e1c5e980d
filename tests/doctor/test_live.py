"""The doctor with a real vLLM engine and the real trainer: clean as they are, and each fault by its name."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prl import parts
from prl.config import Config
from prl.doctor.diagnosis import Diagnosis, diagnose
from prl.doctor.examine import Examination
from prl.doctor.inputs import sampling_defaults
from prl.doctor.sides import LiveSides, live_sides
from prl.engines import vllm
from prl.models import BUILTIN_MODELS
from prl.prompts import open_source
from prl.settings import load_config
from prl.tokenizer import Tokenizer
from tests.engines.vllm_probes import FOLDER, HOST, SAMPLE_OTHERWISE

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs/math.toml"
GROUPS = {"embedding (tied to the output head)", "norms", "attention", "MLP"}


@pytest.mark.timeout(240)
def test_the_main_job_is_clean(tmp_path: Path) -> None:
    """``prl doctor configs/math.toml``: exit 0, float32 agreement, an engine that follows each group of weights."""
    report = tmp_path / "doctor.json"
    command = [sys.executable, "-m", "prl", "doctor", str(CONFIG), "--json", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(report.read_text())
    evidence = told["evidence"]
    assert told["verdict"] == "clean"
    assert evidence["gap"]["num_tokens"] > 100
    assert evidence["gap"]["max"] < 1e-4
    assert evidence["forward"]["gap"]["max"] < 1e-4 < evidence["forward"]["rounding"]
    assert {nudge["group"] for nudge in evidence["nudged"]} == GROUPS
    assert all(nudge["missed"] < 0.01 for nudge in evidence["nudged"])
    assert list(tmp_path.iterdir()) == [report], "no run folder"


async def not_pushed(sides: LiveSides, tensors: list[str], scale: float) -> None:
    """A nudge of which the engine is told nothing."""
    await sides._trainer.nudge(tensors, scale)


def faulty(folder: Path, **changes: Any) -> None:
    """Let every stream of the engine be sampled with other settings than it was asked for, until told otherwise."""
    draft = folder / "draft"
    draft.write_text(json.dumps(changes))
    draft.rename(folder / SAMPLE_OTHERWISE)


async def examined(sides: LiveSides, config: Config, tokenizer: Tokenizer, model: str) -> Diagnosis:
    """The diagnosis on a dozen completions."""
    source = open_source(config, tokenizer)
    examination = Examination(
        sides, config, tokenizer, tolerance=parts.tolerance_of(config), sampling_defaults=sampling_defaults(model)
    )
    return diagnose(await examination.run([source.next() for _ in range(12)]))


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")  # what vLLM's and torch's own imports warn of
async def test_faults_of_a_real_engine_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong temperature, a filter, a penalty and stale weights, one after the other in the same engine.

    The model folder's generation config asks for filters too: without harm, since nothing reads it.
    """
    model = shutil.copytree(BUILTIN_MODELS["tiny-math"], tmp_path / "model")
    defaults = json.loads((model / "generation_config.json").read_text())
    asked = {"top_p": 0.8, "top_k": 5, "repetition_penalty": 1.3}
    (model / "generation_config.json").write_text(json.dumps({**defaults, **asked, "do_sample": True}))
    settings = [f"model={model}", "sampling.temperature=0.5", "trainer.num_ranks=1"]
    config = load_config(CONFIG, settings)
    tokenizer = Tokenizer.load(str(model))
    probes, found = tmp_path / "probes", dict[str, list[str]]()
    probes.mkdir()
    monkeypatch.setenv(FOLDER, str(probes))
    monkeypatch.setattr(vllm, "VllmEngine", functools.partial(vllm.VllmEngine, host=HOST))
    async with live_sides(config, str(model), tokenizer, tmp_path, lambda _: None) as sides:
        for name, changes in {
            "as it is": {},
            "temperature": {"temperature": 1.0},
            "top-p": {"top_p": 0.8},
            "penalty": {"repetition_penalty": 1.5},
        }.items():
            faulty(probes, **changes)
            diagnosis = await examined(sides, config, tokenizer, str(model))
            found[name] = [each.cause for each in diagnosis.findings if each.verdict == "fault"]
            if name == "as it is":
                note = next(each for each in diagnosis.findings if each.cause == "filters")
        faulty(probes)
        monkeypatch.setattr(LiveSides, "nudge", not_pushed)
        diagnosis = await examined(sides, config, tokenizer, str(model))
    found["stale"] = [each.cause for each in diagnosis.findings if each.verdict == "fault"]
    assert found == {
        "as it is": [],
        "temperature": ["temperature"],
        "top-p": ["filters"],
        "penalty": ["filters"],
        "stale": ["stale weights"],
    }
    assert note.verdict == "note"
    assert "top_p=0.8, repetition_penalty=1.3" in note.measured

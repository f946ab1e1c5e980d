"""The examples, run as their first lines say, shortened: the agent on vLLM, the others on what starts sooner."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SHORT = [
    *("run.num_steps=2", "pipeline.groups_per_step=4", "pipeline.group_size=4", "eval.num_samples=0"),
    *("engine.count=1", "trainer.num_ranks=1", "engine.max_num_seqs=16"),
]
ON_VLLM = {"openai_agent"}


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What a command prints in ``folder``; it must end well."""
    path = os.pathsep.join(filter(None, [environment.pop("path", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def samples_of(run_dir: Path) -> list[dict[str, Any]]:
    """What was trained."""
    return [json.loads(line) for line in (run_dir / "samples.jsonl").read_bytes().splitlines()]


@contextlib.contextmanager
def reward_server(folder: Path) -> Iterator[str]:
    """``examples/reward_server.py`` on a free port; what names it, beside the example's own reward, as an override."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(ROOT / "examples" / "reward_server.py"), "--port", str(port)]
    with (folder / "server.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            yield (
                'rewards=[{name = "right_and_short"},'
                f' {{name = "http", max_retries = 8, options = {{url = "http://127.0.0.1:{port}/score"}}}}]'
            )
        finally:
            server.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["own_reward", "own_environment", "openai_agent", "verifiers_environment"])
def test_an_example_trains(tmp_path: Path, name: str) -> None:
    """Two steps, each with its line; the run is done, and what was trained is what the example says.

    The example of a reward server judges beside the own reward.
    """
    with contextlib.ExitStack() as stack:
        also = [] if name in ON_VLLM else ["engine.kind=transformers"]
        if name == "own_reward":
            also.append(stack.enter_context(reward_server(tmp_path)))
        out = run([str(ROOT / "examples" / f"{name}.py"), *SHORT, *also], tmp_path)
    assert re.findall(r"^step (\d+): reward -?\d", out, re.MULTILINE) == ["1", "2"]
    run_dir = tmp_path / "runs" / name.replace("_", "-")
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "done"
    samples = samples_of(run_dir)
    assert len(samples) == 2 * 4 * 4
    if name == "own_reward":
        assert all("turns" not in sample for sample in samples)
        assert all(set(sample["parts"]) == {"right_and_short", "http"} for sample in samples)
        return
    for sample in samples:
        turns = sample["turns"]
        assert 1 <= len(turns) <= 2
        assert sum(turn["num_sampled"] for turn in turns) == len(sample["token_ids"])
        assert turns[0]["context"] == sample["prompt_token_ids"]
    if name == "verifiers_environment":
        parts = {"check_answer_reward_func", "format_reward_func"}
        assert all(set(sample["parts"]) == parts and len(sample["turns"]) == 1 for sample in samples)
        return
    two = [sample["turns"] for sample in samples if len(sample["turns"]) == 2]
    assert two
    assert any(second["sample"] == 0 for _, second in two), "the second turn extends the first"


@pytest.mark.timeout(300)
def test_a_plugin_is_installed_and_named(tmp_path: Path) -> None:
    """A package with entry points, installed by pip, brings its reward and its environment to a TOML by name."""
    source, target = tmp_path / "plugin", tmp_path / "site"
    shutil.copytree(ROOT / "examples" / "plugin", source)  # pip builds where the package lies
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    run(["-m", "pip", "install", *offline, "--target", str(target), str(source)], tmp_path)
    config = tmp_path / "plugin.toml"
    config.write_text(
        """
model = "builtin:tiny-math"
[run]
num_steps = 2
[pipeline]
groups_per_step = 2
group_size = 2
[engine]
kind = "simulated"
[trainer]
kind = "simulated"
[sampling]
max_tokens = 16
[eval]
num_samples = 0
[environment]
name = "ask_twice"
[[rewards]]
name = "tidy"
options = { most_words = 4 }
"""
    )
    run(["-m", "prl", "run", str(config), "--plain", "--run-dir", "run"], tmp_path, path=str(target))
    samples = samples_of(tmp_path / "run")
    assert len(samples) == 2 * 2 * 2
    assert all(len(sample["turns"]) == 2 and set(sample["parts"]) == {"tidy"} for sample in samples)

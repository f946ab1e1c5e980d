from __future__ import annotations

from pathlib import Path

import pytest

LARGE = """
model = "Qwen/Qwen2.5-7B"
[run]
name = "Big Run_1"
checkpoint_every = 20
[engine]
kind = "vllm"
count = 12
tensor_parallel_size = 2
dtype = "bfloat16"
[trainer]
num_ranks = 16
num_replicas = 2
device = "cuda"
[[rewards]]
name = "http"
[rewards.options]
url = "https://judge.example/score"
[rewards.options.headers]
Authorization = "env:JUDGE_KEY"
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """40 GPUs: 12 engines of two on three machines of eight, and 16 ranks on two."""
    path = tmp_path / "large.toml"
    path.write_text(LARGE)
    return path

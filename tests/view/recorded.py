"""Run folders as a run leaves them, of any size, made in seconds: for the tests of the page and for trying it by hand.

    python -m tests.view.recorded /tmp/runs/large --steps 100000 --samples 1000000

The numbers are made up, but of the shapes that real ones have: a reward that rises, a lag that is bounded, a
trainer and engines that pause for updates. Among the samples are some with HTML, script, half characters and turns.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

import prl.models
from prl.config import Config
from prl.settings import to_toml

START = 1_790_000_000.0
"""Unix seconds."""
STEP_S = 2.0
NUM_BINS = 23
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "</td></table><style>*{display:none}</style>{{7*7}} \\u202e",
    '"onmouseover="alert(3)" javascript:alert(4) &lt;b&gt; %3Cscript%3E',
    "\U0001d6fc + 😀 = \x1b[31m红色\x1b[0m é̂",
)


def make(path: Path, *, num_steps: int, num_samples: int, group_size: int = 8, ended: bool = True) -> None:
    """Make the run folder ``path``: ``num_samples`` in all, in whole groups, spread evenly over the steps."""
    path.mkdir(parents=True)
    num_groups = max(1, num_samples // group_size)
    (path / "config.toml").write_text(to_toml(config(path.name, num_steps, num_groups, group_size)))
    versions = {
        "prl": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11.9",
        "devices": [{"kind": "cpu", "name": "a processor", "cores": 2}],
    }
    (path / "versions.json").write_bytes(msgspec.json.encode(versions))
    _write(path / "metrics.jsonl", metrics(num_steps))
    _write(path / "evaluations.jsonl", evaluations(num_steps))
    _write(path / "events.jsonl", events(num_steps))
    _write(path / "timeline.jsonl", timeline(num_steps))
    _write(path / "gauges.jsonl", gauges(int(num_steps * STEP_S)))
    with (path / "samples.jsonl").open("wb") as file:
        for lines in samples(num_steps, num_groups, group_size):
            file.write(lines)
    if ended:
        (path / "summary.json").write_bytes(msgspec.json.encode(summary(num_steps, num_samples)))


def config(name: str, num_steps: int, num_groups: int, group_size: int) -> Config:
    """What the run was told to do."""
    tree = {
        "model": "builtin:tiny-math",
        "run": {"name": name, "num_steps": num_steps},
        "pipeline": {
            "max_lag": 2,
            "group_size": group_size,
            "groups_per_step": max(1, round(num_groups / max(1, num_steps))),
        },
        "engine": {"kind": "simulated", "count": 2},
        "trainer": {"kind": "simulated", "learning_rate": 1e-4, "num_ranks": 2},
        "rewards": [
            {"name": "answer"},
            {"name": "format", "weight": 0.1, "options": {"pattern": "<b>.*</b>"}},
        ],
    }
    return msgspec.convert(tree, Config)


def metrics(num_steps: int) -> Iterator[dict[str, Any]]:
    """A line a step."""
    random = np.random.default_rng(0)
    for step in range(1, num_steps + 1):
        share = step / num_steps
        noise = float(random.normal())
        reward = 0.9 - 0.6 * math.exp(-4 * share) + 0.03 * noise
        tokens = 4000 + int(300 * noise)
        lags = [tokens - 700 - step % 50, 600 + step % 50, 100]
        peak = 2000 * (1 + 0.1 * noise)
        yield {
            "step": step,
            "version": step,
            "at": START + STEP_S * step,
            "time_s": STEP_S,
            "reward_mean": round(reward, 6),
            "reward_std": 0.4,
            "samples": 256,
            "tokens_generated": tokens + 60,
            "tokens_trained": tokens,
            "lag_max": 2,
            "lag_mean": 0.3,
            "versions_max": 3,
            "ess": round(0.97 - 0.05 * share + 0.01 * noise, 6),
            "kl_behaviour": 0.001 * share,
            "clip_frac": 0.001,
            "entropy": round(0.6 - 0.4 * share, 6),
            "kl_reference": 0.02 * share,
            "loss": -0.5,
            "grad_norm": round(abs(3 + noise), 5),
            "lr": 1e-4 * (1 - share),
            "length_mean": 40 + 100 * share,
            "length_max": 200,
            "finish_length_share": 0.02,
            "gen_tok_s": 2100.0 + 50 * noise,
            "train_tok_s": 2000.0,
            "trainer_busy": 0.8,
            "engine_busy": 0.9,
            "wait_batch_s": 0.1,
            "pause_s": 0.02,
            "publish_s": 0.05,
            "eval_block_s": 0.0,
            "loop_lag_ms": 3.0,
            "gap_mean": 0.012,
            "gap_numerics": 0.004,
            "gap_staleness": 0.008,
            "lag_histogram": lags,
            "ratio_histogram": [int(peak * math.exp(-((index - 11) ** 2) / 8)) for index in range(NUM_BINS)],
            "reward_answer_mean": round(reward, 6),
            "reward_answer_zero_share": 0.3,
            "reward_format_mean": 0.8,
            **({"dropped_timeout": 1} if step % 17 == 0 else {}),
        }


def evaluations(num_steps: int) -> Iterator[dict[str, Any]]:
    """At the start, at the end, and eight between."""
    for index in range(10):
        mean = 0.3 + 0.06 * index
        passed = {str(k): {"mean": min(1.0, mean + 0.1 * k / 4), "low": mean, "high": 1.0} for k in (1, 4)}
        step = num_steps * index // 9
        yield {
            "step": step,
            "version": step,
            "complete": True,
            "reward_mean": mean,
            "is_accuracy": True,
            "num_prompts": 256,
            "interval": [mean - 0.05, mean + 0.05],
            "pass_at": passed,
            "length_mean": 50.0 + index,
            "seconds": 1.2,
        }


def events(num_steps: int) -> Iterator[dict[str, Any]]:
    """A push a step; now and then a warning, once an error, and text that would like to be a page."""
    for step in range(1, num_steps + 1):
        at = f"2026-09-21T{step * 2 // 3600 % 24:02}:{step * 2 // 60 % 60:02}:{step * 2 % 60:02}.000+00:00"
        yield {"time": at, "level": "info", "event": "pushed", "logger": "controller", "version": step, "pause_s": 0.02}
        if step % 1000 == 7:
            yield {"time": at, "level": "warning", "event": "a stream moved", "engine": "engine-1", "step": step}
        if step == num_steps // 2 + 1:
            what = {"exception": "Traceback (most recent call last):\n  File ...\nOSError: gone"}
            yield {"time": at, "level": "error", "event": f"engine-1 died {HOSTILE[0]}", "logger": "pool", **what}


def timeline(num_steps: int) -> Iterator[dict[str, Any]]:
    """Two engines and two trainer ranks that take turns, step by step."""
    for step in range(1, num_steps + 1):
        start = START + STEP_S * (step - 1)
        for engine in range(2):
            lane = f"engine-{engine}"
            yield {"lane": lane, "state": "generating", "start": start, "end": start + 1.9, "why": None, "step": step}
            why = f"weights of version {step}"
            paused = {"lane": lane, "state": "paused", "start": start + 1.9, "end": start + 1.93, "why": why}
            yield {**paused, "version": step}
            yield {**paused, "state": "loading", "start": start + 1.93, "end": start + 2.0, "version": step}
        for rank in range(2):
            lane = f"trainer rank {rank}"
            wait = {"lane": lane, "state": "waiting", "start": start, "end": start + 0.1, "why": "for a batch"}
            yield {**wait, "step": step}
            yield {**wait, "state": "training", "start": start + 0.1, "end": start + 1.9, "why": None, "step": step}
        yield {"lane": "controller", "state": "publishing", "start": start + 1.9, "end": start + 2.0, "version": step}


def gauges(num_seconds: int) -> Iterator[dict[str, Any]]:
    """A line a second."""
    for second in range(num_seconds):
        slots = {"num_slots": 48, "running": 30 + second % 7, "finished": 8, "taken": 10 - second % 7}
        yield {
            "at": START + second,
            "slots": slots,
            "streams": 64,
            "tok_s": 2000.0 + second % 100,
            "queue": {"sync": 1},
        }


def samples(num_steps: int, num_groups: int, group_size: int) -> Iterator[bytes]:
    """Lines, many at a time."""
    random = np.random.default_rng(1)
    answers = list(_answers(random))
    done = 0
    for step in range(1, num_steps + 1):
        until = num_groups * step // num_steps
        lines = []
        for group in range(done, until):
            a, b = group % 97, group * 7 % 89
            prompt = f"<|im_start|>user\\n{a} + {b} = ?<|im_end|>\\n<|im_start|>assistant\\n"
            chosen = random.integers(len(answers), size=group_size)
            drawn = random.random(group_size) < 0.3 + 0.6 * step / num_steps
            for member in range(group_size):
                reward = float(drawn[member])
                lines.append(
                    b'{"step":%d,"group":%d,"member":%d,"prompt_id":%d,"prompt":"%b","reward":%.1f,'
                    b'"parts":{"answer":%.1f,"format":null},"part_messages":{"answer":"expected <b>%d</b>"},'
                    b'"advantages":%.4f,%b}\n'
                    % (step, group, member, group, prompt.encode(), reward, reward, a + b, reward - 0.5,
                       answers[chosen[member]].replace(b"VERSIONS", b"%d" % (step - 1)))
                )  # fmt: skip
        done = until
        yield b"".join(lines)


def summary(num_steps: int, num_samples: int) -> dict[str, Any]:
    """How it ended."""
    return {
        "status": "done",
        "steps": num_steps,
        "samples": num_samples,
        "tokens_generated": 4060 * num_steps,
        "tokens_trained": 4000 * num_steps,
        "goodput": 0.985,
        "reward_first": 0.3,
        "reward_last": 0.89,
        "eval_before": 0.3,
        "eval_after": 0.84,
        "evals_incomplete": 0,
        "engine_restarts": 1,
        "trainer_restarts": 0,
        "lag_max": 2,
        "lag_mean": 0.3,
        "ess_mean": 0.95,
        "num_engines": 2,
        "num_versions_max_in_sample": 3,
        "wall_s": STEP_S * num_steps,
        "error": None,
    }


def _answers(random: np.random.Generator) -> Iterator[bytes]:
    """The part of a line that does not depend on its step, where the version's place is held by a word."""
    tokenizer = Tokenizer.from_file(str(prl.models.BUILTIN_MODELS["tiny-math"] / "tokenizer.json"))
    for index in range(400):
        x, y = (int(number) for number in random.integers(100, size=2))
        text = f"{x}+{y}={x + y} \\boxed{{{x + y}}} word{index}"
        if index % 40 == 0:
            text = f"{HOSTILE[index // 40 % len(HOSTILE)]} {text}"
        ids = [*tokenizer.encode(text, add_special_tokens=False).ids, 2]
        logprobs = np.round(-random.exponential(0.3, len(ids)), 6)
        fields = {
            "completion": text,
            "finish": "length" if index % 50 == 3 else "stop",
            "prompt_token_ids": [1, 261, 201],
            "token_ids": ids,
            "logprobs": logprobs.tolist(),
            "trained_logprobs": np.round(logprobs + random.normal(0, 0.02, len(ids)), 6).tolist(),
        }
        if index % 100 == 5:
            asked = {"role": "user", "content": "and now?"}
            said = {"role": "assistant", "content": text, "tool_calls": [{"name": "add", "arguments": '{"x": 1}'}]}
            fields |= {"messages": [asked, said, {"role": "tool", "content": HOSTILE[1]}]}
        body = msgspec.json.encode(fields)[1:-1]
        yield body + b',"versions":[' + b",".join([b"VERSIONS"] * len(ids)) + b"]"


def _write(path: Path, lines: Iterator[dict[str, Any]]) -> None:
    encoder = msgspec.json.Encoder()
    with path.open("wb", buffering=1 << 20) as file:
        for line in lines:
            file.write(encoder.encode(line))
            file.write(b"\n")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=10_000)
    arguments = parser.parse_args()
    make(arguments.path, num_steps=arguments.steps, num_samples=arguments.samples)


if __name__ == "__main__":
    main()

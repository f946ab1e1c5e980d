"""What stale weights cost: a kept KV cache after in-flight updates, and the effective sample size against lag.

    python benchmarks/staleness.py [--quick] --out FILE.json

``builtin:tiny-math`` is trained by the real learner (REINFORCE, AdamW at learning rate 1e-4, 16 groups of 16 a step)
and every version is kept. Then, all in float32 with an explicit KV cache:

Cache. Sequences of 512 tokens (they go on after a stop token) are sampled while the weights change every 512 / k
tokens, through the last k versions. The key and value of a token stay those of the version that read it, as in the
engines: ``test_kept_cache_is_that_of_the_versions_that_read`` holds the real engine to it. On these same tokens, the
mean over tokens of the exact KL divergence to the newest version's distribution (its own cache) is taken of: ``kept``,
what they were sampled from; ``recomputed``, the same versions with the cache recomputed at every change; ``oldest``,
the whole sequence under the oldest of the k.

Lag. Training samples weighted under the version ``lag`` steps after theirs: effective sample size over N, by token
(what ``ess`` in the metrics is) and by sequence, for the last four versions.

Headline: KL of kept over KL of recomputed at the most versions, median over 3 seeds. The paper's finding, in small:
"only slightly larger" (here: at most 1.25), and far below the oldest's (at most half). ``--quick``: 16 versions and 256
tokens.
"""

# ruff: noqa: N815 -- the suffixes of the names are the dimensions

from __future__ import annotations

import asyncio
import statistics
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import harness
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from prl.advantage import ADVANTAGES
from prl.batch import make_batch
from prl.config import Config
from prl.models import resolve_model
from prl.prompts import open_source
from prl.rewards.answer import Answer
from prl.settings import load_config
from prl.tokenizer import Tokenizer
from prl.trainer.learner import Learner
from prl.types import Batch, Completion, Group, Prompt, Sample, Score

MATH = Path(__file__).parent.parent / "configs/math.toml"
SETTINGS = ("trainer.num_ranks=1", "trainer.schedule=constant", "trainer.learning_rate=1e-4", "eval.num_samples=0")
NUM_SEEDS, NUM_GROUPS, GROUP_SIZE, NUM_LONG, NUM_WEIGHTED = 3, 16, 16, 32, 4
MOST_OVER_RECOMPUTED, MOST_OVER_OLDEST = 1.25, 0.5
State = dict[str, Tensor]


class Sizes(NamedTuple):
    """How large a measurement."""

    versions: int
    length: int
    lags: tuple[int, ...]


FULL = Sizes(32, 512, (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 31))
QUICK = Sizes(16, 256, (0, 1, 2, 3, 4, 5, 6, 7, 8, 15))


class Sampled(NamedTuple):
    """B sequences with what they were sampled from."""

    token_ids_BT: Tensor
    """Prompt and what follows."""
    logprobs_BLV: Tensor
    """Of the L tokens after the prompt, over the whole vocabulary."""


@torch.no_grad()
def sample(model: Any, prompts_BP: Tensor, versions_L: list[State]) -> Sampled:
    """Sample at temperature 1, token t under ``versions_L[t]``, which also reads the token before it into the cache."""
    cache, read_B, logprobs = DynamicCache(config=model.config), prompts_BP, []
    token_ids = [prompts_BP]
    serving: State | None = None
    for state in versions_L:
        if state is not serving:
            model.load_state_dict(state, strict=False)  # a tied head has no name of its own
            serving = state
        logits_BV = model(input_ids=read_B, past_key_values=cache, use_cache=True).logits[:, -1]
        logprobs.append(torch.log_softmax(logits_BV, -1))
        read_B = torch.multinomial(logprobs[-1].exp(), 1)
        token_ids.append(read_B)
    return Sampled(torch.cat(token_ids, 1), torch.stack(logprobs, 1))


@torch.no_grad()
def plain(model: Any, state: State, sampled: Sampled) -> Tensor:
    """The same tokens under one version with a cache of its own: log-probabilities like ``logprobs_BLV``."""
    model.load_state_dict(state, strict=False)  # a tied head has no name of its own
    length = sampled.logprobs_BLV.shape[1]
    logits = model(input_ids=sampled.token_ids_BT, use_cache=False).logits[:, -length - 1 : -1]
    return torch.log_softmax(logits, -1)


def divergence(of_BLV: Tensor, to_BLV: Tensor) -> float:
    """Mean over tokens of KL(of || to), exact, in nats."""
    return float((of_BLV.exp() * (of_BLV - to_BLV)).sum(-1).mean())


def cache_row(model: Any, versions: list[State], prompts_BP: Tensor, length: int) -> dict[str, float]:
    """All three divergences, for sequences that ``versions`` wrote in turn."""
    each = length // len(versions)
    sampled = sample(model, prompts_BP, [state for state in versions for _ in range(each)])
    alone = [plain(model, state, sampled) for state in versions]
    recomputed = torch.cat([alone[k][:, k * each : (k + 1) * each] for k in range(len(versions))], 1)
    return {
        "kept": divergence(sampled.logprobs_BLV, alone[-1]),
        "recomputed": divergence(recomputed, alone[-1]),
        "oldest": divergence(alone[0], alone[-1]),
    }


class Run:
    """One training run: its versions, and the samples that each of them was trained on."""

    def __init__(self, seed: int) -> None:
        self._config: Config = load_config(MATH, [*SETTINGS, f"seed={seed}"])
        torch.manual_seed(seed)
        folder = resolve_model(self._config.model)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.learner = Learner(self._config, folder, None, torch.device("cpu"))
        self._tokenizer = Tokenizer.load(folder)
        self._source = open_source(self._config, self._tokenizer)
        self._prompt_length = len(self._source.next().token_ids)
        self.versions: list[State] = [self._state()]
        self.batches: list[Sampled] = []
        self.rewards: list[float] = []

    def prompts(self, number: int) -> list[Prompt]:
        """Prompts of one length, so that they need no padding."""
        found: list[Prompt] = []
        while len(found) < number:
            prompt = self._source.next()
            if len(prompt.token_ids) == self._prompt_length:
                found.append(prompt)
        return found

    def sample(self) -> tuple[Batch, Sampled, list[float]]:
        """A batch of one rank from the newest version, what it is made of, and its rewards."""
        prompts = self.prompts(NUM_GROUPS)
        ids_BP = torch.tensor([prompt.token_ids for prompt in prompts for _ in range(GROUP_SIZE)])
        sampled = sample(self.model, ids_BP, [self.versions[-1]] * self._config.sampling.max_tokens)
        completions = [self._completion(row, sampled) for row in range(len(ids_BP))]
        groups = []
        for number, prompt in enumerate(prompts):
            own = completions[number * GROUP_SIZE : (number + 1) * GROUP_SIZE]
            groups.append(Group(prompt=prompt, completions=own, scores=asyncio.run(scores(own, prompt))))
        step = len(self.versions) - 1
        advantage = ADVANTAGES[self._config.advantage.name]
        batch = make_batch(step, groups, advantage=advantage, num_ranks=1, max_tokens_per_microbatch=8192)
        return batch, sampled, [score.reward for group in groups for score in group.scores]

    def step(self) -> None:
        """Sample from the newest version, train on that, keep the version that it makes."""
        batch, sampled, rewards = self.sample()
        self.learner.train(batch.step, microbatches_of(batch), batch.num_sequences)
        self.versions.append(self._state())
        self.batches.append(sampled)
        self.rewards.append(statistics.fmean(rewards))

    def kept_tokens(self, sampled: Sampled) -> Tensor:
        """Which of the sampled tokens belong to the sequence: up to its stop token."""
        stops_BL = torch.isin(sampled.token_ids_BT[:, self._prompt_length :], torch.tensor(self._stops))
        return stops_BL.cumsum(1) - stops_BL.long() == 0

    @property
    def _stops(self) -> list[int]:
        return self._tokenizer.stop_token_ids

    def _completion(self, row: int, sampled: Sampled) -> Completion:
        ids = sampled.token_ids_BT[row, self._prompt_length :].tolist()
        end = next((t + 1 for t, token in enumerate(ids) if token in self._stops), len(ids))
        logprobs = sampled.logprobs_BLV[row, range(end), ids[:end]].tolist()
        return Completion(
            token_ids=ids[:end],
            logprobs=logprobs,
            versions=[len(self.versions) - 1] * end,
            text=self._tokenizer.decode(ids[: end - (ids[end - 1] in self._stops)]),
            finish="stop" if ids[end - 1] in self._stops else "length",
        )

    def _state(self) -> State:
        return {name: tensor.full_tensor().detach().clone() for name, tensor in self.learner.policy.tensors.items()}


def microbatches_of(batch: Batch) -> list[list[Sample]]:
    """Those of the only rank."""
    return [[batch.samples[index] for index in indices] for indices in batch.plan[0]]


async def scores(completions: list[Completion], prompt: Prompt) -> list[Score]:
    """1 for the right answer."""
    answer = Answer()
    rewards = [await answer(completion, prompt) for completion in completions]
    return [Score(reward=reward, parts={"answer": reward}) for reward in rewards]


def sample_sizes(run: Run, lag: int) -> dict[str, float]:
    """Effective sample size over N of samples ``lag`` steps old, mean over the last versions."""
    by_token, by_sequence = [], []
    newest = len(run.batches) + min(lag, 1)  # the last version has trained on nothing, so it has no samples of its own
    for version in range(max(lag, newest - NUM_WEIGHTED), newest):
        sampled = run.batches[version - lag]
        kept_BL = run.kept_tokens(sampled)
        targets = sampled.token_ids_BT[:, -kept_BL.shape[1] :, None]
        newer_BL = plain(run.model, run.versions[version], sampled).gather(-1, targets)[..., 0]
        log_ratio_BL = (newer_BL - sampled.logprobs_BLV.gather(-1, targets)[..., 0]) * kept_BL
        by_token.append(effective(log_ratio_BL[kept_BL]))
        by_sequence.append(effective(log_ratio_BL.sum(1)))
    return {"by_token": statistics.fmean(by_token), "by_sequence": statistics.fmean(by_sequence)}


def effective(log_ratio_N: Tensor) -> float:
    """(sum w)^2 / (N sum w^2)."""
    weights_N = log_ratio_N.double().exp()
    return float(weights_N.sum() ** 2 / (len(weights_N) * (weights_N**2).sum()))


def measure_seed(seed: int, sizes: Sizes) -> dict[str, Any]:
    """Train, then look."""
    run = Run(seed)
    for _ in range(sizes.versions - 1):
        run.step()
    prompts_BP = torch.tensor([prompt.token_ids for prompt in run.prompts(NUM_LONG)])
    counts = [2**power for power in range(1, sizes.versions.bit_length())]
    return {
        "cache": {count: cache_row(run.model, run.versions[-count:], prompts_BP, sizes.length) for count in counts},
        "lag": {lag: sample_sizes(run, lag) for lag in sizes.lags},
        "rewards": run.rewards,
    }


def rows_of(seeds: list[dict[str, Any]], table: str, key: str) -> list[dict[str, Any]]:
    """One row per setting, each cell over the seeds."""
    return [
        {key: setting}
        | {name: harness.spread([seed[table][setting][name] for seed in seeds]) for name in seeds[0][table][setting]}
        for setting in seeds[0][table]
    ]


def measure(quick: bool) -> dict[str, Any]:
    """Every seed."""
    warnings.simplefilter("ignore")
    sizes = QUICK if quick else FULL
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    seeds = [measure_seed(seed, sizes) for seed in range(NUM_SEEDS)]
    dist.destroy_process_group()
    most = [seed["cache"][max(seed["cache"])] for seed in seeds]
    over_recomputed = harness.spread([row["kept"] / row["recomputed"] for row in most])
    over_oldest = harness.spread([row["kept"] / row["oldest"] for row in most])
    return {
        "headline": over_recomputed["median"],
        "target": f"kept over recomputed at most {MOST_OVER_RECOMPUTED}, over oldest at most {MOST_OVER_OLDEST}",
        "target_met": over_recomputed["median"] <= MOST_OVER_RECOMPUTED and over_oldest["median"] <= MOST_OVER_OLDEST,
        "kept_over_recomputed": over_recomputed,
        "kept_over_oldest": over_oldest,
        "reward_first": harness.spread([seed["rewards"][0] for seed in seeds]),
        "reward_last": harness.spread([seed["rewards"][-1] for seed in seeds]),
        "learning_rate": 1e-4,
        "kl_to_newest": rows_of(seeds, "cache", "versions"),
        "sample_size": rows_of(seeds, "lag", "lag"),
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["kl_to_newest", "sample_size"])

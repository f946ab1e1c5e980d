"""Conflicts between fields of a configuration, each in one line that names the keys and a way out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from prl.check import cross_check
from prl.check_control import is_loopback
from prl.config import Config, RewardConfig
from prl.errors import ConfigError


def config(**changes: Any) -> Config:
    """A valid configuration with changes, such as ``run={"num_steps": 3}``."""
    tree: dict[str, Any] = {"model": "m", "rewards": [{"name": "answer"}], **changes}
    return msgspec.convert(tree, Config)


def conflicts(config: Config, **environment: str) -> list[str]:
    """The lines of what ``cross_check`` says."""
    with pytest.raises(ConfigError) as caught:
        cross_check(config, environment)
    return str(caught.value).splitlines()


def test_the_defaults_agree_with_each_other() -> None:
    """Nothing to say about a model, one reward and the rest as it comes."""
    cross_check(config(), {})


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (
            {"pipeline": {"mode": "conventional", "target_ess": 0.9}},
            ["pipeline.target_ess = 0.9", "pipeline.mode = 'conventional'"],
        ),
        (
            {"pipeline": {"max_lag": 0, "target_ess": 0.9}},
            ["pipeline.target_ess = 0.9", "pipeline.max_lag = 0", "set max_lag to the most"],
        ),
        ({"pipeline": {"mode": "conventional", "max_lag": 3}}, ["pipeline.max_lag = 3", "steps_per_round"]),
        (
            {"pipeline": {"group_size": 9}, "engine": {"count": 2, "max_num_seqs": 4}},
            ["pipeline.group_size = 9", "engine.max_num_seqs = 2 x 4 = 8"],
        ),
        (
            {"pipeline": {"groups_per_step": 1, "group_size": 2}, "trainer": {"num_ranks": 3}},
            ["groups_per_step x group_size = 2", "trainer.num_ranks = 3"],
        ),
        (
            {"weights": {"transport": "nccl"}, "engine": {"kind": "transformers"}},
            ["weights.transport = 'nccl'", "engine.kind = 'transformers'"],
        ),
        ({"engine": {"kind": "server"}}, ['engine.kind = "server" needs engine.servers', "docs/servers.md"]),
        ({"engine": {"servers": ["host:8000"]}}, ["engine.servers: 'host:8000' is no address", "http://host:8000"]),
        ({"engine": {"servers": ["http://a:1", "http://a:1/"]}}, ["engine.servers names http://a:1 twice"]),
        (
            {"engine": {"kind": "simulated", "servers": ["http://a:1"]}, "trainer": {"kind": "simulated"}},
            ["engine.servers conflicts with engine.kind = 'simulated'"],
        ),
        ({"weights": {"transport": "nccl"}, "trainer": {"device": "cpu"}}, ["weights.transport = 'nccl'", "cpu"]),
        ({"pipeline": {"group_size": 1}}, ["pipeline.group_size = 1", "leave_one_out", "at least 2"]),
        (
            {"pipeline": {"group_size": 1, "groups_per_step": 1}, "advantage": {"name": "reinforce_pp"}},
            ["'reinforce_pp'", "groups_per_step x group_size = 1"],
        ),
        ({"advantage": {"name": "dr_grpo"}}, ["'dr_grpo'", "loss.aggregation = 'fixed_length'", "'group_mean'"]),
        ({"loss": {"name": "cipso"}}, ["loss.name = 'cipso'", "did you mean 'cispo'", "package.module:name"]),
        ({"loss": {"clip_low": 0.1}}, ["loss.clip_low = 0.1", "'reinforce'", "cispo, decoupled_ppo, gspo, ppo"]),
        ({"loss": {"name": "ppo", "ratio_clip": 5.0}}, ["loss.ratio_clip = 5", "'ppo'", "decoupled_ppo, reinforce"]),
        ({"loss": {"name": "ppo", "mask_high": 2.0}}, ["loss.mask_high = 2", "'ppo'", "masked_importance"]),
        ({"loss": {"name": "a.b:c", "clip_high": 0.0}}, ["loss.clip_high = 0", "'a.b:c'"]),
        ({"loss": {"name": "gspo", "options": {"x": 1}}}, ["loss.options", "'gspo'", "clip_low, clip_high"]),
        ({"loss": {"name": "decoupled_ppo"}}, ["'decoupled_ppo'", "loss.anchor = 'recomputed'"]),
        ({"loss": {"name": "ppo", "anchor": "recomputed"}}, ["loss.anchor = 'recomputed'", "'ppo'"]),
        ({"kl": {"estimator": "k3"}}, ["kl.estimator = 'k3'", "kl.coefficient = 0"]),
        ({"kl": {"where": "reward"}}, ["kl.where = 'reward'", "kl.coefficient = 0"]),
        ({"advantage": {"max_refills": 3}}, ["advantage.max_refills = 3", "zero_variance = 'keep'"]),
        (
            {"advantage": {"credit": "reward_to_go"}},
            ["advantage.credit = 'reward_to_go'", "environment.name = 'single_turn'"],
        ),
        (
            {"advantage": {"credit": "reward_to_go", "name": "reinforce_pp"}, "environment": {"name": "guess"}},
            ["advantage.credit = 'reward_to_go'", "'reinforce_pp'"],
        ),
        (
            {"data": {"source": "verifiers"}},
            ["data.source = 'verifiers'", "environment.name = 'single_turn'"],
        ),
        (
            {"advantage": {"name": "reinforce_pp", "zero_variance": "refill"}},
            ["advantage.zero_variance = 'refill'", "'reinforce_pp'"],
        ),
        (
            {"overlong": {"buffer": 65}, "sampling": {"max_tokens": 64}},
            ["overlong.buffer = 65", "sampling.max_tokens = 64"],
        ),
        (
            {"engine": {"max_model_len": 64}, "sampling": {"max_tokens": 64}},
            ["sampling.max_tokens = 64", "engine.max_model_len = 64"],
        ),
        (
            {"engine": {"kind": "transformers", "tensor_parallel_size": 2}},
            ["engine.tensor_parallel_size = 2", "'vllm'", "'transformers'"],
        ),
        ({"engine": {"kind": "simulated"}}, ["engine.kind = 'simulated'", "trainer.kind = 'fsdp'"]),
        ({"trainer": {"kind": "simulated"}}, ["engine.kind = 'auto'", "trainer.kind = 'simulated'"]),
        (
            {"trainer": {"schedule": "cosine", "warmup_steps": 5}, "run": {"num_steps": 5}},
            ["trainer.schedule = 'cosine'", "trainer.warmup_steps = 5", "run.num_steps = 5"],
        ),
        ({"trainer": {"schedule": "linear"}, "run": {"num_steps": 0}}, ["'linear'", "run.num_steps = 0"]),
        ({"lora": {"alpha": 16.0}}, ["lora.alpha = 16.0", "lora.rank = 0"]),
        ({"lora": {"target_modules": ["q_proj"]}}, ["lora.target_modules = ['q_proj']", "lora.rank = 0"]),
        (
            {"lora": {"rank": 8, "publish": "adapters"}, "weights": {"transport": "nccl"}},
            ["lora.publish = 'adapters'", "weights.transport = 'nccl'", "'gloo'"],
        ),
        (
            {"lora": {"rank": 8}, "trainer": {"kind": "simulated"}, "engine": {"kind": "simulated"}},
            ["lora.rank = 8", "trainer.kind = 'simulated'"],
        ),
        ({"trainer": {"listen": "localhost"}}, ["trainer.listen", "'localhost'", "host:port"]),
        ({"trainer": {"listen": "127.0.0.1:99999"}}, ["trainer.listen", "99999"]),
        ({"trainer": {"listen": "0.0.0.0:0"}}, ["trainer.listen = '0.0.0.0:0'", "PRL_TOKEN"]),
        (
            {"trainer": {"launch": "external", "listen": "127.0.0.1:29400"}},
            ["trainer.launch = 'external'", "PRL_TOKEN"],
        ),
        ({"trainer": {"num_ranks": 4, "num_replicas": 3}}, ["num_replicas = 3 does not divide", "num_ranks = 4"]),
        ({"data": {"source": "jsonl"}}, ["data.source = 'jsonl'", "data.path"]),
        (
            {"data": {"path": "x.jsonl"}},
            ["data.path = 'x.jsonl'", "data.source = 'arithmetic'", "set data.source = 'jsonl'"],
        ),
        ({"data": {"path": "x.parquet"}}, ["data.path = 'x.parquet'", "set data.source = 'parquet'"]),
        ({"data": {"source": "reasoning_gym"}}, ["needs data.task"]),
        ({"data": {"task": "chain_sum"}}, ["data.task = 'chain_sum'", "'arithmetic'", "'reasoning_gym'"]),
        ({"data": {"split": "test"}}, ["data.split = 'test'", "'arithmetic'", "but by 'dataset'"]),
        ({"data": {"columns": {"prompt": "q"}}}, ["data.columns = {'prompt': 'q'}", "'arithmetic'", "'csv'"]),
        ({"data": {"sources": [{"source": "csv"}]}}, ["data.sources.0.source = 'csv' needs data.sources.0.path"]),
        ({"data": {"level": 2, "sources": [{}]}}, ["data.level = 2 is not read where there are [[data.sources]]"]),
        ({"data": {"filter": {"min_tokens": 9, "max_tokens": 8}}}, ["max_tokens = 8", "min_tokens = 9"]),
        ({"data": {"filter": {"min_tokens": 999}}}, ["data.filter.min_tokens = 999", "room for 768 tokens"]),
        ({"data": {"filter": {"min_solve_rate": 0.5}}}, ["data.filter", "no source has rows", "data.curriculum"]),
        (
            {
                "data": {
                    "source": "csv",
                    "path": "x.csv",
                    "filter": {"min_solve_rate": 0.5, "max_solve_rate": 0.25},
                }
            },
            ["max_solve_rate = 0.25", "min_solve_rate = 0.5"],
        ),
        ({"data": {"curriculum": {"band": [0.5, 0.25]}}}, ["data.curriculum.band = [0.5, 0.25]"]),
        ({"eval": {"split": "test"}}, ["eval.split = 'test'", "data.source = 'arithmetic'", "eval.path"]),
        (
            {"data": {"source": "dataset", "path": "x"}, "eval": {"split": "train"}},
            ["eval.split = 'train' is what is trained on"],
        ),
        ({"data": {"source": "word_problems", "level": 6}}, ["data.level = 6", "'word_problems'", "1 to 5"]),
        ({"eval": {"every": 5, "num_samples": 0}}, ["eval.every = 5", "eval.num_samples = 0"]),
        ({"eval": {"num_answers": 4}}, ["eval.num_answers = 4", "eval.temperature = 0", "same greedy answer"]),
        (
            {"eval": {"num_answers": 4, "temperature": 1.0, "pass_at": (1, 8)}},
            ["eval.pass_at has 8", "eval.num_answers = 4"],
        ),
        ({"eval": {"max_tokens": 1024}}, ["eval.max_tokens = 1024", "engine.max_model_len = 1024"]),
        ({"rewards": []}, ["rewards", "[[rewards]]"]),
        ({"rewards": [{"name": "answer", "weight": 0.0}]}, ["rewards", "weight is 0"]),
        ({"rewards": [{"name": "answer"}, {"name": "answer"}]}, ["rewards.1", "'answer'", "weight"]),
        ({"run": {"name": "../up"}}, ["run.name = '../up'", "--run-dir"]),
        ({"run": {"name": ""}}, ["run.name = ''"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_conflict_is_one_line_that_names_its_keys(changes: dict[str, Any], keys: list[str]) -> None:
    """Each conflict alone gives exactly one line."""
    (line,) = conflicts(config(**changes))
    for key in keys:
        assert key in line


@pytest.mark.parametrize(
    "changes",
    [
        {"pipeline": {"mode": "conventional"}},
        {"pipeline": {"max_lag": 0}},
        {"run": {"num_steps": 0}},
        {"run": {"num_steps": 3}, "trainer": {"warmup_steps": 10}},
        {"pipeline": {"groups_per_step": 1, "group_size": 2}, "trainer": {"num_ranks": 2}},
        {"engine": {"max_model_len": 65}, "sampling": {"max_tokens": 64}},
        {"engine": {"kind": "simulated"}, "trainer": {"kind": "simulated"}},
        {"trainer": {"listen": "[::1]:0"}},
        {"pipeline": {"group_size": 1}, "advantage": {"name": "reinforce_pp"}},
        {"loss": {"name": "decoupled_ppo", "anchor": "recomputed", "ratio_clip": 2.0, "clip_low": 0.1}},
        {"loss": {"name": "a.b:c", "options": {"x": 1}, "anchor": "recomputed", "aggregation": "fixed_length"}},
        {"advantage": {"name": "dr_grpo"}, "loss": {"aggregation": "fixed_length"}},
        {"advantage": {"name": "rloo"}},
        {"loss": {"name": "masked_importance", "mask_low": 0.2, "mask_high": 2.0, "entropy_bonus": 0.1}},
        {"kl": {"coefficient": 0.1, "estimator": "k1", "where": "reward"}},
        {"advantage": {"zero_variance": "refill", "max_refills": 0}},
        {"lora": {"rank": 8, "publish": "adapters", "target_modules": ["q_proj"]}, "weights": {"transport": "gloo"}},
        {"lora": {"rank": 8, "publish": "merged"}, "weights": {"transport": "nccl"}},
        {"overlong": {"buffer": 64, "mask": True}, "sampling": {"max_tokens": 64}},
        {"rewards": [{"name": "format", "options": {"a": 1}}, {"name": "format", "options": {"a": 2}}]},
        {"rewards": [{"name": "a", "weight": 1.0}, {"name": "b", "weight": 0.0}]},
    ],
    ids=str,
)
def test_what_is_unusual_and_possible_passes(changes: dict[str, Any]) -> None:
    """The edges of each rule, on the side that works."""
    cross_check(config(**changes), {})


def test_a_token_in_the_environment_opens_the_trainer_to_others() -> None:
    """With PRL_TOKEN set, listening beyond loopback and external ranks are fine."""
    for trainer in ({"listen": "0.0.0.0:29400"}, {"launch": "external", "listen": "127.0.0.1:29400"}):
        cross_check(config(trainer=trainer), {"PRL_TOKEN": "secret"})


def test_the_page_is_no_more_open_than_the_control_address() -> None:
    """Beyond loopback it needs the same token; where it is off its address is nobody's concern."""
    open_page = {"view": {"address": "0.0.0.0"}}
    (line,) = conflicts(config(**open_page))
    assert "view.address = '0.0.0.0' can be reached from other machines: set PRL_CONTROL_TOKEN" in line
    cross_check(config(**open_page), {"PRL_CONTROL_TOKEN": "0123456789abcdef"})
    cross_check(config(view={"address": "0.0.0.0", "enabled": False}), {})
    assert len(conflicts(config(view={"address": ""}, control={"enabled": False}))) == 1


def test_external_ranks_are_told_a_port() -> None:
    """They come back to it after a death, so it cannot be any that is free."""
    with pytest.raises(ConfigError, match=r"external' needs a port in trainer\.listen, got '0\.0\.0\.0:0'"):
        cross_check(config(trainer={"launch": "external", "listen": "0.0.0.0:0"}), {"PRL_TOKEN": "secret"})


def test_all_conflicts_are_reported_at_once() -> None:
    """One line each."""
    assert len(conflicts(config(rewards=[], pipeline={"group_size": 1}, data={"source": "jsonl"}))) == 3


def test_a_value_out_of_range_is_found_in_a_config_made_in_python() -> None:
    """What the types say is checked first, since nothing else can be judged without it."""
    (line,) = conflicts(Config(model="m", seed=-1, rewards=[RewardConfig(name="answer")]))
    assert line == "seed = -1 must be an integer >= 0"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("h", False)],
)
def test_loopback_is_what_no_other_machine_reaches(host: str, *, expected: bool) -> None:
    """Numbers by their network, ``localhost`` by its name, every other name not."""
    assert is_loopback(host) is expected

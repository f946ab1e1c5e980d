"""Environments of the package ``verifiers``, played over real HTTP against scripted answers."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.config import Config
from prl.engines.base import Decoding
from prl.environments import verifiers_package
from prl.environments.session import Limits
from prl.environments.verifiers_package import Verifiers
from prl.errors import ConfigError, MissingExtraError, PluginError
from prl.gateway.gateway import Gateway
from prl.parts import environment_of
from prl.prompts import open_source
from prl.sampler import Dropped
from prl.tokenizer import Tokenizer
from prl.types import Completion
from tests.environments.scripted import Answers, chat_prompt, episodes_of
from tests.gateway.conftest import gateway
from tests.tiny_tokenizers import END_ID

pytestmark = pytest.mark.filterwarnings("ignore")
__all__ = ["gateway"]
DECODING = Decoding(temperature=1.0, max_tokens=64, stop_token_ids=[END_ID])
EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = [{"question": f"{number} + 1", "answer": str(number + 1), "info": {"number": number}} for number in range(10)]


released = threading.Event()
"""Lets the functions go that hang in threads."""


def right(completion: Any, answer: str) -> float:
    """A plain function of the rubric; some answers are more than it can bear."""
    said = completion[-1]["content"]
    if said == "hang":
        released.wait()
    if said == "bug":
        raise KeyError(said)
    if said == "down":
        raise OSError("no route")
    if said == "nothing":
        return None  # type: ignore[return-value]
    return float(said == answer)


async def polite(completion: Any, info: Any) -> float:
    """An async one, which sees the row."""
    if completion[-1]["content"] == "hang elsewhere":
        await asyncio.Event().wait()
    assert info["number"] == 4
    return float("please" in completion[0]["content"])


def of_groups(completions: Any) -> list[float]:
    """A function of a whole group."""
    return [0.0] * len(completions)


def made(kind: str = "both", max_turns: int = 2, *, held_out: int = 0) -> Any:
    """What the package calls to make the environment of these tests."""
    import verifiers as vf
    from datasets import Dataset

    class Again(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
            return [{"role": "user", "content": "again"}]

    rubrics = {
        "both": ([right, polite], [1.0, 0.5]),
        "groups": ([of_groups], [1.0]),
        "metrics": ([right], [0.0]),
        "twice": ([right, right], [1.0, 1.0]),
    }
    functions, weights = rubrics[kind]
    return Again(
        dataset=Dataset.from_list(ROWS),
        eval_dataset=Dataset.from_list(ROWS[:held_out]) if held_out else None,
        system_prompt="add",
        rubric=vf.Rubric(funcs=functions, weights=weights),
        max_turns=max_turns,
    )


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment can be imported by its id."""
    module = types.ModuleType("vf_again")
    module.load_environment = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vf_again", module)


def config(data: dict[str, Any] | None = None, **environment: Any) -> Config:
    """A run of the environment ``vf-again``."""
    tree: dict[str, Any] = {
        "model": "builtin:tiny-math",
        "environment": {"name": "verifiers", **environment},
        "gateway": {"enabled": True},
        "data": {"source": "verifiers", **(data or {})},
        "eval": {"num_samples": 2},
        "rewards": [],
    }
    return msgspec.convert(tree, Config)


async def play(
    gateway: Gateway, tokenizer: Tokenizer, *answers: str, limits: Limits | None = None, **options: Any
) -> Any:
    """One episode of the fifth row."""
    row = {**ROWS[4], "task": "default", "example_id": 4}
    prompt = msgspec.structs.replace(chat_prompt(tokenizer, "4 + 1"), fields=row)
    limits = limits or Limits(16, 4096)
    episodes = episodes_of("verifiers", tokenizer, limits=limits, door=gateway, env="vf-again", **options)
    async with episodes:
        return await episodes.play(prompt, DECODING, Answers(tokenizer, *answers))


async def test_its_turns_are_sampled_and_its_rubric_judges(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """Functions with weights are parts of the reward, its own measures are noted, the turns are one sample."""
    episode = await play(gateway, tokenizer, "6, please", "5")
    assert isinstance(episode, Completion)
    assert episode.rewards == {"right": 1.0, "polite": 0.5}
    assert episode.noted == {"num_turns": 2.0}
    assert [(turn.sample, turn.finish) for turn in episode.turns] == [(0, "stop")] * 2
    assert tokenizer.decode_all(episode.turns[1].context) == "u:again<|end|>a:"


async def test_a_reward_function_that_fails_is_no_0(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """A bug ends the run as it was, a service that is down drops the episode, and no number is a bug."""
    with pytest.raises(KeyError, match="bug"):
        await play(gateway, tokenizer, "6", "bug")
    with pytest.raises(TypeError):
        await play(gateway, tokenizer, "6", "nothing")
    dropped = await play(gateway, tokenizer, "6", "down")
    assert isinstance(dropped, Dropped)
    assert (dropped.reason, "no route" in dropped.message) == ("environment_error", True)


async def test_a_reward_function_that_fails_after_the_end_is_no_0(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """The session has said that the episode is over; what the rubric raises then is not excused by that."""
    limits = Limits(1, 4096)
    with pytest.raises(KeyError, match="bug"):
        await play(gateway, tokenizer, "bug", limits=limits)
    dropped = await play(gateway, tokenizer, "down", limits=limits)
    assert isinstance(dropped, Dropped)
    assert dropped.reason == "environment_error"


@pytest.mark.parametrize(("answer", "name"), [("hang", "right"), ("hang elsewhere", "polite")])
async def test_a_reward_function_that_hangs_is_no_0_either(
    gateway: Gateway, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, answer: str, name: str
) -> None:
    """Its episode could not be judged, and says which function it was; threads that hang are not left to pile up."""
    released.clear()
    try:
        dropped = await play(gateway, tokenizer, "6", answer, judge_timeout_s=0.4)
        assert isinstance(dropped, Dropped)
        assert dropped.reason == "environment_error"
        assert f"the reward function '{name}' took over environment.options.judge_timeout_s = 0.4" in dropped.message
        if name == "right":
            monkeypatch.setattr(verifiers_package, "MAX_STUCK", 1)
            with pytest.raises(PluginError, match=r"1 calls of reward functions of 'vf-again' hang .*'right'"):
                await play(gateway, tokenizer, "6", answer, judge_timeout_s=0.4)
    finally:
        released.set()


@pytest.mark.parametrize("limits", [Limits(1, 4096), Limits(16, 16)])
async def test_an_episode_that_is_cut_short_is_judged_as_it_is(
    gateway: Gateway, tokenizer: Tokenizer, limits: Limits
) -> None:
    """The run's number of turns or the context ends it: what was said is judged."""
    episode = await play(gateway, tokenizer, "5", limits=limits)
    assert isinstance(episode, Completion)
    assert (len(episode.turns), episode.rewards["right"]) == (1, 1.0)


async def test_a_model_that_says_nothing_earns_nothing(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """Only a stop token: no text to judge, and the token is trained with a reward of 0."""
    episode = await play(gateway, tokenizer, "")
    assert isinstance(episode, Completion)
    assert (episode.token_ids, episode.rewards) == ([END_ID], {"right": 0.0, "polite": 0.0})


async def test_an_environment_that_the_package_ships(
    gateway: Gateway, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own ReasoningGymEnv, as ``examples/verifiers_environment.py`` loads it: rows, episode, verdict, metric."""
    monkeypatch.syspath_prepend(EXAMPLES)
    options = {"env": "verifiers_environment", "args": {"num_rows": 4, "num_held_out": 2}}
    source = open_source(config(options=options), tokenizer)
    assert (source.statistics().num_rows, source.statistics().num_held_out) == (4, 2)
    prompt = source.next()
    question = prompt.messages[-1]["content"]
    assert question.startswith("State the final answer to the following arithmetic problem: ")
    total = sum(map(int, re.findall(r"[-+]?\d+", question.replace(" ", ""))))
    async with episodes_of("verifiers", tokenizer, limits=Limits(16, 4096), door=gateway, **options) as episodes:
        for said, value in ((f"so \\boxed{{{total}}}", 1.0), (rf"so \boxed{{{total + 1}}}", 0.0)):
            episode = await episodes.play(prompt, DECODING, Answers(tokenizer, said))
            assert isinstance(episode, Completion)
            assert episode.rewards == {"check_answer_reward_func": value}
            assert episode.noted == {"format_reward_func": 1.0}
            assert episode.token_ids[-1] == END_ID


def test_its_rows_are_the_prompts(tokenizer: Tokenizer) -> None:
    """Its system prompt stands before each question; a field keeps its name; the last rows are held out, or its own."""
    source = open_source(config({"shuffle": False}, options={"env": "vf-again"}), tokenizer)
    first = source.next()
    assert [message["content"] for message in first.messages] == ["add", "0 + 1"]
    assert (first.fields["answer"], first.fields["info"], first.fields["example_id"]) == ("1", {"number": 0}, 0)
    assert (source.statistics().num_rows, source.statistics().num_held_out) == (8, 2)
    own = open_source(config(options={"env": "vf-again", "args": {"held_out": 3}}), tokenizer)
    assert (own.statistics().num_rows, own.statistics().num_held_out) == (10, 3)


def test_a_data_set_without_rows_is_said(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that names the environment."""
    import datasets

    empty = datasets.Dataset.from_dict({"question": [], "answer": []})
    monkeypatch.setattr(datasets.Dataset, "from_list", lambda _: empty)
    with pytest.raises(ConfigError, match=r"'vf-again' of verifiers has no data to train on: its data set has no rows"):
        open_source(config(options={"env": "vf-again"}), tokenizer)


def test_signals_stay_where_they_were() -> None:
    """The package would take SIGINT and SIGTERM for itself whenever it makes an environment."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    Verifiers(env="vf-again")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "vf-none"}, r"environment.options.env = 'vf-none': Could not import 'vf-none'.*load_environment"),
        ({"env": "vf-again", "args": {"sides": 3}}, r"unexpected keyword argument 'sides'"),
        ({}, r"needs the option 'env'"),
        ({"env": "vf-again", "args": {"kind": "groups"}}, r"judges whole groups \(of_groups\).*score = false"),
        ({"env": "vf-again", "args": {"kind": "metrics"}}, r"no function of its rubric has a weight.*score = false"),
        ({"env": "vf-again", "args": {"kind": "twice"}}, r"two functions of its rubric are named 'right'"),
    ],
)
def test_what_cannot_be_played_is_said_at_the_start(options: dict[str, Any], message: str) -> None:
    """In one line, and with what to do."""
    with pytest.raises(ConfigError, match=message):
        environment_of(config(options=options))


def test_it_needs_the_gateway_and_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts; a rubric that prl does not ask may be anything."""
    asked = config(options={"env": "vf-again", "args": {"kind": "groups"}, "score": False})
    assert environment_of(asked) is not None
    closed = msgspec.structs.replace(asked, gateway=msgspec.structs.replace(asked.gateway, enabled=False))
    with pytest.raises(ConfigError, match=r"asks over HTTP: set gateway\.enabled = true"):
        environment_of(closed)
    with pytest.raises(PluginError, match="judges whole groups"):
        Verifiers(env="vf-again", args={"kind": "groups"})
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'prl-train\[verifiers\]'"):
        environment_of(asked)

"""The reward ``reasoning_gym``: the task's own verdict on what a completion states, in a killable worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from prl.data.gym_rows import GymRows
from prl.rewards.base import make_reward
from prl.rewards.gym import ReasoningGym
from prl.types import Completion, Prompt
from tests.factories import make_completion


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reward() -> AsyncIterator[ReasoningGym]:
    """The reward with one worker."""
    made = ReasoningGym(num_workers=1)
    await made.open()
    yield made
    await made.close()


def asked(task: str, text: str = "") -> Prompt:
    """A problem of a task; ``text`` is what the template made of it."""
    fields = GymRows(task, {}, range(3), seed=1)[2]
    del fields["prompt"]
    return Prompt(id=0, token_ids=[1], text=text, messages=[], fields=fields)


def said(text: str) -> Completion:
    """A completion that says this."""
    made = make_completion()
    return Completion(
        token_ids=made.token_ids, logprobs=made.logprobs, versions=made.versions, text=text, finish="stop"
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_the_task_judges_what_stands_in_the_tag(reward: ReasoningGym) -> None:
    """The last tag counts; without one, what ``extract.py`` finds; unfinished thinking is no answer."""
    prompt = asked("chain_sum")
    right = prompt.fields["answer"]
    assert (await reward(said(f"<answer>1</answer> no, <answer>\n{right}\n</answer>."), prompt)).value == 1.0
    assert (await reward(said(f"It is 5 and 6. The answer is {right}."), prompt)).value == 1.0
    assert (await reward(said(f"<answer>{right}</answer> no, <answer>0.5</answer>"), prompt)).value < 1.0
    assert (await reward(said(f"<think>hm <answer>{right}</answer>"), prompt)).value == 0.0
    assert (await reward(said(f"<answer>{right}</answer>"), asked("chain_sum", "user: ...<think>"))).value == 0.0
    assert (await reward(said("I do not know"), prompt)).value == 0.0
    assert (await reward(said("I do not know"), prompt)).reason == "no_answer"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_task_without_a_single_answer_is_judged_by_its_rules(reward: ReasoningGym) -> None:
    """Any valid colouring of the graph will do: the entry's metadata, tuples included, reach the verifier."""
    import ast
    import json

    prompt = asked("graph_color")
    puzzle = ast.literal_eval(prompt.fields["reasoning_gym"]["entry"])["metadata"]["puzzle"]
    colours: dict[int, int] = {}
    for vertex in puzzle["vertices"]:
        near = {a if b == vertex else b for a, b in puzzle["edges"] if vertex in (a, b)}
        colours[vertex] = next(c for c in puzzle["color_options"] if c not in {colours.get(v) for v in near})
    answer = json.dumps({str(vertex): colour for vertex, colour in colours.items()})
    assert (await reward(said(f"<answer>{answer}</answer>"), prompt)).value == 1.0
    assert (await reward(said("<answer>{}</answer>"), prompt)).value < 1.0


def test_it_is_built_in_and_needs_its_field() -> None:
    """Data of another kind is refused when it is read."""
    assert make_reward("reasoning_gym", {}).required_fields == ("reasoning_gym",)

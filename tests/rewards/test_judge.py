"""A judging model: what it is asked, and which replies are a score."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from prl.config import RewardConfig
from prl.errors import ConfigError
from prl.rewards.scorer import Scorer
from prl.types import Score, ScoringFailed, Verdict
from tests.rewards.samples import completion, prompt
from tests.rewards.services import Service, serving

OPTIONS = {"model": "judge-1", "rubric": "Is it short?"}


async def judged(said: Any, **options: Any) -> tuple[Verdict, Service]:
    """The verdict where the model says ``said``, and what the server saw."""

    async def answer(request: web.Request, body: Any) -> web.Response:
        message = {"role": "assistant", "content": said}
        return web.json_response({"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async with serving(answer) as service:
        config = RewardConfig(
            name="judge", max_retries=0, options={"base_url": f"{service.url}/v1/", **OPTIONS, **options}
        )
        async with Scorer([config]) as scorer:
            return await scorer.score(completion("Score: 10"), prompt("ref", text="What is it?")), service


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("It is short.\nScore: 7", 0.7),
        ("Score: 10", 1.0),
        ("**Score: 0**\n", 0.0),
        ("Good.\n\nscore: 2.5", 0.25),
        ("Score: 7/10", 0.7),
        ("<think>Score: 1\nhm</think>Fine.\nScore: 9", 0.9),
    ],
)
async def test_the_last_line_is_the_score(said: str, reward: float) -> None:
    """It is scaled to 0 to 1."""
    verdict, _ = await judged(said)
    assert isinstance(verdict, Score)
    assert verdict.parts == {"judge": reward}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("It is short.", "does not end with its one score"),
        ("", "does not end with its one score"),
        ("Score: 7\nThat is all.", "does not end with its one score"),
        ("Score: 7\nScore: 8", "does not end with its one score"),
        ("Score: seven", "does not end with its one score"),
        ("Score: 11", "is not from 0 to 10"),
        ("Score: 9/100", "is out of 100, and was asked for up to 10"),
        ("Score: -1", "is not from 0 to 10"),
        ("<think>Score: 7", "thinking is not over"),
        (None, "reply is not understood"),
    ],
)
async def test_anything_else_is_a_failure(said: Any, why: str) -> None:
    """A reply without its one score in range is no 0."""
    verdict, _ = await judged(said)
    assert isinstance(verdict, ScoringFailed)
    assert why in verdict.message


async def test_what_the_judge_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rubric and the scale are the system's words; the answer stands between marks that it cannot know."""
    monkeypatch.setenv("PRL_TEST_KEY", "k")
    options = {"min_score": 1.0, "max_score": 5.0, "reference_field": "answer", "api_key_env": "PRL_TEST_KEY"}
    _, service = await judged("Score: 3", **options)
    (body,) = service.bodies
    system, user = (message["content"] for message in body["messages"])
    assert (body["model"], body["temperature"]) == ("judge-1", 0.0)
    assert "Is it short?" in system
    assert "a number from 1 (worst) to 5 (best)" in system
    mark = next(line for line in user.splitlines() if line.startswith("-----"))
    assert mark in system
    assert user == f"The task:\nWhat is it?\n\nA reference answer:\nref\n\nThe answer:\n{mark}\nScore: 10\n{mark}"
    assert service.headers[0]["Authorization"] == "Bearer k"


async def test_another_scale() -> None:
    """The middle of the scale is a half."""
    verdict, _ = await judged("Score: 3", min_score=1.0, max_score=5.0)
    assert verdict == Score(reward=0.5, parts={"judge": 0.5}, messages={"judge": "Score: 3"})


def test_bad_options_are_found_before_anything_starts() -> None:
    """A scale that is none is refused."""
    options = {**OPTIONS, "base_url": "http://x", "min_score": 5.0, "max_score": 5.0}
    with pytest.raises(ConfigError, match=r"min_score = 5 is not below max_score = 5"):
        Scorer([RewardConfig(name="judge", options=options)])

"""A reward server: batches, and everything that a server can do wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from examples import reward_server
from prl.config import RewardConfig
from prl.errors import ConfigError, RewardError
from prl.rewards import breaker
from prl.rewards.scorer import Scorer
from prl.types import Abstained, Score, ScoringFailed, Verdict
from tests.rewards.samples import completion, prompt
from tests.rewards.services import Service, serving


def asking(service: Service, *, timeout_s: float = 20.0, max_retries: int = 0, **options: Any) -> RewardConfig:
    """The reward ``http`` at this server."""
    return RewardConfig(
        name="http", timeout_s=timeout_s, max_retries=max_retries, options={"url": service.url, **options}
    )


async def lengths(request: web.Request, body: Any) -> web.Response:
    """The length of each completion."""
    return web.json_response({"rewards": [len(item["completion"]) for item in body["items"]]})


async def score(service: Service, num: int = 1, **options: Any) -> list[Verdict]:
    """The verdicts on ``num`` completions, asked for at once; the n-th has n letters."""
    async with Scorer([asking(service, **options)]) as scorer:
        return await asyncio.gather(*(scorer.score(completion("x" * n), prompt(n)) for n in range(num)))


async def test_completions_go_out_in_batches_and_values_come_back_in_order() -> None:
    """Those asked about at once share requests, and each gets its own value."""
    async with serving(lengths) as service:
        verdicts = await score(service, 10, batch_size=4, batch_wait_s=0.2)
        assert verdicts == [Score(reward=float(n), parts={"http": float(n)}) for n in range(10)]
        assert sorted(len(body["items"]) for body in service.bodies) == [2, 4, 4]
        assert service.bodies[0]["items"][1] == {
            "prompt": "q",
            "messages": [],
            "completion": "x",
            "fields": {"answer": 1},
        }


async def test_values_may_have_reasons_and_be_none() -> None:
    """A reply may abstain, and say why."""

    async def answer(request: web.Request, body: Any) -> web.Response:
        return web.json_response({"rewards": [None, {"value": 0.5, "reason": "short"}]})

    async with serving(answer) as service:
        assert await score(service, 2, batch_wait_s=0.2) == [
            Abstained(reason="reward_abstained"),
            Score(reward=0.5, parts={"http": 0.5}, messages={"http": "short"}),
        ]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"<html>", "what is no JSON"),
        (b"{}", "not understood"),
        (b'{"rewards": []}', "0 values for 1 items"),
        (b'{"rewards": [1, 2]}', "2 values for 1 items"),
        (b'{"rewards": ["1"]}', "not understood"),
        (b'{"rewards": [NaN]}', "what is no JSON"),
        (b"\xff", "what is no JSON"),
    ],
)
async def test_rubbish_is_a_failure(reply: bytes, said: str) -> None:
    """What is no list of values fails, with what was got; it is never a 0."""

    async def answer(request: web.Request, body: Any) -> web.Response:
        return web.Response(body=reply)

    async with serving(answer) as service:
        (verdict,) = await score(service)
        assert isinstance(verdict, ScoringFailed)
        assert said in verdict.message


@pytest.mark.parametrize(("status", "num_requests"), [(500, 3), (503, 3), (429, 3), (400, 1), (401, 1), (302, 3)])
async def test_only_what_may_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, status: int, num_requests: int
) -> None:
    """A server's fault is tried again with back-off, a refusal is not."""
    monkeypatch.setattr("prl.rewards.asking.FIRST_PAUSE_S", 0.01)
    assert breaker.FIRST_PAUSE_S > 0

    async def answer(request: web.Request, body: Any) -> web.Response:
        return web.Response(status=status, text="the reason", headers={"Location": "/"})

    async with serving(answer) as service:
        (verdict,) = await score(service, max_retries=2)
        assert isinstance(verdict, ScoringFailed)
        assert f"{status}" in verdict.message
        assert "the reason" in verdict.message
        assert len(service.bodies) == num_requests


async def test_a_server_that_recovers_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures and a closed connection, then a value."""
    monkeypatch.setattr("prl.rewards.asking.FIRST_PAUSE_S", 0.01)
    num_asked = 0

    async def answer(request: web.Request, body: Any) -> web.Response:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:
            return web.Response(status=503)
        if num_asked == 2:
            assert request.transport is not None
            request.transport.abort()
        return await lengths(request, body)

    async with serving(answer) as service:
        assert await score(service, max_retries=3) == [Score(reward=0.0, parts={"http": 0.0})]


async def test_a_slow_server_meets_the_total_deadline() -> None:
    """``timeout_s`` bounds a call with all its waits; it is a failure by its own name."""
    never = asyncio.Event()

    async def answer(request: web.Request, body: Any) -> web.Response:
        await never.wait()
        raise AssertionError

    async with serving(answer) as service:
        (verdict,) = await score(service, timeout_s=0.3)
        assert isinstance(verdict, ScoringFailed)
        assert verdict.reason == "reward_timeout"


async def test_a_call_that_is_given_up_leaves_the_others_to_be_sent() -> None:
    """Who waits for a batch is not lost with the one that came first."""
    async with serving(lengths) as service, Scorer([asking(service, batch_wait_s=0.2)]) as scorer:
        first = asyncio.ensure_future(scorer.score(completion("a"), prompt(0)))
        second = asyncio.ensure_future(scorer.score(completion("ab"), prompt(0)))
        await asyncio.sleep(0)  # both have begun to wait
        await asyncio.sleep(0)
        first.cancel()
        assert await second == Score(reward=2.0, parts={"http": 2.0})


async def test_as_many_connections_as_calls() -> None:
    """All calls are with the server at once: none waits for a connection."""
    num_here, all_here = 0, asyncio.Event()

    async def answer(request: web.Request, body: Any) -> web.Response:
        nonlocal num_here
        num_here += 1
        if num_here == 150:
            all_here.set()
        await all_here.wait()
        return await lengths(request, body)

    async with serving(answer) as service:
        options = {"url": service.url, "concurrency": 150, "batch_size": 1}
        config = RewardConfig(name="http", timeout_s=30.0, concurrency=150, options=options)
        async with Scorer([config]) as scorer:
            verdicts = await asyncio.gather(*(scorer.score(completion(), prompt(0)) for _ in range(150)))
    assert all(isinstance(verdict, Score) for verdict in verdicts)


async def test_the_rate_is_limited() -> None:
    """Requests keep their distance."""
    async with serving(lengths) as service:
        start = asyncio.get_running_loop().time()
        await score(service, 4, batch_size=1, max_requests_per_s=20.0)
        assert asyncio.get_running_loop().time() - start >= 3 / 20


async def test_who_waits_for_the_rate_is_not_late() -> None:
    """Calls that a limit holds back longer than ``timeout_s`` are made when it is their turn, alone or in a batch."""
    async with serving(lengths) as service:
        limits = {"batch_size": 2, "batch_wait_s": 0.01, "max_requests_per_s": 4.0}
        verdicts = await score(service, 8, timeout_s=0.5, **limits)
        assert verdicts == [Score(reward=float(n), parts={"http": float(n)}) for n in range(8)]


async def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent as a bearer token, and a variable that is not set is said before anything starts."""
    monkeypatch.setenv("PRL_TEST_KEY", "k-123")
    async with serving(lengths) as service:
        await score(service, api_key_env="PRL_TEST_KEY")
        assert service.headers[0]["Authorization"] == "Bearer k-123"
        with pytest.raises(ConfigError, match="environment variable PRL_NO_KEY is not set"):
            Scorer([asking(service, api_key_env="PRL_NO_KEY")])


def test_an_address_is_needed() -> None:
    """A url without a scheme is refused."""
    with pytest.raises(ConfigError, match="'localhost:8000' is no address"):
        Scorer([RewardConfig(name="http", options={"url": "localhost:8000"})])


async def test_a_server_that_is_not_there_ends_the_run_with_stop() -> None:
    """``on_failure = "stop"`` holds for a service as for every reward."""
    config = RewardConfig(name="http", on_failure="stop", max_retries=0, options={"url": "http://127.0.0.1:1/"})
    async with Scorer([config]) as scorer:
        with pytest.raises(RewardError, match=r"Cannot connect|Connect call failed"):
            await scorer.score(completion(), prompt(0))


async def test_the_example_server() -> None:
    """The server in ``examples/`` judges what the reward sends."""

    async def answer(request: web.Request, body: Any) -> web.Response:
        return web.json_response({"rewards": [await reward_server.judge(item) for item in body["items"]]})

    async with serving(answer) as service, Scorer([asking(service)]) as scorer:
        assert await scorer.score(completion("it is 7."), prompt("7")) == Score(reward=1.0, parts={"http": 1.0})
        assert await scorer.score(completion("it is 8."), prompt("7")) == Score(reward=0.0, parts={"http": 0.0})
        assert await scorer.score(completion("it is 8."), prompt()) == Abstained(reason="reward_abstained")
    (route,) = reward_server.app().router.routes()
    assert route.method == "POST"


@pytest.mark.parametrize("status", [401, 200])
async def test_a_reply_that_repeats_the_key_shows_none_of_it(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Wherever what is read or shown of a refusal, or of a reply that is not understood, is cut: no part of the key."""
    for num_digits, padding in ((20, 0), (20, 150), (20, 196), (20, 290), (20, 298), (300, 0)):
        key = "sk-" + "0123456789" * num_digits
        monkeypatch.setenv("PRL_TEST_KEY", key)

        async def repeat(request: web.Request, body: Any, padding: int = padding) -> web.Response:
            said = "x" * padding + request.headers["Authorization"] * 8
            return web.json_response(said, status=status)

        async with serving(repeat) as service:
            [verdict] = await score(service, api_key_env="PRL_TEST_KEY")
        assert isinstance(verdict, ScoringFailed)
        assert "0123" not in verdict.message

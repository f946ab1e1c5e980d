"""Agents written with the official ``openai`` client, over real HTTP, against scripted answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

import prl
from prl.batch import make_samples
from prl.config_environment import GatewayConfig
from prl.environments.calculator import CALCULATOR, calculate
from prl.environments.episodes import Episodes
from prl.environments.session import Limits
from prl.errors import ConfigError
from prl.gateway.gateway import Gateway
from prl.sampler import Dropped
from prl.tokenizer import Tokenizer
from prl.types import Completion, Prompt
from tests.environments.scripted import DECODING, Answers, chat_prompt, episodes_of
from tests.tiny_tokenizers import END_ID

Agent = Callable[[openai.AsyncOpenAI, prl.Session], Awaitable[Any]]
LONG = msgspec.structs.replace(DECODING, max_tokens=256)
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'


class Table:
    """Which agent plays; the environment looks it up."""

    agent: Agent


@prl.environment("test-agent")
async def seat(session: prl.Session, prompt: Prompt) -> Any:
    """Let the agent of the test play, with a client of its own."""
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=1) as client:
        return await Table.agent(client, session)


async def play(
    gateway: Gateway,
    tokenizer: Tokenizer,
    agent: Agent,
    answers: Any,
    limits: Limits = Limits(16, 4096),  # noqa: B008
) -> Completion | Dropped:
    """One episode of an agent."""
    Table.agent = agent
    episodes: Episodes = episodes_of("test-agent", tokenizer, limits=limits, door=gateway)
    return await episodes.play(chat_prompt(tokenizer), LONG, answers)


def completed(outcome: Completion | Dropped) -> Completion:
    """The completion of an episode that is one."""
    assert isinstance(outcome, Completion), outcome
    return outcome


def said(tokenizer: Tokenizer, completion: Completion) -> list[tuple[str, str]]:
    """Of each sample, what stood there and what of it is trained."""
    found = []
    for sample in make_samples(chat_prompt(tokenizer), completion, [1.0] * len(completion.turns)):
        trained = [token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
        found.append((tokenizer.decode_all(sample.token_ids), tokenizer.decode_all(trained)))
    return found


# ---- what an agent does ----------------------------------------------------------------------------------------------


async def test_a_chat_of_several_turns_is_one_sample(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """What the client is told is what was sampled; its next request extends it, and only sampled tokens are trained."""

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> float:
        messages: list[Any] = list(session.prompt.messages)
        for turn in range(2):
            answer = await client.chat.completions.create(model="any", messages=messages)
            choice = answer.choices[0]
            assert (choice.message.content, choice.finish_reason) == (["one", "two"][turn], "stop")
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 4
            messages += [choice.message, {"role": "user", "content": [{"type": "text", "text": "go on"}]}]
        return 0.5

    completion = completed(await play(gateway, tokenizer, agent, Answers(tokenizer, "one", "two")))
    assert said(tokenizer, completion) == [
        ("u:hi<|end|>a:one<|end|>u:go on<|end|>a:two<|end|>", "one<|end|>two<|end|>"),
    ]
    assert completion.logprobs == [-0.5] * 4 + [-1.5] * 4
    assert completion.rewards == {"environment": 0.5}


async def test_tools_are_called_and_answered(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """The client sees tool calls in its own form and hands them back; the sample has them as they were written."""

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        messages: list[Any] = list(session.prompt.messages)
        tools: Any = [CALCULATOR.described()]
        first = (await client.chat.completions.create(model="any", messages=messages, tools=tools)).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.tool_calls is not None
        call: Any = first.message.tool_calls[0]
        assert (first.message.content, call.function.name) == ("hm ", "calculator")
        result = await calculate(**json.loads(call.function.arguments))
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
        last = await client.chat.completions.create(model="any", messages=messages, tools=tools)
        assert last.choices[0].message.content == "42!"

    completion = completed(await play(gateway, tokenizer, agent, Answers(tokenizer, f"hm {CALL}", "42!")))
    [(whole, trained)] = said(tokenizer, completion)
    assert whole.endswith(f"u:hi<|end|>a:hm {CALL}<|end|>t:42<|end|>a:42!<|end|>")
    assert trained == f"hm {CALL}<|end|>42!<|end|>"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_turn_without_parallel_calls_ends_with_its_first(
    gateway: Gateway, tokenizer: Tokenizer, streams: bool
) -> None:
    """What the model says behind a whole call was never said; what was is trained, and goes on as one sample.

    What is no call ends nothing, nor does a call where the client takes several.
    """
    broken = "<tool_call>{</tool_call>"

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        messages: list[Any] = list(session.prompt.messages)
        tools: Any = [CALCULATOR.described()]
        options: Any = {"parallel_tool_calls": False, "stream": streams}
        answer: Any = await client.chat.completions.create(model="any", messages=messages, tools=tools, **options)
        if streams:
            deltas = [choice.delta async for event in answer for choice in event.choices]
            calls = [call for delta in deltas for call in delta.tool_calls or []]
            content = "".join(delta.content or "" for delta in deltas)
            told = [{"id": call.id, "type": "function", "function": call.function.model_dump()} for call in calls]
            message: Any = {"role": "assistant", "content": content, "tool_calls": told}
        else:
            assert answer.choices[0].finish_reason == "tool_calls"
            message = answer.choices[0].message
            calls, content = message.tool_calls, message.content
        assert ([call.function.name for call in calls], content) == (["calculator"], f"{broken} hm ")
        messages += [message, {"role": "tool", "tool_call_id": calls[0].id, "content": "42"}]
        last = await client.chat.completions.create(model="any", messages=messages, tools=tools)
        assert len(last.choices[0].message.tool_calls or []) == 2

    answers = Answers(tokenizer, f"{broken} hm {CALL}and {CALL}", f"{CALL}{CALL}")
    completion = completed(await play(gateway, tokenizer, agent, answers))
    [(whole, trained)] = said(tokenizer, completion)
    assert whole.endswith(f"a:{broken} hm {CALL}<|end|>t:42<|end|>a:{CALL}{CALL}<|end|>")
    assert trained == f"{broken} hm {CALL}{CALL}{CALL}<|end|>"


@pytest.mark.parametrize("with_tools", [False, True])
async def test_a_stream_is_the_same_answer_in_pieces(gateway: Gateway, tokenizer: Tokenizer, with_tools: bool) -> None:
    """Text comes as it is sampled, a tool call at its end and whole; usage comes where it is asked for."""
    text = f"an answer of some length {CALL if with_tools else ''}"
    tools: Any = [CALCULATOR.described()] if with_tools else openai.NOT_GIVEN

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        messages: Any = session.prompt.messages
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await client.chat.completions.create(model="any", messages=messages, tools=tools, **options)
        pieces, calls, finish, usage = list[str](), list[Any](), None, None
        async for event in stream:
            usage = event.usage or usage
            for choice in event.choices:
                pieces.append(choice.delta.content or "")
                calls += choice.delta.tool_calls or []
                finish = choice.finish_reason or finish
        assert "".join(pieces) == "an answer of some length "
        assert len([piece for piece in pieces if piece]) > 3
        assert [call.function.name for call in calls] == (["calculator"] if with_tools else [])
        assert finish == ("tool_calls" if with_tools else "stop")
        assert usage.completion_tokens == len(text) + 1

    completed(await play(gateway, tokenizer, agent, Answers(tokenizer, text)))


async def test_plain_completions(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """``/v1/completions`` takes text or ids, whole or as a stream; what begins with all before it extends it."""

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        first = await client.completions.create(model="any", prompt="count: one", max_tokens=5)
        assert (first.choices[0].text, first.choices[0].finish_reason) == (" two ", "length")
        stream = await client.completions.create(model="any", prompt="count: one two and", stream=True)
        assert "".join([event.choices[0].text async for event in stream]) == " three"
        ids = tokenizer.encode_rendered("ids")
        by_ids = await client.completions.create(model="any", prompt=ids)
        assert by_ids.choices[0].text == " end"

    answers = Answers(tokenizer, " two three four", " three", " end")
    assert said(tokenizer, completed(await play(gateway, tokenizer, agent, answers))) == [
        ("count: one two and three<|end|>", " two  three<|end|>"),
        ("ids end<|end|>", " end<|end|>"),
    ]


async def test_the_key_may_stand_in_the_path(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """For agents whose key is not theirs to choose; models are listed, and rewards posted by whoever has the key."""

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        base_url = f"{gateway.url}/{session.api_key}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as other:
            assert [model.id async for model in other.models.list()] == ["policy"]
            await other.completions.create(model="policy", prompt="x")
            await other.post("/reward", body={"reward": 0.25, "part": "judge"}, cast_to=object)
            with pytest.raises(openai.BadRequestError, match="a reward is posted as"):
                await other.post("/reward", body={"reward": "much"}, cast_to=object)

    assert completed(await play(gateway, tokenizer, agent, Answers(tokenizer, "y"))).rewards == {"judge": 0.25}


async def test_episodes_are_kept_apart(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """Agents that ask at once each speak as their own episode."""

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        for _ in range(3):
            content = f"I am {session.api_key[-4:]}"
            await client.chat.completions.create(model="any", messages=[{"role": "user", "content": content}])

    Table.agent = agent
    episodes = episodes_of("test-agent", tokenizer, limits=Limits(16, 4096), door=gateway)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(episodes.play(chat_prompt(tokenizer, number=n), LONG, Answers(tokenizer, str(n) * 3)))
            for n in range(5)
        ]
    for number, task in enumerate(tasks):
        samples = said(tokenizer, completed(task.result()))
        assert len(samples) == 3
        assert {trained for _, trained in samples} == {f"{number}{number}{number}<|end|>"}
        assert len({whole.split("<|end|>")[0] for whole, _ in samples}) == 1


@pytest.mark.parametrize("streams", [False, True])
async def test_a_stop_sequence_ends_the_turn(gateway: Gateway, tokenizer: Tokenizer, streams: bool) -> None:
    """The agent reads what was said before it; the tokens up to its last one are trained, the ones behind it are not.

    The next turn has the history that the agent hands back, without the sequence, and so is a sample of its own.
    """

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        messages: list[Any] = list(session.prompt.messages)
        options: Any = {"model": "any", "stop": ["Obs:", "never"], "logprobs": True}
        if streams:
            choices = [
                event.choices[0]
                async for event in await client.chat.completions.create(messages=messages, stream=True, **options)
            ]
            text = "".join(choice.delta.content or "" for choice in choices)
            told = [each for choice in choices if choice.logprobs for each in choice.logprobs.content or []]
            finish = choices[-1].finish_reason
        else:
            choice = (await client.chat.completions.create(messages=messages, **options)).choices[0]
            assert choice.logprobs is not None
            text, told, finish = str(choice.message.content), choice.logprobs.content or [], choice.finish_reason
        assert (text, finish) == ("look O ", "stop")
        assert "".join(each.token for each in told) == "look O Obs:"
        assert {each.logprob for each in told} == {-0.5}
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "42"}]
        last = await client.chat.completions.create(messages=messages, **options)
        assert last.choices[0].message.content == "done"

    completion = completed(await play(gateway, tokenizer, agent, Answers(tokenizer, "look O Obs: 41", "done")))
    assert said(tokenizer, completion) == [
        ("u:hi<|end|>a:look O Obs:", "look O Obs:"),
        ("u:hi<|end|>a:look O <|end|>u:42<|end|>a:done<|end|>", "done<|end|>"),
    ]
    assert [turn.finish for turn in completion.turns] == ["stop", "stop"]


async def test_a_stop_sequence_that_is_handed_back_goes_on(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """A text that begins with all that was sampled, the sequence included, extends it."""

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        first = (await client.completions.create(model="any", prompt="Q", stop="Obs:", logprobs=0)).choices[0]
        assert (first.text, first.finish_reason) == ("act ", "stop")
        assert first.logprobs is not None
        assert first.logprobs.tokens == list("act Obs:")
        assert first.logprobs.token_logprobs == [-0.5] * 8
        assert first.logprobs.text_offset == list(range(8))
        await client.completions.create(model="any", prompt="Qact Obs: 42. ", stop="Obs:")

    completion = completed(
        await play(gateway, tokenizer, agent, Answers(tokenizer, "act Obs: 41 is what I see", "end"))
    )
    assert said(tokenizer, completion) == [("Qact Obs: 42. end<|end|>", "act Obs:end<|end|>")]


# ---- what is refused -------------------------------------------------------------------------------------------------


async def test_what_would_change_the_distribution_is_overridden_or_refused(
    gateway: Gateway, tokenizer: Tokenizer
) -> None:
    """A temperature is set by habit and the run's holds; what an agent relies on is refused by its name."""
    answers = Answers(tokenizer, "x")

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        messages: Any = session.prompt.messages
        nothing: Any = {"n": 1, "response_format": {"type": "text"}, "stop": None}
        await client.chat.completions.create(model="any", messages=messages, temperature=0.2, top_p=0.5, **nothing)
        for options, message in (
            ({"n": 2}, "n = 2 is not supported: a request has one answer"),
            ({"response_format": {"type": "json_object"}}, "the form cannot be forced"),
            ({"logit_bias": {"1": -100}}, "would change the distribution"),
            ({"logprobs": True, "top_logprobs": 5}, "top_logprobs = 5 is not supported"),
            ({"max_tokens": 0}, "max_tokens = 0"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"stop": ["", "x"]}, "none empty"),
            ({"prediction": {"type": "content", "content": "x"}}, "'prediction' is not supported here"),
        ):
            with pytest.raises(openai.BadRequestError, match=message) as raised:
                await client.chat.completions.create(model="any", messages=messages, **options)  # type: ignore[call-overload]
            assert raised.value.param == list(options)[-1]
        with pytest.raises(openai.BadRequestError, match="logprobs = 3 is not supported") as raised:
            await client.completions.create(model="any", prompt="x", logprobs=3)
        assert raised.value.param == "logprobs"
        for bad in ([], [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], [{}]):
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="any", messages=bad)  # type: ignore[arg-type]

    completion = completed(await play(gateway, tokenizer, agent, answers))
    assert len(completion.turns) == 1
    assert answers.asked[0][1] == msgspec.structs.replace(LONG, max_tokens=256)


async def test_an_episode_that_is_over_says_so_in_openais_words(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """A full context is ``context_length_exceeded``; an agent that lets the error out ends its episode by it."""

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        text = "x" * 20
        while True:
            answer = await client.completions.create(model="any", prompt=text)
            text += answer.choices[0].text

    limits = Limits(16, 40)
    assert len(completed(await play(gateway, tokenizer, agent, Answers(tokenizer, "y" * 9), limits)).turns) >= 1

    async def counts(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        await client.completions.create(model="any", prompt="x" * 39)
        with pytest.raises(openai.BadRequestError) as raised:
            await client.completions.create(model="any", prompt="x" * 40)
        assert raised.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as again:
            await client.completions.create(model="any", prompt="x")
        assert again.value.code == "context_length_exceeded"

    completed(await play(gateway, tokenizer, counts, Answers(tokenizer, "y"), limits))


async def test_a_failed_turn_is_tried_again_by_the_client(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """503: it asks once more, and nothing of the first try is in the episode; else the episode comes to nothing."""
    aborted = Dropped(reason="aborted", message="the stream ended with abort")

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        await client.completions.create(model="any", prompt="x")

    completion = completed(await play(gateway, tokenizer, agent, Answers(tokenizer, aborted, "good")))
    assert said(tokenizer, completion) == [("xgood<|end|>", "good<|end|>")]
    assert await play(gateway, tokenizer, agent, Answers(tokenizer, aborted)) == aborted


async def test_nobody_gets_in_without_a_key_of_an_episode_under_way(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """No key, a wrong one, one of an episode that has ended; another name of this machine; a page in a browser."""
    keys: list[str] = []

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        keys.append(session.api_key)
        await client.completions.create(model="any", prompt="x")
        async with aiohttp.ClientSession() as http:
            for headers, status in (
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({"Authorization": f"Bearer {session.api_key}"}, 200),
                ({"Authorization": f"Bearer {session.api_key}", "Host": "evil.example"}, 421),
                ({"Authorization": f"Bearer {session.api_key}", "Origin": "http://evil.example"}, 403),
            ):
                async with http.get(f"{gateway.url}/v1/models", headers=headers) as answer:
                    assert answer.status == status

    completed(await play(gateway, tokenizer, agent, Answers(tokenizer, "y")))
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=keys[0], max_retries=0) as late:
        with pytest.raises(openai.AuthenticationError, match="no key of an episode under way"):
            await late.completions.create(model="any", prompt="x")


class Endless:
    """Streams that give one chunk and then nothing, until they are cancelled."""

    def __init__(self, answers: Answers) -> None:
        self._answers, self.is_first = answers, True
        self.waits, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, behind: Prompt, decoding: Any, record: Any) -> Any:
        """The first turn hangs."""
        if not self.is_first:
            return await self._answers(behind, decoding, record)
        self.is_first = False
        try:
            record(prl_chunk(self._answers))
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


def prl_chunk(_: Answers) -> Any:
    """Two tokens."""
    from prl.types import TokenChunk

    return TokenChunk(token_ids=[5, END_ID], logprobs=[-1.0, -1.0], version=0)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_agent_that_hangs_up_has_no_turn(gateway: Gateway, tokenizer: Tokenizer, streams: bool) -> None:
    """What it did not wait for is cancelled and not trained; it may ask again."""
    endless = Endless(Answers(tokenizer, "two"))

    async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
        async def asks() -> None:
            answer = await client.completions.create(model="any", prompt="x", stream=streams)
            if streams:
                async for _ in answer:  # type: ignore[union-attr]
                    pass

        async with asyncio.TaskGroup() as group:
            asking = group.create_task(asks())
            await endless.waits.wait()
            asking.cancel()
        await endless.cancelled.wait()
        await client.completions.create(model="any", prompt="y")

    assert said(tokenizer, completed(await play(gateway, tokenizer, agent, endless))) == [("ytwo<|end|>", "two<|end|>")]


async def test_an_episode_that_ends_cancels_what_its_agent_waits_for(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """The client is told that the episode has ended, and the stream is freed."""
    endless = Endless(Answers(tokenizer, "two"))
    told: list[int] = []

    async def asks(base_url: str, key: str) -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
            try:
                await client.completions.create(model="any", prompt="x")
            except openai.APIStatusError as error:
                told.append(error.status_code)

    async with asyncio.TaskGroup() as group:

        async def agent(client: openai.AsyncOpenAI, session: prl.Session) -> None:
            group.create_task(asks(session.base_url, session.api_key))
            await endless.waits.wait()
            await client.completions.create(model="any", prompt="y")

        outcome = await play(gateway, tokenizer, agent, endless)
        await endless.cancelled.wait()
    assert told == [410]
    assert said(tokenizer, completed(outcome)) == [("ytwo<|end|>", "two<|end|>")]


async def test_an_address_that_cannot_be_had_is_said(gateway: Gateway) -> None:
    """A port that is taken is a ConfigError that names the key."""
    port = int(gateway.url.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=rf"gateway.address = '127.0.0.1', gateway.port = {port}"):
        await Gateway(GatewayConfig(enabled=True, port=port)).open()


async def test_without_a_gateway_a_session_says_what_to_set(tokenizer: Tokenizer) -> None:
    """An environment whose agent asks over HTTP is told the key of the configuration."""
    episodes = episodes_of("test-agent", tokenizer)
    with pytest.raises(ConfigError, match=r"set gateway.enabled = true"):
        await episodes.play(chat_prompt(tokenizer), LONG, Answers(tokenizer, "x"))

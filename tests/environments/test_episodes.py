"""Episodes: what an environment may do, what is trained of it, and what becomes of its errors."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import prl
from prl.environments.episodes import group_judged_with, judged_with
from prl.environments.session import Limits, Session
from prl.errors import EngineDeadError, EpisodeOverError, PluginError, TurnFailedError
from prl.sampler import Dropped
from prl.tokenizer import Tokenizer
from prl.types import Abstained, Completion, Prompt, Score, Verdict
from tests.environments.scripted import DECODING, Answers, chat_prompt, episodes_of
from tests.factories import make_completion, make_prompt
from tests.tiny_tokenizers import END_ID

ABORTED = Dropped(reason="aborted", message="the stream ended with abort after 0 tokens")


@prl.environment("test-echo")
async def echo(session: Session, prompt: Prompt, *, num_turns: int = 2, strip: bool = False) -> None:
    """Say what the model said back to it; a point for each turn."""
    messages: list[Any] = list(prompt.messages)
    for _ in range(num_turns):
        reply = await session.generate(messages)
        session.reward(1.0, part="turns")
        content = reply.message["content"]
        messages += [
            {"role": "assistant", "content": content.strip() if strip else content},
            {"role": "user", "content": content},
        ]


@prl.environment("test-raises")
async def raises(session: Session, prompt: Prompt, *, error: str, asks: int = 1, catches: bool = False) -> None:
    """Ask, then fail in some way."""
    for _ in range(asks):
        try:
            await session.generate()
        except Exception:
            if not catches:
                raise
    if error:
        raise {"OSError": OSError("no route"), "KeyError": KeyError("x")}[error]


async def play(name: str, tokenizer: Tokenizer, answers: Answers, **options: Any) -> Completion | Dropped:
    """One episode of a chat prompt."""
    limits = options.pop("limits", Limits(16, 512))
    episodes = episodes_of(name, tokenizer, limits=limits, **options)
    async with episodes:
        return await episodes.play(chat_prompt(tokenizer), DECODING, answers)


def completed(outcome: Completion | Dropped) -> Completion:
    """The completion of an episode that is one."""
    assert isinstance(outcome, Completion), outcome
    return outcome


# ---- what is trained -------------------------------------------------------------------------------------------------


async def test_turns_extend_one_another(tokenizer: Tokenizer) -> None:
    """Each turn's prompt is all before it, id by id; the lists hold what was sampled, the text is the last turn's."""
    answers = Answers(tokenizer, "one", "two")
    completion = completed(await play("test-echo", tokenizer, answers))
    first, second = answers.asked
    assert second[0][: len(first[0]) + 4] == [*first[0], *tokenizer.encode_rendered("one"), END_ID]
    assert tokenizer.decode_all(second[0]) == "u:hi<|end|>a:one<|end|>u:one<|end|>a:"
    assert [(turn.sample, turn.num_sampled, turn.finish) for turn in completion.turns] == [
        (0, 4, "stop"),
        (0, 4, "stop"),
    ]
    assert completion.token_ids == [
        *tokenizer.encode_rendered("one"),
        END_ID,
        *tokenizer.encode_rendered("two"),
        END_ID,
    ]
    assert completion.logprobs == [-0.5] * 4 + [-1.5] * 4
    assert (completion.text, completion.finish, completion.rewards) == ("two", "stop", {"turns": 2.0})


async def test_a_reply_handed_back_is_its_own_tokens(tokenizer: Tokenizer) -> None:
    """An agent that strips what the model said does not split its episode: the reply is known again."""
    answers = Answers(tokenizer, "  one ", "two")
    completion = completed(await play("test-echo", tokenizer, answers, strip=True))
    assert [turn.sample for turn in completion.turns] == [0, 0]
    assert tokenizer.decode_all(answers.asked[1][0]) == "u:hi<|end|>a:  one <|end|>u:  one <|end|>a:"


async def test_a_single_turn_is_the_prompt_and_its_answer(tokenizer: Tokenizer) -> None:
    """The environment's words for what a rollout is by default: the prompt's own ids, and one stream behind them."""
    answers = Answers(tokenizer, "one")
    completion = completed(await play("single_turn", tokenizer, answers))
    assert answers.asked == [(chat_prompt(tokenizer).token_ids, DECODING)]
    assert (completion.text, [turn.context for turn in completion.turns]) == (
        "one",
        [chat_prompt(tokenizer).token_ids],
    )


async def test_tokens_are_told_as_they_are_sampled(tokenizer: Tokenizer) -> None:
    """``on_tokens`` hears every token of its turn, in order."""
    heard: list[list[int]] = []

    @prl.environment("test-hears")
    async def hears(session: Session, prompt: Prompt) -> None:
        reply = await session.generate("plain text", on_tokens=heard.append)
        assert [token for part in heard for token in part] == reply.token_ids
        assert reply.num_prompt_tokens == len("plain text")

    completed(await play("test-hears", tokenizer, Answers(tokenizer, "a longer answer")))
    assert len(heard) > 1


async def test_seeded_turns_draw_with_other_numbers(tokenizer: Tokenizer) -> None:
    """The first turn has the stream's seed, each later one another, the same in every run."""
    import msgspec

    answers = Answers(tokenizer, "one")
    seeded = msgspec.structs.replace(DECODING, seed=7)
    for _ in range(2):
        await episodes_of("test-echo", tokenizer, num_turns=3).play(chat_prompt(tokenizer), seeded, answers)
    seeds = [decoding.seed for _, decoding in answers.asked]
    assert seeds[:3] == seeds[3:]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


# ---- limits ----------------------------------------------------------------------------------------------------------


async def test_an_episode_ends_with_its_turns(tokenizer: Tokenizer) -> None:
    """Asking beyond environment.max_turns ends it with the turns that it has; what it was given counts."""
    completion = completed(
        await play("test-echo", tokenizer, Answers(tokenizer, "one"), num_turns=9, limits=Limits(3, 512))
    )
    assert (len(completion.turns), completion.rewards) == (3, {"turns": 3.0})


async def test_an_episode_ends_with_its_context(tokenizer: Tokenizer) -> None:
    """A turn has what is left of engine.max_model_len; where nothing is left the episode ends: no crash, no drop."""
    prompt_length = len(chat_prompt(tokenizer).token_ids)
    answers = Answers(tokenizer, "12345678")
    limits = Limits(16, prompt_length + 20)
    completion = completed(await play("test-echo", tokenizer, answers, num_turns=9, limits=limits))
    assert len(completion.turns) == 1
    limits = Limits(16, prompt_length + 5)
    completion = completed(await play("test-echo", tokenizer, answers, num_turns=9, limits=limits))
    assert (completion.finish, len(completion.token_ids)) == ("length", 5)


async def test_whoever_catches_the_end_may_still_reward(tokenizer: Tokenizer) -> None:
    """The error says which limit it was, and the session says so too."""

    @prl.environment("test-catches")
    async def catches(session: Session, prompt: Prompt) -> float:
        await session.generate()
        with pytest.raises(EpisodeOverError, match=r"environment.max_turns = 1"):
            await session.generate()
        assert session.over is not None
        return 0.5

    completion = completed(await play("test-catches", tokenizer, Answers(tokenizer, "x"), limits=Limits(1, 512)))
    assert completion.rewards == {"environment": 0.5}


# ---- what goes wrong -------------------------------------------------------------------------------------------------


async def test_a_failed_turn_is_the_episodes_reason(tokenizer: Tokenizer) -> None:
    """What a turn came to nothing for is what the episode came to nothing for."""
    assert await play("test-echo", tokenizer, Answers(tokenizer, "one", ABORTED)) == ABORTED


async def test_a_failed_turn_may_be_asked_for_again(tokenizer: Tokenizer) -> None:
    """Nothing of the failed one is in the episode."""

    @prl.environment("test-retries")
    async def retries(session: Session, prompt: Prompt) -> None:
        with pytest.raises(TurnFailedError):
            await session.generate()
        await session.generate()

    completion = completed(await play("test-retries", tokenizer, Answers(tokenizer, ABORTED, "two")))
    assert (completion.text, len(completion.turns)) == ("two", 1)


async def test_the_world_may_fail_and_code_may_not(tokenizer: Tokenizer) -> None:
    """An OSError drops the episode with a reason; any other exception ends the run as it was, and says where."""
    dropped = await play("test-raises", tokenizer, Answers(tokenizer, "x"), error="OSError")
    assert dropped == Dropped(
        reason="environment_error", message="the environment 'test-raises' failed: OSError: no route"
    )
    with pytest.raises(KeyError) as raised:
        await play("test-raises", tokenizer, Answers(tokenizer, "x"), error="KeyError")
    assert raised.value.__notes__ == ["raised by the environment 'test-raises' on prompt 0"]


async def test_a_bug_after_the_end_is_still_a_bug(tokenizer: Tokenizer) -> None:
    """What does not come of the session's refusal is not excused by it."""
    with pytest.raises(KeyError):
        await play(
            "test-raises",
            tokenizer,
            Answers(tokenizer, "x"),
            error="KeyError",
            asks=2,
            catches=True,
            limits=Limits(1, 512),
        )


async def test_what_is_raised_while_judging_is_never_excused(tokenizer: Tokenizer) -> None:
    """Not even where the session said no before: neither what it judges with, nor a reward that is no number."""

    @prl.environment("test-judges")
    async def judges(session: Session, prompt: Prompt, *, returns: bool, gives: bool = False) -> float:
        await session.generate()
        try:
            await session.generate()
        except EpisodeOverError as over:
            if gives:
                session.reward(math.nan)
            if not returns:
                session.is_judging = True
                raise KeyError("x") from over
        return math.nan

    answers, limits = Answers(tokenizer, "x"), Limits(1, 512)
    with pytest.raises(KeyError):
        await play("test-judges", tokenizer, answers, limits=limits, returns=False)
    with pytest.raises(ValueError, match="must be a finite number"):
        await play("test-judges", tokenizer, answers, limits=limits, returns=True)
    with pytest.raises(ValueError, match="must be a finite number"):
        await play("test-judges", tokenizer, answers, limits=limits, returns=True, gives=True)


@pytest.mark.parametrize("catches", [False, True])
async def test_the_end_of_the_engines_is_no_environments_to_swallow(tokenizer: Tokenizer, catches: bool) -> None:
    """An error that must end the run is raised as it was, whatever the environment does with it."""
    gone = EngineDeadError("engine-0 is dead")
    with pytest.raises(EngineDeadError) as raised:
        await play("test-raises", tokenizer, Answers(tokenizer, gone), error="", catches=catches)
    assert raised.value is gone


async def test_an_episode_without_a_turn_is_none(tokenizer: Tokenizer) -> None:
    """There is nothing to train."""
    assert await play("test-raises", tokenizer, Answers(tokenizer, "x"), error="", asks=0) == Dropped(
        reason="no_turn", message="the environment 'test-raises' asked nothing"
    )


async def test_a_cancelled_episode_frees_its_stream(tokenizer: Tokenizer) -> None:
    """The rollout's deadline reaches the stream that an environment waits for."""
    waits = asyncio.Event()

    async def never(*_: object) -> Completion:
        waits.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.TaskGroup() as group:
        task = group.create_task(episodes_of("test-echo", tokenizer).play(chat_prompt(tokenizer), DECODING, never))
        await waits.wait()
        task.cancel()
    assert task.cancelled()


# ---- rewards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None])
async def test_a_reward_is_a_finite_number(tokenizer: Tokenizer, value: Any) -> None:
    """Anything else is a bug in the environment."""

    @prl.environment(f"test-gives-{value}")
    async def gives(session: Session, prompt: Prompt) -> None:
        session.reward(value)

    with pytest.raises(ValueError, match="must be a finite number"):
        await play(f"test-gives-{value}", tokenizer, Answers(tokenizer, "x"))


async def test_what_the_environment_gave_is_added_to_what_rewards_say() -> None:
    """By part; without rewards it is all there is, and an abstention stays one."""
    import msgspec

    async def half(completion: Completion, prompt: Prompt) -> Verdict:
        return Score(reward=0.5, parts={"math": 0.5})

    async def abstains(completion: Completion, prompt: Prompt) -> Verdict:
        return Abstained(reason="unsure")

    episode = msgspec.structs.replace(make_completion(), rewards={"turns": 2.0, "end": -1.0})
    prompt = make_prompt()
    assert await judged_with(half)(episode, prompt) == Score(reward=1.5, parts={"math": 0.5, "turns": 2.0, "end": -1.0})
    assert await judged_with(half)(make_completion(), prompt) == Score(reward=0.5, parts={"math": 0.5})
    assert await judged_with(None)(episode, prompt) == Score(reward=1.0, parts={"turns": 2.0, "end": -1.0})
    assert await judged_with(None)(make_completion(), prompt) == Score(reward=0.0)
    assert await judged_with(abstains)(episode, prompt) == Abstained(reason="unsure")


async def test_a_part_of_the_environment_has_no_rewards_name() -> None:
    """One would be lost, or a sum wrong: what it gives is refused, and of what it notes the reward's value stays."""
    import msgspec

    async def half(completion: Completion, prompt: Prompt) -> Verdict:
        return Score(reward=0.5, parts={"math": 0.5})

    judge, prompt = judged_with(half, ["math", "format"]), make_prompt()
    for taken in ("math", "format"):
        given = msgspec.structs.replace(make_completion(), rewards={taken: 2.0})
        with pytest.raises(
            PluginError, match=rf"named '{taken}', as one of \[\[rewards\]\] is.*name the part otherwise"
        ):
            await judge(given, prompt)
    noted = msgspec.structs.replace(make_completion(), noted={"math": 7.0, "format": 7.0, "turns": 3.0})
    assert await judge(noted, prompt) == Score(reward=0.5, parts={"turns": 3.0, "math": 0.5})


async def test_rewards_of_groups_keep_what_the_environment_gave() -> None:
    """They judge all members together; what each episode was given is added to what comes of it."""
    import msgspec

    async def ranks(completions: Any, scores: Any, prompt: Prompt) -> list[Verdict]:
        return [Score(reward=float(place), parts={"rank": float(place)}) for place in range(len(completions))]

    given = msgspec.structs.replace(make_completion(), rewards={"environment": 2.0})
    verdicts = await group_judged_with(ranks)([given, make_completion()], [Score(reward=0.0)] * 2, make_prompt())
    assert verdicts == [
        Score(reward=2.0, parts={"rank": 0.0, "environment": 2.0}),
        Score(reward=1.0, parts={"rank": 1.0}),
    ]


# ---- shapes ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_an_environment_is_refused() -> None:
    """It must be async, take (session, prompt), and its options by keyword."""
    with pytest.raises(PluginError, match="must be an async function"):
        prl.environment("test-plain")(lambda session, prompt: None)
    with pytest.raises(PluginError, match=r"must take \(session, prompt\)"):

        @prl.environment("test-one")
        async def one(session: Session) -> None: ...

    with pytest.raises(PluginError, match=r"has no option 'num_turn' \(did you mean 'num_turns'\?\)"):
        episodes_of("test-echo", None, num_turn=3)  # type: ignore[arg-type]


async def test_a_class_has_what_its_episodes_share(tokenizer: Tokenizer) -> None:
    """It is opened before the first and closed after the last."""
    log: list[str] = []

    @prl.environment("test-class")
    class Shared:
        def __init__(self, word: str) -> None:
            self._word = word

        async def open(self) -> None:
            log.append(f"open {self._word}")

        async def close(self) -> None:
            log.append("close")

        async def __call__(self, session: Session, prompt: Prompt) -> None:
            log.append((await session.generate()).text)

    await play("test-class", tokenizer, Answers(tokenizer, "said"), word="w")
    assert log == ["open w", "said", "close"]


async def test_a_turn_knows_what_was_given_before_it(tokenizer: Tokenizer) -> None:
    """Each turn is stamped with the rewards that came before it was asked for, which its tokens did not earn."""
    completion = completed(await play("test-echo", tokenizer, Answers(tokenizer, "one", "two", "three"), num_turns=3))
    assert [turn.earned for turn in completion.turns] == [0.0, 1.0, 2.0]
    assert completion.rewards == {"turns": 3.0}


@prl.environment("test-notes")
async def notes(session: Session, prompt: Prompt) -> float:
    """Note something beside a reward."""
    await session.generate()
    session.note(7, "tries")
    return 1.0


async def test_what_is_noted_is_seen_and_worth_nothing(tokenizer: Tokenizer) -> None:
    """It stands among the parts, and the reward is without it; a part of the same name is a reward's."""
    completion = completed(await play("test-notes", tokenizer, Answers(tokenizer, "one")))
    score = await judged_with(None)(completion, chat_prompt(tokenizer))
    assert score == Score(reward=1.0, parts={"tries": 7.0, "environment": 1.0})

"""Plays the episodes of a run, each to a completion or to the reason why there is none.

Invariants:

- Whatever an environment does with the errors of its session, an engine's end or a bug in a stream ends the run as it
  was, and an episode without a turn is none.
- What an environment raises because its session said no (it is over, a turn failed) is answered by that; so is whatever
  it raises then behind a gateway, where a client makes its own exception of that answer. What it raises while it judges
  is excused by nothing: a reward that fails is never a 0.
- The score of an episode is what ``[[rewards]]`` say of its last turn, and what its environment gave; an environment
  without them needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, Self

from prl.engines.base import Decoding
from prl.environments.base import Environment
from prl.environments.session import Address, Limits, Session
from prl.errors import EpisodeError, PluginError
from prl.failure import raise_as_it_was
from prl.log import get_logger
from prl.rewards.breaker import is_failure
from prl.sampler import Dropped, Sample
from prl.tokenizer import Tokenizer
from prl.types import Completion, Prompt, Score, Verdict
from prl.waits import waiting

OPEN_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 10.0

log = get_logger(__name__)
Judge = Callable[[Completion, Prompt], Awaitable[Verdict]]
GroupJudge = Callable[[Sequence[Completion], Sequence[Score], Prompt], Awaitable[list[Verdict]]]


class Door(Protocol):
    """Where agents reach their sessions from outside: the gateway."""

    def new_address(self) -> Address:
        """An address that no episode has had."""
        ...

    def serving(self, address: Address, session: Session) -> AbstractContextManager[None]:
        """Let those who know ``address`` speak to ``session`` meanwhile."""
        ...


class Episodes:
    """Plays the episodes of one environment. Enter it first."""

    def __init__(
        self, environment: Environment, tokenizer: Tokenizer, limits: Limits, *, door: Door | None = None
    ) -> None:
        self._environment, self._tokenizer, self._limits, self._door = environment, tokenizer, limits, door

    async def __aenter__(self) -> Self:
        if self._environment.open is not None:
            try:
                async with asyncio.timeout(OPEN_TIMEOUT_S) as deadline:
                    await self._environment.open()
            except TimeoutError as error:
                if not deadline.expired():
                    raise
                message = f"the environment {self._environment.name!r} was not ready after {OPEN_TIMEOUT_S:g} s"
                raise EpisodeError(message) from error
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._environment.close is not None:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._environment.close()
            except Exception as failed:  # noqa: BLE001 -- the run is over, and how it ended is not this
                log.warning("an environment did not close", name=self._environment.name, why=repr(failed))

    async def play(self, prompt: Prompt, decoding: Decoding, sample: Sample) -> Completion | Dropped:
        """One episode (``rollout.Play``)."""
        address = None if self._door is None else self._door.new_address()
        session = Session(prompt, self._tokenizer, sample, decoding=decoding, limits=self._limits, address=address)
        serving = nullcontext() if self._door is None or address is None else self._door.serving(address, session)
        dropped = None
        with serving, waiting(f"the environment {self._environment.name!r}", limit_s=self._limits.timeout_s):
            try:
                self._take(session, await self._environment.call(session, prompt))
            except Exception as error:  # noqa: BLE001 -- sorted
                dropped = self._sorted(error, session)
        if session.error is not None:
            raise_as_it_was(session.error)
        if dropped is not None:
            return dropped
        if not session.num_turns:
            nothing = Dropped(reason="no_turn", message=f"the environment {self._environment.name!r} asked nothing")
            return session.failure or nothing
        return session.completion()

    def _take(self, session: Session, returned: Any) -> None:
        """What an environment returns is a reward."""
        if returned is not None:
            session.is_judging = True
            session.reward(returned)

    def _sorted(self, error: Exception, session: Session) -> Dropped | None:
        """What an exception of the environment makes of its episode; None: it is over. A bug is raised."""
        if session.error is not None:
            return None
        answers = not session.is_judging and (self._door is not None or _stems_from_session(error))
        if answers and (session.over is not None or session.failure is not None):
            return session.failure
        if is_failure(error):
            message = f"the environment {self._environment.name!r} failed: {type(error).__name__}: {error}"
            return Dropped(reason="environment_error", message=message)
        error.add_note(f"raised by the environment {self._environment.name!r} on prompt {session.prompt.id}")
        raise error


def _stems_from_session(error: BaseException | None) -> bool:
    """Whether a refusal of the session is in the chain of this exception's causes."""
    while error is not None:
        if isinstance(error, EpisodeError):
            return True
        error = error.__cause__ or error.__context__
    return False


def judged_with(judge: Judge | None, labels: Collection[str] = ()) -> Judge:
    """A judge that adds what the environment gave to what ``judge`` says; None: that is all there is.

    ``labels`` are the names of the rewards, which no part of the environment's may have: PluginError.
    """

    async def judged(completion: Completion, prompt: Prompt) -> Verdict:
        _check_parts(completion, labels)
        verdict = Score(reward=0.0) if judge is None else await judge(completion, prompt)
        return _with_rewards(verdict, completion, labels)

    return judged


def group_judged_with(judge: GroupJudge) -> GroupJudge:
    """The same for rewards that see all completions of a prompt."""

    async def judged(completions: Sequence[Completion], scores: Sequence[Score], prompt: Prompt) -> list[Verdict]:
        verdicts = await judge(completions, scores, prompt)
        return [_with_rewards(verdict, done) for verdict, done in zip(verdicts, completions, strict=True)]

    return judged


def _check_parts(completion: Completion, labels: Collection[str]) -> None:
    if taken := sorted(set(labels) & completion.rewards.keys()):
        raise PluginError(
            f"the environment gives a part of the score that is named {taken[0]!r}, as one of [[rewards]] is, and one"
            " of both would be lost: name the part otherwise (session.reward(value, part)), or leave the reward away"
        )


def _with_rewards(verdict: Verdict, completion: Completion, labels: Collection[str] = ()) -> Verdict:
    """A score of the configured rewards with what the environment gave, too; what it notes has no reward's name."""
    given = completion.rewards
    if not isinstance(verdict, Score) or not (given or completion.noted):
        return verdict
    noted = {name: value for name, value in completion.noted.items() if name not in labels}
    parts = {**noted, **verdict.parts, **given}
    return Score(reward=verdict.reward + sum(given.values()), parts=parts, messages=verdict.messages)

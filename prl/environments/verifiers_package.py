"""``verifiers``: an environment of the package of that name, played unchanged through the gateway.

- The environment asks with an OpenAI client that speaks in its episode's name, so what is trained is what was sampled,
  however it writes its messages. It plays (``rollout``) and its rubric judges (``score_rollout``), as in the package.
- The score is the rubric's: each function with a weight is a part, its value times its weight; one with weight 0 is
  noted beside, in the metrics.
- A reward function that raises is not a 0, as the package would have it: what it raised is an error of the environment
  (``base.py``). Plain functions are called in threads; turns and tools run where the package runs them, on the loop.
- The rubric has ``judge_timeout_s`` for an episode; a function that hangs is named, and its episode is dropped as one
  that could not be judged. A plain one that hangs keeps its thread: after ``MAX_STUCK`` of them the run ends.
- An episode whose model said nothing at all in a turn cannot be judged by functions of text: its reward is 0.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Annotated, Any

from msgspec import Meta

from prl.config_environment import VERIFIERS
from prl.data.verifiers_rows import Named, load
from prl.deadlines import awake_timeout
from prl.environments.session import Session
from prl.errors import PluginError, RewardError
from prl.rewards.threads import Threads
from prl.types import Prompt

MAX_STUCK = 64
"""Plain functions that may hang at a time."""
_MODEL = "policy"
_REST = "rubric"
"""The part that is left where a rubric's reward is not the sum of its functions'."""
_raised: ContextVar[list[Exception]] = ContextVar("raised by reward functions")
_asked: ContextVar[list[str]] = ContextVar("reward functions that were called")


class Verifiers:
    """Episodes of one environment of the package ``verifiers``."""

    asks_over_http = True

    def __init__(
        self,
        *,
        env: str,
        args: dict[str, Any] | None = None,
        score: bool = True,
        judge_timeout_s: Annotated[float, Meta(gt=0)] = 60.0,
    ) -> None:
        """Load it; the prompts that belong to it are those of ``data.source = "verifiers"``.

        Args:
            env: its id, a module with a function ``load_environment``, installed or in the working directory.
            args: arguments of that function.
            score: let its rubric judge; else ``[[rewards]]`` alone do.
            judge_timeout_s: deadline of the rubric, for one episode; ``pipeline.rollout_timeout_s`` bounds the episode
                and this.

        Raises ConfigError or MissingExtraError, and PluginError for a rubric that cannot judge single episodes.
        """
        self._environment = load(Named(env=env, args=args or {}))
        self._threads = Threads(f"prl-{VERIFIERS}")
        self._weights = _weights_of(self._environment.rubric, env) if score else {}
        self.parts = (*self._weights, _REST) if score else ()
        self._judge_timeout_s = judge_timeout_s
        for rubric in _rubrics(self._environment.rubric):
            rubric.funcs = [self._telling(function) for function in rubric.funcs]

    async def open(self) -> None:
        """Make the client that the episodes share."""
        import httpx  # noqa: PLC0415 - comes with openai
        import openai  # noqa: PLC0415 - comes with verifiers

        http = openai.DefaultAsyncHttpxClient(limits=httpx.Limits(max_connections=None))
        self._client = openai.AsyncOpenAI(
            base_url="http://localhost", api_key="of the episode", http_client=http, timeout=None, max_retries=1
        )

    async def close(self) -> None:
        """End its connections, and what the environment holds; at exit it has nothing left to end."""
        self._threads.close()
        await self._client.close()
        await self._environment._teardown()  # noqa: SLF001 - it has no other name for it
        self._environment._teardown_handlers = []  # noqa: SLF001 - the same

    async def __call__(self, session: Session, prompt: Prompt) -> None:
        """One episode. Raises what an environment may (``base.py``), a vf.Error where it asked what it may not."""
        client = self._client.with_options(base_url=session.base_url, api_key=session.api_key)
        state = await self._environment.rollout(self._input(prompt), client, _MODEL, {})
        if (error := state.get("error")) is not None and not self._is_judged(error, session):
            return
        if self._weights:
            session.is_judging = True
            await self._judge(session, state)

    def _input(self, prompt: Prompt) -> dict[str, Any]:
        """The row as the environment had it."""
        asked: Any = prompt.messages
        if self._environment.message_type == "completion":
            asked = prompt.messages[-1]["content"] if prompt.messages else prompt.text
        return {"example_id": prompt.id, "task": self._environment.env_id, **prompt.fields, "prompt": asked}

    def _is_judged(self, error: Exception, session: Session) -> bool:
        """Whether the rubric judges an episode that ended with this error. Raises it where it is no episode."""
        from verifiers.errors import EmptyModelResponseError, InfraError, ToolError  # noqa: PLC0415 - an extra

        if session.over is not None or isinstance(error, ToolError):
            return True
        if isinstance(error, EmptyModelResponseError):
            for name in self._weights:
                session.reward(0.0, name)
            return False
        if isinstance(error, InfraError):
            raise RewardError(f"{type(error).__name__}: {error.__cause__ or error}") from error
        raise error

    async def _judge(self, session: Session, state: Any) -> None:
        raised, asked = list[Exception](), list[str]()
        _raised.set(raised)
        _asked.set(asked)
        try:
            async with awake_timeout(self._judge_timeout_s) as deadline:
                await self._environment.rubric.score_rollout(state)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise self._late(asked[-1] if asked else "the rubric") from error
        if raised:
            raise raised[0]
        given = 0.0
        for name, value in state["metrics"].items():
            if weight := self._weights.get(name, 0.0):
                session.reward(weight * value, name)
                given += weight * value
            else:
                session.note(value, name)
        if not math.isclose(given, state["reward"], rel_tol=1e-9, abs_tol=1e-9):
            session.reward(state["reward"] - given, _REST)

    def _late(self, name: str) -> Exception:
        """What a function that hangs is: a failure of the environment, until too many do."""
        if (num_stuck := self._threads.num_stuck) >= MAX_STUCK:
            return PluginError(
                f"{num_stuck} calls of reward functions of {self._environment.env_id!r} hang and cannot be ended, the"
                f" last of {name!r}: make it async, or give what it waits for a deadline"
            )
        limit_s = self._judge_timeout_s
        return RewardError(f"the reward function {name!r} took over environment.options.judge_timeout_s = {limit_s:g}")

    def _telling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A reward function that tells what it raises before the rubric makes a 0 of it."""

        @functools.wraps(function)
        async def told(*args: Any, **kwargs: Any) -> float:
            _asked.get().append(function.__name__)
            try:
                if inspect.iscoroutinefunction(function):
                    return float(await function(*args, **kwargs))
                value = await self._threads.run(functools.partial(function, *args, **kwargs))
                return float(await value if inspect.isawaitable(value) else value)
            except Exception as error:
                _raised.get().append(error)
                raise

        return told


def _rubrics(rubric: Any) -> Iterator[Any]:
    """The rubrics of a group of them, or the one."""
    for each in getattr(rubric, "rubrics", [rubric]):
        if each is rubric:
            yield rubric
        else:
            yield from _rubrics(each)


def _weights_of(rubric: Any, env: str) -> dict[str, float]:
    """Weight by function, of those that have one. Raises PluginError where prl cannot say whose verdict is whose."""
    functions = [pair for each in _rubrics(rubric) for pair in zip(each.funcs, each.weights, strict=True)]
    if of_groups := [function.__name__ for function, _ in functions if rubric._is_group_func(function)]:  # noqa: SLF001
        raise PluginError(
            f"the environment {VERIFIERS!r} ({env}): its rubric judges whole groups ({', '.join(of_groups)}), and prl"
            " plays one episode at a time: take score = false and a reward of groups (prl.group_reward) in [[rewards]]"
        )
    names = Counter(function.__name__ for function, _ in functions)
    if twice := [name for name, count in names.items() if count > 1]:
        raise PluginError(f"the environment {VERIFIERS!r} ({env}): two functions of its rubric are named {twice[0]!r}")
    weights = {function.__name__: float(weight) for function, weight in functions if weight}
    if not weights:
        raise PluginError(
            f"the environment {VERIFIERS!r} ({env}): no function of its rubric has a weight, so it judges nothing: take"
            " score = false, and judge with [[rewards]]"
        )
    return weights

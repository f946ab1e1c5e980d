"""Rewards that do to a run what people do: signals, bugs, failures."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

from prl.errors import RewardError
from prl.types import Completion, Prompt


async def length(completion: Completion, prompt: Prompt) -> float:
    """Something to learn."""
    return 1.0 / len(completion.token_ids)


class InterruptAt:
    """Sends a signal to the run at its n-th call, and again at every later one if told so."""

    def __init__(self, *, call: int = 1, again: bool = False, number: int = signal.SIGINT) -> None:
        self._call, self._again, self._number = call, again, number
        self._num_calls = 0

    async def __call__(self, completion: Completion, prompt: Prompt) -> float:
        """Count, and interrupt."""
        self._num_calls += 1
        if self._num_calls == self._call or (self._again and self._num_calls > self._call):
            os.kill(os.getpid(), self._number)
        return float(self._num_calls % 2)


class InterruptAtStart:
    """Sends SIGINT while the run starts, as an impatient person would."""

    async def open(self) -> None:
        """The moment."""
        os.kill(os.getpid(), signal.SIGINT)

    async def __call__(self, completion: Completion, prompt: Prompt) -> float:
        """Never asked."""
        raise AssertionError


class WithChild(InterruptAt):
    """Has a process of its own in a group of its own, and writes its id down."""

    def __init__(self, *, pid_file: str, call: int = 1, again: bool = False) -> None:
        super().__init__(call=call, again=again)
        with open(pid_file, "w") as file:  # noqa: PTH123 - a path as TOML gives it
            file.write(str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))


async def bug(completion: Completion, prompt: Prompt) -> float:
    """A mistake of the kind people make."""
    return completion.text + 1  # type: ignore[operator, no-any-return]


async def down(completion: Completion, prompt: Prompt) -> float:
    """A service that is not there."""
    raise RewardError("the judge at judge.example is down")


async def never(completion: Completion, prompt: Prompt) -> float:
    """A service that takes the question and says nothing."""
    await asyncio.get_running_loop().create_future()
    return 0.0

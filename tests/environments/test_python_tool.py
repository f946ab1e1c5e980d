"""Python as a tool, in the real sandbox."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from prl.environments import python_tool
from prl.environments.calls import ToolCall
from prl.environments.session import Limits
from prl.environments.tools import answered
from prl.errors import PluginError
from prl.rewards import sandbox
from prl.rewards.sandbox import Isolation, SandboxError, describe
from prl.tokenizer import Tokenizer
from prl.types import Completion
from tests.environments.scripted import DECODING, Answers, chat_prompt, episodes_of


def isolation() -> Isolation:
    """The strongest that this machine offers."""
    try:
        describe("namespace")
    except SandboxError:
        return "limits"
    return "namespace"


async def test_programs_are_run_and_their_faults_read() -> None:
    """What is printed, a traceback, a limit that stops it, a value that is no program: text for the model."""
    tool = python_tool.Python(isolation=isolation(), cpu_s=1, wall_s=60)._tool

    async def told(program: object) -> str:
        return await answered(ToolCall(id="c", name="python", arguments={"program": program}), tool)

    assert await told("print(6 * 7)") == "42\n"
    assert await told("x = 1") == "(it printed nothing)"
    failed = await told("print('so far')\n1 / 0")
    assert failed.startswith("so far\n")
    assert failed.endswith("ZeroDivisionError: division by zero")
    assert await told("while True: pass") == "error: it was stopped after 1 s of CPU time (cpu_s)"
    assert await told(7) == "error: a program is a text"


async def test_an_episode_runs_programs(tokenizer: Tokenizer) -> None:
    """The model's program, what it printed, and the model's answer: one episode, by the environment's name."""
    call = '<tool_call>{"name": "python", "arguments": {"program": "print(2 ** 10)"}}</tool_call>'
    answers = Answers(tokenizer, call, "1024")
    episodes = episodes_of("python", tokenizer, limits=Limits(4, 4096), isolation=isolation())
    decoding = msgspec.structs.replace(DECODING, max_tokens=512)
    completion = await episodes.play(chat_prompt(tokenizer), decoding, answers)
    assert isinstance(completion, Completion)
    assert completion.text == "1024"
    assert tokenizer.decode_all(answers.asked[1][0]).endswith(f"a:{call}<|end|>t:1024\n<|end|>a:")


def test_isolation_that_is_not_to_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine offers less than was asked for: the environment is not made, and the message says what to set."""

    def refuses(wanted: Isolation) -> str:
        raise SandboxError(f"isolation = {wanted!r} is not to be had on this machine")

    monkeypatch.setattr(sandbox, "describe", refuses)
    with pytest.raises(PluginError, match=r"the environment 'python'.*isolation = 'limits' does without"):
        python_tool.Python()


async def test_a_call_that_waits_for_its_turn_is_not_late() -> None:
    """With one place, calls that together take longer than one may take are all answered."""
    tool = msgspec.structs.replace(
        python_tool.Python(isolation=isolation(), num_workers=1, wall_s=20)._tool, timeout_s=20.0
    )
    assert tool.places is not None
    await tool.places.acquire()
    call = ToolCall(id="c", name="python", arguments={"program": "print(1)"})
    waiting = [asyncio.ensure_future(answered(call, msgspec.structs.replace(tool, timeout_s=t))) for t in (1e-9, 20.0)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    tool.places.release()
    assert await waiting[1] == "1\n"
    assert (await waiting[0]).startswith("error: python took longer")

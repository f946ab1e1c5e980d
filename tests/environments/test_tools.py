"""Tool calls in a model's text, and the loop that answers them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import prl
from prl.batch import make_samples
from prl.environments.calculator import CALCULATOR
from prl.environments.calls import ToolCall, find_calls, shown
from prl.environments.session import Limits
from prl.environments.tools import MAX_ANSWER, Tool, answered, run_tools
from prl.tokenizer import Tokenizer
from prl.types import Completion, Prompt
from tests.environments.scripted import DECODING, Answers, chat_prompt, episodes_of
from tests.tiny_tokenizers import save_tokenizer

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'


def call_of(number: int, name: str = "calculator", **arguments: Any) -> ToolCall:
    """The call with this number of the first turn."""
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("no call", "no call", []),
        (f"so: {CALL}!", "so: !", [call_of(0, expression="6*7")]),
        (CALL + CALL, "", [call_of(0, expression="6*7"), call_of(1, expression="6*7")]),
        ('<tool_call>\n{"name": "now"}\n</tool_call>', "", [call_of(0, "now")]),
        ("<tool_call>{6*7}</tool_call>", "<tool_call>{6*7}</tool_call>", []),
        (f"<tool_call>[1]</tool_call> {CALL}", "<tool_call>[1]</tool_call> ", [call_of(0, expression="6*7")]),
        (CALL[:-1], CALL[:-1], []),
    ],
)
def test_calls_are_found(text: str, content: str, calls: list[ToolCall]) -> None:
    """Whole and well-formed ones; what is not stays in the text."""
    assert find_calls(text, "c") == (content, calls)


def test_finding_calls_takes_linear_time() -> None:
    """Field notes E, adversarial strings: a megabyte of openings is read in well under a second."""
    text = "<tool_call>" * 100_000
    assert find_calls(text, "c") == (text, [])


async def test_the_model_calls_until_it_answers(tokenizer: Tokenizer) -> None:
    """The tool's result stands before the next turn, untrained; the call is the model's own tokens."""
    answers = Answers(tokenizer, f"let me see {CALL}", "it is 42")
    episodes = episodes_of("calculator", tokenizer, limits=Limits(16, 2048))
    prompt, decoding = chat_prompt(tokenizer, "6*7?"), prl_decoding()
    completion = await episodes.play(prompt, decoding, answers)
    assert isinstance(completion, Completion)
    assert completion.text == "it is 42"
    [sample] = make_samples(prompt, completion, [1.0] * len(completion.turns))
    said = tokenizer.decode_all(answers.asked[1][0])
    assert said.endswith(f"u:6*7?<|end|>a:let me see {CALL}<|end|>t:42<|end|>a:")
    trained = [token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
    assert tokenizer.decode_all(trained) == f"let me see {CALL}<|end|>it is 42<|end|>"


def prl_decoding() -> Any:
    """Room for a call."""
    import msgspec

    return msgspec.structs.replace(DECODING, max_tokens=512)


async def test_a_calls_faults_are_for_the_model_to_read() -> None:
    """No such tool, other arguments, a value that is none, a late or a long answer: text, and the episode goes on."""

    async def sleepy() -> str:
        await asyncio.Event().wait()
        return ""

    async def talks() -> str:
        return "x" * (MAX_ANSWER + 1)

    late = Tool(name="sleepy", description="", parameters={}, call=sleepy, timeout_s=0.01)
    long = Tool(name="talks", description="", parameters={}, call=talks)
    assert await answered(call_of(0, "abacus"), None) == "error: there is no tool 'abacus'"
    assert (await answered(call_of(0, formula="1"), CALCULATOR)).startswith("error: calculator: missing a required")
    assert await answered(call_of(0, expression="1/0"), CALCULATOR) == "error: division by 0"
    assert (
        await answered(call_of(0, expression=[1]), CALCULATOR)
        == "error: an expression is a text of at most 500 characters"
    )
    assert await answered(call_of(0, "sleepy"), late) == "error: sleepy took longer than 0.01 s"
    assert (await answered(call_of(0, "talks"), long)).endswith(f" ... ({MAX_ANSWER + 1} characters)")


async def test_a_bug_in_a_tool_ends_the_run(tokenizer: Tokenizer) -> None:
    """It is the environment's bug, raised as it was."""

    async def buggy() -> str:
        raise KeyError("bug")

    @prl.environment("test-buggy-tool")
    async def environment(session: prl.Session, prompt: Prompt) -> None:
        await run_tools(session, prompt.messages, [Tool(name="now", description="", parameters={}, call=buggy)])

    answers = Answers(tokenizer, '<tool_call>{"name": "now"}</tool_call>')
    with pytest.raises(KeyError):
        await episodes_of("test-buggy-tool", tokenizer, limits=Limits(4, 2048)).play(
            chat_prompt(tokenizer), DECODING, answers
        )


def test_tools_are_shown_by_the_template_or_by_us(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A template that knows none would leave them out in silence: then they are told in the system message."""
    tools = [CALCULATOR.described()]
    asked = [{"role": "user", "content": "hi"}]
    assert not tokenizer.knows_tools
    told = shown(asked, tools, tokenizer)
    assert told.startswith("s:You may call these functions:\n")
    assert '"name":"calculator"' in told
    with_system = shown([{"role": "system", "content": "Be kind."}, *asked], tools, tokenizer)
    assert with_system.startswith("s:Be kind.\n\nYou may call these functions:\n")
    knowing = "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ m.content }}{% endfor %}"
    folder = save_tokenizer(tmp_path, template=knowing)
    other = Tokenizer.load(folder)
    assert other.knows_tools
    assert shown(asked, tools, other) == other.render_text(asked, tools)
    assert shown(asked, [], tokenizer) == tokenizer.render_text(asked)

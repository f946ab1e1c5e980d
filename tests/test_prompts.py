"""Prompt sources: one order for ever, long prompts passed over, evaluation kept apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.config import Config
from prl.errors import ConfigError, DataError
from prl.prompts import PromptSource, open_source
from prl.tokenizer import Tokenizer
from prl.types import Prompt
from tests.tiny_tokenizers import save_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token per character, with a chat template: ``user:TEXT<end>>``."""
    return Tokenizer.load(save_tokenizer(tmp_path_factory.mktemp("chat")))


@pytest.fixture(scope="module")
def plain_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same without a chat template; it adds a BOS to plain text."""
    return Tokenizer.load(save_tokenizer(tmp_path_factory.mktemp("plain"), template=None, adds_bos=True))


def config(**tables: dict[str, Any]) -> Config:
    """A configuration with these tables, and sizes that leave 24 tokens for a prompt."""
    sizes = {"engine": {"max_model_len": 32}, "sampling": {"max_tokens": 8}}
    return msgspec.convert({"model": "none", **sizes, **tables}, Config)


def jsonl(path: Path, rows: list[dict[str, Any]], **tables: dict[str, Any]) -> Config:
    """A configuration that reads these rows, all of them for training unless ``eval`` says otherwise."""
    path.mkdir(exist_ok=True)
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"source": "jsonl", "path": str(path / "rows.jsonl"), **tables.pop("data", {})}
    return config(**{"data": data, "eval": {"num_samples": 0}, **tables})


def numbered(n: int) -> list[dict[str, Any]]:
    """Rows whose answer is their number."""
    return [{"prompt": f"q{i}", "answer": str(i)} for i in range(n)]


def take(source: PromptSource, n: int) -> list[Prompt]:
    """The next n prompts."""
    return [source.next() for _ in range(n)]


def answers(prompts: list[Prompt]) -> list[str]:
    """What tells the prompts of ``numbered`` apart."""
    return [prompt.fields["answer"] for prompt in prompts]


def test_each_epoch_holds_every_row_once(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Two epochs hold every row twice, in two different orders, and ids count up through both."""
    prompts = take(open_source(jsonl(tmp_path, numbered(20)), tokenizer), 40)
    first, second = answers(prompts[:20]), answers(prompts[20:])
    assert sorted(first) == sorted(second) == sorted(str(i) for i in range(20))
    assert first != second
    assert [prompt.id for prompt in prompts] == list(range(40))


def test_order_without_shuffling_is_the_files(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """``data.shuffle = false`` keeps the order of the file, in every epoch."""
    source = open_source(jsonl(tmp_path, numbered(5), data={"shuffle": False}), tokenizer)
    assert answers(take(source, 10)) == [str(i) for i in range(5)] * 2


@pytest.mark.parametrize("cursor", [0, 7, 20, 33])
def test_seek_continues_as_if_never_interrupted(tmp_path: Path, tokenizer: Tokenizer, cursor: int) -> None:
    """A new source that seeks to a saved cursor goes on with the same prompts as one that was never stopped."""
    settings = jsonl(tmp_path, numbered(20))
    unbroken, resumed = open_source(settings, tokenizer), open_source(settings, tokenizer)
    take(unbroken, cursor)
    assert unbroken.cursor == cursor
    resumed.seek(unbroken.cursor)
    assert take(resumed, 25) == take(unbroken, 25)


def test_a_prompt_in_flight_can_be_had_again(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """``get`` gives the prompt of an id again, in any order, and leaves the cursor where it was."""
    source = open_source(jsonl(tmp_path, numbered(20)), tokenizer)
    prompts = take(source, 30)
    assert [source.get(i) for i in (29, 3, 21)] == [prompts[29], prompts[3], prompts[21]]
    assert source.cursor == 30


def test_negative_cursor_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A cursor is a position."""
    with pytest.raises(ValueError, match="got -1"):
        open_source(jsonl(tmp_path, numbered(3)), tokenizer).seek(-1)


def test_seed_changes_the_order(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The seed of the run orders the data."""
    settings = jsonl(tmp_path, numbered(20))
    other = msgspec.structs.replace(settings, seed=1)
    assert answers(take(open_source(settings, tokenizer), 20)) != answers(take(open_source(other, tokenizer), 20))


def test_prompt_is_the_users_message_under_the_template(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A ``prompt`` is rendered through the chat template, once, after the system message if there is one."""
    row = {"prompt": "hi", "answer": "1", "kind": {"a": [1]}}
    source = open_source(jsonl(tmp_path, [row], data={"system": "s"}), tokenizer)
    prompt = source.next()
    assert prompt.messages == [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    assert prompt.text == "system:s<|end|>user:hi<|end|>>"
    assert prompt.token_ids == tokenizer.render(prompt.messages)
    assert prompt.fields == {"answer": "1", "kind": {"a": [1]}}


def test_messages_are_taken_as_they_are(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A row with ``messages`` gets no system message put before it."""
    messages = [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    source = open_source(jsonl(tmp_path, [{"messages": messages}], data={"system": "s"}), tokenizer)
    prompt = source.next()
    assert prompt.messages == messages
    assert prompt.text == "assistant:b<|end|>user:c<|end|>>"


def test_prompt_is_plain_text_without_a_template(tmp_path: Path, plain_tokenizer: Tokenizer) -> None:
    """A base model gets the prompt itself, with the tokenizer's BOS, and no messages."""
    prompt = open_source(jsonl(tmp_path, [{"prompt": "hi"}]), plain_tokenizer).next()
    assert (prompt.text, prompt.messages) == ("hi", [])
    assert prompt.token_ids == plain_tokenizer.encode("hi")


@pytest.mark.parametrize("table", [{"data": {"system": "s"}}, {}])
def test_conversation_without_a_template_is_refused(
    tmp_path: Path, plain_tokenizer: Tokenizer, table: dict[str, Any]
) -> None:
    """Messages, or a system message, with a model that has no template: said when the source is opened."""
    row = {"prompt": "hi"} if table else {"messages": [{"role": "user", "content": "a"}]}
    with pytest.raises(ConfigError, match="no chat template"):
        open_source(jsonl(tmp_path, [row], **table), plain_tokenizer)


def test_long_prompts_are_passed_over_and_reported(tmp_path: Path, plain_tokenizer: Tokenizer) -> None:
    """At 24 tokens (with BOS) a prompt fits, at 25 not: counted once, reported with its place, its id skipped."""
    rows = [{"prompt": "a" * length, "answer": str(length)} for length in (3, 23, 24, 4)]
    source = open_source(jsonl(tmp_path, rows, data={"shuffle": False}), plain_tokenizer)
    statistics = source.statistics()
    assert statistics.num_too_long == 1
    assert "sampling.max_tokens = 8 leaves 24 tokens for a prompt" in statistics.warnings[0]
    assert f"the first, {tmp_path}/rows.jsonl:3, has 25" in statistics.warnings[0]
    prompts = take(source, 6)
    assert answers(prompts) == ["3", "23", "4"] * 2
    assert [prompt.id for prompt in prompts] == [0, 1, 3, 4, 5, 7]
    assert source.statistics().num_too_long == 1
    assert source.statistics().epoch == 2


def test_nothing_that_fits_is_an_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """When every prompt is too long there is nothing to train on, said before anything starts."""
    with pytest.raises(DataError, match="no prompt is left to train on: 2 prompts are too long"):
        open_source(jsonl(tmp_path, [{"prompt": "a" * 40}] * 2), tokenizer)


def test_last_rows_are_set_aside(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A JSONL file gives its last rows to evaluation, at most a fifth of them, and never trains on those."""
    settings = jsonl(tmp_path, numbered(20), eval={"num_samples": 128})
    source = open_source(settings, tokenizer)
    assert answers(source.held_out(128)) == ["16", "17", "18", "19"]
    assert answers(source.held_out(2)) == ["16", "17"]
    assert [prompt.id for prompt in source.held_out(4)] == [0, 1, 2, 3]
    assert sorted(answers(take(source, 16)), key=int) == [str(i) for i in range(16)]
    assert (source.statistics().num_rows, source.statistics().num_held_out) == (16, 4)


def test_evaluation_may_have_its_own_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """With ``eval.path`` all rows of ``data.path`` are trained on and the other file is evaluated on."""
    held_out = jsonl(tmp_path / "eval", [{"prompt": "z", "answer": "eval"}, {"prompt": "z" * 40, "answer": "long"}])
    settings = jsonl(tmp_path, numbered(20), eval={"path": held_out.data.path, "num_samples": 8})
    source = open_source(settings, tokenizer)
    assert answers(source.held_out(8)) == ["eval"]
    assert source.statistics().num_rows == 20
    assert source.statistics().num_too_long == 1


def test_bad_rows_are_reported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Skipped rows stand in the statistics with the first one's place."""
    settings = jsonl(tmp_path, [*numbered(3), {"answer": "5"}], data={"skip_bad_rows": True})
    statistics = open_source(settings, tokenizer).statistics()
    assert statistics.num_bad == 1
    assert statistics.warnings[0].startswith(f"1 bad rows of {tmp_path}/rows.jsonl are left out; the first: ")


def test_required_fields_are_checked(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """What the rewards need is asked of every row, and of the arithmetic source."""
    with pytest.raises(DataError, match=r"rows\.jsonl:1: field 'tests' is missing"):
        open_source(jsonl(tmp_path, numbered(3)), tokenizer, ["answer", "tests"])
    with pytest.raises(ConfigError, match="needs the field 'tests', which arithmetic prompts do not have"):
        open_source(config(), tokenizer, ["answer", "tests"])


def test_jsonl_without_a_path_is_refused(tokenizer: Tokenizer) -> None:
    """The source needs its file."""
    with pytest.raises(ConfigError, match=r"needs data\.path"):
        open_source(config(data={"source": "jsonl"}), tokenizer)


def test_arithmetic_is_a_source(tokenizer: Tokenizer) -> None:
    """Arithmetic problems carry their answer and level, and evaluation never meets a training problem."""
    source = open_source(config(data={"num_prompts": 500, "level": 1}, eval={"num_samples": 50}), tokenizer)
    prompts, held_out = take(source, 500), source.held_out(50)
    assert len(held_out) == 50
    for prompt in [*prompts, *held_out]:
        question = prompt.messages[0]["content"].removesuffix(" = ?")
        assert str(eval(question)) == prompt.fields["answer"]
        assert prompt.fields["level"] == 1
    assert not {p.text for p in prompts} & {p.text for p in held_out}


def test_word_problems_are_a_source(tokenizer: Tokenizer) -> None:
    """Word problems come with their answer and level, in both splits, and are named in messages."""
    settings = config(
        engine={"max_model_len": 300}, data={"source": "word_problems", "level": 4}, eval={"num_samples": 20}
    )
    source = open_source(settings, tokenizer, ["answer"])
    prompts, held_out = take(source, 50), source.held_out(20)
    assert {prompt.fields["level"] for prompt in [*prompts, *held_out]} == {4}
    assert all(prompt.messages[0]["content"].endswith("?") for prompt in [*prompts, *held_out])
    assert not {p.text for p in prompts} & {p.text for p in held_out}
    with pytest.raises(ConfigError, match="'tests', which word_problems prompts do not have"):
        open_source(settings, tokenizer, ["tests"])
    with pytest.raises(DataError, match=r"the first, word_problems problem 0 of level 1 \(train\)"):
        open_source(config(data={"source": "word_problems", "num_prompts": 3}), tokenizer)

"""Prompts of several sources: mixed by weight, filtered, held out, and told apart by a fingerprint."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.config import Config, RewardConfig
from prl.errors import ConfigError, DataError
from prl.ledger import Ledger
from prl.prompts import changes, open_source
from prl.rewards.scorer import Scorer
from prl.tokenizer import Tokenizer
from tests.tiny_tokenizers import BOS_ID, BOS_TEMPLATE, PLAIN_TEMPLATE, save_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token per character; ``user:TEXT<end>>`` has seven tokens more than TEXT."""
    return Tokenizer.load(save_tokenizer(tmp_path_factory.mktemp("chat")))


def config(data: dict[str, Any], **tables: dict[str, Any]) -> Config:
    """A configuration that leaves 24 tokens for a prompt."""
    tree = {"engine": {"max_model_len": 32}, "sampling": {"max_tokens": 8}, "eval": {"num_samples": 0}, **tables}
    return msgspec.convert({"model": "none", "data": data, **tree}, Config)


def jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    """A file of these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def numbered(name: str, n: int, **fields: Any) -> list[dict[str, Any]]:
    """Rows whose answer says which of them it is."""
    return [{"prompt": f"{name}{i}", "answer": f"{name}{i}", **fields} for i in range(n)]


@pytest.fixture
def mixed(tmp_path: Path) -> dict[str, Any]:
    """Three parts of a CSV file, one of a JSONL file with other names, generated problems."""
    (tmp_path / "a.csv").write_text("question,gold\n" + "".join(f"a{i},a{i}\n" for i in range(6)))
    b = jsonl(tmp_path / "b.jsonl", [{"q": f"b{i}", "a": f"b{i}"} for i in range(10)])
    return {
        "columns": {"prompt": "question", "answer": "gold"},
        "sources": [
            {"source": "csv", "path": str(tmp_path / "a.csv"), "weight": 3},
            {"source": "jsonl", "path": b, "columns": {"prompt": "q", "answer": "a"}},
            {"level": 1, "num_prompts": 50},
        ],
    }


def test_sources_are_mixed_by_weight(tokenizer: Tokenizer, mixed: dict[str, Any]) -> None:
    """Each in its share, each row once an epoch of its source, each with its own columns or those of ``[data]``."""
    source = open_source(config(mixed), tokenizer, ["answer"])
    prompts = [source.next() for _ in range(50)]
    counted = Counter(prompt.fields["answer"][0] if prompt.fields["answer"][0] in "ab" else "n" for prompt in prompts)
    assert counted == {"a": 30, "b": 10, "n": 10}
    assert [prompt.id for prompt in prompts] == list(range(50))
    assert Counter(p.fields["answer"] for p in prompts if p.fields["answer"][0] == "a") == {
        f"a{i}": 5 for i in range(6)
    }
    assert len({p.fields["answer"] for p in prompts if p.fields["answer"][0] == "b"}) == 10
    assert [source.get(number) for number in (49, 0, 17)] == [prompts[number] for number in (49, 0, 17)]


def test_a_cursor_continues_a_mixture(tokenizer: Tokenizer, mixed: dict[str, Any]) -> None:
    """Another object that seeks to the position gives what comes next."""
    unbroken, resumed = (open_source(config(mixed), tokenizer) for _ in range(2))
    for _ in range(23):
        unbroken.next()
    resumed.seek(unbroken.cursor)
    assert [resumed.next() for _ in range(40)] == [unbroken.next() for _ in range(40)]


def test_every_source_gives_held_out_prompts(tokenizer: Tokenizer, mixed: dict[str, Any]) -> None:
    """In the proportion of the weights, at most a fifth of a file's rows, and none of them is trained on."""
    source = open_source(config(mixed, eval={"num_samples": 10}), tokenizer)
    held_out = [prompt.fields["answer"] for prompt in source.held_out(10)]
    assert held_out[:3] == ["a5", "b8", "b9"]
    assert len(held_out) == 5
    trained = {source.next().fields["answer"] for _ in range(60)}
    assert not trained & {"a5", "b8", "b9"}


def test_an_unreadable_source_is_named(tokenizer: Tokenizer, mixed: dict[str, Any], tmp_path: Path) -> None:
    """A row that is wrong in one of them; a source of which no prompt fits."""
    (tmp_path / "b.jsonl").write_text('{"q": "x", "a": 1}\n')
    with pytest.raises(DataError, match=r"b\.jsonl:1: field 'answer' \(column 'a'\): Expected `str`, got `int`"):
        open_source(config(mixed), tokenizer)
    jsonl(tmp_path / "b.jsonl", [{"q": "x" * 40, "a": "1"}])
    with pytest.raises(
        DataError, match=r"b\.jsonl: no prompt is left to train on: 1 prompts are too long and left out"
    ):
        open_source(config(mixed), tokenizer)


def test_a_row_that_a_reward_cannot_use_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A right answer that the ``math`` reward would not take is found when the file is read, with its line."""
    scorer = Scorer([RewardConfig(name="math")])
    rows = [{"prompt": "a", "answer": "2"}, {"prompt": "b", "answer": "\\frac{1}{"}]
    settings = config({"source": "jsonl", "path": jsonl(tmp_path / "r.jsonl", rows)})
    with pytest.raises(DataError, match=r"r\.jsonl:2: field 'answer': .* is not even right against itself"):
        open_source(settings, tokenizer, scorer.required_fields, scorer.check_row)


def test_a_weight_that_would_never_come_up_is_refused(tokenizer: Tokenizer, mixed: dict[str, Any]) -> None:
    """Less than one prompt in two thousand is rounded to none."""
    mixed["sources"][2]["weight"] = 1e-4
    with pytest.raises(ConfigError, match=r"data.sources.2.weight = 0.0001 is less than one prompt in 2000"):
        open_source(config(mixed), tokenizer)


def test_rows_are_filtered_by_a_solve_rate_they_state(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Bounds included; a row without one is left out; an epoch has only what is left."""
    rates: list[Any] = [0.0, 0.2, "0.5", 0.8, 1, None, "often", True]
    rows = [{"prompt": f"q{i}", "answer": str(i), "rate": rate} for i, rate in enumerate(rates)]
    bounds = {"solve_rate_field": "rate", "min_solve_rate": 0.2, "max_solve_rate": 0.8}
    data = {"source": "jsonl", "path": jsonl(tmp_path / "r.jsonl", rows), "filter": bounds}
    source = open_source(config(data), tokenizer)
    assert sorted(source.next().fields["answer"] for _ in range(3)) == ["1", "2", "3"]
    assert source.statistics().epoch == 1
    assert source.statistics().filtered == {"solve_rate": 5}
    data["filter"] = {**bounds, "min_solve_rate": 0.9, "max_solve_rate": 0.95}
    with pytest.raises(DataError, match=r"data.filter leaves none of 8 rows: see its solve_rate_field and bounds"):
        open_source(config(data), tokenizer)


def test_prompts_are_filtered_by_length(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Too short, too long for the filter, too long for the context: counted by reason, said with the first of them."""
    rows = [{"prompt": "x" * length, "answer": str(length)} for length in (1, 5, 9, 13, 30)]
    data = {"source": "jsonl", "path": jsonl(tmp_path / "r.jsonl", rows), "shuffle": False}
    source = open_source(config({**data, "filter": {"min_tokens": 10, "max_tokens": 17}}), tokenizer)
    assert [source.next().fields["answer"] for _ in range(4)] == ["5", "9", "5", "9"]
    assert source.passed_over() == [(0, "too_short"), (3, "above_max_tokens"), (4, "too_long"), (5, "too_short")]
    statistics = source.statistics()
    assert (statistics.num_too_long, statistics.filtered) == (1, {"too_short": 1, "above_max_tokens": 1})
    assert "data.filter.min_tokens = 10; the first" in "".join(statistics.warnings)


def test_evaluation_may_have_rows_of_another_format(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """By the ending of ``eval.path``, through the columns of ``[data]``."""
    (tmp_path / "e.tsv").write_text("q\ta\nheld\tout\n")
    data = {"source": "jsonl", "path": jsonl(tmp_path / "t.jsonl", [{"q": "t", "a": "1"}] * 9)}
    data |= {"columns": {"prompt": "q", "answer": "a"}}
    source = open_source(config(data, eval={"path": str(tmp_path / "e.tsv")}), tokenizer)
    assert [prompt.fields["answer"] for prompt in source.held_out(5)] == ["out"]
    assert source.statistics().num_rows == 9


def changed_by(source_config: Config, tokenizer: Tokenizer, ledger: Ledger, *, accept: bool = False) -> list[str]:
    """What joining a source to a ledger says."""
    return changes(open_source(source_config, tokenizer), ledger, accept=accept)


def ledger_of(source_config: Config, tokenizer: Tokenizer) -> Ledger:
    """The accounts of a run that began with this data."""
    ledger = Ledger()
    changed_by(source_config, tokenizer, ledger)
    return ledger


def test_changed_data_is_refused_when_a_run_goes_on(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A row more, another value, another seed or weight: named, with what it was; accepted, it is a warning."""
    path = jsonl(tmp_path / "r.jsonl", numbered("r", 5))
    data: dict[str, Any] = {"source": "jsonl", "path": path}
    ledger = ledger_of(config(data), tokenizer)
    assert changed_by(config(data), tokenizer, ledger) == [], "the same again"
    assert changed_by(config({**data, "filter": {"max_tokens": 20}}), tokenizer, ledger) == [], "positions are the same"
    with pytest.raises(DataError, match="order is 'seed 0, in the order of the rows' and was 'seed 0, shuffled'"):
        changed_by(config({**data, "shuffle": False}), tokenizer, ledger_of(config(data), tokenizer))
    ledger = ledger_of(config(data), tokenizer)
    jsonl(tmp_path / "r.jsonl", numbered("s", 5))
    with pytest.raises(
        DataError, match=r"not what the run began with: data is '.*r\.jsonl: 5 rows, .*--accept-changes"
    ):
        changed_by(config(data), tokenizer, ledger)
    ledger = ledger_of(config(data), tokenizer)
    jsonl(tmp_path / "r.jsonl", numbered("s", 6))
    assert len(changed_by(config(data), tokenizer, ledger, accept=True)) == 1
    assert changed_by(config(data), tokenizer, ledger) == [], "accepted"


@pytest.mark.parametrize(("template", "num_bos"), [(None, 1), (PLAIN_TEMPLATE, 0), (BOS_TEMPLATE, 1)])
def test_a_prompt_begins_with_at_most_one_bos(tmp_path: Path, template: str | None, num_bos: int) -> None:
    """Field notes C, two BOS: a tokenizer that adds one and a template that writes one give one, or the template's."""
    adds_bos = Tokenizer.load(save_tokenizer(tmp_path / "model", template=template, adds_bos=True))
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    prompt = open_source(config({"source": "jsonl", "path": jsonl(tmp_path / "r.jsonl", rows)}), adds_bos).next()
    assert prompt.token_ids.count(BOS_ID) == prompt.token_ids[:1].count(BOS_ID) == num_bos


@pytest.mark.parametrize(("length", "fits"), [(23, True), (24, True), (25, False)])
def test_a_prompt_at_the_limit_of_the_context(tokenizer: Tokenizer, tmp_path: Path, length: int, fits: bool) -> None:
    """Field notes C: in ids after templating, prompt and completion fill the context exactly and never more."""
    rows = [{"prompt": "short"}, {"prompt": "x" * (length - len(tokenizer.render([{"role": "user", "content": ""}])))}]
    data = {"source": "jsonl", "path": jsonl(tmp_path / "r.jsonl", rows), "shuffle": False}
    source = open_source(config(data), tokenizer)
    assert [len(source.next().token_ids) == length for _ in range(2)] == [False, fits]
    assert source.statistics().num_too_long == (not fits)

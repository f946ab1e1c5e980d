"""Secrets in options: read from the environment, and in no file of a run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import prl
from prl import virtual_time
from prl.config import RewardConfig
from prl.errors import ConfigError
from prl.hidden import HIDDEN, cleared, cleared_start, is_secret, parts_of, secrets_of, with_secrets, without_secrets
from prl.rewards.base import Judged, make_reward
from tests.test_pipeline import simulated

SECRETS = ("sesame-open", "Bearer abc123", "from-the-environment")


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        *((key, True) for key in ("api_key", "apikey", "API-KEY", "access_key", "password", "passwd", "token")),
        *(
            (key, True)
            for key in ("client_secret", "Authorization", "headers", "judge_token", "session_cookie", "auth")
        ),
        *(
            (key, False)
            for key in ("max_tokens", "stop_token_ids", "answer_key", "author", "url", "model", "tokenizer")
        ),
    ],
)
def test_keys_that_say_that_they_are_secret(key: str, secret: bool) -> None:
    """Names that people give to secrets, and names that only look like them."""
    assert is_secret(key) is secret


def test_secrets_are_hidden_wherever_they_stand() -> None:
    """Strings under such a key, however deep; numbers and references to the environment are none."""
    tree = {
        "url": "http://judge",
        "headers": {"X-Mine": "a", "Authorization": "env:JUDGE"},
        "list": [{"api_key": "b", "top_k": 5}],
        "token": 7,
    }
    assert without_secrets(tree) == {
        "url": "http://judge",
        "headers": {"X-Mine": HIDDEN, "Authorization": "env:JUDGE"},
        "list": [{"api_key": HIDDEN, "top_k": 5}],
        "token": 7,
    }
    assert secrets_of(tree, {"JUDGE": "c"}) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ("Bearer sk-123456", {"Bearer sk-123456", "sk-123456"}),
        ("  token sk-123456\n", {"  token sk-123456\n", "token sk-123456", "sk-123456"}),
        ("Bearer x", {"Bearer x"}),
        ("Basic dXNlcjpodW50ZXIy", {"Basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy", "user:hunter2", "hunter2"}),
        ("session=abcdef123; n=1", {"session=abcdef123; n=1", "abcdef123"}),
        ('Digest nonce="0123456789", n=2', {'Digest nonce="0123456789", n=2', 'nonce="0123456789", n=2', "0123456789"}),
    ],
)
def test_the_parts_of_a_secret_are_secrets(value: str, hidden: set[str]) -> None:
    """The key behind a scheme, the password of Basic, the values of pairs; not what is too short to be one."""
    assert parts_of(value) == hidden
    assert hidden <= secrets_of({"headers": {"Authorization": value}})
    assert hidden <= secrets_of({"headers": {"Authorization": "env:JUDGE"}}, {"JUDGE": value})


def test_a_secret_is_hidden_in_json_and_in_a_repr() -> None:
    """A quote, a backslash and a letter of another alphabet stand there in another form."""
    secret = 'sé"same\\open\n'
    found = secrets_of({"api_key": secret})
    for text in (secret, json.dumps([secret], ensure_ascii=False), repr([secret])):
        assert "same" not in cleared(text, found)


@pytest.mark.parametrize("limit", range(1, 40))
def test_a_cut_shows_no_part_of_a_secret(limit: int) -> None:
    """Whether the limit of what is shown cuts a secret in two, or the limit of what was read did."""
    secret = "sk-0123456789"
    whole = f"refused {secret} and {secret} again"
    assert not set("0123456789") & set(cleared_start(whole, {secret}, limit))
    read = whole[:limit]
    if not read.endswith(("s", "sk")):  # too few to tell from any other text
        assert "sk-" not in cleared_start(read, {secret}, 100, is_whole=False)


def test_the_name_of_a_variable_is_no_secret_and_what_it_holds_is() -> None:
    """``api_key_env`` is written down as it is, so that the run can be resumed; messages are cleared of the key."""
    tree = {"api_key_env": "JUDGE_KEY"}
    assert without_secrets(tree) == tree
    assert secrets_of(tree, {"JUDGE_KEY": "sk-1"}) == {"sk-1"}


def test_references_are_read_from_the_environment() -> None:
    """Any string may be one; a variable that is not set, and a value that was hidden, name the option."""
    tree = {"headers": {"Authorization": "env:JUDGE"}, "texts": ["env:JUDGE", "x", 1]}
    known = {"headers": {"Authorization": "c"}, "texts": ["c", "x", 1]}
    assert with_secrets(tree, "options", {"JUDGE": "c"}) == known
    with pytest.raises(
        ConfigError, match=r"options\.headers\.Authorization = 'env:JUDGE', and the .* JUDGE is not set"
    ):
        with_secrets(tree, "options", {})
    with pytest.raises(ConfigError, match=r"options\.key was hidden when .* set it to 'env:NAME'"):
        with_secrets({"key": HIDDEN}, "options", {})


class Judge:
    """A reward that asks a service which repeats what it was sent."""

    def __init__(self, *, url: str, api_key: str, headers: dict[str, str]) -> None:
        self.seen = [url, api_key, *headers.values()]

    async def __call__(self, completion: prl.Completion, prompt: prl.Prompt) -> Judged:
        """Refuse every other completion, and say more than it should of the others."""
        if len(completion.token_ids) % 2:
            raise PermissionError(f"refused: {self.seen}")
        return Judged(value=1.0, detail=f"asked {self.seen}")


prl.reward("test-hidden-judge")(Judge)


def test_no_file_of_a_run_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither configuration nor journal, samples, events or summary, also where the service fails and repeats it."""
    monkeypatch.setenv("PRL_TEST_JUDGE", SECRETS[2])
    headers = {"Authorization": SECRETS[1], "X-Other": "env:PRL_TEST_JUDGE"}
    options: dict[str, Any] = {"url": "http://judge", "api_key": SECRETS[0], "headers": headers}
    judge = RewardConfig(name="test-hidden-judge", options=options, max_failures=1000)
    assert make_reward(judge.name, options).call.seen == ["http://judge", *SECRETS]  # type: ignore[attr-defined]

    async def main() -> None:
        async with prl.Pipeline(simulated(rewards=[judge]), run_dir=tmp_path / "run") as pipeline:
            await pipeline.step()

    virtual_time.run(main())
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    texts = {path.name: path.read_bytes() for path in files}
    assert {"config.toml", "samples.jsonl", "events.jsonl", "step-000001.log"} <= set(texts)
    assert [(name, secret) for name, text in texts.items() for secret in SECRETS if secret.encode() in text] == []
    kept = tomllib.loads(texts["config.toml"].decode())["rewards"][0]["options"]
    assert kept["headers"] == {"Authorization": HIDDEN, "X-Other": "env:PRL_TEST_JUDGE"}
    dropped = [
        line for line in map(json.loads, texts["events.jsonl"].splitlines()) if line["event"] == "rollout dropped"
    ]
    assert any(HIDDEN in line["message"] for line in dropped)
    samples = [json.loads(line) for line in texts["samples.jsonl"].splitlines()]
    assert any(HIDDEN in line["part_messages"]["test-hidden-judge"] for line in samples)


class Broken(Judge):
    """A reward with a bug, whose exception says what it was given."""

    async def __call__(self, completion: prl.Completion, prompt: prl.Prompt) -> Judged:
        """Look up what is not there."""
        raise LookupError(self.seen)


prl.reward("test-hidden-broken")(Broken)


def test_a_bug_in_a_reward_is_written_down_without_secrets(tmp_path: Path) -> None:
    """What it raised comes as it was to whoever called; events and summary hide the header, and the key by itself."""
    options: dict[str, Any] = {"url": "u", "api_key": "sesame-open", "headers": {"Authorization": "Bearer abc123"}}
    config = simulated(rewards=[RewardConfig(name="test-hidden-broken", options=options)])

    async def main() -> None:
        async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline:
            await pipeline.step()

    with pytest.raises(LookupError, match="sesame-open"):
        virtual_time.run(main())
    texts = {path.name: path.read_text() for path in (tmp_path / "run").glob("*.json*")}
    assert [(name, secret) for name, text in texts.items() for secret in ("sesame", "abc123") if secret in text] == []
    assert "LookupError" in texts["events.jsonl"]
    assert f"LookupError: ['u', '{HIDDEN}', '{HIDDEN}']" in json.loads(texts["summary.json"])["error"]


def test_a_wrong_type_does_not_show_the_secret() -> None:
    """The message about an option that has the wrong type names the key and hides its value."""
    with pytest.raises(prl.PluginError) as caught:
        make_reward("test-hidden-judge", {"url": "u", "api_key": "k", "headers": "sesame-open"})
    assert "option 'headers'" in str(caught.value)
    assert "sesame" not in str(caught.value)

"""What a run was told to do, beside the defaults, and the texts of its tokens."""

from __future__ import annotations

from pathlib import Path

import prl.models
from prl.view import facts
from prl.view.tokens import Tokens

TOKENIZER = prl.models.BUILTIN_MODELS["tiny-math"] / "tokenizer.json"


def test_every_key_stands_beside_its_default(whole: Path) -> None:
    """Keys in lists too; what has no default has none, and lists compare with tuples."""
    found = {each.key: each for each in facts.settings(whole)}
    assert (found["engine.count"].value, found["engine.count"].default, found["engine.count"].differs) == (2, 1, True)
    assert (found["rewards.1.weight"].default, found["rewards.1.weight"].differs) == (1.0, True)
    assert (found["trainer.betas"].differs, found["rewards.0.timeout_s"].differs) == (False, False)
    assert (found["model"].default, found["model"].differs) == (None, True)
    assert facts.num_steps(whole) == 30


def test_a_configuration_that_is_not_prls_own_shows_no_secret(tmp_path: Path) -> None:
    """Or that is no TOML at all: nothing is shown of it."""
    (tmp_path / "config.toml").write_text('[[rewards]]\nname = "x"\n[rewards.options]\napi_key = "hunter2"\n')
    assert "hunter2" not in str(facts.settings(tmp_path))
    (tmp_path / "config.toml").write_bytes(b"\xff = [")
    assert (facts.settings(tmp_path), facts.num_steps(tmp_path)) == ([], None)
    (tmp_path / "summary.json").write_text("[1]")
    assert (facts.summary(tmp_path), facts.versions(tmp_path)) == (None, {})


def test_the_texts_of_tokens_are_the_text(tmp_path: Path) -> None:
    """A character of several tokens stands at its last; what is left at the end is said to be half of one."""
    from tokenizers import Tokenizer

    (tmp_path / "config.toml").write_text('model = "builtin:tiny-math"\n')
    ids = Tokenizer.from_file(str(TOKENIZER)).encode("a 😀 b", add_special_tokens=False).ids
    texts = Tokens(tmp_path).texts(ids)
    assert texts is not None
    assert ("".join(texts), "😀" in texts, texts[texts.index("😀") - 1]) == ("a 😀 b", True, "")
    cut = Tokens(tmp_path).texts(ids[: texts.index("😀")])
    assert cut is not None
    assert (len(cut), cut[-1]) == (texts.index("😀"), "\N{REPLACEMENT CHARACTER}")
    assert Tokens(tmp_path).texts([]) == []


def test_no_tokenizer_is_looked_for_elsewhere(tmp_path: Path) -> None:
    """Not on the hub, not through a link out of the folder, not in a file that is none; one that comes later counts."""
    (tmp_path / "config.toml").write_text('model = "nobody/has-this"\n')
    tokens = Tokens(tmp_path)
    assert tokens.texts([1]) is None
    (tmp_path / "export").symlink_to(TOKENIZER.parent)
    assert tokens.texts([1]) is None
    (tmp_path / "export").unlink()
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "tokenizer.json").write_text("{}")
    assert tokens.texts([1]) is None
    (tmp_path / "export" / "tokenizer.json").unlink()
    (tmp_path / "export" / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    assert tokens.texts([1]) == ["<|im_start|>"]

"""Text to ids and back: one BOS, all stop tokens, no template twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prl.errors import ConfigError
from prl.models import BUILTIN_MODELS
from prl.tokenizer import Tokenizer
from tests.tiny_tokenizers import BOS_ID, BOS_TEMPLATE, END_ID, EOS_ID, PLAIN_TEMPLATE, save_tokenizer

HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize(("template", "num_bos"), [(PLAIN_TEMPLATE, 0), (BOS_TEMPLATE, 1)])
def test_template_alone_decides_the_bos_of_messages(
    tmp_path: Path, template: str, num_bos: int, adds_bos: bool
) -> None:
    """A template that emits BOS and a tokenizer that adds it give one; a template without one gives none."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path, template=template, adds_bos=adds_bos))
    ids = tokenizer.render(HELLO)
    assert ids.count(BOS_ID) == num_bos
    assert tokenizer.decode(ids) == "user:hi>"
    assert ids[num_bos:] == tokenizer.encode_rendered("user:hi<|end|>>")


@pytest.mark.parametrize("adds_bos", [False, True])
def test_tokenizer_alone_decides_the_bos_of_plain_text(tmp_path: Path, adds_bos: bool) -> None:
    """Plain text gets the BOS exactly where the tokenizer adds one."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path, adds_bos=adds_bos))
    assert tokenizer.encode("ab") == [BOS_ID] * adds_bos + tokenizer.encode_rendered("ab")


def test_no_eos_behind_a_prompt(tmp_path: Path) -> None:
    """A tokenizer that appends EOS would end the prompt; the prompt does not have it."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path, adds_bos=True, adds_eos=True))
    assert EOS_ID not in tokenizer.encode("ab")
    assert tokenizer.encode("ab")[0] == BOS_ID


def test_two_bos_are_refused_at_load(tmp_path: Path) -> None:
    """A template that emits two BOS is found before anything is trained on it."""
    folder = save_tokenizer(tmp_path, template="{{ bos_token }}" + BOS_TEMPLATE)
    with pytest.raises(ConfigError, match=r"chat template puts two beginning-of-sequence tokens \(0\)"):
        Tokenizer.load(folder)


def test_stop_tokens_are_the_union(tmp_path: Path) -> None:
    """Tokenizer and generation config each know an end; a completion may stop at any of them."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path, generation_eos=[END_ID, EOS_ID]))
    assert tokenizer.stop_token_ids == [EOS_ID, END_ID]


@pytest.mark.parametrize(("generation_eos", "expected"), [(None, [EOS_ID]), (END_ID, [EOS_ID, END_ID])])
def test_stop_tokens_without_a_list(tmp_path: Path, generation_eos: int | None, expected: list[int]) -> None:
    """A missing generation config, or one with a single number, does as well."""
    assert Tokenizer.load(save_tokenizer(tmp_path, generation_eos=generation_eos)).stop_token_ids == expected


def test_decode_leaves_special_tokens_out(tmp_path: Path) -> None:
    """Text is for people and rewards: without special tokens, with every space kept."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path))
    ids = [BOS_ID, *tokenizer.encode("a , b"), EOS_ID]
    assert tokenizer.decode(ids) == "a , b"


def test_ids_come_back_from_their_text_with_special_tokens(tmp_path: Path) -> None:
    """Encoded again, a text gives its own ids, special tokens among them."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path))
    ids = [BOS_ID, *tokenizer.encode("a , b"), END_ID]
    assert tokenizer.reencode(ids) == ids
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (BOS_ID, EOS_ID, None)


def test_vocab_size_counts_every_id(tmp_path: Path) -> None:
    """Special tokens are counted."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path))
    assert tokenizer.vocab_size == max(tokenizer.encode_rendered(chr(33) + "~ \n")) + 1


def test_messages_without_a_template_say_what_to_do(tmp_path: Path) -> None:
    """A base model has no chat template: the error names both ways out."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path, template=None))
    assert not tokenizer.has_template
    with pytest.raises(ConfigError, match=r"no chat template.*'prompt' string.*chat_template\.jinja"):
        tokenizer.render(HELLO)


def test_folder_without_a_tokenizer_is_one_line(tmp_path: Path) -> None:
    """A folder that holds no tokenizer is a ConfigError of one line that names it."""
    with pytest.raises(ConfigError) as caught:
        Tokenizer.load(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("folder", BUILTIN_MODELS.values(), ids=BUILTIN_MODELS)
def test_a_built_in_models_tokenizer_is_the_one_that_transformers_would_choose(folder: Path) -> None:
    """Ids, template, special tokens and stop tokens are those of the automatic choice, which takes seconds longer."""
    from transformers import AutoTokenizer, GenerationConfig

    chosen, ends = AutoTokenizer.from_pretrained(folder), GenerationConfig.from_pretrained(folder).eos_token_id
    expected = Tokenizer(chosen, [ends] if isinstance(ends, int) else ends, name=folder.name)
    ours = Tokenizer.load(str(folder))
    assert type(ours._tokenizer) is type(chosen)
    assert ours._tokenizer.backend_tokenizer.to_str() == chosen.backend_tokenizer.to_str()
    assert ours._tokenizer.chat_template == chosen.chat_template
    assert ours._tokenizer.special_tokens_map == chosen.special_tokens_map
    assert (ours.stop_token_ids, ours.vocab_size) == (expected.stop_token_ids, expected.vocab_size)


def test_a_built_in_models_tokenizer_is_read_without_torch() -> None:
    """A run of simulated parts, and any command that only looks at prompts, starts in a second."""
    code = (
        "import sys; from prl.tokenizer import Tokenizer; from prl.models import BUILTIN_MODELS;"
        "print(*[len(Tokenizer.load(str(folder)).render([{'role': 'user', 'content': '1'}])) > 1"
        " for folder in BUILTIN_MODELS.values()], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "True True False\n"

"""A tokenizer of one token a character, with a chat template."""

from __future__ import annotations

import pytest

from prl.tokenizer import Tokenizer
from tests.tiny_tokenizers import save_tokenizer

MESSAGES = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<|end|>{% endfor %}"
CHAT = MESSAGES + "{% if add_generation_prompt %}a:{% endif %}"


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The template keeps what was said: ``u:content<|end|>`` a message, ``a:`` where the model speaks."""
    return Tokenizer.load(save_tokenizer(tmp_path_factory.mktemp("tokenizer"), template=CHAT))

"""Real transformers tokenizers of a few dozen tokens, saved as model folders."""

from __future__ import annotations

import json
import string
from pathlib import Path

BOS, EOS, END = "<s>", "</s>", "<|end|>"
BOS_ID, EOS_ID, END_ID = 0, 1, 2

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
BOS_TEMPLATE = "{{ bos_token }}" + PLAIN_TEMPLATE


def save_tokenizer(
    folder: Path,
    *,
    template: str | None = PLAIN_TEMPLATE,
    adds_bos: bool = False,
    adds_eos: bool = False,
    bos: str | None = BOS,
    generation_eos: int | list[int] | None = None,
) -> str:
    """Write a tokenizer of one token per printable character (and ``<unk>``); returns the folder."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    characters = [c for c in string.printable if c not in "\t\r\x0b\x0c"]
    vocab = {token: i for i, token in enumerate([BOS, EOS, END, "<unk>", *characters])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    if adds_bos or adds_eos:
        single = [*([BOS] if adds_bos else []), "$A", *([EOS] if adds_eos else [])]
        core.post_processor = processors.TemplateProcessing(
            single=" ".join(single), special_tokens=[(BOS, BOS_ID), (EOS, EOS_ID)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=bos, eos_token=EOS, unk_token="<unk>", additional_special_tokens=[END]
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    if generation_eos is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_eos}))
    return str(folder)

"""Text to token ids, once, and back for people.

- A prompt is rendered to ids in one place; nothing re-tokenises what was sampled.
- A conversation follows the model's chat template alone and plain text follows the tokenizer alone, so a BOS that both
  would add is never there twice. ``load`` checks on a probe that either way gives at most one.
- The stop tokens are the union of what the tokenizer and the generation config call the end.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from prl.errors import ConfigError
from prl.models import BUILTIN_MODELS

_PROBE = "1"
_LOADING = threading.Lock()
"""transformers' modules replace themselves as they are first imported: a second thread that does the same meanwhile is
left with the one that was replaced, where nothing is found."""


class Tokenizer:
    """The model's tokenizer with its chat template."""

    def __init__(self, tokenizer: Any, stop_token_ids: Sequence[int] = (), *, name: str = "the model") -> None:
        """Wrap a transformers tokenizer; ``stop_token_ids`` come on top of its own. Raises ConfigError on two BOS."""
        self._tokenizer, self._name = tokenizer, name
        own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.stop_token_ids = sorted({*own, *stop_token_ids})
        """Tokens that end a completion, ascending."""
        self.has_template = bool(tokenizer.chat_template)
        self.vocab_size = len(tokenizer)
        """Number of ids the tokenizer knows, added tokens included."""
        self.bos_token_id: int | None = tokenizer.bos_token_id
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.pad_token_id: int | None = tokenizer.pad_token_id
        self._prefix = self._find_prefix()
        self._check_bos("its tokenizer", self._prefix)
        if self.has_template:
            self._check_bos("its chat template", self.render([{"role": "user", "content": _PROBE}]))

    @classmethod
    def load(cls, model: str) -> Tokenizer:
        """The tokenizer of a model folder or hub name. Raises ConfigError where there is none."""
        with _LOADING:
            try:
                tokenizer = _class_for(model).from_pretrained(model)
            except (OSError, ValueError, KeyError, TypeError) as error:
                reason = str(error).strip().splitlines()[0]
                raise ConfigError(
                    f"model {model!r} has no tokenizer that can be read ({reason}): name a folder with tokenizer.json, "
                    f"or a hub name that can be reached"
                ) from error
            ends = _ends_of(model)
        return cls(tokenizer, [ends] if isinstance(ends, int) else ends or [], name=Path(model).name)

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """The conversation as ids, up to where the model's turn begins. Raises ConfigError without a chat template."""
        return self.encode_rendered(self.render_text(messages))

    def render_text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The conversation as the template writes it, special tokens included; ``tools`` are as OpenAI describes them.

        A template that knows nothing of tools leaves them out (``knows_tools``).
        """
        if not self.has_template:
            raise ConfigError(
                f"{self._name} has no chat template, so messages cannot be rendered: give rows a 'prompt' string in "
                f"place of 'messages' (and no data.system), or add chat_template.jinja to the model's folder"
            )
        text = self._tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=True
        )
        return str(text)

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the chat template shows the model the tools that it may call."""
        if not self.has_template:
            return False
        tool = {"name": "probe", "description": "", "parameters": {"type": "object", "properties": {}}}
        asked = [{"role": "user", "content": _PROBE}]
        return self.render_text(asked) != self.render_text(asked, [{"type": "function", "function": tool}])

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of text that has all its special tokens already."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, after the BOS (or other prefix) that the tokenizer puts before any text."""
        return [*self._prefix, *self.encode_rendered(text)]

    def decode(self, ids: list[int]) -> str:
        """The text of ids without special tokens."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def pieces(self, ids: list[int]) -> list[str]:
        """The text of each id alone, special tokens included; half a character is a replacement character."""
        return [str(self._tokenizer.decode([number], clean_up_tokenization_spaces=False)) for number in ids]

    def decode_all(self, ids: list[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def reencode(self, ids: list[int]) -> list[int]:
        """What ``ids`` become as text, special tokens included, and back: often, not always, the same."""
        return self.encode_rendered(self.decode_all(ids))

    def _find_prefix(self) -> list[int]:
        """What the tokenizer puts before plain text. What it would put behind it would end a prompt: never used."""
        bare, whole = self.encode_rendered(_PROBE), list(self._tokenizer.encode(_PROBE))
        starts = [start for start in range(len(whole)) if whole[start : start + len(bare)] == bare]
        return whole[: starts[0]] if starts else []

    def _check_bos(self, whose: str, ids: list[int]) -> None:
        bos = self._tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            raise ConfigError(
                f"{self._name}: {whose} puts two beginning-of-sequence tokens ({bos}) before a prompt; a model knows "
                f"one: mend tokenizer_config.json or chat_template.jinja in the model's folder"
            )


def _class_for(model: str) -> Any:
    """What loads a tokenizer. Of a built-in model it is known, and the automatic choice would import torch for it."""
    import transformers  # noqa: PLC0415 -- a second, and only needed here

    return transformers.PreTrainedTokenizerFast if _is_builtin(model) else transformers.AutoTokenizer


def _is_builtin(model: str) -> bool:
    return Path(model) in BUILTIN_MODELS.values()


def _ends_of(model: str) -> int | list[int] | None:
    """What the generation config calls the end. Many models have no such config."""
    try:
        if _is_builtin(model):
            ends: int | list[int] = json.loads((Path(model) / "generation_config.json").read_bytes())["eos_token_id"]
            return ends
        from transformers import GenerationConfig  # noqa: PLC0415 -- imports torch

        ends = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        return None
    return ends

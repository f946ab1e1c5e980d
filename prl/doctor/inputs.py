"""What can be read off prompts, completions, tensor names and the model's files without asking engine or trainer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prl.doctor.evidence import PromptFacts, Sampled, StopFacts
from prl.tokenizer import Tokenizer
from prl.types import Prompt

_GROUPS = (
    ("norms", ("norm", "ln_")),
    ("output head", ("lm_head", "embed_out")),
    ("embedding", ("embed", "wte", "wpe")),
    ("attention", ("attn", "attention")),
    ("MLP", ("mlp", "feed_forward", "moe", "expert")),
)
"""Groups of tensors and how their names are known; the first that fits."""
_REST = "other tensors"
_TIED = "embedding (tied to the output head)"
_CHANGES_DISTRIBUTION = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
_NEUTRAL = 1.0
_NO_TOP_K = 0


def groups_of(tensors: Iterable[str]) -> dict[str, list[str]]:
    """Tensor names by what they are part of, in the order they are met."""
    groups: dict[str, list[str]] = {}
    for name in tensors:
        group = next((group for group, marks in _GROUPS if any(mark in name for mark in marks)), _REST)
        groups.setdefault(group, []).append(name)
    if "output head" in groups:
        return groups
    return {_TIED if group == "embedding" else group: names for group, names in groups.items()}


def is_retokenised(tokenizer: Tokenizer, sampled: Sampled) -> bool:
    """Whether the completion's text gives other tokens than those sampled. The stop token is no text."""
    ids = sampled.token_ids[:-1] if sampled.stopped else sampled.token_ids
    return tokenizer.reencode(ids) != ids


def prompt_facts(tokenizer: Tokenizer, prompts: Sequence[Prompt], num_too_long: int) -> PromptFacts:
    """Count BOS tokens as the prompts have them, against their template's own; see whether turns stay as they were."""
    bos = tokenizer.bos_token_id
    return PromptFacts(
        num_prompts=len(prompts),
        bos_token_id=bos,
        num_leading_bos=max((_leading(prompt.token_ids, bos) for prompt in prompts), default=0),
        num_inner_bos=max((_inner(tokenizer, prompt) for prompt in prompts), default=0),
        starts_plain_text=bos is not None and bos in tokenizer.encode("1")[:1],
        keeps_history=_keeps_history(tokenizer) if tokenizer.has_template else None,
        num_too_long=num_too_long,
    )


def _leading(ids: Sequence[int], bos: int | None) -> int:
    return next((count for count, token in enumerate(ids) if token != bos), len(ids))


def _inner(tokenizer: Tokenizer, prompt: Prompt) -> int:
    """BOS tokens beyond those that the same turns have with other words in them."""
    neutral = [{**message, "content": "1"} for message in prompt.messages]
    without = tokenizer.render(neutral) if neutral else tokenizer.encode("1")
    bos = tokenizer.bos_token_id
    return 0 if bos is None else max(0, prompt.token_ids.count(bos) - without.count(bos))


def _keeps_history(tokenizer: Tokenizer) -> bool:
    """Whether a conversation, one answer and one question longer, begins with the conversation and the answer."""
    answer = "<think>\n1\n</think>\n\n2"
    question = {"role": "user", "content": "1"}
    before = tokenizer.render_text([question])
    after = tokenizer.render_text([question, {"role": "assistant", "content": answer}, question])
    return after.startswith(before + answer)


def stop_facts(tokenizer: Tokenizer, sampled: Sequence[Sampled]) -> StopFacts:
    """What ends a completion, and how many it ended."""
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    return StopFacts(
        stop_token_ids=tokenizer.stop_token_ids,
        eos_token_id=eos,
        pad_is_eos=pad is not None and pad in tokenizer.stop_token_ids,
        num_stopped=sum(each.stopped for each in sampled),
        num_sampled=len(sampled),
    )


def sampling_defaults(model: str) -> dict[str, float]:
    """What the generation config of ``model`` (a folder or hub name) would change in the sampled distribution."""
    from transformers import GenerationConfig  # noqa: PLC0415 -- seconds to import

    try:
        asked = GenerationConfig.from_pretrained(model).to_diff_dict()
    except OSError:  # many models have no generation config
        return {}
    given = {key: float(asked[key]) for key in _CHANGES_DISTRIBUTION if asked.get(key) is not None}
    return {key: value for key, value in given.items() if value != (_NO_TOP_K if key == "top_k" else _NEUTRAL)}

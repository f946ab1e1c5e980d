"""Tiny models and batches that several trainer tests share."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from prl.config import Config
from prl.types import Batch, Sample

VOCABULARY = 61


def make_model(folder: Path, kind: str) -> Path:
    """Write a random model with a tokenizer: ``tied`` (Qwen3) or ``untied`` (Llama with attention biases)."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.1,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = (
        Qwen3Config(head_dim=8, tie_word_embeddings=True, **sizes)
        if kind == "tied"
        else LlamaConfig(attention_bias=True, tie_word_embeddings=False, **sizes)
    )
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", eos_token="t2").save_pretrained(folder)
    return folder


def make_config(model: Path, **tables: dict[str, Any]) -> Config:
    """A configuration for ``model``; ``tables`` replace or, for the trainer, extend what is here."""
    trainer = {"device": "cpu", "learning_rate": 1e-3, "warmup_steps": 2, "schedule": "cosine", "weight_decay": 0.01}
    base = {"model": str(model), "seed": 3, "run": {"num_steps": 8}, "sampling": {"temperature": 0.8}}
    return msgspec.convert({**base, **tables, "trainer": {**trainer, **tables.get("trainer", {})}}, Config)


def sample(token_ids: list[int], num_prompt: int, advantage: float, logprob: float = -3.0) -> Sample:
    """A sequence of which all but the first ``num_prompt`` tokens are trained."""
    prompt, trained = num_prompt, len(token_ids) - num_prompt
    return Sample(
        token_ids=token_ids,
        loss_mask=[0] * prompt + [1] * trained,
        logprobs=[0.0] * prompt + [logprob] * trained,
        versions=[-1] * prompt + [0] * trained,
        advantages=[0.0] * prompt + [advantage] * trained,
    )


def random_samples(seed: int, count: int) -> list[Sample]:
    """Samples with prompts, advantages and log-probabilities of several sizes; some begin as the one before."""
    draw = random.Random(seed)
    samples: list[Sample] = []
    for _ in range(count):
        length, num_prompt = draw.randint(5, 14), draw.randint(1, 4)
        token_ids = [draw.randrange(3, VOCABULARY) for _ in range(length)]
        if samples and draw.random() < 0.5:
            alike = draw.randint(1, 5)
            token_ids[:alike] = samples[-1].token_ids[:alike]
        samples.append(sample(token_ids, num_prompt, draw.uniform(-1, 1), draw.uniform(-6, -2)))
    return samples


def flat(each: Sample) -> Sample:
    """The sample with an advantage of exactly 0 at every token."""
    return msgspec.structs.replace(each, advantages=[0.0] * len(each.advantages))


def masked(original: Sample) -> Sample:
    """The same sequence with nothing trained."""
    return sample(original.token_ids, len(original.token_ids), 0.0)


def make_batch(step: int, num_ranks: int, num_samples: int = 4) -> Batch:
    """A batch for ``num_ranks`` whose samples depend on the step only."""
    plan = [[list(range(rank, num_samples, num_ranks))] for rank in range(num_ranks)]
    return Batch(step=step, samples=random_samples(step, num_samples), plan=plan, num_sequences=num_samples)

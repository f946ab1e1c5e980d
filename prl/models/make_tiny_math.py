r"""Make the model of the default run: ``python -m prl.models.make_tiny_math --out DIR``.

A Qwen3 of half a million parameters with a tokenizer and a chat template of its own, taught arithmetic by a supervised
warm-up that is stopped early, with answers worked in two ways:

- *at once*, a little more often: ``17+25=42 \boxed{42}``. So briefly taught, it guesses one in ten right.
- *by columns*: ``7+5=12, 1+2+1=4 \boxed{42}``. Each step is easy: two in three are right when sampled.

No answer in the warm-up is wrong. The model answers in the form that rewards read, and about every third time rightly;
what reinforcement learning finds is which of its two ways pays, and care in it: the mean length grows from 17 to 20
tokens, and greedy accuracy on held-out problems of level 1 from 0.32 to 0.95 and more.

Invariants: the same ``--seed`` makes the same texts on every machine and, on one machine with one thread, the same
weights; no evaluation problem is in the warm-up; every string encodes and decodes to itself (the alphabet is all 256
bytes); digits are always single tokens.
"""

from __future__ import annotations

import argparse
import ast
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from prl.arithmetic import Problem, problem
from prl.models import BUILTIN_MODELS

Taught = tuple[torch.Tensor, torch.Tensor]
"""Token ids and labels of a batch of lessons."""
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WORDS = ("user", "assistant", "system", "\\boxed{", " +", " -", " *", " =", " ?", ", ")
"""What is one token though it has several characters: the words that every prompt or answer repeats."""
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

LEVEL_SHARES = (0.55, 0.35, 0.04, 0.03, 0.03)
"""Share of each level, 1 to 5, in the warm-up: of the last three it learns the form of an answer and little more."""
COLUMNS_SHARE = 0.45
"""Share of the problems of levels 1 and 2 that are worked by columns."""
NUM_STEPS = 400
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
IGNORE = -100
"""The label that torch's cross entropy leaves out."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose merges spell out ``WORDS`` and nothing else."""
    special = (PAD, START, END)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*special, *alphabet))}
    merges: list[tuple[str, str]] = []
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in WORDS:
        letters = byte_level.pre_tokenize_str(word)[0][0]
        for cut in range(1, len(letters)):
            merged = letters[: cut + 1]
            if merged not in vocabulary:
                vocabulary[merged] = len(vocabulary)
                merges.append((letters[:cut], letters[cut]))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=2048,
    )


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """The untaught model, its head tied to its embedding."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


def at_once(made: Problem) -> str:
    """The answer with each operation of the expression done in one go."""
    return ", ".join(_operations(made.question.removesuffix(" = ?"))) + f" \\boxed{{{made.answer}}}"


def by_columns(made: Problem) -> str:
    """The answer to a sum or difference of two numbers up to 99, worked digit by digit."""
    left, sign, right = made.question.split()[:3]
    (tens_a, ones_a), (tens_b, ones_b) = divmod(int(left), 10), divmod(int(right), 10)
    if sign == "+":
        ones = ones_a + ones_b
        work = f"{ones_a}+{ones_b}={ones}, {tens_a}+{tens_b}+{ones // 10}={tens_a + tens_b + ones // 10}"
    else:
        borrow = int(ones_a < ones_b)
        ones_a += 10 * borrow
        work = f"{ones_a}-{ones_b}={ones_a - ones_b}, {tens_a}-{tens_b}-{borrow}={tens_a - tens_b - borrow}"
    return f"{work} \\boxed{{{made.answer}}}"


def _operations(expression: str) -> list[str]:
    """The binary operations of an expression in the order they are done, such as ``["14+3=17", "17*9=153"]``."""
    done: list[str] = []

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        assert isinstance(node, ast.BinOp)
        left, right = value(node.left), value(node.right)
        sign, result = {
            ast.Add: ("+", left + right),
            ast.Sub: ("-", left - right),
            ast.Mult: ("*", left * right),
        }[type(node.op)]
        done.append(f"{left}{sign}{right}={result}")
        return result

    value(ast.parse(expression, mode="eval").body)
    return done


def lesson(index: int, seed: int) -> tuple[Problem, str]:
    """The ``index``-th problem of the warm-up and the answer that is taught for it."""
    dice = random.Random(f"lesson/{index}/{seed}").random  # noqa: S311 - not for secrets
    draw, level = dice(), 1
    for share in LEVEL_SHARES[:-1]:
        draw -= share
        level += draw >= 0
    made = problem(level, index, seed, "train")
    columns = level <= 2 and dice() < COLUMNS_SHARE  # noqa: PLR2004 - the levels that have columns
    return made, by_columns(made) if columns else at_once(made)


def encode_lesson(tokenizer: PreTrainedTokenizerFast, made: Problem, answer: str) -> tuple[list[int], int]:
    """Token ids of the whole exchange, and how many of them are the prompt."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": made.question}], tokenize=False, add_generation_prompt=True
    )
    prompt = tokenizer.encode(text, add_special_tokens=False)
    return prompt + tokenizer.encode(answer + END, add_special_tokens=False), len(prompt)


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (token ids, labels), each [BATCH_SIZE, longest]; labels only where the assistant speaks."""
    index = 0
    while True:
        rows = [encode_lesson(tokenizer, *lesson(index + offset, seed)) for offset in range(BATCH_SIZE)]
        index += BATCH_SIZE
        yield as_tensors(tokenizer, rows)


def as_tensors(
    tokenizer: PreTrainedTokenizerFast, rows: Sequence[tuple[list[int], int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels of encoded lessons, each [rows, longest]."""
    length = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full((len(rows), length), IGNORE)
    for row, (tokens, num_prompt) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, num_prompt : len(tokens)] = torch.tensor(tokens[num_prompt:])
    return ids, labels


def warm_up(model: Qwen3ForCausalLM, lessons: Iterable[tuple[torch.Tensor, torch.Tensor]], num_steps: int) -> None:
    """Teach batches of (token ids, labels) by AdamW; stopped while the model is still weak, on purpose."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, max(0.0, 1 - step / num_steps))
    )
    model.train()
    started = time.monotonic()
    for step, (ids, labels) in zip(range(num_steps), lessons, strict=False):
        # Padding is on the right and attention is causal, so no attention mask is needed.
        logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == num_steps - 1:
            print(f"step {step:4d}  loss {loss.item():.4f}  {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201
    model.eval()


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write one Hugging Face folder: safetensors, config, generation config, tokenizer and chat template."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make(
    name: str, about: str, num_steps: int, lessons: Callable[[PreTrainedTokenizerFast, int], Iterable[Taught]]
) -> None:
    """Make the tokenizer and the model ``name``, teach it, and save both in one folder, as the arguments say."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, default=BUILTIN_MODELS[name], help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-steps", type=int, default=num_steps)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, arguments.seed)
    warm_up(model, lessons(tokenizer, arguments.seed), arguments.num_steps)
    save(model, tokenizer, arguments.out)


if __name__ == "__main__":
    make("tiny-math", "Make the small arithmetic model that ships with prl.", NUM_STEPS, batches)

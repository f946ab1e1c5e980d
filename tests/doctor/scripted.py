"""An engine and a trainer over one small model in plain Python, and a switchboard of what is wrong between them."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from prl.config import Config
from prl.doctor.diagnosis import Diagnosis, diagnose
from prl.doctor.evidence import Evidence, Sampled
from prl.doctor.examine import Examination
from prl.types import Prompt

Fault = Literal[
    "raw temperature", "own temperature", "top-p", "penalty", "engine adds BOS", "bfloat16", "stale head", "stale all",
    "reencodes", "reencodes to another length", "another model",
]  # fmt: skip
BOS, EOS, VOCABULARY, WIDTH, MAX_TOKENS = 0, 1, 16, 8, 24
MERGED, UNMERGED = 9, (10, 8)
"""Two tokens whose text is a third one's."""
TENSORS = ["model.embed_tokens.weight", "lm_head.weight"]
Rows = list[list[float]]


class FakeTokenizer:
    """Ids as text; ``UNMERGED`` next to each other read as ``MERGED``."""

    bos_token_id: int | None = BOS
    eos_token_id, pad_token_id = EOS, EOS
    stop_token_ids = (EOS,)
    has_template = True

    def encode(self, text: str) -> list[int]:
        """A BOS, then the text."""
        return [BOS, *self.encode_rendered(text)]

    def encode_rendered(self, text: str) -> list[int]:
        """One id per word."""
        return [int(word) for word in text.split()]

    def render_text(self, messages: list[dict[str, str]]) -> str:
        """The template: a BOS, then every turn as it is."""
        return " ".join([str(BOS), *(message["content"] for message in messages), ""])

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """The same as ids."""
        return self.encode_rendered(self.render_text(messages))

    def reencode(self, ids: list[int]) -> list[int]:
        """What the text of ``ids`` gives."""
        found: list[int] = []
        for token in ids:
            if found and (found[-1], token) == UNMERGED:
                found[-1] = MERGED
            else:
                found.append(token)
        return found


def bfloat16(number: float) -> float:
    """Rounded to eight bits of mantissa."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    rounded: float = struct.unpack("<f", struct.pack("<I", ((bits + 0x8000) >> 16 << 16) & 0xFFFFFFFF))[0]
    return rounded


class Model:
    """A recurrent language model: every earlier token counts, less the longer ago."""

    def __init__(self, embedding: Rows, head: Rows) -> None:
        self.embedding, self.head = embedding, head

    @classmethod
    def drawn(cls, seed: int) -> Model:
        """Random weights, far from uniform."""
        draw = random.Random(seed)

        def matrix() -> Rows:
            return [[draw.gauss(0, 1) for _ in range(WIDTH)] for _ in range(VOCABULARY)]

        return cls(matrix(), matrix())

    def logits(self, ids: Sequence[int], *, low: bool = False, memory: float = 0.7) -> Rows:
        """After each of ``ids``; ``low`` rounds weights and states to bfloat16."""
        rounded = bfloat16 if low else float
        head = [[rounded(weight) for weight in row] for row in self.head]
        hidden, rows = [0.0] * WIDTH, []
        for token in ids:
            new = self.embedding[token]
            hidden = [rounded(math.tanh(memory * h + rounded(x))) for h, x in zip(hidden, new, strict=True)]
            rows.append([sum(w * h for w, h in zip(row, hidden, strict=True)) for row in head])
        return rows


def log_softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """At a temperature."""
    scaled = [each / temperature for each in logits]
    top = max(scaled)
    total = top + math.log(math.fsum(math.exp(each - top) for each in scaled))
    return [each - total for each in scaled]


class ScriptedSides:
    """``examine.Sides`` with at most one fault."""

    def __init__(self, fault: Fault | None = None, *, engine_low: bool = False, trainer_low: bool = False) -> None:
        self.tensors = list(TENSORS)
        self._fault = fault
        self._engine, self._trainer = Model.drawn(0), Model.drawn(0)
        self._engine_low, self._trainer_low = engine_low or fault == "bfloat16", trainer_low
        self._draw = random.Random(1)

    async def sample(self, prompts: Sequence[Prompt], temperature: float) -> list[Sampled]:
        """Token by token."""
        return [self._sample_one(prompt, temperature) for prompt in prompts]

    async def engine_scores(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """At temperature 1, without any sampling setting."""
        return [self._scores(self._engine_logits(ids), ids, 1.0) for ids in sequences]

    async def trainer_scores(
        self, sequences: Sequence[list[int]], temperature: float, dtype: str | None = None
    ) -> list[list[float]]:
        """At any temperature, in any type."""
        low = self._trainer_low if dtype is None else dtype != "float32"
        read = [self._as_trainer_reads(ids) for ids in sequences]
        return [self._scores(self._trainer.logits(ids, low=low), ids, temperature) for ids in read]

    async def nudge(self, tensors: list[str], scale: float) -> None:
        """Noise in the trainer, then a copy into the engine of what is not stale."""
        trainer, engine = self._trainer, self._engine
        for name in tensors:
            for row in trainer.embedding if name == TENSORS[0] else trainer.head:
                row[:] = [weight + scale * self._draw.gauss(0, 1) for weight in row]
        if self._fault != "stale all":
            engine.embedding = [list(row) for row in trainer.embedding]
            if self._fault != "stale head":
                engine.head = [list(row) for row in trainer.head]

    def _as_trainer_reads(self, ids: list[int]) -> list[int]:
        if self._fault == "reencodes to another length":
            return FakeTokenizer().reencode(ids)
        if self._fault == "reencodes":
            pairs = zip(ids, [*ids[1:], -1], strict=True)
            return [MERGED if pair == UNMERGED else pair[0] for pair in pairs]
        return ids

    def _engine_logits(self, ids: Sequence[int]) -> Rows:
        prefix = [BOS] if self._fault == "engine adds BOS" else []
        memory = 0.6 if self._fault == "another model" else 0.7
        return self._engine.logits([*prefix, *ids], low=self._engine_low, memory=memory)[len(prefix) :]

    def _sample_one(self, prompt: Prompt, temperature: float) -> Sampled:
        ids, logprobs = list(prompt.token_ids), []
        while len(logprobs) < MAX_TOKENS and (not logprobs or ids[-1] != EOS):
            logits = self._engine_logits(ids)[-1]
            drawn = self._distribution(logits, ids, temperature)
            token = self._draw.choices(range(VOCABULARY), [math.exp(each) for each in drawn])[0]
            reported = log_softmax(logits) if self._fault == "raw temperature" else drawn
            logprobs.append(reported[token])
            ids.append(token)
        sampled = ids[len(prompt.token_ids) :]
        return Sampled(prompt_ids=prompt.token_ids, token_ids=sampled, logprobs=logprobs, stopped=sampled[-1] == EOS)

    def _distribution(self, logits: list[float], ids: list[int], temperature: float) -> list[float]:
        if self._fault == "own temperature":
            temperature = 0.83
        if self._fault == "penalty":
            seen = set(ids)
            logits = [each - 1.0 * (token in seen) for token, each in enumerate(logits)]
        logprobs = log_softmax(logits, temperature)
        if self._fault != "top-p":
            return logprobs
        order = sorted(range(VOCABULARY), key=lambda token: -logprobs[token])
        before = itertools.accumulate((math.exp(logprobs[token]) for token in order), initial=0.0)
        kept = {token for token, mass in zip(order, before, strict=False) if mass < 0.9}
        return log_softmax([each if token in kept else -math.inf for token, each in enumerate(logprobs)])

    def _scores(self, logits: Rows, ids: list[int], temperature: float) -> list[float]:
        return [log_softmax(row, temperature)[token] for row, token in zip(logits, ids[1:], strict=False)]


def make_prompts(count: int = 24, *, inner: Sequence[int] = (), bos: Sequence[int] = (BOS,)) -> list[Prompt]:
    """Prompts of three words, with ``bos`` before them and ``inner`` within."""
    draw = random.Random(2)
    prompts = []
    for number in range(count):
        words = [*inner, *(draw.randrange(2, VOCABULARY - 3) for _ in range(3))]
        text = " ".join(map(str, words))
        messages = [{"role": "user", "content": text}]
        prompts.append(Prompt(id=number, token_ids=[*bos, *words], text=text, messages=messages, fields={}))
    return prompts


async def examined(
    sides: Any,
    *,
    temperature: float = 1.0,
    dtypes: tuple[str, str] = ("float32", "float32"),
    prompts: Sequence[Prompt] | None = None,
    tokenizer: Any = None,
    sampling_defaults: dict[str, float] | None = None,
    num_too_long: int = 0,
) -> tuple[Evidence, Diagnosis]:
    """The evidence and the diagnosis of an examination."""
    tree = {
        "model": "m",
        "sampling": {"temperature": temperature},
        "engine": {"dtype": dtypes[0], "max_model_len": 128},
        "trainer": {"dtype": dtypes[1]},
    }
    examination = Examination(
        sides,
        msgspec.convert(tree, Config),
        tokenizer or FakeTokenizer(),
        tolerance=1e-3 if dtypes == ("float32", "float32") else 0.1,
        sampling_defaults=sampling_defaults or {},
    )
    evidence = await examination.run(make_prompts() if prompts is None else prompts, num_too_long=num_too_long)
    return evidence, diagnose(evidence)

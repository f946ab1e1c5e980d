"""Each fault between engine and trainer is diagnosed by its name, and no other cause is accused."""

from __future__ import annotations

from typing import Any

import pytest

from prl.doctor.diagnosis import Diagnosis
from prl.types import Prompt
from tests.doctor.scripted import BOS, FakeTokenizer, Fault, ScriptedSides, examined, make_prompts


def faults(diagnosis: Diagnosis) -> list[str]:
    """The causes that are accused."""
    return [finding.cause for finding in diagnosis.findings if finding.verdict == "fault"]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
async def test_sides_that_agree_are_clean(temperature: float) -> None:
    """No fault at any temperature, every cause has a number, and the sentence says how small the gap is."""
    evidence, diagnosis = await examined(ScriptedSides(), temperature=temperature)
    assert (diagnosis.verdict, faults(diagnosis)) == ("clean", [])
    assert diagnosis.sentence.startswith("Engine and trainer agree: over ")
    assert [finding.cause for finding in diagnosis.findings] == [
        "gap", "temperature", "filters", "template or BOS", "dtype", "stale weights", "retokenisation", "stop tokens",
        "context",
    ]  # fmt: skip
    assert evidence.gap.max < 1e-9
    assert evidence.gap.ess == pytest.approx(1)
    assert evidence.gap.num_tokens > 100


@pytest.mark.parametrize(
    ("fault", "temperature", "cause", "said"),
    [
        ("raw temperature", 0.5, "temperature", "those of temperature 1, not of sampling.temperature = 0.5"),
        ("raw temperature", 1.7, "temperature", "processed_logprobs"),
        ("own temperature", 1.0, "temperature", "those of temperature 0.83"),
        ("top-p", 1.0, "filters", "of the probability is kept, as top-p, top-k or min-p leave it"),
        ("top-p", 0.7, "filters", "samples from another distribution than the model's"),
        ("penalty", 1.0, "filters", "some are higher and some lower, as a penalty"),
        ("engine adds BOS", 1.0, "template or BOS", "scored with a BOS more, the mean gap falls from"),
        ("engine adds BOS", 0.7, "template or BOS", "let nothing add special tokens"),
        ("bfloat16", 1.0, "dtype", "which is what bfloat16 does to this model"),
        ("bfloat16", 0.5, "dtype", "one side computes in a shorter type"),
        ("stale head", 1.0, "stale weights", "old weights of: output head (100% of the change is missing)"),
        ("stale all", 0.7, "stale weights", "old weights of: embedding, output head"),
        ("reencodes", 1.0, "retokenisation", "completions whose text gives other tokens"),
        ("reencodes to another length", 1.0, "retokenisation", "were scored at another length"),
        ("another model", 1.0, "unexplained", "already in one forward pass, and none of the causes below makes it"),
    ],
)
async def test_a_fault_is_diagnosed_by_its_name(fault: Fault, temperature: float, cause: str, said: str) -> None:
    """The sentence names it and says what shows it; no other cause is a fault."""
    _, diagnosis = await examined(ScriptedSides(fault), temperature=temperature)
    assert faults(diagnosis) == [cause]
    assert diagnosis.verdict == "fault"
    assert diagnosis.sentence.startswith(f"{cause}: ")
    assert said in diagnosis.sentence


@pytest.mark.parametrize(
    ("dtypes", "low"),
    [(("bfloat16", "bfloat16"), (True, True)), (("bfloat16", "float32"), (True, False))],
)
async def test_what_rounding_makes_is_no_fault(dtypes: tuple[str, str], low: tuple[bool, bool]) -> None:
    """With a shorter type on either side a gap of the size of its rounding is expected, and is told with that size."""
    sides = ScriptedSides(engine_low=low[0], trainer_low=low[1])
    evidence, diagnosis = await examined(sides, dtypes=dtypes)
    assert faults(diagnosis) == []
    assert evidence.forward.dtype == "bfloat16"
    assert evidence.forward.rounding > 1e-4
    assert evidence.gap.mean <= 4 * evidence.forward.rounding
    assert "expected in bfloat16" in diagnosis.sentence


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raw temperature", "temperature"),
        ("top-p", "filters"),
        ("stale head", "stale weights"),
    ],
)
async def test_rounding_hides_no_fault(fault: Fault, cause: str) -> None:
    """In bfloat16 on both sides each is still found, alone."""
    sides = ScriptedSides(fault, engine_low=True, trainer_low=True)
    _, diagnosis = await examined(sides, temperature=0.5, dtypes=("bfloat16", "bfloat16"))
    assert faults(diagnosis) == [cause]


@pytest.mark.parametrize("prompts", [make_prompts(bos=[BOS, BOS]), make_prompts(inner=[BOS])])
async def test_a_bos_too_many_in_the_prompts_is_a_fault(prompts: list[Prompt]) -> None:
    """Both sides read the same ids, so there is no gap; and yet the model has never seen such a prompt."""
    evidence, diagnosis = await examined(ScriptedSides(), prompts=prompts)
    assert evidence.gap.max < 1e-9
    assert faults(diagnosis) == ["template or BOS"]
    assert "a prompt holds a BOS (0) too many" in diagnosis.sentence


class Rewriting(FakeTokenizer):
    """A template without a BOS that takes the thinking out of earlier answers."""

    def render_text(self, messages: list[dict[str, str]]) -> str:
        """See the class."""
        return " ".join(message["content"].rpartition("</think>")[2] for message in messages)


async def test_a_template_that_rewrites_or_lacks_a_bos_is_noted() -> None:
    """Neither makes a gap; both are told."""
    _, diagnosis = await examined(ScriptedSides(), prompts=make_prompts(bos=[]), tokenizer=Rewriting())
    template = next(finding for finding in diagnosis.findings if finding.cause == "template or BOS")
    assert template.verdict == "note"
    assert "plain text would get a BOS, the chat template gives none" in template.measured
    assert "the template rewrites earlier turns" in template.measured


async def test_unused_defaults_and_long_prompts_are_noted() -> None:
    """A generation config that nobody reads, and prompts that were left out, are no faults."""
    _, diagnosis = await examined(ScriptedSides(), sampling_defaults={"top_p": 0.8}, num_too_long=3)
    by_cause: dict[str, Any] = {finding.cause: finding for finding in diagnosis.findings}
    assert (by_cause["filters"].verdict, by_cause["context"].verdict) == ("note", "note")
    assert "generation_config.json has top_p=0.8, which training does not use" in by_cause["filters"].measured
    assert by_cause["stop tokens"].verdict == "note", "the padding token is the end token"
    assert diagnosis.verdict == "clean"

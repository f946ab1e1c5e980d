"""All findings, and what they come to: one sentence about the largest gap. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from prl.doctor import causes
from prl.doctor.evidence import Evidence
from prl.doctor.finding import Finding, expected, is_large


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings in the order they are shown, and what they come to."""

    verdict: Literal["clean", "fault"]
    sentence: str
    findings: list[Finding]


def diagnose(evidence: Evidence) -> Diagnosis:
    """Judge every cause."""
    heat = causes.temperature(evidence)
    judged = [
        heat,
        causes.filters(evidence, temperature_is_wrong=heat.verdict == "fault"),
        causes.template(evidence),
        causes.dtype(evidence),
        causes.stale(evidence),
        causes.retokenisation(evidence),
        _stops(evidence),
        _context(evidence),
    ]
    faults = [finding for finding in judged if finding.verdict == "fault"]
    gap = _gap(evidence, explained=bool(faults))
    faults += [gap] * (gap.verdict == "fault")
    worst = max(faults, key=lambda finding: finding.size, default=None)
    return Diagnosis(
        verdict="clean" if worst is None else "fault",
        sentence=_clean(evidence) if worst is None else f"{worst.cause}: {worst.says}",
        findings=[gap, *judged],
    )


def _gap(evidence: Evidence, *, explained: bool) -> Finding:
    gap = evidence.gap
    left_over = not explained and (
        is_large(evidence, gap, evidence.temperature) or is_large(evidence, evidence.forward.gap)
    )
    where = (
        "already in one forward pass" if is_large(evidence, evidence.forward.gap) else "only where tokens are sampled"
    )
    return Finding(
        cause="unexplained" if left_over else "gap",
        measured=f"mean |gap| of {gap.num_tokens} tokens (max {gap.max:.2g}, KL {gap.kl:.2g}, ESS {gap.ess:.4f})",
        number=gap.mean,
        verdict="fault" if left_over else "ok",
        size=gap.mean,
        says=f"engine and trainer differ by {gap.mean:.2g} a token (at most {gap.max:.2g}), {where}, and none of the"
        " causes below makes it: the engine's and the trainer's implementation of this model are not the same model",
    )


def _stops(evidence: Evidence) -> Finding:
    stops = evidence.stops
    notes = []
    if [stops.eos_token_id] != stops.stop_token_ids:
        notes.append(f"the tokenizer alone would stop at {stops.eos_token_id}")
    if stops.pad_is_eos:
        notes.append("padding is the end token: masks must come from lengths")
    if stops.num_sampled and not stops.num_stopped:
        notes.append("none stopped by itself: is the model's end token among them?")
    ends = ", ".join(map(str, stops.stop_token_ids)) or "nothing"
    return Finding(
        cause="stop tokens",
        measured="; ".join([f"completions of {stops.num_sampled} that stopped (at {ends})", *notes]),
        number=float(stops.num_stopped),
        verdict="note" if notes else "ok",
    )


def _context(evidence: Evidence) -> Finding:
    num = evidence.prompts.num_too_long
    return Finding(
        cause="context",
        measured="prompts that engine.max_model_len less sampling.max_tokens leaves no room for",
        number=float(num),
        verdict="note" if num else "ok",
    )


def _clean(evidence: Evidence) -> str:
    gap = evidence.gap
    sizes = f"over {gap.num_tokens} tokens the gap is {gap.mean:.2g} on average and {gap.max:.2g} at most"
    if gap.max <= evidence.tolerance * max(1.0, 1.0 / evidence.temperature):
        return f"Engine and trainer agree: {sizes} (accepted: {evidence.tolerance:g}; {expected(evidence)})."
    return (
        f"Engine and trainer agree up to rounding: {sizes}, and {evidence.forward.dtype} alone moves the trainer by"
        f" {evidence.forward.rounding:.2g} a token ({expected(evidence)})."
    )

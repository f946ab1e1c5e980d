"""From evidence to findings: one a cause, each with its number, and a sentence about the largest gap. Pure.

A cause is a fault only if its own measurement shows it, so that no gap is laid at a door because it is there:

- temperature, template or BOS: scored under the hypothesis, at least ``1 - EXPLAINS`` of the gap goes away;
- filters: the engine contradicts itself, which neither weights nor rounding nor the trainer can make it do;
- dtype: the gap is of the size that rounding makes in the trainer alone, though both sides are to compute in float32;
- stale weights: a change that the trainer pushed is not in the engine's numbers;
- retokenisation: the gap is confined to the completions whose text gives other tokens.

What is left over is ``unexplained``: the two implementations of the model compute different things.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prl.doctor.evidence import Evidence
from prl.doctor.finding import ROUNDING_FACTOR, Finding, is_exact, is_large, noise_of

EXPLAINS = 0.25
"""A hypothesis explains a gap that it leaves at most this share of."""
MISSED = 0.25
"""A group of tensors is stale where more than this share of its change did not arrive."""
AS_RENDERED = "as rendered"
"""The name of the hypothesis that the engine reads what it is given."""
_MOVED_FACTOR = 10.0
"""A change is followed only where it is this many times the gap that was there before it."""
_ONE_SIDED = 0.7
_ENOUGH_TOKENS = 20


def _best(by: Mapping[str, float], configured: str, *, large: bool) -> tuple[str, bool]:
    """The hypothesis that fits best, and whether it explains what the configured one does not."""
    best = min(by, key=by.__getitem__)
    return best, large and best != configured and by[best] <= EXPLAINS * by[configured]


def temperature(evidence: Evidence) -> Finding:
    """At which temperature do the trainer's numbers fit the engine's?"""
    by, configured = evidence.by_temperature, f"{evidence.temperature:.3g}"
    best, explains = _best(by, configured, large=is_large(evidence, evidence.probe, evidence.temperature))
    others = ", ".join(f"{mean:.2g} at {heat}" for heat, mean in by.items() if heat != configured)
    return Finding(
        cause="temperature",
        measured=f"mean gap scored at {configured}, as configured ({others})",
        number=by[configured],
        verdict="fault" if explains else "ok",
        size=by[configured],
        says=f"the engine's log-probabilities are those of temperature {best}, not of sampling.temperature ="
        f" {configured}: scored at {best} the mean gap falls from {by[configured]:.2g} to {by[best]:.2g}. It must"
        " report log_softmax(logits / temperature) of what it sampled from (vLLM: logprobs_mode='processed_logprobs')",
    )


def filters(evidence: Evidence, *, temperature_is_wrong: bool) -> Finding:
    """Is a token's log-probability the same sampled as scored, by the engine alone?"""
    sampler, noise = evidence.sampler, noise_of(evidence)
    cut = (
        sampler.bias > noise / ROUNDING_FACTOR
        and sampler.bias >= _ONE_SIDED * sampler.mean
        and sampler.mass < 1 - sampler.bias / 2
    )
    bent = sampler.mean > noise and sampler.max > evidence.tolerance
    fault = (cut or bent) and not temperature_is_wrong
    defaults = ", ".join(f"{key}={value:g}" for key, value in evidence.sampling_defaults.items())
    about = f"; generation_config.json has {defaults}, which training does not use" if defaults else ""
    what = (
        f"its log-probabilities are never lower, and {sampler.mass:.1%} of the probability is kept, as top-p, top-k or"
        " min-p leave it"
        if cut
        else "some are higher and some lower, as a penalty or a bias makes them"
    )
    return Finding(
        cause="filters",
        measured=f"engine as sampled against its own score: mean gap (bias {sampler.bias:+.2g}){about}",
        number=sampler.mean,
        verdict="fault" if fault else "note" if defaults else "ok",
        size=sampler.mean,
        says=f"the engine samples from another distribution than the model's: sampled, a token's log-probability is"
        f" {sampler.mean:.2g} from the engine's own score of it; {what}. Take the filter out of the engine's sampling"
        f" settings or of its defaults{f' (generation_config.json has {defaults})' if defaults else ''}",
    )


def template(evidence: Evidence) -> Finding:
    """Do the numbers fit better with other special tokens, and are those of the prompts as they should be?"""
    prompts, by = evidence.prompts, evidence.by_prefix
    best, explains = _best(by, AS_RENDERED, large=is_large(evidence, evidence.probe, evidence.temperature))
    notes = list(_template_notes(evidence))
    faults = []
    if explains:
        faults.append(
            f"the engine reads other tokens than the prompt's: scored with {best}, the mean gap falls from"
            f" {by[AS_RENDERED]:.2g} to {by[best]:.2g}. Give the engine ids, and let nothing add special tokens to them"
        )
    if prompts.num_leading_bos > 1 or prompts.num_inner_bos:
        faults.append(
            f"a prompt holds a BOS ({prompts.bos_token_id}) too many ({prompts.num_leading_bos} at its start,"
            f" {prompts.num_inner_bos} brought in by its own text): take it out of the chat template, or give rows"
            " without the template's special tokens"
        )
    tried = ", ".join(f"{mean:.2g} with {name}" for name, mean in by.items() if name != AS_RENDERED)
    bos = "no BOS in this model" if prompts.bos_token_id is None else f"{prompts.num_leading_bos} BOS"
    return Finding(
        cause="template or BOS",
        measured="; ".join([f"mean gap of the prompts as rendered, {bos}{f' ({tried})' if tried else ''}", *notes]),
        number=by[AS_RENDERED],
        verdict="fault" if faults else "note" if notes else "ok",
        size=by[AS_RENDERED] if explains else 0.0,
        says="; ".join(faults),
    )


def _template_notes(evidence: Evidence) -> Iterator[str]:
    prompts = evidence.prompts
    if prompts.starts_plain_text and prompts.num_leading_bos == 0:
        yield "plain text would get a BOS, the chat template gives none"
    if prompts.keeps_history is False:
        yield "the template rewrites earlier turns: a longer conversation does not continue a shorter one"


def dtype(evidence: Evidence) -> Finding:
    """Does one forward pass of each differ by what rounding does?"""
    forward, rounding = evidence.forward.gap, evidence.forward.rounding
    large = is_large(evidence, forward)
    alike = rounding / ROUNDING_FACTOR <= forward.mean <= ROUNDING_FACTOR * rounding
    fault = is_exact(evidence) and large and alike
    noticed = not is_exact(evidence) and forward.mean <= noise_of(evidence) and forward.max > evidence.tolerance
    low = evidence.forward.dtype
    return Finding(
        cause="dtype",
        measured=f"mean gap of one forward pass; trainer in float32 {evidence.forward.exact:.2g}, in {low}"
        f" {evidence.forward.rounded:.2g}; {low} alone moves the trainer by {rounding:.2g}",
        number=forward.mean,
        verdict="fault" if fault else "note" if noticed else "ok",
        size=forward.mean,
        says=f"both sides are configured for float32, and one forward pass differs by {forward.mean:.2g} a token, which"
        f" is what {low} does to this model ({rounding:.2g}; float32 leaves 1e-7 to 1e-4): one side computes in a"
        " shorter type. Look for engine.dtype, a quantised checkpoint, or matrix products in TF32 or bfloat16",
    )


def stale(evidence: Evidence) -> Finding:
    """Did every change that was pushed arrive?"""
    judged = [nudge for nudge in evidence.nudged if nudge.moved > _MOVED_FACTOR * evidence.forward.gap.mean]
    stale = [nudge for nudge in judged if nudge.missed > MISSED]
    worst = max((nudge.missed for nudge in judged), default=0.0)
    groups = ", ".join(f"{nudge.group} {nudge.missed:.1%}" for nudge in judged)
    unjudged = [nudge.group for nudge in evidence.nudged if nudge not in judged]
    about = f"; too little moved to judge: {', '.join(unjudged)}" if unjudged else ""
    names = ", ".join(nudge.group for nudge in stale)
    return Finding(
        cause="stale weights",
        measured=f"share of a pushed change that the engine lacks (of {groups or 'nothing'}){about}",
        number=worst,
        verdict="fault" if stale else "note" if unjudged else "ok",
        size=max((nudge.missed * nudge.moved for nudge in stale), default=0.0),
        says=f"after a weight update that reported success the engine still computes with old weights of: {names}"
        f" ({worst:.0%} of the change is missing). Where the head is tied to the embedding, the engine must build its"
        " packed head anew after a load",
    )


def retokenisation(evidence: Evidence) -> Finding:
    """Is the gap where the text of a completion gives other tokens?"""
    num, total = evidence.num_retokenised, evidence.stops.num_sampled
    confined = is_large(evidence, evidence.changed, evidence.temperature) and not is_large(
        evidence, evidence.kept, evidence.temperature
    )
    fault = evidence.num_misfits > 0 or (confined and evidence.kept.num_tokens >= _ENOUGH_TOKENS)
    return Finding(
        cause="retokenisation",
        measured=f"completions of {total} whose text gives other tokens (mean gap {evidence.changed.mean:.2g}, of the"
        f" others {evidence.kept.mean:.2g})",
        number=float(num),
        verdict="fault" if fault else "note" if num else "ok",
        size=max(evidence.changed.mean, 1.0 if evidence.num_misfits else 0.0),
        says=f"somebody turns tokens into text and back: the gap is in the {num} of {total} completions whose text"
        f" gives other tokens ({evidence.changed.mean:.2g} a token; {evidence.kept.mean:.2g} in the others), and"
        f" {evidence.num_misfits} were scored at another length. Pass the sampled ids on as they are",
    )

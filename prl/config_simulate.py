"""The tables of ``prl simulate`` and ``prl plan``, ``[simulate]``: what a machine takes its time for.

What the run itself is (engines, ranks, sequences in flight, lag bound, sizes) stands in the other tables, and means the
same: each engine is ``engine.tensor_parallel_size`` accelerators, each rank is one. ``prl run`` reads nothing here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from prl.config_fields import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Table

Measured = tuple[PositiveFloat, PositiveFloat]


class LengthsConfig(Table, frozen=True, kw_only=True):
    """``[simulate.lengths]``: how many tokens a completion has; never more than ``sampling.max_tokens``."""

    kind: Literal["uniform", "lognormal", "geometric", "fixed", "file"] | None = None
    """``uniform`` is 1 to ``sampling.max_tokens``, the paper's; ``lognormal`` and ``geometric`` have long tails;
    ``file`` draws from the lengths in ``path``. Absent: those of the run folder ``simulate.run``, else ``uniform``."""
    mean: PositiveFloat | None = None
    """Mean of ``lognormal``, ``geometric`` and ``fixed`` before they are cut at ``sampling.max_tokens``; absent: a
    quarter of that."""
    sigma: PositiveFloat = 0.8
    """Of the logarithm, for ``lognormal``: 0.8 puts one in forty-four beyond 3.6 times the mean."""
    path: str = ""
    """A text file: on each line the lengths of one prompt's completions, or one number a line."""
    prompt_share: Fraction = 0.0
    """How much of the variance is the prompt's own: at 0 members of a group differ as strangers do, at 1 not at all."""


class DecodeConfig(Table, frozen=True, kw_only=True):
    """``[simulate.decode]``: seconds of one decode step of one engine, by the sequences that run in it.

    One of: ``base_s + per_sequence_s * h``; a measured ``table``; ``utilisation``, the paper's U(h). Absent: the run
    folder.
    """

    base_s: PositiveFloat | None = None
    """What a step costs whatever runs: reading the weights."""
    per_sequence_s: NonNegativeFloat = 0.0
    """What each sequence adds."""
    table: tuple[Measured, ...] = ()
    """Pairs of h and seconds: linear between them, and beyond the last in proportion to h."""
    utilisation: tuple[Measured, ...] = ()
    """Pairs of h and U(h), the share of the peak that h sequences reach: a step takes ``flash_s * h / U(h)``
    (arXiv 2509.19128, appendix A). U is linear between them, from 0 at 0, and beyond the last constant."""
    flash_s: PositiveFloat = 1.0
    """Seconds of one token's forward pass at peak."""


class TrainTimeConfig(Table, frozen=True, kw_only=True):
    """``[simulate.train]``: seconds of one optimiser step. ``token_s`` absent: the run folder."""

    token_s: PositiveFloat | None = None
    """Seconds in which one rank trains one token: the paper's tau flashes."""
    fixed_s: NonNegativeFloat = 0.0
    """What every step takes beside that."""
    between_s: NonNegativeFloat | None = None
    """What passes between two steps, whether weights are sent or not, while nothing is trained and the engines go on:
    packing, writing down. On shared accelerators it is work in their place. Absent: the run folder, else 0."""


class FaultsConfig(Table, frozen=True, kw_only=True):
    """``[simulate.faults]``: what breaks, and how long it takes to mend."""

    engine_deaths_per_hour: NonNegativeFloat = 0.0
    """Of each engine."""
    engine_start_s: NonNegativeFloat = 60.0
    """From the start of another until it is ready to receive weights."""
    trainer_deaths_per_hour: NonNegativeFloat = 0.0
    """Of the trainer as a whole, while it trains. The steps since the last checkpoint are trained again."""
    trainer_start_s: NonNegativeFloat = 120.0
    """Until it stands again."""
    failed_streams: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of the streams that fail half-way; a member is tried once more, as in a run."""


class SimulateConfig(Table, frozen=True, kw_only=True):
    """``[simulate]``: the machine."""

    run: str = ""
    """A run folder: lengths, step times and update time that are not given are taken from what it measured."""
    num_accelerators: Positive | None = None
    """Accelerators (or cores) in all. Absent: each engine and each rank has its own. With fewer, engines and ranks
    share them, each slower while others are at work; this is how conventional mode gives all to either stage."""
    sharing: Annotated[float, Meta(gt=0, le=1)] | None = None
    """What is left of the shared accelerators' speed while engines *and* ranks are at work: they evict one another's
    caches. Absent: the run folder, else 1."""
    grain: Positive | None = None
    """Tokens that one simulated token stands for. Larger is quicker and rougher; absent: so many that the longest
    completion has 128."""
    warmup_steps: NonNegative | None = None
    """Steps that the report leaves out; absent: a quarter of ``run.num_steps``, in whole rounds."""
    steady_start: bool = True
    """Begin, in the paper's mode, with sequences that are under way as a run that has gone on for long has them; false
    begins as a run does, all at once, whose waves last for many times the longest sequence."""
    prompt_tokens: NonNegative = 0
    """Of each prompt: they are trained over, and held in the KV cache."""
    update_s: NonNegativeFloat | None = None
    """How long the engines stand still for one weight update; absent: the run folder, else 0."""
    transfer_s: NonNegativeFloat | None = None
    """How long one is sent before that, the engines going on (``weights.staged``): on shared accelerators work in their
    place, too. Absent: the run folder, else 0."""
    score_s: NonNegativeFloat = 0.0
    """How long the rewards take for one completion."""
    drift: NonNegativeFloat = 0.002
    """How fast policies move apart: the variance of a token's log-ratio is ``drift`` per step of lag, so that a batch
    has ESS = 1 / mean(exp(drift * lag))."""
    lengths: LengthsConfig = LengthsConfig()
    decode: DecodeConfig = DecodeConfig()
    train: TrainTimeConfig = TrainTimeConfig()
    faults: FaultsConfig = FaultsConfig()

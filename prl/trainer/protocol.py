"""The messages between the controller and the trainer's ranks.

Invariants:

- A rank speaks first and once: ``Hello``, answered by ``Setup`` or ``Refused``. From then on the controller speaks and
  the rank answers each command with exactly one reply; ``Beat`` may stand between any two messages of a rank.
- Every rank gets the same kind of command at the same point, so that the collectives inside it stay in step. Only the
  micro-batches of ``Train`` differ from rank to rank, and their number never does.
- ``Failed`` may stand for any reply. A rank that sent it waits to be stopped: leaving first would take its peers down
  and hide who failed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prl.config import Config
from prl.trainer.base import TrainerReady, TrainReport
from prl.trainer.shared_folder import Witness
from prl.types import Sample, WeightGroup, WeightUpdate

BEAT_S = 5.0


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of every message; the tag is the class's name."""


class Hello(_Message, frozen=True, kw_only=True):
    """A rank introduces itself."""

    rank: int
    world_size: int
    pid: int
    token: str
    """The run's secret: proof that this rank was started for this run."""
    host: str = ""
    """Where it runs, for people."""


class Beat(_Message, frozen=True, kw_only=True):
    """A sign of life, every ``BEAT_S`` from the greeting on, whatever the rank is doing. Nothing answers it."""

    doing: str = ""
    """How far it is in a command, in words; empty where there is nothing to say."""


class Ready(_Message, frozen=True, kw_only=True):
    """The model stands on this rank."""

    ready: TrainerReady
    """``memory_bytes`` is this rank's alone; ``state`` is read by rank 0 only."""


class Trained(_Message, frozen=True, kw_only=True):
    """The step is done; the numbers are those of all ranks together, ``logprobs`` and ``phases`` this rank's."""

    report: TrainReport


class Scored(_Message, frozen=True, kw_only=True):
    """Log-probabilities of the tokens after the first; the same on every rank."""

    logprobs: list[float]


class Rescored(_Message, frozen=True, kw_only=True):
    """Log-probabilities of the tokens after the first of each sequence; the same on every rank."""

    logprobs: list[list[float]]


class Done(_Message, frozen=True, kw_only=True):
    """The command is carried out and has no result."""


class Written(_Message, frozen=True, kw_only=True):
    """What was to be written is on the disk, or nothing of it is; every rank says the same."""

    errno: int = 0
    """What the disk said to one of the ranks; 0: it took everything."""
    error: str = ""
    """The same in words, of the rank that the disk said it to."""


class Meeting(_Message, frozen=True, kw_only=True):
    """Where this rank could host a weight group; the controller takes rank 0's."""

    address: str
    port: int


class Failed(_Message, frozen=True, kw_only=True):
    """The command failed on this rank."""

    error: str
    """One paragraph: what was wrong, the value, where, what to do."""
    traceback: str
    """Empty for an error that prl raises on purpose."""


class Setup(_Message, frozen=True, kw_only=True):
    """Join the other ranks and load the model, or the checkpoint to resume from."""

    config: Config
    model: str
    resume: str | None
    start: str = ""
    """A word that is new at each start, for what the ranks tell one another while they meet."""
    witness: Witness | None = None
    """What a rank must find before it loads, where ranks may run on other hosts than the controller."""


class Refused(_Message, frozen=True, kw_only=True):
    """The ``Hello`` was not accepted; leave."""

    reason: str


class Meet(_Message, frozen=True, kw_only=True):
    """Say where ``hosts``, the controller's besides, could meet this rank."""

    hosts: list[str]


class Connect(_Message, frozen=True, kw_only=True):
    """Rank 0 joins the weight group as its sender."""

    group: WeightGroup


class Train(_Message, frozen=True, kw_only=True):
    """One optimiser step on this rank's share of a batch."""

    step: int
    microbatches: list[list[Sample]]
    num_teaching: int | None = None
    """The first so many have a gradient; None: all."""
    num_sequences: int
    """B of the whole batch, over all ranks."""
    with_logprobs: bool = False
    """Whether the report has the log-probabilities of this rank's samples."""


class Publish(_Message, frozen=True, kw_only=True):
    """Send the current weights to the weight group."""

    update: WeightUpdate


class Score(_Message, frozen=True, kw_only=True):
    """Log-probabilities of a token sequence at temperature 1."""

    token_ids: list[int]


class Rescore(_Message, frozen=True, kw_only=True):
    """Log-probabilities of token sequences under a temperature and a compute dtype of choice."""

    sequences: list[list[int]]
    temperature: float
    dtype: str | None
    """A torch dtype without its prefix; None: the trainer's own."""


class Nudge(_Message, frozen=True, kw_only=True):
    """Make other weights of the current ones, as the next version."""

    names: list[str]
    scale: float


class Save(_Message, frozen=True, kw_only=True):
    """Write a checkpoint."""

    folder: str
    state: dict[str, Any]


class Export(_Message, frozen=True, kw_only=True):
    """Write the weights as a Hugging Face folder."""

    folder: str


class Shutdown(_Message, frozen=True, kw_only=True):
    """Leave with exit code 0. There is no reply."""


Command = Meet | Connect | Train | Publish | Score | Rescore | Nudge | Save | Export
FromController = Setup | Refused | Command | Shutdown
Reply = Ready | Trained | Scored | Rescored | Written | Meeting | Done | Failed
FromRank = Hello | Beat | Reply

"""The fault matrix as data: what is struck, with what, when, and what must come of it.

Every combination of a role, a signal and a moment is a cell. What must happen depends on these three by the rules
below, and on nothing else: ``expected`` is the whole statement, and the table in ``docs/faults.md`` quotes it.
"""

from __future__ import annotations

import itertools
import signal
from typing import Literal, get_args

import msgspec

Role = Literal[
    "controller",
    "engine host",
    "engine core",
    "engine worker",
    "trainer rank 0",
    "trainer rank 1",
    "verifier worker",
]
Moment = Literal["start-up", "generation", "step", "update", "checkpoint"]
Blow = Literal["SIGTERM", "SIGKILL", "SIGSTOP"]
Kind = Literal["stops", "interrupted", "dies", "slept", "ends", "engine", "trainer", "verifier"]

ROLES: tuple[Role, ...] = get_args(Role)
MOMENTS: tuple[Moment, ...] = get_args(Moment)
BLOWS: tuple[Blow, ...] = get_args(Blow)

SAYS: dict[Kind, str] = {
    "stops": "finishes the step, saves, leaves with 0; `--resume` goes on",
    "interrupted": "ends what it started, leaves with 130; `--resume` goes on",
    "dies": "no process is left within 10 s; `--resume` goes on",
    "slept": "goes on when it is woken; nobody is started again",
    "ends": "ends with 1 and names the role; no process is left; `--resume` goes on",
    "engine": "goes on: the engine is out, its streams go on elsewhere or wait, another takes its seat",
    "trainer": "goes on: the trainer is started again from checkpoint and journal, the engines stay",
    "verifier": "goes on: another worker takes the place, no verdict is made up",
}
"""What each kind of outcome is, as the table says it. After every one of them each prompt is accounted for."""


class Cell(msgspec.Struct, frozen=True, order=True):
    """One combination."""

    role: Role
    blow: Blow
    moment: Moment

    @property
    def number(self) -> int:
        """Of the signal."""
        return signal.Signals[self.blow]

    def __str__(self) -> str:
        """As it is named on a command line."""
        return f"{self.role}/{self.blow}/{self.moment}"


def expected(cell: Cell) -> Kind:
    """What must come of a blow."""
    if cell.role == "controller":
        if cell.blow == "SIGSTOP":
            return "slept"
        if cell.blow == "SIGKILL":
            return "dies"
        return "interrupted" if cell.moment == "start-up" else "stops"
    if cell.role == "verifier worker":
        return "verifier"
    if cell.moment == "start-up" and cell.role != "engine core":
        return "ends"  # nobody is left to go on with; of the engines whose core is struck there are two
    return "engine" if cell.role.startswith("engine") else "trainer"


CELLS = [Cell(*combination) for combination in itertools.product(ROLES, BLOWS, MOMENTS)]

COMMON = {
    "eval.num_samples": "0",
    "pipeline.groups_per_step": "4",
    "run.num_steps": "100000",
    "run.checkpoint_every": "3",
    "run.samples_every": "0",
    "engine.count": "1",
    "engine.token_timeout_s": "10",
    "engine.start_timeout_s": "240",
    "trainer.start_timeout_s": "240",
    "trainer.heartbeat_timeout_s": "10",
    "trainer.max_restarts": "100",
    "weights.timeout_s": "20",
}
"""The default job with small steps and short deadlines, so that whoever is stopped is late within seconds."""
STOPPED_S = 25.0
"""For how long the controller is stopped: longer than each of these deadlines but those of a start."""


ANSWER = '{name="tests.faults.slow:SlowAnswer",concurrency=256}'
MATH = '{name="math",weight=0.1,timeout_s=60,options={num_workers=1,wall_s=5}}'
LATE_START_S = 60
"""How long a start may take where whoever starts is stopped."""


def settings(cell: Cell) -> dict[str, str]:
    """What a job is given in which this blow falls, or the first one of its chain."""
    own: dict[str, str] = {"rewards": f"[{ANSWER}]"}
    if cell.role == "engine core":
        own["engine.count"] = "2"
    elif cell.role == "engine worker":  # below a core there is one only where the model is spread over several
        own["engine.tensor_parallel_size"] = "2"
    elif cell.role == "verifier worker":
        own["rewards"] = f"[{ANSWER},{MATH}]"
    if cell.moment == "start-up" and cell.blow == "SIGSTOP" and cell.role.startswith(("engine", "trainer")):
        own |= {"engine.start_timeout_s": f"{LATE_START_S}", "trainer.start_timeout_s": f"{LATE_START_S}"}
    return {**COMMON, **own}


def chains(cells: list[Cell]) -> list[list[Cell]]:
    """The cells of a role and a signal, which one run serves one after another, resumed where a blow ended it."""
    return [list(chain) for _, chain in itertools.groupby(cells, key=lambda cell: (cell.role, cell.blow))]

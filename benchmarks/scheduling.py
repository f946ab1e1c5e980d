"""Scheduling ideas against first in first out, in the simulator: what each gains, and what it costs in lag.

    python benchmarks/scheduling.py

- ``fifo``: groups are trained in the order of admission, the lag bound of ``prl/buffer.py``.
- ``window``: the finished ones among the oldest W groups that are not trained yet; what W is more than a batch may be
  passed over, so the bound on the lag is lost and the largest is measured.
- ``counted``: the finished ones among the W batches admitted behind the oldest group that is not finished: at most W
  batches pass a group over, so with the slots of a bound k the lag is at most k + W (``buffer.py``'s proof: what was
  taken before step b has numbers below j + W g, so j >= (b - W) g).
- ``shortest``: whatever is finished, the shortest groups first (SortedRL's length-aware order).
- ``paper``: as they finish, and admission that fills the engines (the paper's mode).

All have the same lengths, prompt by prompt. An idea wins where it has more samples a second times ESS than ``fifo`` has
with a bound that gives the same largest lag.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import table

from prl import parts
from prl.buffer import Buffer, Ticket
from prl.config import Config
from prl.settings import load_config
from prl.simulate import costs_of, report_of, simulate
from prl.types import Group

CONFIG = Path(__file__).parent.parent / "configs" / "simulate-paper.toml"
MACHINE = (
    "pipeline.groups_per_step=8",
    "pipeline.group_size=8",
    "advantage.name=leave_one_out",
    "engine.count=8",
    "engine.max_num_seqs=64",
    "trainer.num_ranks=8",
    "sampling.max_tokens=4096",
    "simulate.lengths.kind=lognormal",
    "simulate.lengths.mean=600",
    "simulate.lengths.sigma=0.9",
    "simulate.lengths.prompt_share=0.5",
    "simulate.decode.base_s=0.02",
    "simulate.decode.per_sequence_s=0.0002",
    "simulate.train.token_s=0.0012",
    "simulate.update_s=0.5",
    "simulate.drift=0.01",
)


class Windowed(Buffer):
    """Takes what is finished among the oldest ``window`` groups."""

    window = 0

    def _next(self, count: int) -> list[tuple[Ticket, Group]]:
        oldest = itertools.islice(self._groups.items(), self.window)
        return [(ticket, group) for ticket, group in oldest if group is not None][:count]


class Counted(Windowed):
    """Takes what is finished among the next ``window`` admissions from the oldest that is not finished on."""

    def _next(self, count: int) -> list[tuple[Ticket, Group]]:
        end = self.window + next((ticket for ticket, group in self._groups.items() if group is None), self._admitted)
        groups = itertools.takewhile(lambda each: each[0] < end, self._groups.items())
        return [(ticket, group) for ticket, group in groups if group is not None][:count]


class ShortestFirst(Buffer):
    """Takes the shortest of what is finished."""

    def _next(self, count: int) -> list[tuple[Ticket, Group]]:
        ready = [(ticket, group) for ticket, group in self._groups.items() if group is not None]
        return sorted(ready, key=lambda one: sum(len(each.token_ids) for each in one[1].completions))[:count]


def windowed(batches: int, kind: type[Windowed] = Windowed) -> Callable[[Config], Buffer]:
    """A window of so many batches."""

    def make(config: Config) -> Buffer:
        pipeline = config.pipeline
        buffer = kind(pipeline.groups_per_step * ((pipeline.max_lag or 0) + 1))
        buffer.window = batches * pipeline.groups_per_step
        return buffer

    return make


def shortest(config: Config) -> Buffer:
    """Slots as the lag bound has them, and no bound."""
    return ShortestFirst(config.pipeline.groups_per_step * ((config.pipeline.max_lag or 0) + 1))


def row(name: str, slots: str, make_buffer: Callable[[Config], Buffer], num_steps: int, *keys: str) -> dict[str, Any]:
    """One policy on the machine."""
    config = load_config(CONFIG, [*MACHINE, f"run.num_steps={num_steps}", *keys])
    costs = costs_of(config)
    report = report_of(config, costs, simulate(config, costs, make_buffer=make_buffer))
    return {
        "policy": name,
        "slots": slots,
        "samples/s": report.samples_per_s,
        "ESS": report.ess,
        "samples/s x ESS": report.samples_per_s * report.ess,
        "lag mean": report.lag.mean,
        "lag max": report.lag.max,
        "trainer busy": report.trainer.training,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80, help="of each simulation; a quarter is left out")
    num_steps = parser.parse_args().steps
    fifo = parts.make_buffer
    rows = [row("fifo", f"bound {k}", fifo, num_steps, f"pipeline.max_lag={k}") for k in (2, 4, 8, 12, 16, 20, 28)]
    for k, batches in ((4, 2), (4, 3), (8, 4), (8, 6)):
        rows.append(row(f"window of {batches}", f"as bound {k}", windowed(batches), num_steps, f"pipeline.max_lag={k}"))
    for k, batches in ((4, 8), (6, 6), (6, 10), (8, 8), (8, 12)):
        policy = windowed(batches, Counted)
        rows.append(row(f"counted {batches}", f"as bound {k}", policy, num_steps, f"pipeline.max_lag={k}"))
    rows += [row("shortest", f"as bound {k}", shortest, num_steps, f"pipeline.max_lag={k}") for k in (4, 8)]
    rows.append(row("paper", "512 streams", fifo, num_steps))
    print(table(rows))


if __name__ == "__main__":
    main()

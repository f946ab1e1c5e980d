"""Where a resumed run goes on: the newest complete checkpoint, the steps after it, and what was under way then.

Invariants:

- A step that was done after the checkpoint is done again on the same groups, in the same order, so the weights come
  back (bit for bit where the trainer computes the same twice), and with them the meaning of every token's version.
- Nothing sampled is used where it must not be: tokens of a version that does not come back are given up, and so are
  those that would be trained further from their oldest token than ``pipeline.max_lag`` allows; their prompts are issued
  again.
- A seeded stream that was under way goes on from its tokens by another seed, since an engine cannot begin in the middle
  of one. Where the weights that sampled all of it come back, it begins anew instead: the same tokens come again, so no
  length is favoured, and three steps, a resume and three more are six.
- Without a journal (it was deleted), or where it lost groups or says less than the checkpoint, the run goes on at the
  checkpoint itself, and says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from prl import journal
from prl.config import Config
from prl.errors import JournalError
from prl.ledger import Admitted, Entry, Ledger
from prl.log import get_logger
from prl.run_folder import Totals, read_steps
from prl.trainer import checkpoint
from prl.types import Prompt

log = get_logger(__name__)


class Start(msgspec.Struct, kw_only=True):
    """What a run goes on from. A fresh one has nothing to go on from."""

    checkpoint: Path | None = None
    """What the trainer loads."""
    totals: Totals = msgspec.field(default_factory=Totals)
    """Counts of every step done so far."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    """The accounts, open prompts included."""
    batches: list[list[Entry]] = msgspec.field(default_factory=list)
    """The entries of every step done after the checkpoint, in order."""
    num_issued_again: int = 0
    """Open prompts whose tokens were given up."""
    warnings: list[str] = msgspec.field(default_factory=list)

    def warn(self) -> None:
        """Say what could not be kept."""
        for warning in self.warnings:
            log.warning(warning)
        if self.num_issued_again:
            log.warning(
                "prompts are issued again: what was sampled of them is of a version that does not come back, or would "
                "be older than pipeline.max_lag allows",
                num_prompts=self.num_issued_again,
            )


def find_start(run_dir: Path, config: Config) -> Start:
    """Where the run in ``run_dir`` goes on. Blocking.

    Raises:
        CheckpointError: the newest complete checkpoint holds no state that can be read.
    """
    found = checkpoint.latest(run_dir / "checkpoints")
    step = checkpoint.read_marker(found.folder).step if found.folder else 0
    state = checkpoint.read_state(found.folder) if found.folder else {}
    start = _from_journal(run_dir / "journal", step, state)
    start.checkpoint, start.warnings = found.folder, [*found.skipped, *start.warnings]
    start.totals = msgspec.convert(state.get("totals", {}), Totals)
    for line in read_steps(run_dir / "metrics.jsonl", step + 1, start.ledger.step):
        start.totals.add(line)
    pipeline = config.pipeline
    max_lag = pipeline.max_lag if pipeline.mode == "pipeline" else None
    start.num_issued_again = _forget(start.ledger, max_lag=max_lag, groups_per_step=pipeline.groups_per_step)
    if config.sampling.seeded:
        start.ledger.forget_unfinished(of_version=start.ledger.step)
    return start


def _from_journal(folder: Path, step: int, state: dict[str, Any]) -> Start:
    """What the journal says of the time since the checkpoint of ``step``; ``state`` is what that holds."""
    warnings: list[str] = []
    try:
        ledger, damage, kept = journal.read(folder, resume_from=step)
    except JournalError as error:
        warnings.append(f"{error}: the run goes on at its checkpoint, and what was under way then is issued again")
        try:
            ledger, damage, kept = journal.read(folder, resume_from=step, until=step)
        except JournalError:
            ledger, damage, kept = _from_checkpoint(step, state), [], {}
    batches = [kept[done] for done in range(step, ledger.step)]
    return Start(ledger=ledger, batches=batches, warnings=[*warnings, *damage])


def _from_checkpoint(step: int, state: dict[str, Any]) -> Ledger:
    """The accounts as a checkpoint alone tells them: what is not open below the cursor counts as trained."""
    ledger, controller = Ledger(), state.get("controller", {})
    prompts = msgspec.convert(controller.get("untrained", []), list[Prompt])
    ledger.begin(step=step, cursor=controller.get("cursor", 0), open_ids=[prompt.id for prompt in prompts])
    ledger.data = state.get("data", {})
    ledger.solve_rates = {row: (epoch, rate) for row, epoch, rate in state.get("solve_rates", [])}
    for prompt in prompts:
        ledger.append(Admitted(prompt=prompt))
    return ledger


def _forget(ledger: Ledger, *, max_lag: int | None, groups_per_step: int) -> int:
    """Give up tokens that must not be used; of how many prompts."""
    count = 0
    for position, (number, entry) in enumerate(list(ledger.open.items())):
        oldest, newest = entry.oldest_version(), entry.newest_version()
        if oldest is None or newest is None:
            continue
        trained_at = ledger.step + position // groups_per_step
        if newest > ledger.step or (max_lag is not None and trained_at - oldest > max_lag):
            ledger.forget(number)
            count += 1
    return count

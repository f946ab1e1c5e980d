"""Where a resumed run goes on: the newest complete checkpoint, the steps after it, and what was under way then.

Invariants:

- A step that was done after the checkpoint is done again on the same groups, in the same order, so the weights come
  back (bit for bit where the trainer computes the same twice), and with them the meaning of every token's version.
- Nothing sampled is used where it must not be: tokens of a version that does not come back are given up, and so are
  those of weights that were not proven (``sync.py``), and those that would be trained further from their oldest token
  than ``pipeline.max_lag`` allows; their prompts are issued again.
- A seeded stream that was under way goes on from its tokens by another seed, since an engine cannot begin in the middle
  of one. Where the weights that sampled all of it come back, it begins anew instead: the same tokens come again, so no
  length is favoured, and three steps, a resume and three more are six.
- Without a journal (it was deleted), or where it lost groups or says less than the checkpoint, the run goes on at the
  checkpoint itself, and says so.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from prl import journal
from prl.config import Config
from prl.errors import CheckpointError, JournalError
from prl.ledger import Ledger
from prl.log import get_logger
from prl.records import Admitted, Entry
from prl.run_folder import Totals, read_steps
from prl.trainer import checkpoint
from prl.types import Prompt

REASONS = {
    "weights_not_proven": "what was sampled of them is of weights that were not proven to be the trainer's",
    "version_lost": "what was sampled of them is of a version that does not come back",
    "too_old": "what was sampled of them would be older than pipeline.max_lag allows",
}
log = get_logger(__name__)


class Start(msgspec.Struct, kw_only=True):
    """What a run goes on from. A fresh one has nothing to go on from."""

    checkpoint: Path | None = None
    """What the trainer loads."""
    skipped: dict[Path, str] = msgspec.field(default_factory=dict)
    """Newer checkpoints that are not complete, or not what was written, and why."""
    totals: Totals = msgspec.field(default_factory=Totals)
    """Counts of every step done so far."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    """The accounts, open prompts included."""
    batches: list[list[Entry]] = msgspec.field(default_factory=list)
    """The entries of every step done after the checkpoint, in order."""
    issued_again: dict[str, int] = msgspec.field(default_factory=dict)
    """Open prompts whose tokens were given up, by reason (``REASONS``)."""
    warnings: list[str] = msgspec.field(default_factory=list)

    def warn(self) -> None:
        """Say what could not be kept."""
        for warning in self.warnings:
            log.warning(warning)
        for reason, count in self.issued_again.items():
            log.warning("prompts are issued again", num_prompts=count, reason=reason, why=REASONS[reason])


def find_start(run_dir: Path, config: Config) -> Start:
    """Where the run in ``run_dir`` goes on. Blocking.

    Raises:
        CheckpointError: there are checkpoints, none of them can be used, and the journal does not begin where the run
            did.
    """
    found = checkpoint.latest(run_dir / "checkpoints", verified=True)
    step = checkpoint.read_marker(found.folder).step if found.folder else 0
    state = checkpoint.read_state(found.folder) if found.folder else {}
    if found.folder is None and found.skipped:
        _check_begins_at_0(run_dir / "journal", found)
    start = _from_journal(run_dir / "journal", step, state)
    start.checkpoint, start.skipped = found.folder, found.skipped
    start.warnings = [*_passed_over(found), *start.warnings]
    start.totals = msgspec.convert(state.get("totals", {}), Totals)
    for line in read_steps(run_dir / "metrics.jsonl", step + 1, start.ledger.step):
        start.totals.add(line)
    pipeline = config.pipeline
    max_lag = pipeline.max_lag if pipeline.mode == "pipeline" else None
    start.issued_again = _forget(start.ledger, max_lag=max_lag, groups_per_step=pipeline.groups_per_step)
    if config.sampling.seeded:
        start.ledger.forget_unfinished(of_version=start.ledger.step)
    return start


def _passed_over(found: checkpoint.Found) -> list[str]:
    """The reasons, and what is used in place."""
    instead = "begins anew" if found.folder is None else f"goes on from {found.folder.name}"
    return [f"{reason}: the run {instead}" for reason in found.skipped.values()]


def _check_begins_at_0(folder: Path, found: checkpoint.Found) -> None:
    """Nobody wants a run to begin anew over what it had done: only a journal of all steps can stand in for checkpoints.

    Raises:
        CheckpointError: it begins later, or there is none.
    """
    began = next((number for number, _ in journal.segments(folder)), None)
    if began != 0:
        reasons = "\n".join(found.skipped.values())
        raise CheckpointError(
            f"no checkpoint of this run can be used, and its journal does not reach back to its beginning:\n{reasons}\n"
            "restore one of these folders from a copy, or begin another run with another --run-dir"
        )


def _from_journal(folder: Path, step: int, state: dict[str, Any]) -> Start:
    """What the journal says of the time since the checkpoint of ``step``; ``state`` is what that holds."""
    warnings: list[str] = []
    try:
        history = journal.read(folder, resume_from=step)
        ledger, damage, kept = history.ledger, history.unread, history.batches
    except JournalError as error:
        warnings.append(f"{error}: the run goes on at its checkpoint, and what was under way then is issued again")
        try:
            history = journal.read(folder, resume_from=step, until=step)
            ledger, damage, kept = history.ledger, history.unread, history.batches
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


def _forget(ledger: Ledger, *, max_lag: int | None, groups_per_step: int) -> dict[str, int]:
    """Give up tokens that must not be used; of how many prompts, by reason."""
    counts: Counter[str] = Counter()
    for position, (number, entry) in enumerate(list(ledger.open.items())):
        oldest, newest = entry.oldest_version(), entry.newest_version()
        if oldest is None or newest is None:
            continue
        trained_at = ledger.step + position // groups_per_step
        if ledger.is_unproven(entry):
            reason = "weights_not_proven"
        elif newest > ledger.step:
            reason = "version_lost"
        elif max_lag is not None and trained_at - oldest > max_lag:
            reason = "too_old"
        else:
            continue
        ledger.forget(number, reason)
        counts[reason] += 1
    ledger.unproven = None  # of what is left, nothing is of such weights
    return dict(counts)

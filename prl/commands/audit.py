"""``prl audit``: where every prompt of a run is, from its journal."""

from __future__ import annotations

import argparse
from pathlib import Path

from prl.commands.arguments import FAILED, OK

HELP = "account for every prompt of a run"
ABOUT = """\
Read the journal of a run, under way or ended, and say where every prompt is: trained, dropped and why, or still open.
No prompt may be lost, and none may be trained twice. What was sampled by weights that were not proven yet is counted:
a resume samples it anew, and says how often it did."""
EXAMPLES = """\
examples:
  prl audit runs/math
  prl audit runs/math --json        the same as one JSON object

exit codes:
  0 every prompt is accounted for
  1 some are lost or were trained twice, or the newest part of the journal is damaged: what came behind is not known
  2 there is no journal

A journal that ends in the middle of a record is what a crash leaves, and no damage."""
_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl audit`` takes."""
    parser.add_argument("run", metavar="RUN", help="a run folder, such as runs/math")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")


def run(arguments: argparse.Namespace) -> int:
    """Print the accounts; the exit code."""
    import msgspec  # noqa: PLC0415 - --help stays quick

    from prl import journal  # noqa: PLC0415 - the same
    from prl.errors import ConfigError, JournalError  # noqa: PLC0415 - the same

    try:
        history = journal.read(Path(arguments.run) / "journal")
    except JournalError as error:
        raise ConfigError(f"{error}: name the folder of a run, such as runs/math") from None
    accounts = history.ledger.accounts()
    if arguments.json:
        told = {**msgspec.to_builtins(accounts), "damage": history.damage, "covered": history.covered}
        print(msgspec.json.encode(told).decode())  # noqa: T201
    else:
        left = sum(accounts.left.values())
        rows = [
            ("prompts admitted", accounts.admitted),
            ("  trained", accounts.trained),
            ("  dropped", left),
            *((f"    {reason}", count) for reason, count in sorted(accounts.left.items())),
            ("  scored, not trained yet", accounts.scored),
            ("  running", accounts.running),
            *([("    of weights not proven", accounts.unproven)] if accounts.unproven else []),
            ("  lost", len(accounts.lost)),
            ("trained twice", len(accounts.trained_twice)),
            *((f"issued again, {reason}", count) for reason, count in sorted(accounts.issued_again.items())),
            ("steps", accounts.steps),
        ]
        for name, count in rows:
            print(f"{name:28}{count:>10,}")  # noqa: T201
        for what, ids in (("lost", accounts.lost), ("trained twice", accounts.trained_twice)):
            if ids:
                more = f" and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else ""
                print(f"{what}: {', '.join(map(str, ids[:_SHOWN]))}{more}")  # noqa: T201
        for line in history.damage:
            print(f"damaged: {line}")  # noqa: T201
        for line in history.covered:
            print(f"note: {line}")  # noqa: T201
    return FAILED if accounts.lost or accounts.trained_twice or history.damage else OK

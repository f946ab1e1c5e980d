"""Prompt sources: an endless, reproducible order of prompts, with a cursor that can be saved.

Opening one reads and checks every row of what ``[data]`` and ``[eval]`` name (``data/opening.py``); ``data/source.py``
says which prompt stands at which position and which are passed over, ``data/mix.py`` in which order.

Invariant: a position means the same prompt for as long as a run goes on and is resumed. What it depends on has a
fingerprint, which the run's checkpoints and journal keep; a resumed run whose data has another one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from prl.config import Config
from prl.config_environment import VERIFIERS
from prl.data.curriculum import Rates
from prl.data.mix import shares
from prl.data.opening import open_one, own_held_out, source_tables
from prl.data.rows import CheckRow, Needs
from prl.data.source import MixedPrompts, SourceStatistics
from prl.data.tables import Joined
from prl.errors import DataError
from prl.ledger import Ledger
from prl.records import Measured
from prl.tokenizer import Tokenizer
from prl.types import Group, Prompt


class PromptSource(Protocol):
    """Where prompts come from."""

    cursor: int
    """Position of the next prompt; save it, ``seek`` to it later."""

    def next(self) -> Prompt:
        """The next prompt. Endless; raises DataError when no prompt of a whole epoch fits the context."""
        ...

    def passed_over(self) -> list[tuple[int, str]]:
        """Positions that ``next`` went past since this was last asked, and why; they are no prompts' ids."""
        ...

    def get(self, prompt_id: int) -> Prompt:
        """The prompt with this id, again, without moving the cursor."""
        ...

    def seek(self, cursor: int) -> None:
        """Go on from a saved cursor."""
        ...

    def follow(self, rates: Rates) -> None:
        """Let the curriculum decide by these measurements, the ledger's own."""
        ...

    def measure(self, group: Group) -> Measured | None:
        """What a scored group says of its row's difficulty; None where there is no curriculum."""
        ...

    def held_out(self, n: int) -> list[Prompt]:
        """Up to ``n`` prompts for evaluation, the same at every call, with ids 0, 1, ... of their own."""
        ...

    def fingerprint(self) -> dict[str, str]:
        """By source, and for the order: what is the same exactly while a position means the same prompt."""
        ...

    def statistics(self) -> SourceStatistics:
        """Counters and warnings."""
        ...


def open_source(
    config: Config,
    tokenizer: Tokenizer,
    required_fields: Sequence[str] = (),
    check_row: CheckRow | None = None,
    *,
    reads_all_fields: bool = False,
) -> MixedPrompts:
    """The source that ``[data]`` and ``[eval]`` describe, its rows checked.

    ``required_fields`` are those that the rewards need, ``check_row`` says what makes a row useless to them, and with
    ``reads_all_fields`` none of a row's is too many (``Scorer``). Raises DataError, ConfigError or MissingExtraError.
    """
    sources, data = source_tables(config), config.data
    needs = Needs(
        required_fields=tuple(required_fields),
        check_row=check_row,
        skip_bad_rows=data.skip_bad_rows,
        known_fields=(data.filter.solve_rate_field,),
        reads_all=reads_all_fields or config.environment.name == VERIFIERS,
        refuse_extra=data.extra_fields == "refuse",
    )
    held_out = own_held_out(config, sources, needs)
    num_eval = 0 if held_out else config.eval.num_samples
    quotas = shares([source.weight for _, source in sources], num_eval)
    opened = [open_one(config, key, source, needs, quota) for (key, source), quota in zip(sources, quotas, strict=True)]
    if held_out is None:
        return MixedPrompts(config, tokenizer, opened, Joined([source.held_out for source in opened]))
    first = msgspec.structs.replace(opened[0], warnings=[*held_out.warnings(), *opened[0].warnings])
    return MixedPrompts(config, tokenizer, [first, *opened[1:]], held_out)


def changes(source: PromptSource, ledger: Ledger, *, accept: bool) -> list[str]:
    """Join a source to the accounts of a run, new or resumed; what changed in the data since, for people.

    Raises:
        DataError: it changed, and ``accept`` does not say that it is meant.
    """
    before, now = ledger.data, source.fingerprint()
    source.follow(ledger.solve_rates)
    changed = [
        f"{key} is {now.get(key, 'not there')!r} and was {before.get(key, 'not there')!r}"
        for key in sorted({*before, *now})
        if before and before.get(key) != now.get(key)
    ]
    what = "the data is not what the run began with: " + "; ".join(changed)
    if changed and not accept:
        raise DataError(
            f"{what}. Going on would train some prompts twice and others never: restore it, begin another run with"
            " another --run-dir, or go on all the same with --accept-changes"
        )
    ledger.data = now
    return [what] if changed else []

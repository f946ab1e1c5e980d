"""Lines of ``evaluations.jsonl``, as they are: there are few of them."""

from __future__ import annotations

from typing import Any

import msgspec

from prl.view.files import Line

MAX_ROWS = 20_000


class Evaluations:
    """The newest ``MAX_ROWS``."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(dict[str, Any])
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.num_malformed = 0
        self.rows: list[dict[str, Any]] = []
        """Oldest first."""

    def add(self, lines: list[Line]) -> None:
        """Take lines."""
        for line in lines:
            try:
                row = self._decoder.decode(line.text)
            except (msgspec.MsgspecError, RecursionError):
                self.num_malformed += 1
                continue
            if type(row.get("step")) is int:
                self.rows.append(row)
            else:
                self.num_malformed += 1
        del self.rows[:-MAX_ROWS]

    @property
    def names(self) -> list[str]:
        """What was measured: numbers by their name, and ``pass@k`` for each k."""
        found: dict[str, None] = {}
        for row in self.rows:
            for key, value in row.items():
                if type(value) in {int, float} and key not in {"step", "version"}:
                    found[key] = None
            passed = row.get("pass_at")
            if isinstance(passed, dict):
                found.update(dict.fromkeys(f"pass@{k}" for k in passed))
        return list(found)

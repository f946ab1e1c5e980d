"""Token ids as the texts that people see, with the tokenizer of the run and nothing else of its model.

Invariants:

- Nothing is fetched: the tokenizer is that of the run's ``export/``, of the model's folder, or of the hub's cache here.
- The texts of a list of ids, put together, are the text of the list: a character that several tokens make up stands at
  the last of them, and nothing at those before.
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prl.errors import ConfigError
from prl.models import resolve_model
from prl.view.files import read_small

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
MAX_FILE_BYTES = 256 << 20
_HALF = "\N{REPLACEMENT CHARACTER}"


class Tokens:
    """The tokenizer of one run, loaded at the first need. Blocking; any thread may ask."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        self._looked_at: tuple[float, ...] | None = None

    def texts(self, ids: Sequence[int]) -> list[str] | None:
        """The text of each id; None where the run's tokenizer is not here."""
        with self._lock:
            tokenizer = self._loaded()
            return None if tokenizer is None else _pieces(tokenizer, ids)

    def _loaded(self) -> Tokenizer | None:
        export = self._run_dir / "export" / FILE
        seen = tuple(_changed_at(path) for path in (export, self._run_dir / "config.toml"))
        if self._tokenizer is None and seen != self._looked_at:
            self._looked_at = seen
            self._tokenizer = _read(export) if seen[0] else None
            if self._tokenizer is None and (path := _of_model(self._run_dir)) is not None:
                self._tokenizer = _read(path, is_ours=False)
        return self._tokenizer


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _of_model(run_dir: Path) -> Path | None:
    """``tokenizer.json`` of the model that the run's configuration names, if it is on this machine."""
    try:
        model = str(tomllib.loads(read_small(run_dir / "config.toml").decode())["model"])
        found = resolve_model(model)
    except (ValueError, KeyError, ConfigError):
        return None
    if Path(found).is_dir():
        return Path(found) / FILE
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 -- only for such models

    try:
        cached = try_to_load_from_cache(found, FILE)
    except ValueError:  # no name that the hub could have
        return None
    return Path(cached) if isinstance(cached, str) else None


def _read(path: Path, *, is_ours: bool = True) -> Tokenizer | None:
    """``is_ours``: the file is in the run folder, where links are not followed; the hub's cache is made of them."""
    from tokenizers import Tokenizer  # noqa: PLC0415 -- only once somebody looks at a sample

    if is_ours and path.parent.is_symlink():
        return None
    data = read_small(path if is_ours else path.resolve(), MAX_FILE_BYTES)
    try:
        return Tokenizer.from_buffer(data) if data else None
    except Exception:  # noqa: BLE001 -- whatever it says of a file that is none of its own
        return None


def _pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each id adds to the text of those before it, seen from a few tokens back."""
    pieces: list[str] = []
    start = done = 0
    for end in range(1, len(ids) + 1):
        known = tokenizer.decode(list(ids[start:done]), skip_special_tokens=False)
        text = tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)
        if text.endswith(_HALF) and end < len(ids) and end - done < 4:  # noqa: PLR2004 -- bytes of a character
            pieces.append("")
            continue
        pieces.append(text.removeprefix(known))
        start, done = done, end
    return pieces

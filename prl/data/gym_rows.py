"""Tasks of reasoning-gym as a table: each problem a pure function of (task, options, seed, index), with its verifier.

- The library is imported here and in ``rewards/gym_worker.py`` only, and a missing one names its extra.
- A prompt carries the whole entry that its task made (field ``reasoning_gym``), as a Python literal that reads back as
  it was: so it is judged by its own entry, after a resume too. A task whose entries are no literals is refused.
- Held-out problems are those behind the training ones in the task's own sequence. A training problem that asks the same
  as one of them would be met in training: ``source.py`` passes it over.
"""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from prl.data.rows import Fields
from prl.errors import ConfigError, MissingExtraError
from prl.plugins import nearest

FIELD = "reasoning_gym"
_EVAL = re.compile(r"(?<![\w.])eval\(")
_NOT_A_TASK = "composite"
"""The library's own mixture; ``data.sources`` mixes."""


class GymRows:
    """Problems of one task."""

    def __init__(self, task: str, options: dict[str, Any], rows: range, *, seed: int) -> None:
        """``rows`` are positions in the task's own sequence. Raises ConfigError or MissingExtraError."""
        self._task, self._options, self._rows, self._seed = task, options, rows, seed
        self._dataset = make_task(task, options, seed=seed, size=max(1, rows.stop))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Fields:
        """Question, answer (where the task knows a single one), and what its verifier needs."""
        entry = self._dataset[self._rows[index]]
        kept = {key: entry[key] for key in ("question", "answer", "metadata")}
        literal = repr(kept)
        if not _reads_back(literal, kept):
            raise ConfigError(
                f"data.task = {self._task!r}: an entry of this task cannot be written down and read back, so a run "
                "that is resumed could not judge it; take another task"
            )
        gym = {"task": self._task, "options": self._options, "entry": literal}
        fields: Fields = {"prompt": entry["question"], FIELD: gym}
        return fields if entry["answer"] is None else {**fields, "answer": str(entry["answer"])}

    def where(self, index: int) -> str:
        """Task and position."""
        return f"reasoning-gym {self._task} problem {self._rows[index]}"

    def fingerprint(self) -> str:
        """Everything that the problems depend on but the version of the library."""
        return f"reasoning-gym {self._task} {self._options} seed {self._seed}: {self._rows.start} to {self._rows.stop}"

    def warnings(self) -> list[str]:
        """None: nothing is skipped."""
        return []


def make_task(task: str, options: dict[str, Any], *, seed: int, size: int) -> Any:
    """A reasoning-gym dataset. Raises ConfigError for an unknown name or option, MissingExtraError without it."""
    try:
        import reasoning_gym  # noqa: PLC0415 - an extra, and seconds to import
        from reasoning_gym.factory import DATASETS  # noqa: PLC0415 - the same
    except ImportError as error:
        raise MissingExtraError("reasoning-gym", "data", "data.source = 'reasoning_gym'") from error
    tasks = sorted(name for name in DATASETS if name != _NOT_A_TASK)
    if task not in tasks:
        hint = nearest(task, tasks) or f"; there are {len(tasks)}: {', '.join(tasks)}"
        raise ConfigError(f"data.task = {task!r} is no task of reasoning-gym{hint}")
    if _EVAL.search(inspect.getsource(DATASETS[task][0].score_answer)):
        raise ConfigError(
            f"data.task = {task!r}: reasoning-gym judges it by running the answer as Python, whatever it says; take"
            " another task"
        )
    known = [name for name in DATASETS[task][1].__dataclass_fields__ if name not in ("seed", "size")]
    for option in options:
        if option not in known:
            raise ConfigError(
                f"data.options.{option} is no parameter of reasoning-gym's {task!r}{nearest(option, known)}; it takes "
                f"{', '.join(known) or 'none'}"
            )
    try:
        return reasoning_gym.create_dataset(task, seed=seed, size=size, **options)
    except (AssertionError, TypeError, ValueError) as error:  # how its configurations say that a value is wrong
        raise ConfigError(f"data.options of reasoning-gym's {task!r}: {error or 'a value is out of range'}") from error


def _reads_back(literal: str, value: Any) -> bool:
    try:
        return _same(ast.literal_eval(literal), value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False


def _same(one: Any, other: Any) -> bool:
    """Equal, in types too: a tuple that became a list is another key of a dictionary."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)

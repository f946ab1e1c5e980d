"""The rows of a Parquet file or a Hugging Face dataset, every one checked before anything starts (``rows.py``).

- The ``datasets`` library reads them; it is imported here only, and a missing one names its extra.
- Null stands for absent in ``prompt``, ``messages``, ``id`` and inside messages: a column cannot be absent for one row.
- An ``answer`` that is an integer becomes its digits. A float is refused like anywhere: 0.10 would not survive.
- Columns that JSON has nothing for (dates, bytes, decimals, images) are left out with a warning, unless one is needed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from prl.data.rows import Fields, Judge, Needs
from prl.errors import DataError, MissingExtraError

_OWN = ("prompt", "messages", "answer", "id")
_OPTIONAL = ("prompt", "messages", "id")


class ArrowRows:
    """The good rows of one dataset."""

    def __init__(self, dataset: Any, name: str, needs: Needs) -> None:
        """Check every row of a ``datasets.Dataset``. Raises DataError; with ``skip_bad_rows`` bad rows are counted."""
        self.judge = Judge(name, needs)
        self.fingerprint = self.judge.fingerprint
        self._left_out = _without_json(dataset)
        needed = {needs.columns.get(field, field) for field in (*_OWN, *needs.required_fields, *needs.columns)}
        for column in sorted({*self._left_out} & needed):
            raise DataError(
                f"{name}: the column {column!r} is of the type {self._left_out[column]}, which JSON has not: make it a "
                "string in the file"
            )
        self._dataset = dataset.remove_columns(list(self._left_out))
        self._good = [
            index
            for index, row in enumerate(self._dataset)
            if self.judge.accept(self._place(index), partial(_plain, row, needs))
        ]
        self.judge.done()

    def warnings(self) -> list[str]:
        """What was skipped and left out."""
        columns = ", ".join(f"{column} ({kind})" for column, kind in sorted(self._left_out.items()))
        left_out = [f"columns of {self.judge.name} that JSON has no type for are left out: {columns}"]
        return [*self.judge.warnings(), *(left_out if columns else [])]

    def _place(self, index: int) -> str:
        return f"{self.judge.name}, row {index + 1}"

    def where(self, index: int) -> str:
        """File and row, counted from 1, for messages."""
        return self._place(self._good[index])

    def __len__(self) -> int:
        return len(self._good)

    def __getitem__(self, index: int) -> Fields:
        """All fields of a row."""
        return self.judge.needs.renamed(_plain(self._dataset[self._good[index]], self.judge.needs))


def read_parquet(path: Path, needs: Needs) -> ArrowRows:
    """The rows of a Parquet file. Raises DataError or MissingExtraError."""
    datasets = _library("data.source = 'parquet'")
    if not path.is_file():
        raise DataError(f"{path}: cannot be read: {'it is a folder' if path.is_dir() else 'no such file'}")
    try:
        dataset = datasets.load_dataset("parquet", data_files=str(path), split="train")
    except Exception as error:  # what the library raises depends on what is wrong
        raise DataError(f"{path}: not a Parquet file that can be read: {_reason(error)}") from error
    return ArrowRows(dataset, str(path), needs)


def read_dataset(path: str, needs: Needs, *, subset: str | None = None, split: str | None = None) -> ArrowRows:
    """The rows of a dataset on the hub or in a folder, whoever wrote it. Raises DataError or MissingExtraError."""
    datasets = _library("data.source = 'dataset'")
    split = split or "train"
    folder = Path(path)
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            dataset = _saved(datasets, folder, split)
        else:
            dataset = datasets.load_dataset(path, subset, split=split)
    except DataError:
        raise
    except Exception as error:  # what the library raises depends on what is wrong
        what = "" if folder.is_dir() else "; it is no folder here, and so it is looked for on the hub"
        raise DataError(f"data.path = {path!r}, split {split!r}: {_reason(error)}{what}") from error
    return ArrowRows(dataset, f"{path} [{split}]", needs)


def _saved(datasets: Any, folder: Path, split: str) -> Any:
    """What ``save_to_disk`` has written: one dataset, or one for each split."""
    saved = datasets.load_from_disk(str(folder))
    if not isinstance(saved, datasets.DatasetDict):
        return saved
    if split not in saved:
        raise DataError(f"data.split = {split!r}: {folder} has the splits {', '.join(saved)}")
    return saved[split]


def _library(purpose: str) -> Any:
    try:
        import datasets  # noqa: PLC0415 - an extra, and seconds to import
    except ImportError as error:
        raise MissingExtraError("datasets", "data", purpose) from error
    datasets.disable_progress_bars()
    return datasets


def _reason(error: BaseException) -> str:
    """The first line of the deepest cause: the library wraps what went wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _plain(row: Fields, needs: Needs) -> Fields:
    """A row as JSON would have it."""
    row = dict(row)
    for field in _OPTIONAL:
        column = needs.columns.get(field, field)
        if column in row and row[column] is None and field not in needs.columns:
            del row[column]
    messages = needs.columns.get("messages", "messages")
    if isinstance(row.get(messages), list):
        row[messages] = [
            {key: value for key, value in turn.items() if value is not None} if isinstance(turn, dict) else turn
            for turn in row[messages]
        ]
    answer = needs.columns.get("answer", "answer")
    if type(row.get(answer)) is int:
        row[answer] = str(row[answer])
    return row


def _without_json(dataset: Any) -> dict[str, str]:
    """Columns that cannot be written as JSON, with their types."""
    return {field.name: str(field.type) for field in dataset.data.schema if not _has_json(field.type)}


def _has_json(kind: Any) -> bool:
    """Whether every value of an Arrow type is one of JSON's."""
    from pyarrow import types  # noqa: PLC0415 - comes with datasets

    if types.is_dictionary(kind):
        return _has_json(kind.value_type)
    if types.is_struct(kind):
        return all(_has_json(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _has_json(kind.value_type)
    simple = (types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string)
    return any(is_kind(kind) for is_kind in (*simple, types.is_large_string))

"""Opening what ``[data]`` and ``[eval]`` name: every row read and checked, filtered by solve rate, and split.

- What is held out is never trained on: problems of a split of their own, rows of their own, or the last rows.
- A filter by solve rate leaves rows out before anything is ordered, so an epoch has only those that are trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from prl.config import Config
from prl.config_data import READ_FROM_PATH, SourceConfig, SourceKind, SourceTable
from prl.config_environment import VERIFIERS
from prl.data.arrow_rows import ArrowRows, read_dataset, read_parquet
from prl.data.csv_rows import CsvRows
from prl.data.gym_rows import GymRows
from prl.data.jsonl import Rows
from prl.data.rows import Needs, Table
from prl.data.source import Opened
from prl.data.tables import GENERATORS, Part, Problems, solve_rate_of
from prl.data.verifiers_rows import held_out_rows, load, named_by, train_rows
from prl.errors import ConfigError, DataError

HELD_OUT_SHARE = 5
"""Without held-out rows of their own, at most one row in this many is set aside from what is read."""
_KIND_BY_ENDING: dict[str, SourceKind] = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
_FileRows = Rows | CsvRows | ArrowRows


def source_tables(config: Config) -> list[tuple[str, SourceConfig]]:
    """The sources by the key of their table; what ``[data]`` says for all of them is in each."""
    data = config.data
    common = {name: getattr(data, name) for name in SourceTable.__struct_fields__}
    if not data.sources:
        return [("data", SourceConfig(**common))]
    return [
        (
            f"data.sources.{number}",
            msgspec.structs.replace(
                source,
                columns=source.columns or data.columns,
                answer_after=data.answer_after if source.answer_after is None else source.answer_after,
            )
            if source.source in READ_FROM_PATH
            else source,
        )
        for number, source in enumerate(data.sources)
    ]


def name_of(source: SourceTable) -> str:
    """A source in a few words, for people."""
    if source.source in GENERATORS:
        return f"{source.source}, level {source.level}"
    if source.source == "reasoning_gym":
        return f"reasoning-gym {source.task}"
    if source.source == VERIFIERS:
        return f"the environment's own, by {VERIFIERS}"
    return str(source.path)


def own_held_out(config: Config, sources: Sequence[tuple[str, SourceConfig]], needs: Needs) -> _FileRows | None:
    """What ``eval.path`` or ``eval.split`` names."""
    if not config.eval.num_samples or (config.eval.path is None and config.eval.split is None):
        return None
    if config.eval.path is None:
        _, source = sources[0]
        return _read(msgspec.structs.replace(source, split=config.eval.split), needs)
    path = Path(config.eval.path)
    kind: SourceKind = "dataset" if path.is_dir() else _KIND_BY_ENDING.get(path.suffix, "jsonl")
    source = SourceConfig(
        source=kind,
        path=config.eval.path,
        split=config.eval.split,
        columns=config.data.columns,
        answer_after=config.data.answer_after,
    )
    return _read(source, needs)


def open_one(config: Config, key: str, source: SourceConfig, needs: Needs, num_eval: int) -> Opened:
    """One source, ``num_eval`` of its rows (or problems of their own) held out. Raises as ``open_source`` does."""
    name = name_of(source)
    if source.source == "reasoning_gym":
        return _open_gym(config, key, source, needs, num_eval)
    if source.source in GENERATORS:
        kind, level, seed = source.source, source.level, config.seed
        train = Problems(kind, "train", level=level, seed=seed, num_rows=source.num_prompts)
        held_out = Problems(kind, "eval", level=level, seed=seed, num_rows=num_eval)
        _check_fields(source, train, needs)
        return Opened(key=key, name=name, train=train, held_out=held_out, weight=source.weight, is_generated=True)
    rows, apart = _of_verifiers(config, needs, num_eval) if source.source == VERIFIERS else (_read(source, needs), None)
    num_train = len(rows) - (0 if apart else min(num_eval, len(rows) // HELD_OUT_SHARE))
    kept = _kept(config, rows, num_train)
    if not kept:
        raise DataError(f"{name}: data.filter leaves none of {num_train} rows: see its solve_rate_field and bounds")
    return Opened(
        key=key,
        name=name,
        train=Part(rows, range(num_train) if len(kept) == num_train else kept),
        held_out=apart or Part(rows, range(num_train, len(rows))),
        weight=source.weight,
        num_bad=rows.judge.num_bad,
        filtered={"solve_rate": num_train - len(kept)} if len(kept) < num_train else {},
        warnings=rows.warnings(),
    )


def _of_verifiers(config: Config, needs: Needs, num_eval: int) -> tuple[ArrowRows, ArrowRows | None]:
    """The rows of the environment, and those that it holds out itself."""
    named = named_by(config.environment)
    environment = load(named)
    return train_rows(environment, named, needs), held_out_rows(environment, named, needs) if num_eval else None


def _open_gym(config: Config, key: str, source: SourceConfig, needs: Needs, num_eval: int) -> Opened:
    if source.task is None:
        raise ConfigError(f"{key}.source = 'reasoning_gym' needs {key}.task, such as 'chain_sum'")
    end = source.num_prompts + num_eval
    train = GymRows(source.task, source.options, range(source.num_prompts), seed=config.seed)
    held_out = GymRows(source.task, source.options, range(source.num_prompts, end), seed=config.seed)
    _check_fields(source, train, needs)
    return Opened(
        key=key,
        name=name_of(source),
        train=train,
        held_out=held_out,
        weight=source.weight,
        avoid=frozenset(held_out[index]["prompt"] for index in range(num_eval)),
        is_generated=True,
    )


def _check_fields(source: SourceTable, table: Table, needs: Needs) -> None:
    missing = [field for field in needs.required_fields if field not in table[0]]
    if missing:
        raise ConfigError(f"a reward needs the field {missing[0]!r}, which {source.source} prompts do not have")


def _kept(config: Config, rows: Table, num_train: int) -> list[int]:
    """The training rows within ``data.filter``'s bounds of the solve rate."""
    wanted = config.data.filter
    if wanted.min_solve_rate is None and wanted.max_solve_rate is None:
        return list(range(num_train))
    low, high = wanted.min_solve_rate or 0.0, 1.0 if wanted.max_solve_rate is None else wanted.max_solve_rate
    rates = ((index, solve_rate_of(rows[index], wanted.solve_rate_field)) for index in range(num_train))
    return [index for index, rate in rates if rate is not None and low <= rate <= high]


def _read(source: SourceTable, needs: Needs) -> _FileRows:
    """Every row of what somebody else wrote."""
    if source.path is None:
        raise ConfigError(f"data.source = {source.source!r} needs data.path, what to read")
    needs = msgspec.structs.replace(needs, columns=source.columns, answer_after=source.answer_after)
    if source.source == "dataset":
        return read_dataset(source.path, needs, subset=source.subset, split=source.split)
    if source.source == "parquet":
        return read_parquet(Path(source.path), needs)
    return CsvRows(Path(source.path), needs) if source.source == "csv" else Rows(Path(source.path), needs)

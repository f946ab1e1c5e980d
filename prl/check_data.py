"""Conflicts within ``[data]``: keys of another kind of source, bounds that leave nothing, several sources and one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from prl import word_problems
from prl.config import Config
from prl.config_data import READ_FROM_PATH, DataConfig, SourceConfig, SourceKind, SourceTable
from prl.config_environment import VERIFIERS

_ENDINGS: dict[str, SourceKind] = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", "": "dataset"}
_SHARED = ("columns", "answer_after")
_READ_BY: dict[str, tuple[SourceKind, ...]] = {
    "subset": ("dataset",),
    "split": ("dataset",),
    "task": ("reasoning_gym",),
    "options": ("reasoning_gym",),
    "columns": READ_FROM_PATH,
    "answer_after": READ_FROM_PATH,
}
"""Keys of a source that only some kinds read."""


def check_data(config: Config) -> Iterator[str]:
    """One line per conflict."""
    data = config.data
    if data.sources:
        yield from _several(data)
        for number, source in enumerate(data.sources):
            yield from _source(f"data.sources.{number}", source)
    else:
        yield from _source("data", data)
    yield from _verifiers(config)
    yield from _extra_fields(config)
    yield from _filter(config)
    yield from _curriculum(config)
    yield from _held_out(config)


def _several(data: DataConfig) -> Iterator[str]:
    """What ``[data]`` may still say of a single source beside ``[[data.sources]]``."""
    for key in SourceTable.__struct_fields__:
        if key not in _SHARED and getattr(data, key) != getattr(SourceConfig(), key):
            yield (
                f"data.{key} = {getattr(data, key)!r} is not read where there are [[data.sources]]: put it into one of"
                " them"
            )


def _source(key: str, source: SourceTable) -> Iterator[str]:
    kind = source.source
    if kind in READ_FROM_PATH and source.path is None:
        yield f"{key}.source = {kind!r} needs {key}.path"
    if kind not in READ_FROM_PATH and source.path is not None:
        meant = _ENDINGS.get(PurePath(source.path).suffix, "jsonl")
        yield f"{key}.path = {source.path!r} conflicts with {key}.source = {kind!r}: set {key}.source = {meant!r}"
    if kind == "reasoning_gym" and source.task is None:
        yield f"{key}.source = 'reasoning_gym' needs {key}.task, such as 'chain_sum'"
    for name, kinds in _READ_BY.items():
        value = getattr(source, name)
        if value not in (None, {}) and kind not in kinds:
            readers = " or ".join(map(repr, kinds))
            yield f"{key}.{name} = {value!r} is not read by {key}.source = {kind!r}, but by {readers}: remove it"
    if kind == "word_problems" and source.level > word_problems.NUM_LEVELS:
        yield (
            f"{key}.level = {source.level} conflicts with {key}.source = 'word_problems', whose levels are 1 to"
            f" {word_problems.NUM_LEVELS}"
        )


def _verifiers(config: Config) -> Iterator[str]:
    sources: Sequence[SourceTable] = config.data.sources or [config.data]
    if any(each.source == VERIFIERS for each in sources) and config.environment.name != VERIFIERS:
        yield (
            f"data.source = {VERIFIERS!r} gives the prompts of the environment that is played, and environment.name ="
            f" {config.environment.name!r}: set it to {VERIFIERS!r}, or name another source"
        )


def _extra_fields(config: Config) -> Iterator[str]:
    sources: Sequence[SourceTable] = config.data.sources or [config.data]
    is_read = config.eval.path is not None or any(each.source in READ_FROM_PATH for each in sources)
    if config.data.extra_fields == "refuse" and not is_read:
        yield "data.extra_fields = 'refuse' is of rows that somebody wrote, and no source reads any: remove it"


def _filter(config: Config) -> Iterator[str]:
    wanted, room = config.data.filter, config.engine.max_model_len - config.sampling.max_tokens
    if wanted.min_tokens > room > 0:
        yield (
            f"data.filter.min_tokens = {wanted.min_tokens} leaves no prompt: engine.max_model_len less"
            f" sampling.max_tokens has room for {room} tokens"
        )
    if wanted.max_tokens is not None and wanted.max_tokens < wanted.min_tokens:
        yield (
            f"data.filter.max_tokens = {wanted.max_tokens} is below data.filter.min_tokens = {wanted.min_tokens}, which"
            " leaves no prompt"
        )
    low, high = wanted.min_solve_rate, wanted.max_solve_rate
    if low is not None and high is not None and high < low:
        yield (
            f"data.filter.max_solve_rate = {high:g} is below data.filter.min_solve_rate = {low:g}, which leaves no"
            " prompt"
        )
    sources: Sequence[SourceTable] = config.data.sources or [config.data]
    if (low is not None or high is not None) and not any(each.source in READ_FROM_PATH for each in sources):
        yield (
            "data.filter has bounds of the solve rate, and no source has rows that could state one: remove them, or"
            " take data.curriculum, which measures"
        )


def _curriculum(config: Config) -> Iterator[str]:
    band = config.data.curriculum.band
    if band is not None and band[1] < band[0]:
        yield f"data.curriculum.band = {list(band)} must be a lower and a higher solve rate"


def _held_out(config: Config) -> Iterator[str]:
    held_out, data = config.eval, config.data
    if held_out.split is None or held_out.path is not None:
        return
    if data.sources or data.source != "dataset":
        yield (
            f"eval.split = {held_out.split!r} is a split of the one dataset that is trained on, and there is"
            f" {'more than one source' if data.sources else f'data.source = {data.source!r}'}: name eval.path too"
        )
    elif held_out.split == (data.split or "train"):
        yield f"eval.split = {held_out.split!r} is what is trained on: name another split, or remove it"

"""Environments of the package ``verifiers``: one loaded by its id, and its data sets as tables.

- The package is imported here first, and a missing one names its extra. Making an environment, it would take SIGINT and
  SIGTERM, which are prl's: it is kept from that.
- A row is as the environment has made it, its system prompt and examples within the messages; all its columns stay for
  the environment (``info``, ``task``, ``example_id`` among them). It is checked like any row (``rows.py``).
"""

from __future__ import annotations

import logging
import signal
import types
from typing import Any

import msgspec

from prl.config_environment import VERIFIERS, EnvironmentConfig
from prl.data.arrow_rows import ArrowRows
from prl.data.rows import Needs
from prl.errors import ConfigError, MissingExtraError
from prl.plugins import look_here


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the environment ``verifiers`` that name one of the package's."""

    env: str
    args: dict[str, Any] = {}


def named_by(environment: EnvironmentConfig) -> Named:
    """Which one ``[environment]`` names. Raises ConfigError where it names none."""
    if environment.name != VERIFIERS:
        raise ConfigError(
            f"data.source = {VERIFIERS!r} gives the prompts of the environment that is played, and environment.name ="
            f" {environment.name!r}: set it to {VERIFIERS!r}"
        )
    try:
        return msgspec.convert(environment.options, Named)
    except msgspec.ValidationError as error:
        raise ConfigError(f"environment.options of {VERIFIERS!r}: {error}") from error


def load(named: Named) -> Any:
    """A ``verifiers.Environment``. Raises ConfigError where there is none, MissingExtraError without the package."""
    try:
        import datasets  # noqa: PLC0415 - an extra, and seconds to import
        import verifiers  # noqa: PLC0415 - the same
        from verifiers.envs import environment as environments  # noqa: PLC0415 - the same
    except ImportError as error:
        raise MissingExtraError("verifiers", "verifiers", f"environment.name = {VERIFIERS!r}") from error
    logger = logging.getLogger("verifiers")
    if not logger.handlers:  # what it says of an episode is raised, and a terminal has prl's panel
        logger.addHandler(logging.NullHandler())
    datasets.disable_progress_bars()
    environments.signal = _handlerless()
    look_here()
    try:
        return verifiers.load_environment(named.env, **named.args)
    except (ValueError, RuntimeError) as error:  # what it makes of everything that goes wrong
        raise ConfigError(
            f"environment.options.env = {named.env!r}: {str(error).rstrip('.')}. It is a module with a function"
            " load_environment, installed or in the working directory; environment.options.args are its arguments"
        ) from error


def train_rows(environment: Any, named: Named, needs: Needs) -> ArrowRows:
    """The rows that it is trained on. Raises DataError, or ConfigError where it has none."""
    try:
        dataset = environment.get_dataset()
    except ValueError as error:
        raise ConfigError(f"the environment {named.env!r} of verifiers has no data to train on: {error}") from error
    if not len(dataset):
        raise ConfigError(
            f"the environment {named.env!r} of verifiers has no data to train on: its data set has no rows. See"
            " environment.options.args, which may choose or filter it"
        )
    return _rows(dataset, f"verifiers {named.env}", needs)


def held_out_rows(environment: Any, named: Named, needs: Needs) -> ArrowRows | None:
    """Its own held-out rows; None where it has none."""
    dataset = environment.build_eval_dataset()
    return None if dataset is None or not len(dataset) else _rows(dataset, f"verifiers {named.env} [eval]", needs)


def _rows(dataset: Any, name: str, needs: Needs) -> ArrowRows:
    if "answer" in dataset.column_names and not any(map(str.strip, map(str, dataset["answer"]))):
        dataset = dataset.remove_columns("answer")  # its word for none
    is_text = isinstance(dataset[0]["prompt"], str)
    columns = {} if is_text else {"messages": "prompt"}
    return ArrowRows(dataset, name, msgspec.structs.replace(needs, columns=columns, answer_after=None))


def _handlerless() -> Any:
    """The module ``signal``, but that it sets no handler: handlers are prl's, and of the main thread alone."""
    stand_in = types.ModuleType("signal")
    stand_in.__dict__.update(vars(signal), signal=lambda *_: None)
    return stand_in

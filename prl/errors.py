"""Every error that prl raises on purpose. A message says what was wrong, the value, where, and what to do.

    PrlError
    +-- ConfigError          the user's input: one line on stderr, exit 2, nothing started
    |   +-- DataError        a row or file of prompts; names file, line and field
    |   +-- PluginError      a reward or another plug-in that cannot be found or has the wrong shape
    +-- MissingExtraError    an optional package is not installed; names the extra
    +-- EngineError          an engine refused or failed a request
    |   +-- EngineDeadError  an engine's process is gone; carries its last log lines
    |   +-- EngineStalledError   an engine gave an open stream no token in time
    |   +-- EngineLeftError  an engine was removed from the run under an open stream
    +-- TrainerError         a trainer rank failed, or broke the protocol; carries its last log lines
    |   +-- TrainerDeadError a rank is gone, or hangs: what a restart may mend
    +-- WeightSyncError      a weight push failed; names the side that failed
    +-- RewardError          rewards failed too often, or a user's reward raised a bug
    +-- EpisodeError         an environment asked the model for a turn, and there is none
    |   +-- EpisodeOverError an episode has had its turns, or its context is full
    |   +-- TurnFailedError  a turn came to nothing; it may be asked for again
    +-- CheckpointError      a checkpoint could not be written or read
    +-- JournalError         the journal of a run is missing or cannot be used
    +-- DiskError            the disk took nothing for run.disk_timeout_s
    +-- RefusedError         what was asked of a run under way cannot be done, and nothing has changed
    |   +-- NotFoundError    it names something that is not there
    +-- StallError           nothing moved for run.stall_timeout_s; says who waits for whom

An expected failure of one rollout is no exception but a value (see ``rollout.py``); what is not in this tree is a bug
and ends the run with its traceback.
"""

from __future__ import annotations


class PrlError(Exception):
    """Base of every error that prl raises on purpose."""


class ConfigError(PrlError):
    """The configuration, or something it names, is not usable."""


class DataError(ConfigError):
    """A file or row of prompts is not usable."""


class PluginError(ConfigError):
    """A plug-in cannot be found or does not have the shape it must have."""


class MissingExtraError(PrlError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'prl-train[{extra}]'")


class EngineError(PrlError):
    """An engine refused or failed a request."""


class EngineDeadError(EngineError):
    """An engine's process is gone."""


class EngineStalledError(EngineError):
    """An engine gave an open stream no token in time."""


class EngineLeftError(EngineError):
    """An engine was removed from the run."""


class TrainerError(PrlError):
    """A trainer rank failed, or broke the protocol."""


class TrainerDeadError(TrainerError):
    """A trainer rank is gone or hangs."""


class WeightSyncError(PrlError):
    """A weight push did not complete."""


class RewardError(PrlError):
    """Rewards failed too often to go on, or a reward has a bug."""


class EpisodeError(PrlError):
    """An environment asked the model for a turn, and there is none."""


class EpisodeOverError(EpisodeError):
    """An episode has had its turns, or its context is full."""


class TurnFailedError(EpisodeError):
    """A turn came to nothing; it may be asked for again."""


class CheckpointError(PrlError):
    """A checkpoint could not be written or read."""


class JournalError(PrlError):
    """The journal of a run is missing, or does not fit its checkpoints."""


class DiskError(PrlError):
    """The disk took nothing for ``run.disk_timeout_s``."""


class RefusedError(PrlError):
    """What was asked of a run under way cannot be done, and nothing has changed."""


class NotFoundError(RefusedError):
    """What was asked names something that is not there."""


class StallError(PrlError):
    """Nothing moved for longer than ``run.stall_timeout_s``."""

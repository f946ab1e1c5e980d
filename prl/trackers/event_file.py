"""An event file in TensorBoard's format, by the ``tensorboard`` package alone: neither torch nor TensorFlow is needed.

The summaries of its HParams tab are put together here, since those of the package want TensorFlow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

_FLUSH_S = 30


class EventFile:
    """A new one in ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder), flush_secs=_FLUSH_S)

    def forget_from(self, step: int) -> None:
        """What earlier files say of ``step`` and later ones counts no more."""
        self._add(step, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """A point of each curve."""
        named = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=Summary(value=named))

    def text(self, tag: str, markdown: str) -> None:
        """A text of the Text tab."""
        self._add(0, summary=text_pb(tag, markdown))

    def session_starts(self, hyperparameters: Mapping[str, Any], group: str) -> None:
        """A row of the HParams tab."""
        info = SessionStartInfo(group_name=group, start_time_secs=time.time())
        for key, value in hyperparameters.items():
            if isinstance(value, bool):
                info.hparams[key].bool_value = value
            elif isinstance(value, (int, float)):
                info.hparams[key].number_value = value
            else:
                info.hparams[key].string_value = str(value)
        self._add_hparams(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=info))

    def session_ends(self, *, failed: bool) -> None:
        """How that row ended."""
        status = api_pb2.Status.Value("STATUS_FAILURE" if failed else "STATUS_SUCCESS")
        info = SessionEndInfo(status=status, end_time_secs=time.time())
        self._add_hparams(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info))

    def flush(self) -> None:
        """To the disk."""
        self._writer.flush()

    def close(self) -> None:
        """The same, and no more comes."""
        self._writer.close()

    def _add_hparams(self, tag: str, content: HParamsPluginData) -> None:
        about = metadata.create_summary_metadata(content)
        value = Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
        self._add(0, summary=Summary(value=[value]))

    def _add(self, step: int, **what: Any) -> None:
        self._writer.add_event(Event(step=step, wall_time=time.time(), **what))

"""Sends a run in two parts to a real tracker, offline, and writes what that has then: ``NAME FOLDER``.

It goes to ``found.json``. A process of its own, since these packages are slow to import, and leave threads and exit
handlers behind.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prl.config import RewardConfig
from prl.config_trackers import TrackerConfig
from prl.settings import load_config
from prl.trackers.child import Sender
from tests.trackers import recorded

Curves = dict[str, list[tuple[int, float]]]


def never(seconds: float) -> None:
    """In place of a pause: there is nothing to wait for."""
    raise AssertionError(f"a pause of {seconds} s")


def send(folder: Path, part: str, first_step: int) -> None:
    """What the tracker's process does in one part of the run."""
    sender = Sender(folder, load_config(folder / "config.toml"), 0, part=part, first_step=first_step, pause=never)
    assert sender.run() == 0


def tensorboard(folder: Path) -> dict[str, Any]:
    """As TensorBoard itself reads event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    curves = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    config = {key: value.string_value or value.number_value for key, value in given.items()}
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"groups_per_step": 2' in text
    summary = {"goodput": curves.pop("summary/goodput")[-1][1]}
    return {"curves": curves, "config": config, "summary": summary, "num_runs": 1}


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a ``.wandb`` file: a header, then blocks of 32 KiB as LevelDB writes its logs."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def wandb(folder: Path) -> dict[str, Any]:
    """What ``wandb sync`` would send: every part's file under one id."""
    curves: Curves = {}
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    ids = set()
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for record in wandb_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                ids.add(record.run.run_id)
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                for name, value in row.items():
                    if "/" in name:
                        curves.setdefault(name, []).append((row["step"], value))
            elif kind == "summary":
                summary |= {"/".join(item.nested_key) or item.key: item.value_json for item in record.summary.update}
    flat = {
        f"{table}.{key}": value for table, of in config.items() if isinstance(of, dict) for key, value in of.items()
    }
    return {"curves": curves, "config": flat, "summary": json.loads(summary["summary"]), "num_runs": len(ids)}


def mlflow(folder: Path) -> dict[str, Any]:
    """Through MLflow's client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    (run,) = runs
    assert run.info.status == "FINISHED"
    curves = {
        key: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key)]
        for key in run.data.metrics
    }
    summary = {"goodput": curves.pop("summary/goodput")[-1][1]}
    return {"curves": curves, "config": run.data.params, "summary": summary, "num_runs": len(runs)}


def trackio(_: Path) -> dict[str, Any]:
    """From trackio's own database."""
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("prl")
    curves: Curves = {}
    for row in SQLiteStorage.get_logs("prl", name):
        for key, value in row.items():
            if "/" in key:
                curves.setdefault(key, []).append((row["step"], value))
    summary = {"goodput": curves.pop("summary/goodput")[-1][1]}
    config = SQLiteStorage.get_run_config("prl", name)
    flat = {
        f"{table}.{key}": value for table, of in config.items() if isinstance(of, dict) for key, value in of.items()
    }
    return {"curves": curves, "config": flat, "summary": summary, "num_runs": 1}


def main(name: str, folder: Path) -> None:
    """See the module: the first part does steps 1 to 4, the second goes on from the checkpoint of step 2."""
    os.environ |= {"TRACKIO_DIR": str(folder / "trackio"), "WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"}
    judged = RewardConfig(name="test-length", options={"api_key": "sesame-open", "what?!": {"odd key": 1}})
    config = recorded.config_with(TrackerConfig(name=name), rewards=[judged])
    recorded.begin(folder, config)
    recorded.add_steps(folder, range(5))
    recorded.end(folder, "stopped")
    send(folder, "first", 0)
    recorded.begin(folder, config, 2)
    recorded.add_steps(folder, range(3, 7), loss=0.25)
    recorded.end(folder)
    send(folder, "second", 2)
    found = globals()[name](folder)
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute())

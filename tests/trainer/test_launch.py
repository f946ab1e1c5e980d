from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from prl.config import EngineConfig, TrainerConfig
from prl.errors import ConfigError
from prl.trainer import launch
from tests.trainer.cases import make_config

CONFIG = make_config(Path("m"), trainer={"num_ranks": 3})
EXTERNAL = make_config(Path("m"), trainer={"launch": "external"})


def test_the_token_is_never_an_argument() -> None:
    """The secret and the address are in the environment only."""
    token = launch.make_token(CONFIG)
    environment = launch.environment(CONFIG, "127.0.0.1:4000", token, Path("logs"))
    assert len(token) >= 32
    assert environment["PRL_TOKEN"] == token
    assert environment["PRL_TRAINER_ADDRESS"] == "127.0.0.1:4000"
    assert not any(token in part or "4000" in part for part in launch.torchrun_command(3))
    assert launch.make_token(CONFIG) != token


def test_ranks_started_by_hand_need_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """External ranks use PRL_TOKEN, and without it the run refuses to start."""
    monkeypatch.delenv("PRL_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="PRL_TOKEN"):
        launch.make_token(EXTERNAL)
    monkeypatch.setenv("PRL_TOKEN", "mine")
    assert launch.make_token(EXTERNAL) == "mine"
    assert "mine" not in launch.by_hand(EXTERNAL, "host:1")


@pytest.mark.parametrize(("listen", "expected"), [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80))])
def test_addresses_are_read(listen: str, expected: tuple[str, int]) -> None:
    """Host and port, with brackets around an IPv6 host."""
    assert launch.split_address(listen) == expected


@pytest.mark.parametrize("listen", ["", "127.0.0.1", ":80", "host:", "host:x", "host:65536", "host:-1"])
def test_bad_addresses_are_config_errors(listen: str) -> None:
    """What is no host:port names the key and the value."""
    with pytest.raises(ConfigError, match=r"trainer\.listen") as caught:
        launch.split_address(listen)
    assert repr(listen) in str(caught.value)


def test_the_users_threads_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """OMP_NUM_THREADS is a share of the cores, at least 1, unless the user chose."""
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert launch.environment(CONFIG, "a:1", "t", Path())["OMP_NUM_THREADS"] == "4"
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert launch.environment(CONFIG, "a:1", "t", Path())["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert launch.environment(CONFIG, "a:1", "t", Path())["OMP_NUM_THREADS"] == "7"


def test_ranks_take_the_gpus_behind_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2 engines of 2 GPUs and 2 ranks of 8 visible GPUs the ranks see the fifth and sixth; of 4 they share all."""
    config = msgspec.structs.replace(
        CONFIG,
        engine=EngineConfig(count=2, tensor_parallel_size=2),
        trainer=TrainerConfig(num_ranks=2),
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5,4,3,2,1,0")
    assert launch.environment(config, "a:1", "t", Path())["CUDA_VISIBLE_DEVICES"] == "3,2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert "CUDA_VISIBLE_DEVICES" not in launch.environment(config, "a:1", "t", Path())


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0, 1"),
        ([0, 2, 3, 4, 7, 8], "ranks 0, 2-4, 7, 8"),
        (list(range(128)), "ranks 0-127"),
    ],
)
def test_ranks_are_named_in_runs(ranks: list[int], expected: str) -> None:
    """A hundred missing ranks are one short line."""
    assert launch.named(ranks) == expected


def test_the_command_names_a_host_that_others_reach() -> None:
    """Listening on every address is no address to connect to; replicas are one a host."""
    config = make_config(Path("m"), trainer={"launch": "external", "num_ranks": 8, "num_replicas": 2})
    command = launch.by_hand(config, "0.0.0.0:29400")
    assert f"PRL_TRAINER_ADDRESS={socket.gethostname()}:29400" in command
    assert "--nnodes 2 --nproc-per-node 4" in command


REPORT = """\
W1130 06:35:13.001000 29460 torch/distributed/run.py:851] something else
E1130 06:35:14.063000 29460 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) \
local_rank: 1 (pid: 4711) of binary: /usr/bin/python
Traceback (most recent call last):
  torchrun's own
"""


@pytest.mark.parametrize(("code", "expected"), [(-9, "was killed by SIGKILL"), (1, "exited with 1")])
def test_torchruns_log_says_how_a_rank_ended(tmp_path: Path, code: int, expected: str) -> None:
    """The report names pid and exit; of another rank, and in a log that is not there, nothing is known."""
    log = tmp_path / "trainer.log"
    log.write_text(REPORT.format(code=code))
    assert launch.how_it_ended(log, 4711) == expected
    assert launch.how_it_ended(log, 4712) is None
    assert launch.how_it_ended(tmp_path / "none", 4711) is None

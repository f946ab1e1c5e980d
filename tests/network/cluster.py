"""The default job over several hosts: the controller, torchrun on each trainer host, a server on each engine host.

Whoever starts the parts on their hosts, a person or a scheduler, starts them like this.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prl.engines.server_command import KEY_VARIABLE, server_command, server_environment
from prl.models import resolve_model
from prl.settings import load_config
from tests.network.layout import Network

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "configs/math.toml"
TOKEN, API_KEY = "a secret for this test alone", "another one"
LISTEN_PORT, MEETING_PORT, SERVER_PORT = 29400, 29500, 8000
POLL_S = 0.2
KILL_S = 10.0


class Cluster:
    """What runs on the hosts of ``network``; logs and the run folder are in ``folder``, which all of them see."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder, self.run_dir = network, folder, folder / "run"
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    # ---- the parts ---------------------------------------------------------------------------------------------------

    def start_controller(self, settings: Mapping[str, str]) -> None:
        """``prl run`` of the default job, told where ranks connect."""
        address = f"{self.network.address('controller')}:{LISTEN_PORT}"
        every = {"trainer.launch": "external", "trainer.listen": address, **settings}
        assignments = [f"{name}={value}" for name, value in every.items()]
        command = ["-m", "prl", "run", str(CONFIG), "--plain", "--run-dir", str(self.run_dir), "--set", *assignments]
        self._start("controller", "controller", command, {"PRL_TOKEN": TOKEN, KEY_VARIABLE: API_KEY})

    def start_ranks(self, hosts: list[str]) -> None:
        """A torchrun with one rank on each of ``hosts``, which brings its rank anew when one has died."""
        first, controller = self.network.address(hosts[0]), self.network.address("controller")
        for host in hosts:
            options = ["--nnodes", str(len(hosts)), "--nproc-per-node", "1", "--max-restarts", "5"]
            options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:{MEETING_PORT}"]
            options += ["--rdzv-conf", "is_host=" + str(int(host == hosts[0]))]
            options += ["--local-addr", self.network.address(host)]
            variables = {"PRL_TRAINER_ADDRESS": f"{controller}:{LISTEN_PORT}", "PRL_TOKEN": TOKEN}
            command = ["-m", "torch.distributed.run", *options, "-m", "prl.trainer.worker"]
            self._start(f"torchrun on {host}", host, command, variables)

    def start_servers(self, hosts: list[str], settings: Mapping[str, str]) -> dict[str, str]:
        """``vllm serve`` on each of ``hosts``, for a run with ``settings``; what the run has to be told of them."""
        config = load_config(CONFIG, [f"{name}={value}" for name, value in settings.items()])
        for host in hosts:
            own = self.network.address(host)
            command = server_command(resolve_model(config.model), config.engine, "gloo", host=own, port=SERVER_PORT)
            assert command[0] == sys.executable, "the build for a CPU is started by a module's name"
            # vLLM would look for the way to the internet to find out who it is
            variables = {"VLLM_HOST_IP": own, "GLOO_SOCKET_IFNAME": "cable", KEY_VARIABLE: API_KEY}
            self._start(f"server on {host}", host, command[1:], server_environment(config.engine) | variables)
        addresses = [f"'http://{self.network.address(host)}:{SERVER_PORT}'" for host in hosts]
        return {
            "engine.kind": "server",
            "engine.servers": f"[{', '.join(addresses)}]",
            "engine.api_key_env": KEY_VARIABLE,
        }

    def _start(self, name: str, host: str, command: list[str], variables: Mapping[str, str]) -> None:
        with self._log(name).open("wb") as log:
            self._children[name] = subprocess.Popen(
                self.network.on(host, sys.executable, *command),
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until ``condition`` holds while the controller is there."""
        deadline = time.monotonic() + seconds
        while not condition():
            code = self._children["controller"].poll()
            assert code is None, f"the run ended with {code} before {what}:\n{self.logs()}"
            assert time.monotonic() < deadline, f"no {what} within {seconds:g} s:\n{self.logs()}"
            time.sleep(POLL_S)

    def wait(self, name: str, seconds: float) -> int:
        """The exit code of a part."""
        try:
            return self._children[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} did not end within {seconds:g} s:\n{self.logs()}") from None

    def stop(self, name: str) -> None:
        """Ask a part to leave as soon as it has saved."""
        self._children[name].send_signal(signal.SIGTERM)

    @property
    def step(self) -> int:
        """Steps that are done."""
        path = self.run_dir / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def events(self) -> list[dict[str, Any]]:
        """What the run wrote down that happened."""
        path = self.run_dir / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def happened(self, words: str) -> bool:
        """Whether an event's line holds ``words``."""
        return any(words in json.dumps(event) for event in self.events())

    def logs(self, num_bytes: int = 1500) -> str:
        """The end of what each part printed."""
        texts = {name: self._log(name).read_bytes()[-num_bytes:].decode(errors="replace") for name in self._children}
        return "\n".join(f"---- {name}\n{text}" for name, text in texts.items())

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    def kill_all(self) -> None:
        """End every part that is left, with all its processes."""
        for child in self._children.values():
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for child in self._children.values():
            child.wait(KILL_S)


@contextmanager
def cluster(network: Network, folder: Path) -> Iterator[Cluster]:
    """A cluster of which nothing is left afterwards."""
    parts = Cluster(network, folder)
    try:
        yield parts
    finally:
        parts.kill_all()

"""Network namespaces that stand for hosts, each with a cable (a veth pair) to one switch (a bridge).

Between two of them there is a real TCP stack and a real link, which can be pulled: packets are then lost in both
directions and nobody is told, as with a cable or a switch that fails. It takes root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

_SWITCH = "switch"


class Network:
    """Hosts ``names`` in the net 10.77.0.0/24; ``laid_out`` makes it and takes it away."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._prefix = f"prl{os.getpid()}"

    def address(self, name: str) -> str:
        """Where a host is reached."""
        return f"10.77.0.{self._names.index(name) + 1}"

    def on(self, name: str, *command: str) -> list[str]:
        """``command``, run on a host."""
        return ["ip", "netns", "exec", self._space(name), *command]

    def cut(self, name: str) -> None:
        """Pull a host's cable."""
        _ip("-n", self._space(_SWITCH), "link", "set", name, "down")

    def heal(self, name: str) -> None:
        """Put it back."""
        _ip("-n", self._space(_SWITCH), "link", "set", name, "up")

    def make(self, stack: ExitStack) -> None:
        """Lay everything out; ``stack`` takes it away."""
        for name in [_SWITCH, *self._names]:
            _ip("netns", "add", self._space(name))
            stack.callback(_ip, "netns", "delete", self._space(name))
            _ip("-n", self._space(name), "link", "set", "lo", "up")
        switch = self._space(_SWITCH)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for name in self._names:
            space = self._space(name)
            _ip("-n", switch, "link", "add", name, "type", "veth", "peer", "name", "cable", "netns", space)
            _ip("-n", switch, "link", "set", name, "master", "bridge", "up")
            _ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", "cable")
            _ip("-n", space, "link", "set", "cable", "up")

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"


@contextmanager
def laid_out(*names: str) -> Iterator[Network]:
    """A network of these hosts, while it lasts."""
    with ExitStack() as stack:
        network = Network(names)
        network.make(stack)
        yield network


def why_not() -> str | None:
    """Why there can be no namespaces here; None: there can."""
    if shutil.which("ip") is None:
        return "network namespaces need the command `ip` (Debian's iproute2), which is not installed"
    name = f"prl{os.getpid()}-probe"
    for command in (("netns", "add", name), ("netns", "exec", name, "true"), ("netns", "delete", name)):
        done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
            what = done.stderr.strip() or f"exit code {done.returncode}"
            return f"network namespaces are not allowed here (ip {' '.join(command)}: {what}); they take root"
    return None


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"

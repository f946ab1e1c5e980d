"""``versions.json``: which software and which devices a run had when it started last.

Nothing is imported for it: versions are those of the installed packages.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = {"prl": "prl-train", "torch": "torch", "vllm": "vllm", "transformers": "transformers"}
ASK_TIMEOUT_S = 10.0


def versions() -> dict[str, Any]:
    """The versions of what computes, None where it is not installed; the platform; the devices. Blocking."""
    return {
        **{name: _version(package) for name, package in PACKAGES.items()},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": [*_gpus(), {"kind": "cpu", "name": _processor(), "cores": _num_cores()}],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _num_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _processor() -> str:
    """Its name, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 -- no file of ours
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        name = ""
    return name or platform.processor() or platform.machine()


def _gpus() -> list[dict[str, Any]]:
    """Each GPU that the driver lists; none where there is no driver, or it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ASK_TIMEOUT_S)  # noqa: S603 -- fixed words
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in told.stdout.splitlines() if line.count(",") == 2]  # noqa: PLR2004
    return [{"kind": "gpu", "name": name, "memory_mib": memory, "driver": driver} for name, memory, driver in rows]

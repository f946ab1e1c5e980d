"""``python -m tests.faults.matrix``: run the fault matrix, write its results and the table made of them.

``--only WORDS`` runs the cells whose names hold any of these, and leaves the other results as they are;
``--failed`` leaves out those that have passed; ``--jobs N`` runs so many jobs at once; ``--seconds S`` begins no cell
after so long.
"""

from __future__ import annotations

import argparse
import math
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tests.faults.cells import CELLS, chains
from tests.faults.judge import Result, run_chain
from tests.faults.table import merge, read, write


def main() -> int:
    """Run; 0 where every cell passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cells whose names hold any of these")
    parser.add_argument("--failed", action="store_true", help="cells that have not passed yet")
    parser.add_argument("--jobs", type=int, default=1, help="jobs at once")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no cell after so long")
    arguments = parser.parse_args()
    passed = {result.name for result in read() if result.passed}
    wanted = [
        cell
        for cell in CELLS
        if (not arguments.only or any(word in str(cell) for word in arguments.only))
        and not (arguments.failed and str(cell) in passed)
    ]
    began, lock = time.monotonic(), threading.Lock()
    results: list[Result] = []

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {text}", flush=True)

    def serve(chain: list[object]) -> None:
        found = run_chain(chain, say, until=began + arguments.seconds)
        with lock:
            results.extend(found)
            write(merge(read(), found))

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for done in [pool.submit(serve, chain) for chain in chains(wanted)]:
            done.result()
    failed = [result.name for result in results if not result.passed]
    say(f"{len(results) - len(failed)} of {len(results)} cells passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

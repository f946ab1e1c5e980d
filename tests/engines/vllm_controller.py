"""A controller that opens a vLLM engine, says so, and waits to be killed: ``python -m ... MODEL LOGS``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.engines.vllm_factory import core_process, make_engine


async def main(model: Path, logs: Path) -> None:
    """Never returns."""
    engine = make_engine(model, logs)
    await engine.open()
    print(core_process(engine).pid, flush=True)  # noqa: T201 -- for the test that reads it
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))

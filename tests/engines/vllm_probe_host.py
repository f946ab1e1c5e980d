"""The vLLM host with eyes: tests say by files what its core shall do, and read from files what it did.

The core is a fork of the host, so what is put in place here is in place there.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.worker.cpu_worker import CPUWorker

from prl.engines import gloo_transfer, vllm_host, vllm_reload, vllm_serving
from tests.engines.vllm_probes import (
    DENY_TWINS,
    FOLDER,
    FORGET_REPACKING,
    NUM_REQUESTS,
    PAUSE_ASKED,
    SAMPLE_OTHERWISE,
)

_ON_ITS_WAY_S = 0.05
"""After so long a request that was written to the core's socket is before the core."""


def main() -> None:
    """Put the probes in place, then be the host."""
    folder = Path(os.environ[FOLDER])
    repack, execute, pause = (
        vllm_reload.repack_tied_heads,
        CPUWorker.execute_model,
        AsyncMPClient.pause_scheduler_async,
    )
    has_twin, honest = gloo_transfer.has_twin, vllm_serving.stream_params

    def stream_params(decoding: Any) -> Any:
        params, told = honest(decoding), folder / SAMPLE_OTHERWISE
        for name, value in json.loads(told.read_text()).items() if told.exists() else ():
            setattr(params, name, value)
        return params

    def has_twin_unless_told(model: Any) -> bool:
        return not (folder / DENY_TWINS).exists() and has_twin(model)

    def repack_unless_told(model: Any) -> None:
        if not (folder / FORGET_REPACKING).exists():
            repack(model)

    def execute_and_count(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = execute(self, *args, **kwargs)
        written = folder / f"{NUM_REQUESTS}-{os.getpid()}"
        written.write_text(str(len(self.model_runner.requests)))
        written.rename(folder / NUM_REQUESTS)  # whole, whenever it is read
        return output

    async def pause_and_tell(self: Any, *args: Any, **kwargs: Any) -> None:
        asked = asyncio.ensure_future(pause(self, *args, **kwargs))
        await asyncio.sleep(_ON_ITS_WAY_S)
        (folder / PAUSE_ASKED).touch()
        await asked

    vllm_serving.stream_params = stream_params
    vllm_reload.repack_tied_heads = repack_unless_told
    gloo_transfer.has_twin = has_twin_unless_told
    AsyncMPClient.pause_scheduler_async = pause_and_tell
    CPUWorker.execute_model = execute_and_count
    vllm_host.main()


if __name__ == "__main__":
    main()

"""The vLLM engine: an ``AsyncLLM`` in a host process, which the controller hears through one message for many streams.

This is the controller's half and imports neither torch nor vLLM; the host is ``vllm_host.py``.

Invariants, besides those of ``hosted.py``:

- A stream's versions are those that vLLM noted at the sampling step.
- No request reads prefix cache of older weights: each is salted with the load it is submitted under, none is submitted
  while paused, and one that has sampled nothing when a load completes is submitted again under the new salt.
- At most ``max_num_seqs`` streams are with vLLM at once; the others wait in the host, in order. vLLM has one slot more,
  so that a score is computed at once however many streams there are.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import ClassVar

from prl.config import EngineConfig
from prl.engines.host_protocol import Start
from prl.engines.hosted import HostedEngine
from prl.engines.vllm_environment import host_environment
from prl.errors import MissingExtraError
from prl.models import resolve_model

HOST = "prl.engines.vllm_host"
_SEEDS = 2**31


class VllmEngine(HostedEngine):
    """One host process with an ``AsyncLLM``, its core and workers.

    Args:
        index: names the engine and its log, ``engine-<index>``.
        model: what the config names; a built-in, a folder, or a hub name.
        config: ``[engine]``.
        transport: vLLM's name of the weight-transfer backend.
        seed: of the run; engines of one run differ by their index.
        log_dir: where ``engine-<index>.log`` is written.
        cores: CPU cores to compute on; None: one thread, not bound. Only on a CPU.
        devices: GPU indices; None: the first ``tensor_parallel_size`` after those of the engines before.
        host: the module that the host process runs.
    """

    library: ClassVar[str] = "vLLM"

    def __init__(
        self,
        *,
        index: int,
        model: str,
        config: EngineConfig,
        transport: str,
        seed: int,
        log_dir: Path,
        cores: list[int] | None = None,
        devices: list[int] | None = None,
        host: str = HOST,
    ) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise MissingExtraError("vllm", "vllm" if shutil.which("nvidia-smi") else "cpu", "the vLLM engine")
        size = config.tensor_parallel_size
        start = Start(
            model=resolve_model(model),
            config=config,
            transport=transport,
            seed=(seed * 1_000_003 + index) % _SEEDS,
            num_threads=1,
            devices=devices or [index * size + rank for rank in range(size)],
            cores=cores,
        )
        environment = host_environment(config, cores)
        super().__init__(name=f"engine-{index}", module=host, environment=environment, start=start, log_dir=log_dir)

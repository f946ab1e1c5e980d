"""What the processes of a vLLM engine see besides the controller's environment, said without importing vLLM."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from prl.config import EngineConfig

_WHOLE_STEP = 1 << 20
"""Outputs that vLLM processes without looking at anything else: a decode step's, which become one message."""


def is_cpu_build() -> bool:
    """Whether vLLM will compute on the CPU, told as vLLM tells it, without importing it."""
    try:
        return "cpu" in version("vllm") or sys.platform == "darwin"
    except PackageNotFoundError:  # the distribution has another name, and vLLM knows this one
        return True


def host_environment(config: EngineConfig, cores: list[int] | None) -> dict[str, str]:
    """What the host, the core and its workers see besides the controller's environment.

    Args:
        config: for the tensor-parallel size.
        cores: the cores to compute on, split evenly over the workers; None: one thread each, where the kernel likes.
    """
    environment = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": str(_WHOLE_STEP),
    }
    if is_cpu_build():
        # The sampler's one compiled function is not worth a C++ compiler and most of a minute at the first token.
        environment |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
        if cores is not None:
            share = len(cores) // config.tensor_parallel_size
            shares = [cores[rank * share : (rank + 1) * share] for rank in range(config.tensor_parallel_size)]
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, share)) for share in shares)
    return environment

"""How a server is started that will do for a run: the flags of ``vllm serve``, and what is in its environment.

It is what ``server_questions.py`` asks for, in the words of the command line. Only the key is not in it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from prl.config import EngineConfig
from prl.engines.vllm_environment import is_cpu_build

KEY_VARIABLE = "VLLM_API_KEY"
"""Where the server looks for the key that it is to ask for."""


def server_command(
    model: str, config: EngineConfig, transport: str, *, host: str, port: int, on_cpu: bool | None = None
) -> list[str]:
    """The command for one server, on a machine like this one unless ``on_cpu`` says what that one is."""
    transfer = f'{{"backend": "{transport}"}}'
    command = [
        *_program(model),
        *("--host", host, "--port", str(port)),
        *("--tokens-only", "--skip-tokenizer-init", "--generation-config", "vllm"),
        *("--logprobs-mode", "processed_logprobs", "--dtype", config.dtype),
        *("--max-model-len", str(config.max_model_len)),
        *("--max-num-seqs", str(config.max_num_seqs + 1)),  # one for scores
        *("--weight-transfer-config", transfer),
        "--disable-uvicorn-access-log",
    ]
    if config.tensor_parallel_size > 1:
        command += ["--tensor-parallel-size", str(config.tensor_parallel_size)]
    if is_cpu_build() if on_cpu is None else on_cpu:
        # A worker in a process of its own and the core would each spin while they wait for the other.
        one_process = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
        alone = ["--distributed-executor-backend", one_process] if config.tensor_parallel_size == 1 else []
        return [*command, "--enforce-eager", *alone]
    return [*command, "--gpu-memory-utilization", f"{config.gpu_memory_utilization:g}"]


def server_environment(config: EngineConfig, *, on_cpu: bool | None = None) -> dict[str, str]:
    """What it has in its environment besides; the key, if it is to ask for one, is in ``KEY_VARIABLE``."""
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if is_cpu_build() if on_cpu is None else on_cpu:
        environment |= {
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(config.kv_cache_gib))),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            # The sampler's one compiled function is not worth a C++ compiler and most of a minute at the first token.
            "TORCHDYNAMO_DISABLE": "1",
        }
    return environment


def as_shell(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Both as one line for a shell."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(command)])


def _program(model: str) -> list[str]:
    """``vllm serve``; the builds for a CPU that go by another name have that command and it does not find itself."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return [sys.executable, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    return ["vllm", "serve", model]

"""What prl asks of vLLM: engine arguments, the child's environment, the front end's manners.

The one place where a CPU and a GPU set-up differ. Importing this module does not import vLLM.

- Log-probabilities are those of the distribution sampled from (``processed_logprobs``), and the checkpoint's own
  sampling defaults are not read (``generation_config="vllm"``): they would change that distribution.
- The tokenizer is not loaded: ids go in and ids come out.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from prl.config import EngineConfig
from prl.engines.base import Decoding
from prl.types import WeightGroup, WeightUpdate

_CONTROLLER = "PRL_CONTROLLER_PID"
"""Read by ``gloo_transfer.register``, which this process must not import: it needs vLLM."""


def engine_args(
    *,
    model: str,
    config: EngineConfig,
    transport: str,
    seed: int,
    devices: list[int] | None,
    on_cpu: bool,
    bound: bool = False,
) -> Any:
    """``AsyncEngineArgs`` for one engine; ``bound``: it has cores of its own."""
    from vllm.config.weight_transfer import WeightTransferConfig  # noqa: PLC0415 -- optional and heavy
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 -- optional and heavy
    from vllm.v1.executor.uniproc_executor import UniProcExecutor  # noqa: PLC0415 -- optional and heavy

    device: dict[str, Any] = {"gpu_memory_utilization": config.gpu_memory_utilization, "device_ids": devices}
    if on_cpu:
        device = {"enforce_eager": True, "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30)}
        if config.tensor_parallel_size == 1 and not bound:
            # vLLM would put a CPU's worker into a process of its own, and core and worker would each spin while they
            # wait for the other: half of what two shared cores can do. Its reason, threads set too late, is met by
            # ``child_environment``.
            device["distributed_executor_backend"] = UniProcExecutor
    return AsyncEngineArgs(
        model=model,
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs + 1,  # one for scores, see vllm.py
        stream_interval=config.stream_interval,
        tensor_parallel_size=config.tensor_parallel_size,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        weight_transfer_config=WeightTransferConfig(backend=transport),
        seed=seed,
        disable_log_stats=True,
        **device,
    )


def stream_params(decoding: Decoding) -> Any:
    """``SamplingParams`` of one stream: ids and the sampled token's log-probability, as they come."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415 -- optional and heavy

    return SamplingParams(
        temperature=decoding.temperature,
        max_tokens=decoding.max_tokens,
        stop_token_ids=decoding.stop_token_ids,
        ignore_eos=True,  # the end tokens are all in stop_token_ids; what is not there shall not stop
        seed=decoding.seed,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def score_params() -> Any:
    """``SamplingParams`` that ask for the prompt's own log-probabilities, which vLLM takes before temperature."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415 -- optional and heavy

    return SamplingParams(
        max_tokens=1, prompt_logprobs=0, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
    )


def init_info(group: WeightGroup, rank_offset: int) -> dict[str, Any]:
    """Fields of a weight-transfer backend's init info."""
    info: dict[str, Any] = {
        "master_address": group.address,
        "master_port": group.port,
        "rank_offset": rank_offset,
        "world_size": group.world_size,
    }
    return info | ({"timeout_s": group.timeout_s} if group.transport == "gloo" else {"packed": True})


def update_info(update: WeightUpdate, *, stage: bool = False) -> dict[str, Any]:
    """Fields of a weight-transfer backend's update info; ``stage``: of gloo's, to receive beside generation."""
    info: dict[str, Any] = {
        "names": [spec.name for spec in update.manifest],
        "dtype_names": [spec.dtype for spec in update.manifest],
        "shapes": [spec.shape for spec in update.manifest],
    }
    return info | ({"version": update.version, "stage": stage} if update.transport == "gloo" else {})


def child_environment(config: EngineConfig, cores: list[int] | None, *, on_cpu: bool) -> dict[str, str]:
    """What the core and its workers see and this process does not.

    Args:
        config: for the tensor-parallel size.
        cores: the cores to compute on, split evenly over the workers; None: one thread each, where the kernel likes.
        on_cpu: elsewhere cores are not bound.
    """
    environment = {_CONTROLLER: str(os.getpid()), "VLLM_CONFIGURE_LOGGING": "1"}
    if on_cpu:
        # The sampler's one compiled function is not worth a C++ compiler and most of a minute at the first token.
        environment |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
        if cores is not None:
            share = len(cores) // config.tensor_parallel_size
            shares = [cores[rank * share : (rank + 1) * share] for rank in range(config.tensor_parallel_size)]
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, share)) for share in shares)
    return environment


class _FrontEndLog(logging.FileHandler):
    """Where vLLM's lines from the controller's own process go."""


def prepare_front_end(log: Path) -> None:
    """Before vLLM is imported here: no usage statistics, no fork, and its log lines into ``log``.

    An embedding program that has imported vLLM already has its own logging for it, which stays.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a fork would copy the event loop and its threads
    logger = logging.getLogger("vllm")
    ours = [handler for handler in logger.handlers if isinstance(handler, _FrontEndLog)]
    if "vllm" in sys.modules and not ours:
        return
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    if [handler.baseFilename for handler in ours] == [str(log.absolute())]:
        return
    for handler in ours:
        logger.removeHandler(handler)
        handler.close()
    handler = _FrontEndLog(log, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

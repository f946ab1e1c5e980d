"""What prl asks of vLLM: engine arguments and the parameters of a request.

This and ``vllm_environment.py`` are the places where a CPU and a GPU set-up differ.

- Log-probabilities are those of the distribution sampled from (``processed_logprobs``), and the checkpoint's own
  sampling defaults are not read (``generation_config="vllm"``): they would change that distribution.
- The tokenizer is not loaded: ids go in and ids come out.
"""

from __future__ import annotations

from typing import Any

from vllm.config.weight_transfer import WeightTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from prl.engines.base import Decoding
from prl.engines.host_protocol import Start
from prl.engines.vllm_environment import is_cpu_build


def engine_args(start: Start) -> Any:
    """``AsyncEngineArgs`` for one engine."""
    config = start.config
    device: dict[str, Any] = {"gpu_memory_utilization": config.gpu_memory_utilization, "device_ids": start.devices}
    if is_cpu_build():
        device = {"enforce_eager": True, "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30)}
        if is_one_process(start):
            # vLLM would put a CPU's worker into a process of its own, and core and worker would each spin while they
            # wait for the other: half of what two shared cores can do. Its reason, threads set too late, is met by
            # ``host_environment``.
            device["distributed_executor_backend"] = UniProcExecutor
    return AsyncEngineArgs(
        model=start.model,
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs + 1,  # one for scores, see vllm.py
        tensor_parallel_size=config.tensor_parallel_size,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        weight_transfer_config=WeightTransferConfig(backend=start.transport),
        seed=start.seed,
        disable_log_stats=True,
        **device,
    )


def is_one_process(start: Start) -> bool:
    """Whether vLLM's core computes by itself, without a worker process."""
    return is_cpu_build() and start.config.tensor_parallel_size == 1 and start.cores is None


def stream_params(decoding: Decoding) -> Any:
    """``SamplingParams`` of one stream: ids and the sampled token's log-probability, as they come; not to be shared."""
    return SamplingParams(
        temperature=decoding.temperature,
        max_tokens=decoding.max_tokens,
        stop_token_ids=decoding.stop_token_ids,
        ignore_eos=True,  # the end tokens are all in stop_token_ids; what is not there shall not stop
        seed=decoding.request_seed(),
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,  # nobody else holds it, and a deep copy costs a millisecond
    )


def score_params() -> Any:
    """``SamplingParams`` that ask for the prompt's own log-probabilities, which vLLM takes before temperature."""
    return SamplingParams(
        max_tokens=1, prompt_logprobs=0, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
    )

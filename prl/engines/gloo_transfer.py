"""vLLM's side of a gloo weight transfer: a backend named ``gloo``, and the plug-in that puts it into every worker.

Invariants:

- A version that is staged arrives in a thread beside generation, and the engine stands still only for the swap. It is
  all or nothing on each worker: every byte has arrived and every tensor is finite before the first weight of the model
  is touched, so a transfer that fails leaves the model serving what it served. Where the model has a twin
  (``vllm_twin.py``) all the work is in the staging; elsewhere vLLM's layer-wise reload comes after it, while the engine
  stands still.
- A version that is not staged is put in place tensor by tensor as it comes, while the engine stands still, and needs no
  second copy. One that fails half-way leaves weights that nothing may be sampled with: the engine serves nothing until
  a load has succeeded.
- An update of adapters is merged with the model's files (``prl/adapters.py``) as it arrives and goes on as a whole one,
  under the checkpoint's names: how vLLM fuses and shards its layers stays its own business.
- Every process that vLLM starts for prl ends when its parent does, and tells its stacks when the run asks for them.

The fields of ``GlooInitInfo`` and ``GlooUpdateInfo`` are those of vLLM's own ``nccl`` backend and a few more, so the
controller drives both through the same calls (``vllm.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from prl import adapters, stacks
from prl.engines.vllm_reload import load_weights
from prl.engines.vllm_spans import name_versions_early
from prl.engines.vllm_twin import Twin, has_twin
from prl.errors import WeightSyncError
from prl.process import die_with_parent
from prl.transfer import GlooGroup, finite
from prl.types import BUCKET_BYTES, TensorSpec, WeightGroup

HOST = "PRL_VLLM_HOST_PID"
"""Environment variable in the processes that an engine of prl consists of: the id of the one that hosts the others."""
_registered = False


def register() -> None:
    """Entry point ``vllm.general_plugins``: called once or more in every process of vLLM, the host too."""
    global _registered  # noqa: PLW0603 -- a process registers once, whoever calls
    if _registered:
        return
    _registered = True
    WeightTransferEngineFactory.register_engine("gloo", GlooTransferEngine)
    name_versions_early()
    host = os.environ.get(HOST)
    if host is not None and int(host) != os.getpid():
        parent = multiprocessing.parent_process()
        die_with_parent(parent.pid if parent is not None else None)
        name = multiprocessing.current_process().name
        stacks.answer_requests("core" if "Core" in name else name)


@dataclass
class GlooInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is untyped
    """Where the weight group meets; this engine's workers take ranks ``rank_offset ...``."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    timeout_s: float
    bucket_bytes: int = BUCKET_BYTES


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]  # vLLM is untyped
    """One version: three lists of one length, in sending order."""

    version: int
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    stage: bool = False
    """Begin to receive beside generation and return; the next update, of the same version, puts it in place."""

    def manifest(self) -> list[TensorSpec]:
        """The same as the trainer's manifest."""
        columns = zip(self.names, self.dtype_names, self.shapes, strict=True)
        return [TensorSpec(name=name, dtype=dtype, shape=list(shape)) for name, dtype, shape in columns]


class GlooTransferEngine(WeightTransferEngine):  # type: ignore[misc]  # vLLM is untyped
    """One worker's receiving end; vLLM makes it and calls it."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._group: GlooGroup | None = None
        self._base: adapters.Base | None = None
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="prl-weights")
        self._staged: Future[Arrived] | None = None

    def parse_init_info(self, init_dict: dict[str, Any]) -> GlooInitInfo:
        """The typed init info. Who only asks whether this is the model it ``expects`` is answered by an error."""
        expected: dict[str, int] | None = init_dict.get("expects")
        if expected is None:
            parsed: GlooInitInfo = super().parse_init_info(init_dict)
            return parsed
        config = self.model_config.hf_text_config
        others = [
            f"{name} {getattr(config, name, None)}, not {size}"
            for name, size in expected.items()
            if getattr(config, name, None) != size
        ]
        if others:
            raise ValueError(f"{type(self).__name__}: the model here has {', '.join(others)}; no group was joined")
        raise ValueError(f"{type(self).__name__}: the model here is as expected; no group was joined")

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join the weight group, leaving the one joined before."""
        self.shutdown()
        group = WeightGroup(
            transport="gloo",
            address=init_info.master_address,
            port=init_info.master_port,
            world_size=init_info.world_size,
            timeout_s=init_info.timeout_s,
            bucket_bytes=init_info.bucket_bytes,
        )
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = GlooGroup.join(group, rank)

    def start_weight_update(self) -> None:
        """Nothing yet: the model is left alone until everything has arrived."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive one version and serve it. On the CPU there is nothing to synchronise with, unlike in the base."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Begin to stage, or put in place what was staged, or put it in place as it comes."""
        staged, self._staged = self._staged, None
        if update_info.stage:
            self._staged = self._beside.submit(self._arrive, update_info)
            return
        if staged is None:
            with self._coming(update_info) as tensors:
                load_weights(self.model, self.model_config, finite(update_info.version, tensors))
            return
        arrived = staged.result()
        if arrived.version != update_info.version:
            raise WeightSyncError(f"version {arrived.version} was staged, not version {update_info.version}")
        arrived.put_in_place(self.model, self.model_config)
        self._beside.submit(arrived.let_go)  # to give the old weights back takes as long as a decode step

    def finish_weight_update(self) -> None:
        """Nothing left: ``update_weights`` was the whole update."""

    def shutdown(self) -> None:
        """Leave the weight group, and drop what was received in it and not put in place."""
        self._staged = None
        if self._group is not None:
            self._group.close()
            self._group = None

    def _arrive(self, update_info: GlooUpdateInfo) -> Arrived:
        """Receive a version and make it ready. It touches nothing that generation uses, so it may run beside it."""
        arrived = Arrived(update_info.version)
        with self._coming(update_info) as tensors:
            arrived.take(self.model, tensors)
        return arrived

    @contextlib.contextmanager
    def _coming(self, update_info: GlooUpdateInfo) -> Iterator[Iterable[tuple[str, Tensor]]]:
        """The tensors of a version, under the checkpoint's names, as they arrive; the body takes them."""
        if self._group is None:
            raise WeightSyncError("this worker was not connected to a weight group before it was asked to load")
        manifest = update_info.manifest()
        with contextlib.closing(self._group.receive(update_info.version, manifest)) as tensors:
            try:
                # Not to the end, which tells the sender that this rank is ready to put the version in place.
                brought = itertools.islice(tensors, len(manifest))
                yield self._merged(update_info.version, brought) if adapters.are_in(update_info.names) else brought
            finally:
                # An update that does not fit the model fails its load. The group hears of transfers only.
                for _ in tensors:
                    pass

    def _merged(self, version: int, halves: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """All weights in the model's files, those with an adapter merged before this returns."""
        base = self._base = self._base or adapters.Base(self.model_config.model)
        merged = base.merged(version, dict(halves), self.model_config.dtype)
        return ((name, merged[name] if name in merged else base[name]) for name in base)


class Arrived:
    """One version that is here as a whole, every value finite, and in nobody's way yet."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._twin: Twin | None = None
        self._tensors: list[tuple[str, Tensor]] = []

    def take(self, model: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Take everything in: as a twin of ``model`` where it has one, else as it comes."""
        if has_twin(model):
            self._twin = Twin(model)
            self._twin.load(tensors)
            return
        self._tensors = list(finite(self.version, tensors))

    def put_in_place(self, model: Any, model_config: Any) -> None:
        """Make ``model`` serve it. Only while the engine stands still."""
        if self._twin is not None:
            self._twin.swap()
        else:
            load_weights(model, model_config, self._tensors)

    def let_go(self) -> None:
        """Free what is no longer needed: after the swap, the weights of the version before."""
        self._twin = None
        self._tensors = []

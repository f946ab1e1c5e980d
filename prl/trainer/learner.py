"""What one rank does with each command: the torch side of the trainer.

Invariants:

- Every method is a collective: all ranks call the same ones in the same order.
- ``train`` either applies one optimiser step on all ranks or none: the decision is made on one all-reduced vector of
  sums, which is the same on every rank. The step's number grows either way.
- A batch that trains no token changes nothing, not even the optimiser's moments.
"""

from __future__ import annotations

import math
import random
import resource
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from prl.config import Config
from prl.errors import TrainerError
from prl.trainer import checkpoint, drift, lora, questioned, shards
from prl.trainer.base import TrainerReady, TrainReport
from prl.trainer.export import export
from prl.trainer.loss import Loss, LossTerms
from prl.trainer.mesh import counts
from prl.trainer.microbatch import MicroBatch
from prl.trainer.model import check_policy, load_policy, parameters_of
from prl.trainer.optimizer import learning_rate, make_optimizer, optimizer_tensors
from prl.trainer.phases import SUMS, Phases
from prl.trainer.publish import Publisher
from prl.types import Sample, WeightGroup, WeightUpdate


class Learner:
    """Model, optimiser and step of one rank. Needs the default process group."""

    def __init__(self, config: Config, model: str, resume: Path | None, device: torch.device) -> None:
        self._config, self._model, self._device = config, model, device
        rank = dist.get_rank()
        random.seed(config.seed + rank)
        np.random.seed((config.seed + rank) % 2**32)  # noqa: NPY002 -- third-party code draws from the global generator
        torch.manual_seed(config.seed + rank)
        dtype = getattr(torch, config.trainer.dtype)
        self.policy = load_policy(
            model,
            device,
            dtype,
            activation_checkpointing=config.trainer.activation_checkpointing,
            adapter=config.lora,
            num_replicas=config.trainer.num_replicas,
        )
        self.parameters = parameters_of(self.policy)
        self._phases = Phases(dist.get_world_size())
        if device.type == "cpu" and dist.get_world_size() > 1:
            self._phases.watch(self.policy)
        self._loss = Loss(config)
        self._reference = self._load_reference(dtype)
        self.optimizer = make_optimizer(self.parameters.values(), config.trainer)
        self.doing = ""
        """How far a step is, for people."""
        self.step = 0
        if resume is not None:
            self.step = self._load(resume)
        self._state = {} if resume is None or rank != 0 else checkpoint.read_state(resume)
        if not config.trainer.share_prefixes:
            self.policy.pairs_per_token = 0
        check_policy(self.policy, device, dtype)
        self._engine_dtype: torch.dtype = getattr(torch, config.engine.dtype)
        self._publisher = self._make_publisher(rank)

    def ready(self) -> TrainerReady:
        """What the controller is told at the start."""
        return TrainerReady(
            step=self.step,
            manifest=self._publisher.manifest,
            state=self._state,
            num_parameters=sum(parameter.numel() for parameter in self.parameters.values()),
            memory_bytes=_resident_bytes(),
        )

    def train(
        self,
        step: int,
        microbatches: list[list[Sample]],
        num_sequences: int,
        *,
        num_teaching: int | None = None,
        with_logprobs: bool = False,
    ) -> TrainReport:
        """One optimiser step, on this rank's micro-batches and those of the others.

        Args:
            step: the step that the batch is for.
            microbatches: of this rank.
            num_sequences: B of the whole batch.
            num_teaching: the first so many have a gradient, on every rank; None: all.
            with_logprobs: report those of this rank's samples, which are in no sum.

        Raises:
            TrainerError: ``step`` is not the next one.
        """
        if step != self.step:
            raise TrainerError(f"the batch is for step {step}, but the trainer has completed {self.step}")
        started = time.monotonic()
        self._phases.begin()
        seen: list[Tensor] = []
        local = self.accumulate(microbatches, num_sequences, num_teaching, seen.append if with_logprobs else None)
        self.doing = "the sums of all ranks"
        everywhere = torch.cat([local, self._gradient_square()[None]])
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # what is behind is waiting for others, not for this device
        with self._phases.waits(SUMS):
            dist.all_reduce(everywhere)
            *sums, gradient_square = everywhere.tolist()
        sums, drifted = sums[: len(LossTerms._fields)], sums[len(LossTerms._fields) :]
        total = dict(zip(LossTerms._fields, sums, strict=True))
        norm = math.sqrt(gradient_square) if gradient_square >= 0 else math.nan
        lr = learning_rate(step, self._config.trainer, self._config.run.num_steps)
        skipped = not all(map(math.isfinite, (norm, *sums)))
        if not skipped and total["tokens"] > 0:
            self._apply(lr, norm)
        self.optimizer.zero_grad(set_to_none=True)
        self.doing = ""
        self.step += 1
        report = _report(step, total, norm, lr, skipped=skipped, train_s=time.monotonic() - started)
        if self._reference is None:
            report = msgspec.structs.replace(report, kl_reference=None)
        logprobs = drift.by_sample(seen, microbatches) if with_logprobs else []
        return msgspec.structs.replace(
            report, **drift.fields_of(drifted, total["tokens"]), logprobs=logprobs, phases=[self._phases.take()]
        )

    def accumulate(
        self,
        microbatches: list[list[Sample]],
        num_sequences: int,
        num_teaching: int | None = None,
        on_logprobs: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """Add the gradient of these micro-batches; returns this rank's sums: those of ``LossTerms``, then ``drift``'s.

        ``on_logprobs`` is told log pi of the trained tokens of each micro-batch, in the order of its samples.
        """
        sums = torch.zeros(len(LossTerms._fields) + drift.SIZE, dtype=torch.float64, device=self._device)
        given = microbatches or [[]]
        for number, samples in enumerate(given, start=1):
            self.doing = f"forward of micro-batch {number}/{len(given)}"
            teaches = num_teaching is None or number <= num_teaching
            sums += self._pass(samples, num_sequences, teaches=teaches, on_logprobs=on_logprobs)
        return sums

    def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first (length L - 1)."""
        return self.rescore([token_ids], 1.0, None)[0]

    def rescore(self, sequences: list[list[int]], temperature: float, dtype: str | None) -> list[list[float]]:
        """Log-probability of each token after the first, by sequence, computed in ``dtype`` (None: the trainer's).

        Another dtype than the trainer's takes a second copy of the weights for as long as this lasts.
        """
        policy = self.policy
        if dtype not in {None, self._config.trainer.dtype}:
            other = getattr(torch, dtype or "")
            policy = questioned.twin_of(policy, self._model, self._device, other, self._config)
        return questioned.rescored(policy, sequences, temperature, self._device)

    def nudge(self, names: list[str], scale: float) -> None:
        """Add noise to the named tensors, ``scale`` times their size: other weights, as the next version."""
        questioned.nudge(self.policy, self.parameters, names, scale, self._config.seed + self.step)
        self.step += 1

    def connect(self, group: WeightGroup) -> None:
        """Rank 0 joins the weight group. Raises WeightSyncError."""
        self._publisher.connect(group)

    def publish(self, update: WeightUpdate) -> None:
        """Send the weights. Raises WeightSyncError, also where ``update`` is not the version they are."""
        if update.version != self.step:
            raise TrainerError(f"version {update.version} was asked for, but the weights are version {self.step}")
        self._publisher.send(update)

    def save(self, folder: Path, state: dict[str, Any]) -> OSError | None:
        """Write a checkpoint, or nothing: what the disk said to one of the ranks. Raises CheckpointError."""
        return shards.save(folder, self._checkpointed(), self.step, state)

    def export(self, folder: Path) -> OSError | None:
        """Write a Hugging Face folder, or nothing: what the disk said to rank 0. Raises CheckpointError."""
        return export(self.policy, self._model, folder, self._engine_dtype, self._config.lora)

    def close(self) -> None:
        """Leave the weight group and the other ranks."""
        self._publisher.close()
        dist.destroy_process_group()

    def _make_publisher(self, rank: int) -> Publisher:
        """Whole weights in the engine's dtype, or the adapters alone, which are small enough to stay float32."""
        if self._config.lora.publish == "adapters":
            return Publisher(lora.sent(self.policy.adapters), torch.float32, rank)
        return Publisher(lora.merged(self.policy.tensors, self.policy.adapters), self._engine_dtype, rank)

    def _load_reference(self, dtype: torch.dtype) -> Callable[[MicroBatch, float], Tensor] | None:
        """What ``[kl]`` is relative to, the model that the run started from, as log-probabilities of a micro-batch.

        Under LoRA it is the policy without its adapters, else a second model, sharded like the policy and frozen.
        """
        if self._config.kl.coefficient == 0:
            return None
        if self.policy.adapters:
            return partial(self.policy.score, base=True)
        reference = load_policy(self._model, self._device, dtype, num_replicas=self._config.trainer.num_replicas)
        reference.requires_grad_(requires_grad=False)
        return reference.score

    def _pass(
        self,
        samples: list[Sample],
        num_sequences: int,
        *,
        teaches: bool,
        on_logprobs: Callable[[Tensor], None] | None,
    ) -> Tensor:
        """Forward, and backward where there is a gradient; returns the sums."""
        batch = self.policy.pack(samples, self._device)
        temperature = self._config.sampling.temperature
        reference_N = None if self._reference is None else self._reference(batch, temperature)
        if teaches:
            with_entropy = self._config.loss.entropy_bonus > 0
            logprobs_N, entropy_N = self.policy(batch, temperature, entropy_gradient=with_entropy)
        else:
            logprobs_N, entropy_N = self.policy.look(batch, temperature)
        loss, terms = self._loss(logprobs_N, entropy_N, batch, reference_N=reference_N, num_sequences=num_sequences)
        if teaches:
            self.doing = self.doing.replace("forward", "backward")
            loss.backward()  # type: ignore[no-untyped-call]
        if on_logprobs is not None:
            on_logprobs(logprobs_N.detach()[batch.trained_N])
        return torch.cat([torch.stack(terms), drift.drift(logprobs_N.detach(), batch, self.step)])

    def _gradients(self) -> list[Tensor]:
        """This rank's shards of the gradient."""
        given = (parameter.grad for parameter in self.parameters.values())
        return [grad.to_local() if isinstance(grad, DTensor) else grad for grad in given if grad is not None]

    def _gradient_square(self) -> Tensor:
        """This rank's part of the squared norm of the whole gradient."""
        squares = [torch.linalg.vector_norm(grad, dtype=torch.float64) ** 2 for grad in self._gradients()]
        return counts(next(iter(self.parameters.values()))) * torch.stack(squares).sum()

    def _apply(self, lr: float, norm: float) -> None:
        scale = min(1.0, self._config.trainer.grad_clip / (norm + 1e-6))
        if scale < 1.0:
            torch._foreach_mul_(self._gradients(), scale)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    def _checkpointed(self) -> dict[str, Tensor]:
        """Everything that a checkpoint holds, under names that do not collide. A collective."""
        state = optimizer_tensors(self.optimizer, self.parameters)
        return shards.weights_of(self.policy) | {f"optimizer/{name}": tensor for name, tensor in state.items()}

    def _load(self, folder: Path) -> int:
        """Take up a checkpoint; returns its step. Raises CheckpointError, also where it belongs to another base."""
        step = shards.load(folder, self._checkpointed(), self.policy, self._model)
        shards.restore_random_state(folder)
        return step


def join_ranks(config: Config, local_rank: int, start: str) -> torch.device:
    """Join the other ranks where torchrun says, gloo on a CPU and nccl on CUDA; returns where this rank computes.

    What they tell one another there is under ``start``, a word that is new each time the ranks are started: torchrun
    keeps the store when it starts them again, and with it the addresses of those that died.
    """
    cuda = config.trainer.device == "cuda" or (config.trainer.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=max(config.trainer.step_timeout_s, config.trainer.start_timeout_s))
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    words = dist.PrefixStore(start, store)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=words, rank=rank, world_size=world_size, timeout=timeout)
    return device


def _report(
    step: int, total: dict[str, float], norm: float, lr: float, *, skipped: bool, train_s: float
) -> TrainReport:
    """The step's numbers; where no token was trained, those of a step that is on policy and changes nothing."""
    num_tokens = total["tokens"]
    per_token = max(1.0, num_tokens)
    square = num_tokens * total["ratio_squared"]
    return TrainReport(
        step=step,
        loss=total["loss"],
        grad_norm=norm,
        lr=lr,
        ess=total["ratio"] ** 2 / square if num_tokens else 1.0,
        kl_behaviour=total["kl_behaviour"] / per_token,
        clip_frac=total["clipped"] / per_token,
        entropy=total["entropy"] / per_token,
        kl_reference=total["kl_reference"] / per_token,
        tokens_trained=int(num_tokens),
        skipped=skipped,
        train_s=train_s,
    )


def _resident_bytes() -> int:
    """This process's resident memory; where the system only tells the peak, the peak."""
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

"""The transformers engine: continuous batching in a host process, for machines where vLLM cannot be installed.

This is the controller's half and imports neither torch nor transformers; the host is ``transformers_host.py``.

Invariants, besides those of ``hosted.py``:

- Weights travel over gloo only.
- A stream with a seed of its own samples the same tokens from the same weights (up to rounding of the logits), on
  whichever engine and beside whatever else; the others are drawn from a generator that ``seed`` and ``index`` fix.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from prl.config import EngineConfig
from prl.engines.host_protocol import Start
from prl.engines.hosted import HostedEngine
from prl.models import resolve_model


class TransformersEngine(HostedEngine):
    """One host process that samples with transformers.

    Args:
        index: names the engine and its log, ``engine-<index>``.
        model: what the config names; a built-in, a folder, or a hub name.
        config: ``[engine]``.
        seed: of the run; engines of one run differ by their index.
        log_dir: where ``engine-<index>.log`` is written.
        device: which GPU, where there are several (modulo them); absent: the index.
    """

    library: ClassVar[str] = "transformers"

    def __init__(
        self, *, index: int, model: str, config: EngineConfig, seed: int, log_dir: Path, device: int | None = None
    ) -> None:
        cores = os.cpu_count() or 1
        start = Start(
            model=resolve_model(model),
            config=config,
            transport="gloo",
            seed=(seed * 1_000_003 + index) % 2**63,
            num_threads=max(1, cores // (config.count + 1)),  # the trainer has a share too
            devices=[index if device is None else device],
        )
        module = "prl.engines.transformers_host"
        super().__init__(name=f"engine-{index}", module=module, environment={}, start=start, log_dir=log_dir)

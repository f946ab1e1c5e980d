from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.cases import make_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the tiny models, by kind."""
    return {kind: make_model(tmp_path_factory.mktemp(kind), kind) for kind in ("tied", "untied")}


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """This process as the only rank of a gloo group, on one thread."""
    import torch
    import torch.distributed as dist

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)

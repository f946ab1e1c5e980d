"""One export from the command line: which checkpoint, where to, and by whom.

- What is exported was read to its last byte and is what was written; what is passed over is said.
- The folder appears whole or not at all, and never in place of something that was there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from prl.config import Config
from prl.errors import CheckpointError, ConfigError, PrlError
from prl.models import resolve_model
from prl.settings import load_config
from prl.trainer import checkpoint


class ExportJob:
    """``prl export``.

    Args:
        run: a run folder.
        step: of the checkpoint; None for the newest complete one.
        out: the folder to write; None for one in the run folder.
        adapters: the adapters alone.
        model: where the model lies that the run began with, if not where it did.
    """

    def __init__(self, run: str, *, step: int | None, out: str | None, adapters: bool, model: str | None) -> None:
        """Find the checkpoint and verify it, which reads all of it.

        Raises:
            ConfigError: there is no such run or checkpoint, or the folder is taken.
        """
        folder = Path(run)
        if not (folder / "config.toml").is_file():
            raise ConfigError(
                f"{run} holds no run (it has no config.toml): name the folder of a run, such as runs/math"
            )
        self._config = _starting_at(model, load_config(folder / "config.toml"))
        if adapters and not self._config.lora.rank:
            raise ConfigError(f"--adapters: {run} trains whole weights (lora.rank = 0); leave it away")
        self._adapters = adapters
        self._model = "" if self._config.trainer.kind == "simulated" else resolve_model(self._config.model)
        self.notes: list[str] = []
        """What is passed over, for people."""
        checkpoints = folder / "checkpoints"
        self._checkpoint = self._newest(checkpoints) if step is None else _of_step(checkpoints, step)
        self.step = checkpoint.read_marker(self._checkpoint).step
        self.out = _free(folder / "exports" / self._checkpoint.name if out is None else Path(out))

    def run(self) -> str | None:
        """Write; why that failed, in words, if it did."""
        try:
            if self._config.trainer.kind == "simulated":
                asyncio.run(_simulated(self._checkpoint, self.out))
            else:
                from prl.trainer.export_checkpoint import export_checkpoint  # noqa: PLC0415 - seconds to import

                export_checkpoint(self._config, self._model, self._checkpoint, self.out, adapters_alone=self._adapters)
        except OSError as error:
            return f"{self.out} cannot be written: {error.strerror or error}; make room, or name another with --out"
        except PrlError as error:
            return str(error)
        return None

    def _newest(self, checkpoints: Path) -> Path:
        found = checkpoint.latest(checkpoints, verified=True)
        self.notes = list(found.skipped.values())
        if found.folder is None:
            why = "; ".join(self.notes) or "it was not saved yet: see run.checkpoint_every"
            raise ConfigError(f"{checkpoints} holds no complete checkpoint: {why}")
        return found.folder


def _starting_at(model: str | None, config: Config) -> Config:
    return config if model is None else msgspec.structs.replace(config, model=model)


def _of_step(checkpoints: Path, step: int) -> Path:
    """The checkpoint of a step. Raises ConfigError: it is not there, or not what was written."""
    folder = checkpoint.step_folder(checkpoints, step)
    if not folder.is_dir():
        there = ", ".join(str(number) for number, _ in checkpoint.numbered(checkpoints)) or "none"
        raise ConfigError(
            f"--step {step}: {checkpoints} holds no checkpoint of that step; those that are there: {there}"
        )
    try:
        checkpoint.verify(folder, checkpoint.read_marker(folder, step))
    except CheckpointError as error:
        raise ConfigError(f"--step {step}: {error}") from error
    return folder


def _free(out: Path) -> Path:
    """A folder that may be written. Raises ConfigError: there is something."""
    if out.exists():
        raise ConfigError(f"--out {out} is there already: name a folder that is not, or remove it")
    return out


async def _simulated(folder: Path, out: Path) -> None:
    from prl.trainer.simulated import SimulatedTrainer  # noqa: PLC0415 - only where it is chosen

    trainer = SimulatedTrainer(resume_from=folder)
    try:
        await trainer.open()
        await trainer.export(out)
    finally:
        await trainer.close()

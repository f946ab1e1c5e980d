"""One evaluation from the command line: engines, rewards and held-out prompts, no trainer.

- The engines serve the weights they loaded from the model's folder, version 0; nothing is ever pushed to them.
- The first SIGINT or SIGTERM ends what was started and leaves with 130, the second kills it.
- ``--out`` is written when every answer is there, whole or not at all. The engines' logs are kept after a failure.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack, closing
from pathlib import Path

import msgspec
from rich.console import RenderableType
from rich.table import Table

from prl import log, machinery, parts, preflight
from prl.config import Config, EngineConfig, TrainerConfig
from prl.config_data import READ_FROM_PATH
from prl.data.opening import name_of, source_tables
from prl.engines.pool import EnginePool
from prl.errors import ConfigError, MissingExtraError, PrlError
from prl.estimates import Estimate
from prl.evaluate import Answer, Evaluation
from prl.failure import FirstFailure
from prl.gateway.playing import playing
from prl.hidden import clearer_of
from prl.models import resolve_model
from prl.panel import make_console, say, show
from prl.progress import num_asked, percent
from prl.progress_line import ProgressLine
from prl.prompts import open_source
from prl.shell import FAILED, INTERRUPTED, OK, failure_message, first_signal, run_to_exit
from prl.tokenizer import Tokenizer
from prl.types import Prompt


class EvalJob:
    """``prl eval``."""

    def __init__(self, config: Config, *, num_samples: int | None, out: str | None) -> None:
        """Look at the machine.

        Args:
            config: of the training; its trainer is not looked at.
            num_samples: held-out prompts, if not ``eval.num_samples``.
            out: where the answers go.

        Raises:
            ConfigError: there is nothing to evaluate, or it cannot be done here; nothing is started.
            MissingExtraError: the same, for want of a package.
        """
        simulated = config.engine.kind == "simulated"
        trainer = TrainerConfig(kind="simulated" if simulated else "fsdp")
        engine = _local(config.engine)
        self._config = _with_samples(msgspec.structs.replace(config, trainer=trainer, engine=engine), num_samples)
        preflight.before_evaluation(self._config)
        self._num_samples = self._config.eval.num_samples if num_samples is None else num_samples
        self._out = None if out is None else _writable(Path(out))
        self._scorer = parts.make_scorer(config)
        self._environment = parts.environment_of(config)
        self._console = make_console()

    def run(self) -> int:
        """Run to an exit code. Raises ConfigError or MissingExtraError, with nothing left running."""
        return run_to_exit(self._main())

    async def _main(self) -> int:
        folder = Path(tempfile.mkdtemp(prefix="prl-eval-"))
        keep = False
        task = asyncio.current_task()
        assert task is not None
        try:
            with log.captured(), log.configure(folder, self._console), first_signal(task.cancel):
                evaluation = await self._evaluate(folder)
        except asyncio.CancelledError:
            sys.stderr.write("prl: interrupted; everything that was started has ended\n")
            return INTERRUPTED
        except (ConfigError, MissingExtraError):
            raise
        except Exception as error:  # noqa: BLE001 - the process's last word on any failure
            keep = True
            message = clearer_of(msgspec.to_builtins(self._config))(failure_message("the evaluation", error))
            sys.stderr.write(f"{message}prl: the engines' logs are in {folder}\n")
            return FAILED
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
        if self._out is not None:
            _write(self._out, evaluation.answers)
        show(self._console, _results(evaluation))
        if self._out is not None:
            say(self._console, f"Every answer is in {self._out}")
        return OK

    async def _evaluate(self, folder: Path) -> Evaluation:
        """Start everything, ask, end everything."""
        config, model = self._config, resolve_model(self._config.model)
        async with AsyncExitStack() as stack:
            line = stack.enter_context(closing(ProgressLine(self._console)))
            line.stage(f"reading the tokenizer of {config.model} and the held-out prompts")
            tokenizer = await asyncio.to_thread(Tokenizer.load, model)
            prompts = await asyncio.to_thread(self._held_out, tokenizer)
            await stack.enter_async_context(self._scorer)
            engines = machinery.make_engines(config, model, folder, machinery.transport_of(config))
            pool = EnginePool(engines, config.engine, gate_timeout_s=config.weights.timeout_s)
            stack.push_async_callback(pool.close)
            line.stage(f"starting {machinery.describe_engines(config)}")
            await pool.open()
            play = await stack.enter_async_context(playing(config, self._environment, tokenizer))
            rollout = parts.make_rollout(config, pool, self._scorer, tokenizer, FirstFailure(), play=play)
            evaluate = parts.make_evaluate(config, prompts, rollout, self._scorer, tokenizer.stop_token_ids)
            line.answering(len(prompts) * config.eval.num_answers)
            try:
                async with asyncio.timeout(config.eval.timeout_s) as deadline:
                    return await evaluate(0, line.count)
            except TimeoutError:
                if not deadline.expired():
                    raise
                message = f"{line.said()} were there after eval.timeout_s = {config.eval.timeout_s:g} s: raise it"
            raise PrlError(message)

    def _held_out(self, tokenizer: Tokenizer) -> list[Prompt]:
        """As many as wanted of those that training has set aside."""
        scorer = self._scorer
        source = open_source(
            self._config,
            tokenizer,
            scorer.required_fields,
            scorer.check_row,
            reads_all_fields=scorer.reads_all_fields,
        )
        prompts = source.held_out(self._num_samples)
        for warning in source.statistics().warnings:
            log.get_logger(__name__).warning(warning)
        if not prompts:
            raise ConfigError("there is no held-out prompt that fits: see eval.path, eval.num_samples, eval.max_tokens")
        return prompts


def _local(engine: EngineConfig) -> EngineConfig:
    """The engines that are started here: a server samples with what a run last sent it, not with the model named."""
    if engine.kind == "server":
        raise ConfigError(
            "engine.kind = 'server': prl eval starts engines that load the model, and a server has weights of its own;"
            " --set engine.kind=auto"
        )
    return msgspec.structs.replace(engine, servers=[])


def _with_samples(config: Config, num_samples: int | None) -> Config:
    """``config`` with ``num_samples`` held-out prompts, if they are not among those that training has met."""
    held_out, wanted = config.eval, config.eval.num_samples if num_samples is None else num_samples
    if wanted < 1:
        key = "eval.num_samples" if num_samples is None else "--num-samples"
        raise ConfigError(f"{key} = {wanted}: nothing would be evaluated; it must be at least 1")
    if wanted <= held_out.num_samples:
        return config
    set_aside = [name_of(source) for _, source in source_tables(config) if source.source in READ_FROM_PATH]
    if set_aside and held_out.path is None and held_out.split is None:
        raise ConfigError(
            f"--num-samples {wanted}: training sets the last eval.num_samples = {held_out.num_samples} rows of"
            f" {', '.join(set_aside)} aside and has met the others; ask for fewer, or name other prompts in eval.path"
        )
    return msgspec.structs.replace(config, eval=msgspec.structs.replace(held_out, num_samples=wanted))


def _writable(path: Path) -> Path:
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "is a folder" if path.is_dir() else f"cannot be written: there is no folder {path.absolute().parent}"
        raise ConfigError(f"--out {path} {what}; name a file")
    return path


def _write(path: Path, answers: list[Answer]) -> None:
    """One answer a line, all or nothing."""
    draft = path.with_name(f"{path.name}.part")
    lines = (
        {
            "prompt_id": answer.prompt_id,
            "prompt": answer.prompt,
            "answer": answer.completion,
            "reward": answer.reward,
            "expected": answer.expected,
            "num_tokens": answer.num_tokens,
            "finish": answer.finish,
        }
        for answer in answers
    )
    draft.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    draft.replace(path)


def _results(evaluation: Evaluation) -> RenderableType:
    """What was found, for people."""
    low, high = evaluation.interval
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_column()
    table.add_row("mean reward", *_estimated(Estimate(mean=evaluation.reward_mean, low=low, high=high)))
    for k, found in evaluation.pass_at.items():
        table.add_row(f"pass@{k}", *_estimated(found))
    num_tokens = evaluation.length_mean * evaluation.num_answers
    lengths = f"{evaluation.length_mean:.1f} an answer, at most {evaluation.length_max}"
    facts = (
        ("asked", num_asked(evaluation)),
        ("tokens", f"{lengths}, {percent(evaluation.truncated)} truncated"),
        ("time", f"{evaluation.seconds:.1f} s, {num_tokens / max(evaluation.seconds, 1e-9):,.0f} tokens/s"),
    )
    below = Table.grid(padding=(0, 2))
    below.add_column(style="dim", no_wrap=True, min_width=11)
    for label, text in facts:
        below.add_row(label, text)
    both = Table.grid()
    both.add_row(table)
    both.add_row(below)
    return both


def _estimated(found: Estimate) -> tuple[str, str]:
    return f"{found.mean:.3f}", f"95% interval {found.low:.3f} to {found.high:.3f}"

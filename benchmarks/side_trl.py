"""TRL's side of ``vs_trl.py``: GRPOTrainer on the task of a prl configuration, in a process (or two) of its own.

What is the same as prl's: model folder, prompts and their order (prl's source gives them, and their ids are compared),
the reward (prl's scorer is called), group size, sequences a step, temperature, longest completion, AdamW, learning
rate and schedule, gradient clip, float32. The loss is prl's default too: ``luspo`` with ratios by token is the sum over
tokens, then the mean over sequences, and rewards go in multiplied by G / (G - 1) without scaling, which makes the
advantage that of leave-one-out. TRL is on policy here, so its ratios are 1 and no clip acts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any, Self

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from prl.config import Config
from prl.models import resolve_model
from prl.prompts import open_source
from prl.rewards.scorer import Scorer
from prl.settings import load_config
from prl.tokenizer import Tokenizer
from prl.types import Completion, Prompt, Score


class Rewards:
    """prl's scorer as a reward function of TRL: plain, so the event loop that the scorer lives in is this class's.

    A context manager: at its end the scorer and the loop are closed.
    """

    __name__ = "prl_rewards"

    def __init__(self, scorer: Scorer, prompts: list[Prompt], factor: float) -> None:
        self._scorer, self._factor = scorer, factor
        self._prompts = {prompt.id: prompt for prompt in prompts}
        self._runner = asyncio.Runner()
        self._runner.run(scorer.__aenter__())
        self.means: list[float] = []
        """Mean reward of every call, before the factor."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self._runner.run(self._scorer.__aexit__(None, None, None))

    def __call__(
        self, *, completions: list[str], completion_ids: list[list[int]], prompt_id: list[int], **_: Any
    ) -> list[float]:
        """One reward a completion. Raises RuntimeError where a completion could not be judged."""
        rewards = self._runner.run(self._score(completions, completion_ids, prompt_id))
        self.means.append(sum(rewards) / len(rewards))
        return [self._factor * reward for reward in rewards]

    async def _score(self, texts: list[str], ids: list[list[int]], prompts: list[int]) -> list[float]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._scorer.score(completion_of(text, tokens), self._prompts[prompt]))
                for text, tokens, prompt in zip(texts, ids, prompts, strict=True)
            ]
        verdicts = [task.result() for task in tasks]
        if wrong := [verdict for verdict in verdicts if not isinstance(verdict, Score)]:
            raise RuntimeError(f"{len(wrong)} completions were not judged, the first: {wrong[0]}")
        return [verdict.reward for verdict in verdicts if isinstance(verdict, Score)]


def completion_of(text: str, token_ids: list[int]) -> Completion:
    """What a reward sees of a completion that TRL sampled: it knows neither log-probabilities nor versions."""
    return Completion(
        token_ids=token_ids,
        logprobs=[0.0] * len(token_ids),
        versions=[0] * len(token_ids),
        text=text,
        finish="stop",
    )


class Clock(TrainerCallback):
    """Seconds of training at the end of each step, and the weights of every n-th, whose writing is not counted."""

    def __init__(self, folder: Path, every: int) -> None:
        self._folder, self._every = folder, every
        self._away_s = 0.0
        self.seconds: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The first step begins."""
        self.started_at = time.time()
        self._started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:  # noqa: ARG002
        """A step is done."""
        now = time.monotonic()
        self.seconds.append(now - self._started - self._away_s)
        if state.global_step % self._every == 0 and state.is_world_process_zero:
            bare = getattr(model, "module", model)
            weights = {name: tensor.detach().clone() for name, tensor in bare.named_parameters()}
            save_file(weights, self._folder / f"step-{state.global_step:06d}.safetensors")
        self._away_s += time.monotonic() - now


def settings_of(config: Config, folder: Path, *, num_processes: int, microbatch: int, generation: str) -> GRPOConfig:
    """The task of ``config`` in TRL's words."""
    pipeline, trainer = config.pipeline, config.trainer
    own = pipeline.groups_per_step * pipeline.group_size // num_processes
    kinds: dict[str, dict[str, Any]] = {
        "generate": {},
        "batching": {"use_transformers_continuous_batching": True},
        "vllm": {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_max_model_length": config.engine.max_model_len,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": config.loss.ratio_clip,
        },
    }
    return GRPOConfig(
        output_dir=str(folder),
        seed=config.seed,
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,
        per_device_train_batch_size=min(microbatch, own),
        gradient_accumulation_steps=max(1, own // microbatch),
        max_steps=config.run.num_steps,
        num_generations=pipeline.group_size,
        max_completion_length=config.sampling.max_tokens,
        temperature=config.sampling.temperature,
        shuffle_dataset=False,
        loss_type="luspo",
        importance_sampling_level="token",
        scale_rewards="none",
        beta=0.0,
        num_iterations=1,
        optim="adamw_torch_fused",
        learning_rate=trainer.learning_rate,
        lr_scheduler_type=trainer.schedule,
        warmup_steps=trainer.warmup_steps,
        adam_beta1=trainer.betas[0],
        adam_beta2=trainer.betas[1],
        weight_decay=trainer.weight_decay,
        max_grad_norm=trainer.grad_clip,
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **kinds[generation],
    )


def rows_of(prompts: list[Prompt]) -> dict[str, list[Any]]:
    """The columns of TRL's dataset: the rendered text, and the prompt's number for the reward."""
    return {"prompt": [prompt.text for prompt in prompts], "prompt_id": [prompt.id for prompt in prompts]}


def main() -> None:
    """Train once and write what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--microbatch", type=int, required=True)
    parser.add_argument("--generation", default="generate")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = load_config(arguments.config, arguments.overrides)
    model = resolve_model(config.model)
    tokenizer, scorer = Tokenizer.load(model), Scorer(config.rewards)
    source = open_source(config, tokenizer, scorer.required_fields)
    prompts = [source.next() for _ in range(config.run.num_steps * config.pipeline.groups_per_step)]
    size = config.pipeline.group_size
    with Rewards(scorer, prompts, size / (size - 1)) as rewards:
        clock = Clock(arguments.folder, arguments.every)
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=rewards,
            args=settings_of(
                config,
                arguments.folder / "trl",
                num_processes=arguments.processes,
                microbatch=arguments.microbatch,
                generation=arguments.generation,
            ),
            train_dataset=Dataset.from_dict(rows_of(prompts)),
            callbacks=[clock],
        )
        own = trainer.processing_class(text=[prompt.text for prompt in prompts])["input_ids"]
        if own != [prompt.token_ids for prompt in prompts]:
            raise RuntimeError("TRL reads the prompts as other token ids than prl")
        trainer.train()
        if trainer.is_world_process_zero():
            result = {"started_at": clock.started_at, "seconds": clock.seconds, "rewards": rewards.means}
            (arguments.folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()

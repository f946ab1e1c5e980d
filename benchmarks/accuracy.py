"""How right a trained model is on held-out prompts, and after how many seconds of training it was so.

Invariants:

- Whoever trained it, a model is judged by the same code: its weights are put into the same transformers model, which
  answers the held-out prompts of prl's source, in float32 and at the temperature of ``[eval]`` (the same random numbers
  each time), and prl's rewards judge the answers.
- Judging happens after the training is over, on weights that were written meanwhile, so it takes none of its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import AutoModelForCausalLM

from prl.config import Config
from prl.models import resolve_model
from prl.prompts import open_source
from prl.rewards.scorer import Scorer
from prl.tokenizer import Tokenizer
from prl.types import Completion, Score

ANSWERED_AT_ONCE = 256
FIRST_TOKENS = 64
"""Sampled for all at first; whoever is not done goes on among their like, twice as far each time."""


def seconds_to(target: float, seconds: Sequence[float], accuracies: Sequence[float]) -> float | None:
    """When the accuracy reached ``target`` and still had it at the next evaluation; None where it never did.

    Args:
        target: the accuracy.
        seconds: when each evaluation's weights were there, ascending, the first at 0.
        accuracies: what each evaluation found.

    Returns:
        Seconds, on the straight line between the evaluation before and the first of the two.
    """
    for index in range(len(accuracies) - 1):
        if min(accuracies[index], accuracies[index + 1]) < target:
            continue
        if index == 0:
            return seconds[0]
        share = (target - accuracies[index - 1]) / (accuracies[index] - accuracies[index - 1])
        return seconds[index - 1] + max(0.0, share) * (seconds[index] - seconds[index - 1])
    return None


class Examiner:
    """Judges weights on the held-out prompts of one configuration."""

    def __init__(self, config: Config) -> None:
        """Load the model that the run started from, whose shape all weights must have."""
        torch.set_num_threads(1)  # on a busy machine two threads wait for each other longer than they compute
        model = resolve_model(config.model)
        self._tokenizer, self._config = Tokenizer.load(model), config
        self._stops = self._tokenizer.stop_token_ids
        source = open_source(config, self._tokenizer, Scorer(config.rewards).required_fields)
        self._prompts = source.held_out(config.eval.num_samples)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._names = dict(self._model.named_parameters())
        self._before = {name: parameter.detach().clone() for name, parameter in self._names.items()}

    def accuracy_before(self) -> float:
        """The accuracy of the model that the run started from."""
        return self.accuracy(self._before)

    def accuracy_of_checkpoint(self, folder: Path) -> float:
        """The accuracy of a checkpoint of prl."""
        held = FileSystemReader(folder).read_metadata().state_dict_metadata
        wanted = {f"model/{name}": torch.empty_like(tensor) for name, tensor in self._names.items()}
        if missing := wanted.keys() - held.keys():
            raise KeyError(f"{folder} lacks {sorted(missing)}")
        load(wanted, checkpoint_id=folder, no_dist=True)
        return self.accuracy({name.removeprefix("model/"): tensor for name, tensor in wanted.items()})

    def accuracy_of_file(self, file: Path) -> float:
        """The accuracy of weights in a safetensors file."""
        return self.accuracy(load_file(file))

    @torch.inference_mode()
    def accuracy(self, weights: Mapping[str, Tensor]) -> float:
        """Mean reward of one answer to each held-out prompt. Raises KeyError where ``weights`` lack a name."""
        torch.manual_seed(self._config.seed)
        for name, parameter in self._names.items():
            parameter.copy_(weights[name])
        prompts = sorted(self._prompts, key=lambda prompt: len(prompt.token_ids))
        answers: list[list[int]] = []
        for start in range(0, len(prompts), ANSWERED_AT_ONCE):
            answers += self._answer([prompt.token_ids for prompt in prompts[start : start + ANSWERED_AT_ONCE]])

        async def judge() -> list[float]:
            rewards = []
            async with Scorer(self._config.rewards) as scorer:
                for prompt, ids in zip(prompts, answers, strict=True):
                    verdict = await scorer.score(self._completion(ids), prompt)
                    if not isinstance(verdict, Score):
                        raise TypeError(f"the answer to held-out prompt {prompt.id} was not judged: {verdict}")
                    rewards.append(verdict.reward)
            return rewards

        rewards = asyncio.run(judge())
        return sum(rewards) / len(rewards)

    def _answer(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Answers, each up to its stop token or the limit."""
        answers: list[list[int]] = [[] for _ in prompts]
        limit, stops, step = self._config.eval.max_tokens or self._config.sampling.max_tokens, self._stops, FIRST_TOKENS
        unfinished = list(range(len(prompts)))
        while unfinished:
            so_far = [[*prompts[row], *answers[row]] for row in unfinished]
            room = min(step, limit - len(answers[unfinished[0]]))
            for row, more in zip(unfinished, self._continue(so_far, room), strict=True):
                answers[row] += more
            unfinished = [row for row in unfinished if answers[row][-1] not in stops and len(answers[row]) < limit]
            step *= 2
        return answers

    def _continue(self, rows: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """Up to ``num_tokens`` more of each row, which are padded on the left."""
        width, temperature = max(map(len, rows)), self._config.eval.temperature
        ids = torch.zeros((len(rows), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, width - len(row) :] = torch.tensor(row)
            mask[index, width - len(row) :] = 1
        how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        sampled = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=num_tokens,
            eos_token_id=self._stops,
            pad_token_id=0,
            **how,
        )[:, width:].tolist()
        ends = [next((at + 1 for at, token in enumerate(row) if token in self._stops), len(row)) for row in sampled]
        return [row[:end] for row, end in zip(sampled, ends, strict=True)]

    def _completion(self, ids: list[int]) -> Completion:
        finish = "stop" if ids[-1] in self._stops else "length"
        nothing = [0] * len(ids)
        text = self._tokenizer.decode(ids)
        return Completion(token_ids=ids, logprobs=[0.0] * len(ids), versions=nothing, text=text, finish=finish)

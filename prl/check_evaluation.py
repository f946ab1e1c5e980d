"""Conflicts within ``[eval]``: answers that could not differ, and numbers that nothing would read."""

from __future__ import annotations

from collections.abc import Iterator

from prl.config import Config


def check_evaluation(config: Config) -> Iterator[str]:
    """One line per conflict."""
    held_out, context = config.eval, config.engine.max_model_len
    if held_out.num_samples == 0 and held_out.every > 0:
        yield f"eval.every = {held_out.every} conflicts with eval.num_samples = 0, which evaluates never"
    if held_out.num_answers > 1 and held_out.temperature == 0:
        yield (
            f"eval.num_answers = {held_out.num_answers} conflicts with eval.temperature = 0, which would give the same"
            " greedy answer each time: set eval.temperature, such as 1.0, or take one answer"
        )
    for k in held_out.pass_at or ():
        if k > held_out.num_answers:
            yield (
                f"eval.pass_at has {k}, and pass@{k} needs as many answers of each prompt: eval.num_answers ="
                f" {held_out.num_answers}; raise it, or take {k} away"
            )
    if held_out.max_tokens is not None and held_out.max_tokens >= context:
        yield (
            f"eval.max_tokens = {held_out.max_tokens} leaves no room for a prompt in engine.max_model_len = {context}:"
            " the context holds prompt and answer"
        )

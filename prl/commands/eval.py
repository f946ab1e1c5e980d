"""``prl eval``: ask a model the held-out prompts of a configuration; engines only, no trainer."""

from __future__ import annotations

import argparse
import json

from prl.commands.arguments import add_config

HELP = "ask a model the held-out prompts"
ABOUT = "Ask a model the held-out prompts of CONFIG and judge its answers: engines only, nothing is trained."
EXAMPLES = """\
examples:
  prl eval configs/math.toml                                 the model that training begins with
  prl eval configs/math.toml --model runs/math/export        what a run has made of it
  prl eval configs/math.toml --model Qwen/Qwen2.5-0.5B-Instruct --num-samples 64
  prl eval configs/math.toml --num-answers 8 --temperature 1 --set 'eval.pass_at=[1, 2, 4, 8]'
  prl eval configs/math.toml --out answers.jsonl             every answer with prompt, reward and what was expected
  prl eval configs/math.toml --set eval.path=test.jsonl      prompts of your own

what is said:
  The mean reward over the prompts and pass@k (unbiased, Chen et al. 2021), each with its 95% interval. Answers of one
  prompt are not independent, and the interval knows. [eval], [engine], [sampling], [data] and [[rewards]] count.

exit codes:
  0 done   1 the evaluation failed   2 bad input, nothing started   130 interrupted"""

_KEYS = {"num_answers": "eval.num_answers", "temperature": "eval.temperature", "max_tokens": "eval.max_tokens"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl eval`` takes."""
    add_config(parser)
    parser.add_argument(
        "--model",
        metavar="DIR",
        help="a folder such as runs/math/export, a built-in or a hub name; else CONFIG's model",
    )
    parser.add_argument(
        "--num-samples", metavar="N", type=int, help="held-out prompts; never more than training has set aside"
    )
    parser.add_argument("--num-answers", metavar="N", help="answers sampled for each prompt (eval.num_answers)")
    parser.add_argument("--temperature", metavar="T", help="0 is greedy (eval.temperature)")
    parser.add_argument("--max-tokens", metavar="N", help="most tokens of one answer (eval.max_tokens)")
    parser.add_argument("--out", metavar="FILE.jsonl", help="where every answer goes, one a line")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate; the exit code."""
    from prl.eval_job import EvalJob  # noqa: PLC0415 - --help stays quick
    from prl.settings import load_config  # noqa: PLC0415 - the same

    overrides = list(arguments.set)
    if arguments.model is not None:
        overrides.append(f"model={json.dumps(arguments.model, ensure_ascii=False)}")
    given = {key: getattr(arguments, name) for name, key in _KEYS.items()}
    overrides += [f"{key}={value}" for key, value in given.items() if value is not None]
    config = load_config(arguments.config, overrides)
    return EvalJob(config, num_samples=arguments.num_samples, out=arguments.out).run()

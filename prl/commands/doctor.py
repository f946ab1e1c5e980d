"""``prl doctor``: does the engine's log-probability of a token equal the trainer's, and if not, why not."""

from __future__ import annotations

import argparse
from pathlib import Path

from prl.commands.arguments import add_config

HELP = "score the same tokens in engine and trainer, and say where a gap comes from"
ABOUT = """\
Start one engine and the trainer of CONFIG, sample completions of its prompts, have the trainer score the same tokens,
and say where any gap between the two log-probabilities comes from. The importance ratio of every loss is exp(gap):
a gap that is none of the policy's doing teaches the model something that nobody meant."""
EXAMPLES = """\
examples:
  prl doctor configs/math.toml
  prl doctor configs/math.toml --set sampling.temperature=0.7      at the temperature you are going to train with
  prl doctor configs/math.toml --set engine.dtype=bfloat16         what rounding costs before you train with it
  prl doctor configs/math.toml --samples 64 --json doctor.json     more tokens; every number for a script

what is looked at:
  gap              engine against trainer on every sampled token, as a training step would see it
  temperature      at which temperature do the trainer's numbers fit the engine's best?
  filters          does the engine contradict its own score of what it sampled (top-p, top-k, min-p, penalties)?
  template or BOS  do the numbers fit better with a BOS more or fewer? what do prompts start with, and do turns stay?
  dtype            one forward pass of each; the trainer again in float32 and in the shorter type
  stale weights    change one group of tensors after the other, push, and see whether the engine follows
  retokenisation   completions whose text gives other tokens, and whether the gap is in those
  stop tokens, context   what ends a completion; prompts that do not fit

what to expect:
  float32 on both sides: 1e-7 to 1e-4 a token, never above 1e-3 (weights.verify_tolerance). In bfloat16 a mean of about
  0.01 and single tokens of 0.1 and more are rounding; the doctor measures what rounding does to your model, and
  accepts up to four times that.

It takes a start-up and some seconds on a small model. The first Ctrl-C ends what was started and leaves.

exit codes:
  0 clean   1 a fault, or a side failed   2 bad input, nothing started   130 interrupted"""
NUM_SAMPLES = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl doctor`` takes."""
    add_config(parser)
    parser.add_argument(
        "--samples",
        metavar="N",
        type=_positive,
        default=NUM_SAMPLES,
        help=f"completions to compare, each of another prompt (default {NUM_SAMPLES})",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every number to FILE")


def run(arguments: argparse.Namespace) -> int:
    """Examine; the exit code."""
    from prl.settings import load_config  # noqa: PLC0415 - --help stays quick

    config = load_config(arguments.config, arguments.set)
    from prl.doctor.visit import Visit  # noqa: PLC0415 - the same

    return Visit(config, num_samples=arguments.samples, report=arguments.json).run()


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of completions, 1 or more")
    return number

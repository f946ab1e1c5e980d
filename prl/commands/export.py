"""``prl export``: a checkpoint of a run as a Hugging Face folder."""

from __future__ import annotations

import argparse
import sys

from prl.commands.arguments import FAILED, OK

HELP = "write a checkpoint of a run as a Hugging Face folder"
ABOUT = """\
Write the weights of a checkpoint as a Hugging Face folder: safetensors, config and tokenizer, as transformers, vLLM and
'prl eval' read them. A run that ends by itself leaves such a folder in RUN/export; this is for every other step, and
for a run that was killed. RUN may be under way."""
EXAMPLES = """\
examples:
  prl export runs/math                              the newest complete checkpoint, to RUN/exports/step-000060
  prl export runs/math --step 40 --out best         that of step 40, to the folder 'best'
  prl export runs/math --adapters --out adapters    LoRA: the adapters alone, in peft's format
  prl eval runs/math/config.toml --model best       what it answers

what is written:
  The weights in the dtype that the run's engines serve (engine.dtype): what was sampled from and evaluated. With LoRA
  they are merged into the base, and the adapters lie beside them in adapter/, in float32. A checkpoint is read to its
  last byte before: one that is damaged is never exported, and without --step the newest that is whole is taken.

what it takes:
  One process on the CPU, and memory for the model in float32 and once more in engine.dtype; no GPU, no engine.

exit codes:
  0 written   1 it could not be written   2 bad input: no such run or checkpoint, or the folder is taken"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl export`` takes."""
    parser.add_argument("run", metavar="RUN", help="a run folder, such as runs/math")
    parser.add_argument("--step", metavar="N", type=int, help="the checkpoint after N steps; else the newest complete")
    parser.add_argument("--out", metavar="DIR", help="a folder that is not there yet; else RUN/exports/step-N")
    parser.add_argument("--adapters", action="store_true", help="of a LoRA run the adapters alone, not merged")
    parser.add_argument("--model", metavar="DIR", help="where the model that the run began with lies now, if it moved")


def run(arguments: argparse.Namespace) -> int:
    """Export; the exit code."""
    from prl.export_job import ExportJob  # noqa: PLC0415 - --help stays quick

    job = ExportJob(
        arguments.run, step=arguments.step, out=arguments.out, adapters=arguments.adapters, model=arguments.model
    )
    for note in job.notes:
        print(f"note: {note}")  # noqa: T201
    if failed := job.run():
        print(f"prl: {failed}", file=sys.stderr)  # noqa: T201
        return FAILED
    print(f"step {job.step} of {arguments.run} is in {job.out}")  # noqa: T201
    return OK

"""``prl launch``: write the job script or the manifests that run a TOML on many machines. Nothing is started."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prl.commands.arguments import OK, add_config
from prl.errors import ConfigError

if TYPE_CHECKING:
    from prl.config import Config
    from prl.launching.layout import Layout

HELP = "write a Slurm job or Kubernetes manifests for a TOML file"
ABOUT = """\
Write what a scheduler needs to run CONFIG: nodes and GPUs from its numbers, each part told where the others are, a
graceful stop with time to save, and going on by itself afterwards. Engines become `vllm serve` processes and ranks
torchrun's where one machine is not enough. Nothing is started; secrets stay where they are."""
EXAMPLES = """\
examples:
  prl launch slurm configs/qwen2.5-7b-8xh100.toml > job.sh && sbatch job.sh
  prl launch slurm my.toml --gpus-per-node 8 --time 12:00:00 --sbatch=--partition=gpu --sbatch=--account=me
  prl launch slurm my.toml --set engine.count=96 --set trainer.num_ranks=32 --set trainer.num_replicas=4
  prl launch kubernetes my.toml --image registry.example/prl:1 --claim prl-runs > run.yaml && kubectl apply -f run.yaml

what must be there:
  slurm        CONFIG, the run folder and prl on a file system that all nodes share
  kubernetes   an image with prl and vLLM, a volume that many pods may write, and the Secret that the file's head names

exit codes:
  0 written   2 bad input, nothing written"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl launch`` takes."""
    parser.add_argument("scheduler", choices=["slurm", "kubernetes"], help="whom the result is for")
    add_config(parser)
    parser.add_argument("--gpus-per-node", metavar="N", type=int, default=8, help="GPUs of one machine (8)")
    parser.add_argument("--out", metavar="FILE", help="write there; else to standard output")
    parser.add_argument("--run-dir", metavar="DIR", help="slurm: where the run goes; else runs/NAME")
    parser.add_argument("--time", metavar="TIME", default="24:00:00", help="slurm: longest time of one job (24:00:00)")
    parser.add_argument(
        "--sbatch", metavar="OPTION", action="append", default=[], help="slurm: one more option; may be given again"
    )
    parser.add_argument("--image", metavar="IMAGE", help="kubernetes: the container image")
    parser.add_argument(
        "--claim", metavar="NAME", default="prl-runs", help="kubernetes: the volume claim of the runs (prl-runs)"
    )
    parser.add_argument("--namespace", metavar="NAME", help="kubernetes: where; else kubectl's own")


def run(arguments: argparse.Namespace) -> int:
    """Write it; the exit code."""
    from prl.check import cross_check  # noqa: PLC0415 - --help stays quick
    from prl.launching.layout import layout_of, notes, secrets_stay_out  # noqa: PLC0415 - the same
    from prl.settings import load_config  # noqa: PLC0415 - the same
    from prl.trainer.launch import TOKEN  # noqa: PLC0415 - the same

    config = load_config(arguments.config, arguments.set)
    cross_check(config, {TOKEN: "made when the job starts"})
    secrets_stay_out(config)
    layout = layout_of(config, arguments.gpus_per_node)
    text = (
        _slurm(arguments, config, layout) if arguments.scheduler == "slurm" else _kubernetes(arguments, config, layout)
    )
    for note in notes(config, layout):
        print(f"prl: note: {note}", file=sys.stderr)  # noqa: T201
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        Path(arguments.out).write_text(text)
    return OK


def _slurm(arguments: argparse.Namespace, config: Config, layout: Layout) -> str:
    from prl.launching.slurm import job_script  # noqa: PLC0415 - --help stays quick

    if arguments.image is not None or arguments.namespace is not None:
        raise ConfigError("--image and --namespace are for kubernetes: leave them out, or launch kubernetes")
    if wrong := [option for option in arguments.sbatch if not option.startswith("-") or "\n" in option]:
        raise ConfigError(f"--sbatch = {wrong[0]!r} must be an option of sbatch, such as --sbatch=--partition=gpu")
    run_dir = Path(arguments.run_dir) if arguments.run_dir else Path("runs") / config.run.name
    return job_script(
        config,
        layout,
        config_path=str(Path(arguments.config).absolute()),
        overrides=arguments.set,
        run_dir=str(run_dir.absolute()),
        time=arguments.time,
        options=arguments.sbatch,
    )


def _kubernetes(arguments: argparse.Namespace, config: Config, layout: Layout) -> str:
    from prl.launching.kubernetes import manifests, to_yaml  # noqa: PLC0415 - --help stays quick

    if arguments.image is None:
        raise ConfigError("--image is missing: name a container image that has prl and vLLM, for the pods to run")
    if arguments.run_dir is not None or arguments.sbatch:
        raise ConfigError("--run-dir and --sbatch are for slurm: on Kubernetes the run goes to /runs/NAME of --claim")
    made = manifests(config, layout, image=arguments.image, claim=arguments.claim, namespace=arguments.namespace)
    return to_yaml(made, layout)

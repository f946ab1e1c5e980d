"""The job script for Slurm.

Invariants:

- One allocation has all parts. Before its time is up Slurm signals the script (``--signal``) early enough for a step
  and a save; a run that was stopped so is queued again, and resumes. A run that failed is not.
- Secrets of the parts among themselves are made in the job and live in its environment; those of rewards come from the
  environment of ``sbatch``, and are asked for by name before anything starts.
- A server or torchrun that ends is started again for as long as the job lasts; the run waits, or goes on without it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from prl.config import Config
from prl.launching.layout import (
    API_KEY,
    FIRST_SERVER_PORT,
    MEETING_PORT,
    RANKS_PORT,
    Layout,
    find_model,
    server_words,
)
from prl.launching.scripts import AGAIN_S, RESUME, UNTIL_ENDED, WAS_STOPPED, torchrun
from prl.trainer.launch import TOKEN

_LONGEST_SIGNAL_S = 65535
"""Slurm's own limit on the seconds of ``--signal``."""


def job_script(
    config: Config,
    layout: Layout,
    *,
    config_path: str,
    overrides: Sequence[str],
    run_dir: str,
    time: str,
    options: Sequence[str],
) -> str:
    """The script for ``sbatch``.

    Args:
        config: what is run.
        layout: where its parts go.
        config_path: the TOML, on a file system that all nodes share.
        overrides: of ``--set``.
        run_dir: the run folder, on such a file system.
        time: longest time of one allocation, as ``--time`` takes it.
        options: more for ``sbatch``, such as ``--partition=gpu``.
    """
    parts = [
        _directives(layout, time, options),
        _beginning(layout, config_path, run_dir),
        *([] if layout.is_single else [_nodes()]),
        *([_servers(config, layout)] if layout.num_engines else []),
        *([] if layout.is_single else [_ranks(layout)]),
        _controller(layout, overrides),
    ]
    return "\n".join(parts)


def _directives(layout: Layout, time: str, options: Sequence[str]) -> str:
    lines = [
        f"--job-name=prl-{layout.name}",
        f"--nodes={layout.num_nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={layout.num_gpus}",
        "--exclusive",
        f"--time={time}",
        f"--signal=B:TERM@{min(layout.grace_s, _LONGEST_SIGNAL_S)}",
        "--requeue",
        "--open-mode=append",
        f"--output=prl-{layout.name}-%j.log",
        *options,
    ]
    return "#!/usr/bin/env bash\n" + "".join(f"#SBATCH {line}\n" for line in lines)


def _beginning(layout: Layout, config_path: str, run_dir: str) -> str:
    why = "set it where you call sbatch: the configuration refers to it"
    asked = "".join(f': "${{{name}:?{why}}}"\n' for name in layout.variables)
    if asked:
        asked = f"# Secrets come from the environment of sbatch; none is written here.\n{asked}"
    return f"""\
# Written by `prl launch slurm`. Submit it with sbatch, from a folder that all nodes share.
set -euo pipefail

config={shlex.quote(config_path)}
run={shlex.quote(run_dir)}
mkdir -p "$run/logs"
{asked}"""


def _nodes() -> str:
    return f"""\
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
secret() {{ od -An -N16 -tx1 /dev/urandom | tr -d ' \\n'; }}
{TOKEN}="$(secret)"
export {TOKEN}
"""


def _servers(config: Config, layout: Layout) -> str:
    environment, arguments = server_words(config)
    return f"""\
{API_KEY}="$(secret)"
export {API_KEY}
{find_model(config)}

# {layout.num_engines} engines of {layout.gpus_per_engine} GPUs, {layout.engines_per_node} a node.
# One that ends is started again, and rejoins.
serve() {{
  local number="$1" node="$2" port="$3" gpus="$4"
  while true; do
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --output="$run/logs/server-$number.log" --open-mode=append \\
      env CUDA_VISIBLE_DEVICES="$gpus" {environment} \\
      vllm serve "$model" --host 0.0.0.0 --port "$port" {arguments} || true
    sleep {AGAIN_S}
  done
}}
servers=()
for ((i = 0; i < {layout.num_engines}; i++)); do
  place=$((i % {layout.engines_per_node}))
  node="${{nodes[i / {layout.engines_per_node}]}}"
  first=$((place * {layout.gpus_per_engine})) port=$(({FIRST_SERVER_PORT} + place))
  serve "$i" "$node" "$port" "$(seq -s, "$first" "$((first + {layout.gpus_per_engine - 1}))")" &
  servers+=("'http://$node:$port'")
done
"""


def _ranks(layout: Layout) -> str:
    first, count = layout.num_engine_nodes, layout.num_trainer_nodes
    return f"""\
# {count * layout.ranks_per_node} ranks on {count} nodes, which come back until the run is over: then they leave with 0.
train() {{
  local hosts
  hosts="$(IFS=,; echo "${{nodes[*]:{first}:{count}}}")"
  export PRL_TRAINER_ADDRESS="${{nodes[0]}}:{RANKS_PORT}"
  until srun --overlap --nodes={count} --ntasks={count} --ntasks-per-node=1 --nodelist="$hosts" --kill-on-bad-exit=1 \\
    --output="$run/logs/torchrun-%n.log" --open-mode=append \\
    {torchrun(layout, endpoint=f'"${{nodes[{first}]}}:{MEETING_PORT}"', job='"$SLURM_JOB_ID"')}; do
    sleep {AGAIN_S}
  done
}}
train &
"""


def _controller(layout: Layout, overrides: Sequence[str]) -> str:
    given = "".join(f" --set {shlex.quote(each)}" for each in overrides)
    elsewhere = ""
    if not layout.is_single:
        elsewhere = f" \\\n  --set trainer.launch=external --set trainer.listen=0.0.0.0:{RANKS_PORT}"
    if layout.num_engines:
        elsewhere += (
            f" \\\n  --set engine.kind=server --set engine.api_key_env={API_KEY}"
            ' --set "engine.servers=[$(IFS=,; echo "${servers[*]}")]"'
        )
    return f"""\
{RESUME}\
prl run "$config" --plain --run-dir "$run" "${{resume[@]}}"{given}{elsewhere} &
controller=$!

{UNTIL_ENDED}
if {WAS_STOPPED} && ((code == 0)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""

"""The lines of bash that a job script and the pods of a cluster have in common. Pure.

Invariant: a run is gone on with where it was, is stopped by SIGTERM with time to save, and its exit code is known.
"""

from __future__ import annotations

from prl.launching.layout import Layout

AGAIN_S = 5
"""Pause before what ended is started again."""
RESUME = """\
resume=()
if [[ -e "$run/config.toml" ]]; then resume=(--resume); fi
"""
"""Puts into ``resume`` the option that goes on with the run in ``$run``, where there is one."""
UNTIL_ENDED = """\
# The time is nearly up, or this is preempted: finish the step, save, leave. A trapped signal ends `wait`, so again.
trap 'kill -TERM "$controller"' TERM
wait "$controller" || true
while kill -0 "$controller" 2> /dev/null; do wait "$controller" || true; done
code=0
wait "$controller" || code=$?
"""
"""Waits for the process ``$controller``, a child, and passes SIGTERM on to it; its exit code is in ``code``."""
WAS_STOPPED = """grep -q '"status": *"stopped"' "$run/summary.json" 2> /dev/null"""
"""Whether the run in ``$run`` was stopped, and can be gone on with."""


def torchrun(layout: Layout, *, endpoint: str, job: str) -> str:
    """The ranks of one node: torchruns meet at ``endpoint`` under the name ``job``; two lines, without an end."""
    return (
        f"torchrun --nnodes={layout.num_trainer_nodes} --nproc-per-node={layout.ranks_per_node} --max-restarts=100"
        f" --rdzv-backend=c10d \\\n  --rdzv-endpoint={endpoint} --rdzv-id={job} -m prl.trainer.worker"
    )

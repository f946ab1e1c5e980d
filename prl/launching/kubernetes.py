"""The manifests for Kubernetes, as one YAML file for ``kubectl apply``.

Invariants:

- Every part is a Job, and every Job ends with the run: engines and ranks leave no GPU taken behind.
- A controller whose pod is evicted gets SIGTERM and time for a step and a save; its next pod resumes. It says by its
  exit code whether the run is done (0), has failed (1, 2: not tried again) or was stopped (always tried again).
- Secrets are references to one Secret; nothing here holds one.
- All pods see one volume at ``/runs``: the run folder is there, and what the hub was asked for.
"""

from __future__ import annotations

import shlex
from typing import Any

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
from prl.settings import to_toml_without_secrets
from prl.trainer.launch import TOKEN

STOPPED = 75
"""Exit code of a controller that was stopped and saved: EX_TEMPFAIL."""
_RUNS, _SCRIPTS = "/runs", "/etc/prl"
_MANY = 1000


def manifests(config: Config, layout: Layout, *, image: str, claim: str, namespace: str | None) -> list[dict[str, Any]]:
    """What ``kubectl apply`` creates, in order.

    Args:
        config: what is run; it holds no secret.
        layout: where its parts go.
        image: has prl and vLLM.
        claim: a PersistentVolumeClaim that many pods may write (ReadWriteMany).
        namespace: of everything; None: the one that kubectl has.
    """
    scripts = {"config.toml": to_toml_without_secrets(config), "controller.sh": _controller(layout)}
    if not layout.is_single:
        scripts |= {"trainer.sh": _trainer(layout)}
    if layout.num_engines:
        scripts |= {"engine.sh": _engine(config, layout)}
    made = [
        _object("v1", "ConfigMap", layout, data=scripts),
        _object("v1", "Service", layout, spec=_service(layout)),
        _object("batch/v1", "Job", layout, "controller", spec=_controller_job(layout, image, claim)),
    ]
    if not layout.is_single:
        jobs = {
            "engine": (layout.num_engines, layout.gpus_per_engine),
            "trainer": (layout.num_trainer_nodes, layout.ranks_per_node),
        }
        for part, (count, num_gpus) in jobs.items():
            if not count:
                continue
            pod = _pod(layout, part, num_gpus, image, claim, restart="OnFailure")
            made.append(_object("batch/v1", "Job", layout, part, spec=_indexed_job(count, pod)))
    if namespace is not None:
        for each in made:
            each["metadata"]["namespace"] = namespace
    return made


def variables(layout: Layout) -> list[str]:
    """What the Secret must have."""
    own = [*([] if layout.is_single else [TOKEN]), *([API_KEY] if layout.num_engines else [])]
    return [*own, *(each for each in layout.variables if each not in own)]


def to_yaml(made: list[dict[str, Any]], layout: Layout) -> str:
    """The manifests as text, with the commands that they need before and after."""
    import yaml  # noqa: PLC0415 - only to write this

    dumper_of_scripts: Any = type("Dumper", (yaml.SafeDumper,), {})

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    dumper_of_scripts.add_representer(str, text)
    documents = [yaml.dump(each, Dumper=dumper_of_scripts, sort_keys=False, width=1000) for each in made]
    return _comments(layout) + "".join(f"---\n{each}" for each in documents)


def _comments(layout: Layout) -> str:
    name = f"prl-{layout.name}"
    lines = [f"Written by `prl launch kubernetes`: {len(_parts(layout))} jobs of one run."]
    if wanted := variables(layout):
        own = {TOKEN, API_KEY}
        values = [f'--from-literal={each}="$(openssl rand -hex 16)"' for each in wanted if each in own]
        values += [f'--from-literal={each}="${each}"' for each in wanted if each not in own]
        lines += ["Once, before:", f"  kubectl create secret generic {name} {' '.join(values)}"]
    lines += [
        "Start, watch, stop with time to save, start again where it was, and end:",
        "  kubectl apply -f FILE",
        f"  kubectl logs -f job/{name}-controller",
        f"  kubectl delete pod -l app.kubernetes.io/instance={name},app.kubernetes.io/component=controller",
        "  kubectl delete -f FILE",
    ]
    return "".join(f"# {line}\n" for line in lines)


def _parts(layout: Layout) -> list[str]:
    engines = ["engine"] if layout.num_engines else []
    return ["controller"] if layout.is_single else ["controller", *engines, "trainer"]


def _object(version: str, kind: str, layout: Layout, part: str | None = None, **content: Any) -> dict[str, Any]:
    name = f"prl-{layout.name}"
    metadata = {"name": f"{name}-{part}" if part else name, "labels": _labels(layout, part)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _labels(layout: Layout, part: str | None) -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "prl", "app.kubernetes.io/instance": f"prl-{layout.name}"}
    return {**labels, "app.kubernetes.io/component": part} if part else labels


def _service(layout: Layout) -> dict[str, Any]:
    """Names for the pods; no address of its own. A pod is found before it is ready, since they wait for one another."""
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _labels(layout, None),
        "ports": [{"name": "ranks", "port": RANKS_PORT}],
    }


def _controller_job(layout: Layout, image: str, claim: str) -> dict[str, Any]:
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": _codes(STOPPED)},
        {"action": "FailJob", "onExitCodes": _codes(1, 2)},
    ]
    num_gpus = layout.num_gpus_wanted if layout.is_single else 0
    pod = _pod(layout, "controller", num_gpus, image, claim, restart="Never")
    pod["spec"]["hostname"] = "controller"
    pod["spec"]["terminationGracePeriodSeconds"] = layout.grace_s
    return {"backoffLimit": 10, "podFailurePolicy": {"rules": rules}, "template": pod}


def _codes(*codes: int) -> dict[str, Any]:
    return {"containerName": "controller", "operator": "In", "values": list(codes)}


def _indexed_job(count: int, pod: dict[str, Any]) -> dict[str, Any]:
    """Pods with a number and a name each; one that ends badly is started again in its place."""
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": _MANY,
        "template": pod,
    }


def _pod(layout: Layout, part: str, num_gpus: int, image: str, claim: str, *, restart: str) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": part,
        "image": image,
        "command": ["bash", f"{_SCRIPTS}/{part}.sh"],
        "workingDir": _RUNS,
        "env": [
            {"name": "HF_HOME", "value": f"{_RUNS}/huggingface"},
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": f"prl-{layout.name}", "key": name}}}
                for name in variables(layout)
            ),
        ],
        "volumeMounts": [
            {"name": "runs", "mountPath": _RUNS},
            {"name": "scripts", "mountPath": _SCRIPTS},
            {"name": "memory", "mountPath": "/dev/shm"},  # noqa: S108 -- where NCCL and vLLM share memory
        ],
    }
    if num_gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": num_gpus}}
    return {
        "metadata": {"labels": _labels(layout, part)},
        "spec": {
            "restartPolicy": restart,
            "subdomain": f"prl-{layout.name}",
            "containers": [container],
            "volumes": [
                {"name": "runs", "persistentVolumeClaim": {"claimName": claim}},
                {"name": "scripts", "configMap": {"name": f"prl-{layout.name}"}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


# ---- what the pods run -----------------------------------------------------------------------------------------------


def _controller(layout: Layout) -> str:
    elsewhere = ""
    if not layout.is_single:
        name = f"prl-{layout.name}"
        servers = [f"'http://{name}-engine-{i}.{name}:{FIRST_SERVER_PORT}'" for i in range(layout.num_engines)]
        settings = ["trainer.launch=external", f"trainer.listen=0.0.0.0:{RANKS_PORT}"]
        if servers:
            listed = f"engine.servers=[{','.join(servers)}]"
            settings += ["engine.kind=server", f"engine.api_key_env={API_KEY}", listed]
        elsewhere = "".join(f" \\\n  --set {shlex.quote(each)}" for each in settings)
    return f"""\
set -euo pipefail
run={_RUNS}/{layout.name}
rm -f "$run/ended"
{RESUME}\
prl run {_SCRIPTS}/config.toml --plain --run-dir "$run" "${{resume[@]}}"{elsewhere} &
controller=$!
{UNTIL_ENDED}\
if ((code == 0)) && {WAS_STOPPED}; then
  exit {STOPPED}
fi
if ((code <= 2)); then touch "$run/ended"; fi
exit "$code"
"""


def _engine(config: Config, layout: Layout) -> str:
    environment, arguments = server_words(config)
    return f"""\
set -euo pipefail
ended={_RUNS}/{layout.name}/ended
export {environment}
{find_model(config)}
vllm serve "$model" --host 0.0.0.0 --port {FIRST_SERVER_PORT} {arguments} &
server=$!
while kill -0 "$server" 2> /dev/null; do
  if [[ -e "$ended" ]]; then
    kill -TERM "$server"
    exit 0
  fi
  sleep {AGAIN_S}
done
wait "$server"
"""


def _trainer(layout: Layout) -> str:
    name = f"prl-{layout.name}"
    return f"""\
set -euo pipefail
export PRL_TRAINER_ADDRESS=controller.{name}:{RANKS_PORT}
ended={_RUNS}/{layout.name}/ended
until {torchrun(layout, endpoint=f"{name}-trainer-0.{name}:{MEETING_PORT}", job=name)}; do
  if [[ -e "$ended" ]]; then exit 0; fi
  sleep {AGAIN_S}
done
"""

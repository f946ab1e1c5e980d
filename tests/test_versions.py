"""What a run says of the software and the devices that it had."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from prl.versions import versions


def test_versions_name_what_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages, interpreter, platform, the processor, and each GPU as the driver lists it."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 570.1'\necho 'odd'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = versions()
    assert list(found) == ["prl", "torch", "vllm", "transformers", "python", "platform", "devices"]
    gpu, cpu = found["devices"]
    assert gpu == {"kind": "gpu", "name": "NVIDIA H200", "memory_mib": "143771", "driver": "570.1"}
    assert (cpu["kind"], cpu["cores"] >= 1) == ("cpu", True)
    assert msgspec.json.decode(msgspec.json.encode(found)) == found


def test_a_driver_that_does_not_answer_has_no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on without them."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [device["kind"] for device in versions()["devices"]] == ["cpu"]

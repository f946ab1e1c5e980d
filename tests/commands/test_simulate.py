"""``prl simulate`` and ``prl plan`` as they are typed."""

from __future__ import annotations

import json

import pytest

from prl.cli import main
from tests.simulate.test_paper import CONFIG
from tests.simulate.test_run import SMALL

OVERRIDES = [word for override in SMALL for word in ("--set", override)]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a call."""
    code = main([*words, *OVERRIDES])
    out, err = capsys.readouterr()
    return code, out, err


def test_simulate_says_what_a_run_would_come_to(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines for people, or one JSON object with the same."""
    code, out, _ = said(capsys, "simulate", str(CONFIG))
    assert code == 0
    assert "2 engines, 16 sequences each; 2 ranks" in out
    code, out, _ = said(capsys, "simulate", str(CONFIG), "--json")
    told = json.loads(out)
    assert code == 0
    assert sum(told["engines"].values()) == pytest.approx(1)
    assert told["lag"]["max"] >= told["lag"]["p99"]


def test_plan_says_what_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    """As many set-ups as were asked for, with the keys to set."""
    code, out, _ = said(capsys, "plan", str(CONFIG), "--accelerators", "4", "--best", "1")
    assert code == 0
    assert "engine.count=" in out
    assert len(out.splitlines()) == 3


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 with the key to give; a config without [simulate] says what is missing, and so does a plan on nothing."""
    assert main(["simulate", str(CONFIG), "--set", "simulate.decode.base_s=unset"]) == 2
    assert capsys.readouterr().err.startswith("prl: simulate.decode: ")
    assert main(["plan", str(CONFIG), "--accelerators", "0"]) == 2
    assert "--accelerators 0" in capsys.readouterr().err

"""The report: one file that holds everything, asks for nothing and runs nothing."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from prl.cli import main
from prl.errors import ConfigError
from prl.report import picture
from prl.report.curves import panels
from prl.report.gather import gather
from prl.report.page import report
from prl.report.words import short, shown
from tests.view import recorded


class Document(HTMLParser):
    """Its elements, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep it."""
        self.text += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run that has ended."""
    path = tmp_path_factory.mktemp("runs") / "<b>bold"
    recorded.make(path, num_steps=400, num_samples=3200)
    return path


def test_one_file_says_what_the_run_was_and_learned(run: Path) -> None:
    """Facts, curves by part and with their intervals, configuration, accounting, warnings, samples."""
    told = gather(run)
    titles = [panel.title for panel in panels([told])]
    assert titles[:4] == ["Evaluations", "Reward", "Reward by part", "Length"]
    assert {"Effective sample size", "Lag of trained tokens", "Entropy", "Throughput"} <= set(titles)
    evaluations = panels([told])[0]
    assert [curve.label for curve in evaluations.curves] == ["mean reward", "pass@1", "pass@4"]
    assert all((curve.low <= curve.mean).all() and (curve.mean <= curve.high).all() for curve in evaluations.curves)
    document = Document(report([told]))
    assert len([tag for tag, _ in document.elements if tag == "svg"]) == len(titles)
    for words in ("completed", "engine.count", "completions dropped: timeout", "a stream moved", "\\boxed{", "2.13.0"):
        assert words in document.text
    pictures = [attributes for tag, attributes in document.elements if tag == "svg"]
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in pictures)


def test_nothing_in_it_runs_or_asks_for_anything(run: Path) -> None:
    """Whatever a run, an event or a model wrote is text; no element but those of a report, no address of anything."""
    text = report([gather(run)])
    document = Document(text)
    assert {tag for tag, _ in document.elements}.isdisjoint({"script", "link", "img", "iframe", "object", "b", "a"})
    names = {name for _, attributes in document.elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in {"href", "src", "style", "srcset"}]
    assert "http" not in re.sub(r'http-equiv="Content-Security-Policy"', "", text)
    assert "url(" not in text
    assert "<script>alert(1)</script>" in document.text
    assert "<b>bold" in document.text
    policies = [each.get("content") for tag, each in document.elements if tag == "meta" and "http-equiv" in each]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"]


def test_several_runs_are_compared(run: Path, tmp_path: Path) -> None:
    """A curve of each in every picture, told apart without colour, and the keys in which they differ."""
    other = tmp_path / "other"
    recorded.make(other, num_steps=50, num_samples=100, group_size=4)
    told = [gather(run), gather(other)]
    assert all([curve.label for curve in panel.curves] == ["<b>bold", "other"] for panel in panels(told))
    document = Document(report(told))
    assert "What the runs differ in" in document.text
    assert "pipeline.group_size" in document.text
    dashes = {each["stroke-dasharray"] for tag, each in document.elements if tag == "polyline"}
    assert len(dashes) == 2


def test_a_run_that_has_hardly_begun_has_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what there is: no step, a file that is half written, no sample."""
    run = tmp_path / "young"
    run.mkdir()
    (run / "config.toml").write_text("half = [")
    (run / "samples.jsonl").write_text('{"step": 1')
    assert main(["report", str(run)]) == 0
    said = f"{run / 'report.html'}\nno picture: {run.name}: nothing was recorded that could be drawn\n"
    assert capsys.readouterr().out == said
    text = Document((run / "report.html").read_text()).text
    assert "No step was recorded." in text
    assert "killed" in text
    (run / "samples.jsonl").write_text('{"step": 1, "reward": 0.5, "parts": 3, "versions": 7, "token_ids": 1}\n[]\n')
    (run / "evaluations.jsonl").write_text(
        '{"step": 1, "reward_mean": "x", "pass_at": {"4": 1}}\n{"step": 2, "pass_at": 3}\n'
    )
    assert main(["report", str(run)]) == 0


def test_a_picture_of_the_curves(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A PNG, from one run; where nothing was recorded, or the file cannot be written, that is one line."""
    pytest.importorskip("matplotlib")
    file = tmp_path / "curves.png"
    assert main(["report", str(run), "--out", str(tmp_path / "r.html"), "--png", str(file)]) == 0
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    capsys.readouterr()
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        picture.write(tmp_path, "title", panels([gather(run)])[:1])
    assert main(["report", str(run), "--out", str(tmp_path)]) == 2
    assert "cannot be written: Is a directory; name another file with --out" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["report", str(empty)]) == 2
    (empty / "metrics.jsonl").touch()
    assert main(["report", str(empty), "--png", str(file)]) == 2
    assert "nothing was recorded that could be drawn" in capsys.readouterr().err


def test_without_matplotlib_the_extra_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the HTML needs nothing of it."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", str(run), "--out", str(tmp_path / "r.html"), "--png", str(tmp_path / "r.png")]) == 2
    assert "pip install 'prl-train[report]'" in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(tmp_path / "r.html")]) == 0


def test_words_and_numbers_are_safe_and_short() -> None:
    """Escaped, without what turns or hides text; numbers with few digits."""
    assert shown('<a href="x">\u202e\x1b[0m') == "&lt;a href=&quot;x&quot;&gt;\ufffd\ufffd[0m"
    assert shown("x" * 100, 10) == "xxxxx ... xxxxx"
    assert [shown(value) for value in (None, True, 1234567, 0.1 + 0.2, [1])] == [
        "unset",
        "true",
        "1,234,567",
        "0.3",
        "[1]",
    ]
    numbers = (0, 1e-15, 0.25, 12345, 2e6, 3e9, float("nan"), -1500)
    assert [short(value) for value in numbers] == ["0", "0", "0.25", "12.35k", "2M", "3G", "-", "-1500"]

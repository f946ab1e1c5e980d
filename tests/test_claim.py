"""Where a run goes, and that nobody else is there."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import prl
from prl.claim import choose, claim
from prl.errors import ConfigError
from prl.run_folder import RunFolder
from tests.test_pipeline import simulated


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_in(path: Path) -> Path:
    """Leave a run there."""
    RunFolder(path).open("", 0)
    return path


def test_a_fresh_run_takes_the_next_free_folder(here: Path) -> None:
    """The first run is ``runs/NAME``, the next ``runs/NAME-2``, and nothing is ever written over."""
    for expected in ("runs/math", "runs/math-2", "runs/math-3"):
        assert choose("math", None, resume=False) == Path(expected)
        run_in(Path(expected))
    assert choose("other", None, resume=False) == Path("runs/other")


def test_a_folder_without_a_configuration_is_free(here: Path) -> None:
    """What a run that never started left behind does not take a name."""
    (here / "runs" / "math").mkdir(parents=True)
    assert choose("math", None, resume=False) == Path("runs/math")


def test_a_resumed_run_is_the_newest(here: Path) -> None:
    """Without a folder, ``--resume`` continues the last run of that name."""
    run_in(Path("runs/math"))
    assert choose("math", None, resume=True) == Path("runs/math")
    run_in(Path("runs/math-2"))
    assert choose("math", None, resume=True) == Path("runs/math-2")


def test_nothing_to_resume(here: Path) -> None:
    """``--resume`` without a run of that name is an error that names the folder."""
    run_in(Path("runs/other"))
    with pytest.raises(ConfigError, match="no run to resume: runs/math does not exist"):
        choose("math", None, resume=True)


def test_a_named_folder(here: Path) -> None:
    """``--run-dir`` is taken as it is, whether it exists or not."""
    (here / "empty").mkdir()
    for name in ("new", "empty"):
        assert choose("math", Path(name), resume=False) == Path(name)


def test_a_named_folder_with_a_run_is_not_written_over(here: Path) -> None:
    """A run in ``--run-dir`` is continued when asked for, and never written over."""
    run_in(Path("mine"))
    assert choose("math", Path("mine"), resume=True) == Path("mine")
    with pytest.raises(ConfigError, match="mine holds a run already: continue it with --resume"):
        choose("math", Path("mine"), resume=False)


def test_a_named_folder_without_a_run_cannot_be_resumed(here: Path) -> None:
    """Resuming what is no run is an error and not a fresh run."""
    (here / "empty").mkdir()
    for name in ("empty", "missing"):
        with pytest.raises(ConfigError, match=f"{name} holds no run to resume"):
            choose("math", Path(name), resume=True)


@pytest.mark.parametrize("resume", [True, False])
def test_a_file_is_no_folder(here: Path, resume: bool) -> None:
    """A file named by ``--run-dir`` is an error before anything starts."""
    (here / "file").touch()
    with pytest.raises(ConfigError, match="file is a file: name a folder"):
        choose("math", Path("file"), resume=resume)


# ---- and nobody else -------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from prl.claim import claim
mine = claim("math", None if sys.argv[1] == "-" else Path(sys.argv[1]), resume=sys.argv[2] == "resume")
print(mine.path, flush=True)
sys.stdin.read()
"""


def holder(run_dir: str, how: str = "fresh") -> subprocess.Popen[str]:
    """Another process that claims a folder, says which, and holds it until its stdin is closed."""
    command = [sys.executable, "-c", HOLDER, run_dir, how]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def said(process: subprocess.Popen[str]) -> str:
    """Its next line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_runs_that_start_at_once_get_folders_of_their_own(here: Path) -> None:
    """Before any of them has written its configuration, each of four processes has another name."""
    processes = [holder("-") for _ in range(4)]
    try:
        found = sorted(said(process) for process in processes)
    finally:
        for process in processes:
            process.communicate("")
    assert found == ["runs/math", "runs/math-2", "runs/math-3", "runs/math-4"]
    assert list(here.iterdir()) == []


def test_a_run_that_goes_on_cannot_be_resumed_beside_itself(here: Path) -> None:
    """The second process is refused and told the id of the first; after a SIGKILL of that one it is not."""
    run_in(Path("mine"))
    first = holder("mine", "resume")
    assert said(first) == "mine"
    with pytest.raises(ConfigError, match=f"mine is in use: process {first.pid} runs there; wait for its end"):
        claim("math", Path("mine"), resume=True)
    first.kill()
    first.communicate()
    assert (Path("mine") / "lock").read_text() == f"{first.pid}\n"
    mine = claim("math", Path("mine"), resume=True)
    assert (Path("mine") / "lock").read_text() == f"{os.getpid()}\n"
    mine.release()
    mine.release()


def test_a_claim_ends_with_whoever_holds_it(here: Path) -> None:
    """A pipeline that was made and never entered keeps nobody out, and leaves nothing behind."""
    held = claim("math", None, resume=False)
    assert held.path.exists()
    del held
    gc.collect()
    assert list(here.iterdir()) == []


def test_a_pipeline_that_was_never_entered_keeps_nobody_out(here: Path) -> None:
    """It lets go of its folder with its last reference, not when garbage is collected."""
    gc.disable()
    try:
        for _ in range(2):
            made = prl.Pipeline(simulated(), run_dir=here / "run")
            del made
    finally:
        gc.enable()
    assert list(here.iterdir()) == []


def test_an_owner_that_changed_its_folder_takes_no_lock_of_others_away(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is let go of is what was taken, wherever the process is by then, and only while it is the same file."""
    held = claim("math", Path("mine"), resume=False)
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    other = claim("math", Path("mine"), resume=False)
    held.release()
    assert (elsewhere / "mine" / "lock").exists()
    assert not (here / "mine").exists()
    other.release()


def test_a_folder_that_takes_nothing_is_said(here: Path) -> None:
    """A place where no folder can be made is one line with the reason."""
    (here / "file").touch()
    with pytest.raises(ConfigError, match="nothing can be written to file/run: Not a directory"):
        claim("math", Path("file/run"), resume=False)

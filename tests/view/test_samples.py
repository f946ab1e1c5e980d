"""The index of samples: it finds what people look for, and stays true to a file that changes."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.errors import NotFoundError, RefusedError
from prl.view import browse, index_file
from prl.view.browse import Wanted
from prl.view.samples import Samples


def line(step: int, prompt: int, reward: float, text: str = "an answer", **more: Any) -> dict[str, Any]:
    """A sample's line as an older run wrote it."""
    return {
        "step": step,
        "prompt_id": prompt,
        "prompt": f"prompt number {prompt}",
        "completion": text,
        "finish": "stop",
        "reward": reward,
        "token_ids": [1, 2, 3],
        **more,
    }


def encoded(*rows: Any) -> bytes:
    """Lines of these; bytes are a line as it is."""
    return b"".join((row if isinstance(row, bytes) else msgspec.json.encode(row)) + b"\n" for row in rows)


def indexed(path: Path, *rows: Any) -> Samples:
    """The index of a run with these."""
    (path / "samples.jsonl").write_bytes(encoded(*rows))
    samples = Samples(path)
    assert samples.advance(10)
    return samples


def prompts(samples: Samples, **wanted: Any) -> list[Any]:
    """Prompts of the groups that are found."""
    return [group["prompt_id"] for group in browse.groups(samples, Wanted(**wanted))["groups"]]


def test_neighbouring_lines_of_one_prompt_are_a_group(tmp_path: Path) -> None:
    """With its means, ranges and finishes; a prompt that comes again in a later step is another group."""
    rows = [line(1, 7, 0.0), line(1, 7, 1.0, finish="length", token_ids=[]), line(1, 8, 0.5), line(2, 8, None)]
    samples = indexed(tmp_path, *rows)
    found = browse.groups(samples, Wanted())
    assert (found["total"], found["finishes"], found["is_all_counted"]) == (3, ["length", "stop"], True)
    assert found["groups"][0] == {
        "group": 0,
        "step": 1,
        "prompt_id": 7,
        "prompt": "prompt number 7",
        "n": 2,
        "reward_mean": 0.5,
        "reward_min": 0.0,
        "reward_max": 1.0,
        "length_mean": 1.5,
        "finish": {"stop": 1, "length": 1},
    }
    assert found["groups"][2]["reward_mean"] is None
    assert (prompts(samples, reward_min=0.6), prompts(samples, length_max=2)) == ([], [7])
    told = browse.group(samples, 0)
    assert [(each["member"], each["reward"], each["length"]) for each in told["samples"]] == [(0, 0.0, 3), (1, 1.0, 0)]
    whole = browse.sample(samples, told["samples"][1]["sample"])
    assert (whole["previous"], whole["next"], whole["member"], whole["group"]) == (0, None, 1, 0)
    assert whole["finish"] == "length"


def test_a_group_has_a_name_of_its_own_where_the_run_gave_it_one(tmp_path: Path) -> None:
    """Two groups of one prompt in one step are two where ``group`` says so."""
    samples = indexed(tmp_path, *(line(1, 7, 1.0, group=group, member=1) for group in ("a", "a", "b")))
    assert [group["n"] for group in browse.groups(samples, Wanted())["groups"]] == [2, 1]


def test_groups_are_found_by_step_reward_length_and_finish(tmp_path: Path) -> None:
    """Ranges include their ends; any order, page by page."""
    rows = [line(step, step, step / 10, token_ids=[0] * (10 - step)) for step in range(1, 7)]
    samples = indexed(tmp_path, *rows, line(7, 7, 0.05, finish="length"))
    assert prompts(samples, first=2, last=3) == [2, 3]
    assert prompts(samples, reward_min=0.5) == [5, 6]
    assert prompts(samples, reward_max=0.1, sort="-reward") == [1, 7]
    assert prompts(samples, length_min=8, length_max=9) == [1, 2]
    assert prompts(samples, finish="length") == [7]
    assert prompts(samples, sort="length", limit=2, offset=1) == [6, 5]
    assert prompts(samples, sort="-step", limit=1) == [7]
    assert prompts(samples, finish='x"; DROP TABLE groups') == []


def test_a_search_finds_words_of_a_prompt_or_of_one_completion(tmp_path: Path) -> None:
    """All words, the last perhaps only begun; signs and quotes are between words, and no query of their own."""
    samples = indexed(tmp_path, line(1, 1, 0, "the quick fox"), line(1, 2, 0, "the slow <b>dog</b> 42"))
    assert prompts(samples, text="quick") == [1]
    assert prompts(samples, text="number") == [1, 2]
    assert prompts(samples, text="THE do") == [2]
    assert prompts(samples, text="quick dog") == []
    assert prompts(samples, text='b"dog" OR') == []
    assert prompts(samples, text="42*") == [2]
    assert prompts(samples, text="*?!") == []


def test_lines_come_while_somebody_looks(tmp_path: Path) -> None:
    """A group that was half there is whole later; what is no sample is counted; half a line waits."""
    huge = b'{"step": 1' + b"0" * 30 + b', "token_ids": []}'
    samples = indexed(tmp_path, line(1, 1, 0.0), b"no sample", {"step": 1}, b"", huge)
    assert samples.skipped == 4
    with samples.path.open("ab") as file:
        file.write(encoded(line(1, 1, 1.0), line(2, 2, 0.0)) + b'{"step": 2')
    assert samples.advance(10)
    assert [group["n"] for group in browse.groups(samples, Wanted())["groups"]] == [2, 1]
    assert samples.share < 1.0


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 5])
def test_what_a_resumed_run_cut_is_cut_and_the_rest_stays(tmp_path: Path, kept: int) -> None:
    """Whatever was cut, and whatever was written behind it since, the index says what the file says."""
    rows = [line(step, step, 0.0, f"before{step}") for step in range(1, 6)]
    samples = indexed(tmp_path, *rows)
    again = [line(step, step, 1.0, f"again{step}") for step in range(kept + 1, 9)]
    samples.path.unlink()
    samples.path.write_bytes(encoded(*rows[:kept], *again))
    while not samples.advance(1):
        pass
    assert prompts(samples) == list(range(1, 9))
    assert prompts(samples, reward_min=0.5) == list(range(kept + 1, 9))
    assert prompts(samples, text="before") == list(range(1, kept + 1))
    with pytest.raises(NotFoundError, match="was cut by a resume"):
        browse.sample(samples, 1)


def test_a_file_that_vanished_has_no_samples(tmp_path: Path) -> None:
    """And one that comes back has its own."""
    samples = indexed(tmp_path, line(1, 1, 0.0))
    samples.path.unlink()
    while not samples.advance(1):
        pass
    assert prompts(samples) == []
    samples.path.write_bytes(encoded(line(1, 9, 0.0)))
    assert samples.advance(10)
    assert prompts(samples) == [9]


def test_two_servers_share_one_index(tmp_path: Path) -> None:
    """What one has read the other need not, and neither counts anything twice."""
    one = indexed(tmp_path, line(1, 1, 0.0))
    other = Samples(tmp_path)
    assert other.advance(1)
    for number in range(2, 6):
        with one.path.open("ab") as file:
            file.write(encoded(line(number, number, 0.0)))
        assert (one if number % 2 else other).advance(1)
    assert one.advance(1)
    assert other.advance(1)
    assert prompts(one) == prompts(other) == [1, 2, 3, 4, 5]


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    """Also one of another version of the tables."""
    samples = indexed(tmp_path, line(1, 1, 0.0))
    (file,) = (tmp_path / index_file.FOLDER).glob("*.sqlite")
    samples.close()
    file.write_bytes(b"no database" * 1000)
    assert prompts(indexed(tmp_path, line(1, 2, 0.0))) == [2]
    other = sqlite3.connect(file)
    other.execute("PRAGMA user_version = 5")
    other.close()
    assert prompts(indexed(tmp_path, line(1, 3, 0.0))) == [3]


def test_a_disk_that_is_full_is_said_and_waited_for(tmp_path: Path) -> None:
    """Nothing is made anew for it, and with room again the index goes on where it was."""
    samples = indexed(tmp_path, line(1, 1, 0.0))
    pages = samples.database.execute("PRAGMA page_count").fetchone()[0]
    samples.database.execute(f"PRAGMA max_page_count = {pages}")
    with samples.path.open("ab") as file:
        file.write(encoded(*(line(2, number, 0.0, f"text{number} " * 40) for number in range(200))))
    with pytest.raises(RefusedError, match="cannot be written: database or disk is full"):
        samples.advance(10)
    assert prompts(samples) == [1]
    samples.database.execute("PRAGMA max_page_count = 100000")
    assert samples.advance(10)
    assert browse.groups(samples, Wanted())["total"] == 201


def test_no_link_of_a_folder_leads_the_index_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a run whose folder cannot be trusted, or written, goes to the user's cache."""
    cache, run, elsewhere = tmp_path / "cache", tmp_path / "run", tmp_path / "elsewhere"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    elsewhere.mkdir()
    run.mkdir()
    (run / index_file.FOLDER).symlink_to(elsewhere)
    assert prompts(indexed(run, line(1, 1, 0.0))) == [1]
    assert list(elsewhere.iterdir()) == []
    assert len(list((cache / "prl" / index_file.FOLDER).glob("*.sqlite"))) == 1

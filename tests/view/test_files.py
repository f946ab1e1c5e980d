"""Files of lines that somebody else is writing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prl.view import files
from prl.view.files import ChangedError, Follower, Line, Tail, last_lines, opened


class Kept:
    """A sink that keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.num_malformed = self.num_cleared = 0

    def add(self, lines: list[Line]) -> None:
        """Take these."""
        self.lines += lines

    def clear(self) -> None:
        """Forget them."""
        self.lines.clear()
        self.num_cleared += 1


def test_a_line_is_given_once_it_is_whole(tmp_path: Path) -> None:
    """Half a line waits for its newline; each comes once, with the byte where it begins; no file is no lines."""
    path, kept = tmp_path / "a.jsonl", Kept()
    follower = Follower(path, kept)
    assert follower.advance(1)
    path.write_bytes(b"one\ntw")
    assert follower.advance(1)
    assert kept.lines == [Line(0, b"one")]
    with path.open("ab") as file:
        file.write(b"o\n\nlast\n")
    assert follower.advance(1)
    assert kept.lines == [Line(0, b"one"), Line(4, b"two"), Line(8, b""), Line(9, b"last")]
    assert (follower.share, follower.skipped) == (1.0, 0)


@pytest.mark.parametrize("after", [b"one\n", b"one\nTWO\n", b"one\nTWO\nand more\n", b""])
def test_a_file_that_was_cut_is_read_anew(tmp_path: Path, after: bytes) -> None:
    """A resumed run cuts lines and may have written others, even more, by the time that somebody looks again."""
    path, kept = tmp_path / "a.jsonl", Kept()
    follower = Follower(path, kept)
    path.write_bytes(b"one\ntwo\n")
    follower.advance(1)
    path.write_bytes(after)
    follower.advance(1)
    assert kept.num_cleared == 1
    assert b"".join(line.text + b"\n" for line in kept.lines) == after


def test_a_file_that_vanished_is_an_empty_one(tmp_path: Path) -> None:
    """The folder was deleted while somebody looks."""
    path, kept = tmp_path / "a.jsonl", Kept()
    follower = Follower(path, kept)
    path.write_bytes(b"one\n")
    follower.advance(1)
    path.unlink()
    assert follower.advance(1)
    assert kept.lines == []


def test_a_line_that_is_too_long_is_passed_over_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither held nor lost count of, whether its end is there or not, and what stands behind it is read."""
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(files, "CHUNK_BYTES", 16)
    path, kept = tmp_path / "a.jsonl", Kept()
    tail = Tail(path)
    path.write_bytes(b"one\n" + b"x" * 1000)
    found: list[Line] = []
    for _ in range(80):
        found += tail.read(16)
    with path.open("ab") as file:
        file.write(b"xx\ntwo\n" + b"y" * 150 + b"\nthree\n")
    for _ in range(80):
        found += tail.read(16)
    assert [line.text for line in found] == [b"one", b"two", b"three"]
    assert tail.num_too_long == 2
    assert kept.lines == []


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """No link is followed, no pipe waited for, no folder read."""
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(OSError), opened(tmp_path / name):  # noqa: PT011 -- of whatever kind
            pass
        assert (Tail(tmp_path / name).read(), last_lines(tmp_path / name)) == ([], [])


def test_the_place_behind_a_line_is_known_by_the_line(tmp_path: Path) -> None:
    """``go_to`` with another line's CRC is noticed before anything is read."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    tail.go_to(4, (0, 3, 1))
    with pytest.raises(ChangedError):
        tail.read()
    assert last_lines(path, 6) == [b"two"]

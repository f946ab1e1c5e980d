"""Spans of versions against what is counted token by token."""

from __future__ import annotations

import pytest

from prl.engines.paced_versions import MOST_SPANS, ServedVersions


def served(*positions: float) -> ServedVersions:
    """Versions 1, 2, ... from these positions on."""
    versions = ServedVersions()
    for version, position in enumerate(positions, 1):
        versions.serve(version, position)
    return versions


@pytest.mark.parametrize("positions", [(), (0.0,), (3.0,), (0.0, 2.5), (0.5, 0.75), (2.0, 2.0, 9.5), (-4.0, 4.0, 10.0)])
@pytest.mark.parametrize("begin", [0.25, 1.0, 2.0])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_few_versions_are_told_to_the_token(positions: tuple[float, ...], begin: float, length: int) -> None:
    """Each token has the version that served at its place, and a span ends where the next one's version begins."""
    spans = served(*positions).spans(begin, length)
    starts = [0, *(end for end, _ in spans)]
    told = [version for (end, version), start in zip(spans, starts, strict=False) for _ in range(start, end)]
    assert told == [sum(position <= begin + token for position in positions) for token in range(length)]


def test_many_versions_are_told_in_few_spans_with_the_first_one_exact() -> None:
    """However many versions wrote a stream: the oldest is right, the mean is within a span, none decreases."""
    spans = served(*(float(position) for position in range(1, 100))).spans(0.5, 100)
    assert len(spans) == MOST_SPANS
    assert spans[0] == (1, 0)
    assert spans == sorted(spans)
    ends, versions = zip(*spans, strict=True)
    tokens = [end - start for end, start in zip(ends, (0, *ends), strict=False)]
    assert sum(map(int.__mul__, tokens, versions)) / 100 == pytest.approx(49.5, abs=1)


@pytest.mark.parametrize("begin", [0.0, 1e-6, 0.5, 7.0])
def test_who_sampled_nothing_has_no_spans(begin: float) -> None:
    """Also right behind a load, where a stream of one token would be the new version's."""
    assert served(0.0, 0.25).spans(begin, 0) == []


def test_the_latest_serves() -> None:
    """Version 0 does before any was loaded."""
    assert (served().latest, served(1.0, 2.0).latest) == (0, 2)

"""The format reward: a regular expression that cannot hang the run."""

from __future__ import annotations

import pytest

from prl.config import RewardConfig
from prl.errors import PluginError
from prl.rewards.scorer import Scorer
from prl.types import Score
from tests.rewards.samples import completion, prompt


async def parts_of(scorer: Scorer, text: str) -> dict[str, float]:
    """What each reward gives a completion of this text."""
    verdict = await scorer.score(completion(text), prompt())
    assert isinstance(verdict, Score)
    return verdict.parts


@pytest.mark.parametrize(
    ("pattern", "match", "text", "reward"),
    [
        (r"\d+", "full", "123", 1.0),
        (r"\d+", "full", "123 ", 0.0),
        (r"\d+", "full", "123\n", 0.0),
        (r"a|ab", "full", "ab", 1.0),
        (r"(?i)<B>.*</B>", "full", "<b>x\ny</b>", 1.0),
        (r"\d+", "partial", "it is 123.", 1.0),
        (r"^\d+", "partial", "it is 123.", 0.0),
    ],
)
async def test_match(pattern: str, match: str, text: str, reward: float) -> None:
    """Full means the whole text, partial some part of it; a dot matches newlines."""
    options = {"pattern": pattern, "match": match}
    async with Scorer([RewardConfig(name="format", options=options)]) as scorer:
        assert await parts_of(scorer, text) == {"format": reward}


async def test_exponential_pattern_is_a_mismatch_and_the_next_text_is_judged() -> None:
    """A text that makes the pattern run for ever does not match, is counted, and delays nobody after it."""
    options = {"pattern": "(a+)+b", "max_chars": 50, "wall_s": 60.0}
    async with Scorer([RewardConfig(name="format", options=options, timeout_s=90.0)]) as scorer:
        for text, reward in [("a" * 49, 0.0), ("aab", 1.0), ("a" * 50 + "b", 0.0)]:
            assert await parts_of(scorer, text) == {"format": reward}
        assert scorer.statistics()["format"].reasons == {"exhausted_cpu": 1, "match": 1, "text_too_long": 1}


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "a{2,1}", "(?P<x>a)(?P<x>b)"])
def test_bad_pattern_is_found_before_anything_starts(pattern: str) -> None:
    """A pattern that is no regular expression is one line with the pattern."""
    with pytest.raises(PluginError, match=r"option 'pattern', is no regular expression: .*; got '") as caught:
        Scorer([RewardConfig(name="format", options={"pattern": pattern})])
    assert pattern in str(caught.value)


def test_pattern_is_needed() -> None:
    """Without a pattern there is nothing to match."""
    with pytest.raises(PluginError, match="'format' needs the option 'pattern'"):
        Scorer([RewardConfig(name="format")])

"""When an accuracy counts as reached."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")

SECONDS = [0.0, 10.0, 20.0, 30.0]


@pytest.mark.parametrize(
    ("accuracies", "reached"),
    [
        ([0.2, 0.6, 0.8, 0.9], 20.0),
        ([0.2, 0.6, 1.0, 0.9], 15.0),
        ([0.2, 0.8, 0.7, 0.9], None),
        ([0.2, 0.9, 0.7, 0.8], None),
        ([0.8, 0.8, 0.1, 0.1], 0.0),
        ([0.2, 0.3, 0.4, 0.5], None),
        ([0.2, 0.3, 0.4, 0.9], None),
        ([0.2, 0.9, 0.7, 0.9], None),
    ],
)
def test_an_accuracy_is_reached_where_the_next_evaluation_confirms_it(
    accuracies: list[float], reached: float | None
) -> None:
    """The time is on the line to the first of two evaluations in a row that have it; one alone is luck."""
    from accuracy import seconds_to

    assert seconds_to(0.8, SECONDS, accuracies) == (None if reached is None else pytest.approx(reached))


def test_an_accuracy_that_was_lost_and_came_back_is_reached_when_it_came_back() -> None:
    """What was not kept does not count, even where the evaluation before was above the target."""
    from accuracy import seconds_to

    assert seconds_to(0.8, [0.0, 1.0, 2.0, 3.0, 4.0], [0.2, 0.9, 0.7, 0.9, 0.9]) == pytest.approx(2.5)


def test_long_answers_go_on_where_the_others_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy answers that are continued among their like are those that are given in one go, up to the same limit."""
    import accuracy

    from prl.settings import load_config

    overrides = ["eval.temperature=0.0", "eval.num_samples=12", "eval.max_tokens=40"]
    answers = []
    for first_tokens in (3, 40):
        monkeypatch.setattr(accuracy, "FIRST_TOKENS", first_tokens)
        examiner = accuracy.Examiner(load_config(accuracy.Path(accuracy.__file__).parent / "long_tail.toml", overrides))
        answers.append(examiner._answer([prompt.token_ids for prompt in examiner._prompts]))
    assert answers[0] == answers[1]
    assert max(map(len, answers[0])) == 40
    assert min(map(len, answers[0])) < 40

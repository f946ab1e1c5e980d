"""Which prompts are open, and what the records say of them."""

from __future__ import annotations

from prl.open_prompts import OpenPrompts
from prl.records import Admitted, Entry, Left, Measured, Scored, Trained
from prl.rollout import Done
from prl.types import Completion, Group, Prompt, Score


def prompt(number: int) -> Prompt:
    """The prompt of this id."""
    return Prompt(id=number, token_ids=[1, number], text=str(number), messages=[], fields={})


def done(number: int) -> Done:
    """A group of one member for it."""
    completion = Completion(token_ids=[0], logprobs=[-1.0], versions=[0], text="", finish="stop")
    return Done(group=Group(prompt=prompt(number), completions=[completion], scores=[Score(reward=1.0)]), members=[0])


class Evens:
    """A source that goes past the odd numbers."""

    def __init__(self) -> None:
        self.cursor = 0
        self._passed_over: list[tuple[int, str]] = []

    def next(self) -> Prompt:
        """The next even number."""
        number = self.cursor + self.cursor % 2
        self._passed_over += [(odd, "too_long") for odd in range(self.cursor, number)]
        self.cursor = number + 1
        return prompt(number)

    def passed_over(self) -> list[tuple[int, str]]:
        """The odd ones since this was last asked."""
        passed, self._passed_over = self._passed_over, []
        return passed

    def seek(self, cursor: int) -> None:
        """Go on from there."""
        self.cursor = cursor


class Written:
    """Records in a list."""

    def __init__(self) -> None:
        self.records: list[object] = []

    def append(self, record: object) -> None:
        """Keep it."""
        self.records.append(record)

    async def ready(self) -> None:
        """Always."""


def test_a_prompt_is_on_record_from_admission_to_its_end() -> None:
    """Ids that the source went past have left before the next is admitted; what is done with is open no more."""
    written, of_group = Written(), done(0)
    measured = Measured(prompt_id=0, row=0, epoch=0, solve_rate=1.0)
    prompts = OpenPrompts(Evens(), written, lambda group: measured if group.prompt.id == 0 else None)
    assert [prompts.admit(ticket).prompt.id for ticket in (10, 11)] == [0, 2]
    prompts.measure(of_group.group)
    prompts.measure(done(2).group)
    prompts.scored(10, of_group)
    prompts.left(11, "timeout")
    assert prompts.state() == {"cursor": 3, "untrained": [prompt(0)]}
    prompts.trained(7, [10])
    assert prompts.state() == {"cursor": 3, "untrained": []}
    assert written.records == [
        Admitted(prompt=prompt(0)),
        Left(prompt_id=1, reason="too_long"),
        Admitted(prompt=prompt(2)),
        measured,
        Scored(prompt_id=0, members=[0], scores=of_group.group.scores),
        Left(prompt_id=2, reason="timeout"),
        Trained(step=7, prompt_ids=[0]),
    ]


def test_what_was_open_comes_first() -> None:
    """Prompts of the run before are admitted in their order, with what is known of them, and not written down again."""
    written = Written()
    prompts = OpenPrompts(Evens(), written, lambda _: None)
    before = [Entry(prompt=prompt(4)), Entry(prompt=prompt(2))]
    prompts.restore(6, before)
    assert prompts.state() == {"cursor": 6, "untrained": [prompt(4), prompt(2)]}
    assert prompts.admit(0) is before[0]
    assert prompts.state() == {"cursor": 6, "untrained": [prompt(2), prompt(4)]}
    assert prompts.admit(1) is before[1]
    assert prompts[0] == prompt(4)
    assert written.records == []
    assert prompts.admit(2).prompt == prompt(6)

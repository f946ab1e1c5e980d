"""The accounts of a run, record by record."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from prl.ledger import Accounts, IdSet, Ledger
from prl.records import Admitted, AnyRecord, Entry, Left, Proven, Sampled, Scored, Trained, Unproven, group_of
from prl.types import Finish, Score, TokenChunk
from tests.factories import make_prompt


def chunk(*token_ids: int, version: int = 0, finish: Finish | None = None) -> TokenChunk:
    """Some tokens of one version."""
    return TokenChunk(token_ids=list(token_ids), logprobs=[-0.5] * len(token_ids), version=version, finish=finish)


def sampled(number: int, member: int, piece: TokenChunk, attempt: int = 0) -> Sampled:
    """A chunk of a member."""
    return Sampled(prompt_id=number, member=member, chunk=piece, attempt=attempt)


def ledger_of(*records: AnyRecord) -> Ledger:
    """A ledger with these records."""
    ledger = Ledger()
    for record in records:
        ledger.append(record)
    return ledger


@given(st.lists(st.integers(0, 40)))
def test_an_id_set_is_a_set(numbers: list[int]) -> None:
    """Adding says whether the id is new; the ranges stay sorted, apart and as few as possible."""
    found, expected = IdSet(), set[int]()
    for number in numbers:
        assert found.add(number) == (number not in expected)
        expected.add(number)
        assert all((other in found) == (other in expected) for other in range(42))
    assert len(found) == len(expected)
    assert all(first[1] < second[0] for first, second in zip(found.ranges, found.ranges[1:], strict=False))
    assert [number for start, end in found.ranges for number in range(start, end)] == sorted(expected)


def test_every_prompt_is_somewhere() -> None:
    """Trained, left with its reason, scored, running: each prompt is counted where its last record put it."""
    ledger = ledger_of(
        *(Admitted(prompt=make_prompt(number)) for number in range(5)),
        sampled(0, 0, chunk(7, 8, finish="stop")),
        Scored(prompt_id=0, members=[0], scores=[Score(reward=1.0)]),
        Scored(prompt_id=1, members=[0], scores=[Score(reward=0.0)]),
        Left(prompt_id=2, reason="timeout"),
        Trained(step=0, prompt_ids=[0]),
    )
    assert ledger.accounts() == Accounts(
        steps=1,
        admitted=5,
        trained=1,
        left={"timeout": 1},
        running=2,
        scored=1,
        unproven=0,
        issued_again={},
        lost=[],
        trained_twice=[],
    )


def test_tokens_of_weights_that_are_not_proven_are_known_as_such() -> None:
    """From the first version that waits for its proof on, until the proof; a snapshot carries it all."""
    ledger = ledger_of(
        *(Admitted(prompt=make_prompt(number)) for number in range(3)),
        sampled(0, 0, chunk(7, version=3, finish="stop")),
        Unproven(version=4),
        sampled(1, 0, chunk(7, version=4)),
        Scored(prompt_id=0, members=[0], scores=[Score(reward=1.0)]),
        Unproven(version=5),
        sampled(2, 0, chunk(7, version=5)),
    )
    ledger.forget(2, "weights_not_proven")
    again = ledger_of(*ledger.snapshot())
    for each in (ledger, again):
        assert [each.is_unproven(entry) for entry in each.open.values()] == [False, True, False]
        accounts = each.accounts()
        assert (accounts.unproven, accounts.running, accounts.scored) == (1, 2, 1)
        assert accounts.issued_again == {"weights_not_proven": 1}
    again.append(Proven(version=5))
    assert again.accounts().unproven == 0


def test_what_must_not_be_is_found() -> None:
    """An id that was skipped is lost; one that two steps trained is trained twice."""
    ledger = ledger_of(
        *(Admitted(prompt=make_prompt(number)) for number in (0, 1, 4)),
        Trained(step=0, prompt_ids=[0, 1]),
        Trained(step=1, prompt_ids=[1]),
    )
    accounts = ledger.accounts()
    assert (accounts.lost, accounts.trained_twice) == ([2, 3], [1])


def test_members_fold_their_chunks() -> None:
    """Tokens keep the versions that sampled them; a new attempt gives up the tokens of the one before."""
    ledger = ledger_of(
        Admitted(prompt=make_prompt(3)),
        sampled(3, 0, chunk(7, 8, version=1)),
        sampled(3, 1, chunk(5, version=1, finish="abort")),
        sampled(3, 0, chunk(9, version=2, finish="stop")),
        sampled(3, 1, chunk(6, version=2, finish="length"), attempt=1),
    )
    entry = ledger.open[3]
    assert (entry.oldest_version(), entry.newest_version()) == (1, 2)
    ledger.append(Scored(prompt_id=3, members=[0, 1], scores=[Score(reward=1.0), Score(reward=0.0)]))
    group = group_of(ledger.open[3], str)
    assert [(c.token_ids, c.versions, c.text, c.finish) for c in group.completions] == [
        ([7, 8, 9], [1, 1, 2], "[7, 8, 9]", "stop"),
        ([6], [2], "[6]", "length"),
    ]


def test_a_snapshot_does_not_change_any_more() -> None:
    """A ledger made from a snapshot's records is the same, whatever was appended after the snapshot was taken."""
    ledger = ledger_of(
        *(Admitted(prompt=make_prompt(number)) for number in range(6)),
        sampled(4, 0, chunk(7)),
        Scored(prompt_id=5, members=[], scores=[]),
        Left(prompt_id=2, reason="timeout"),
        Trained(step=0, prompt_ids=[0, 1]),
    )
    accounts, snapshot = ledger.accounts(), ledger.snapshot()
    ledger.append(sampled(4, 0, chunk(8)))
    ledger.append(sampled(4, 1, chunk(9)))
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=list[AnyRecord])
    again = ledger_of(*wire)
    assert again.accounts() == accounts
    assert again.open[4].members[0].token_ids == [7]
    assert list(again.open[4].members) == [0]
    assert list(again.open) == [3, 4, 5]


@given(st.integers(0, 30), st.sets(st.integers(0, 29)))
def test_a_checkpoint_alone_accounts_for_every_prompt(cursor: int, candidates: set[int]) -> None:
    """``begin`` counts what is below the cursor and not open as trained, and nothing as lost."""
    open_ids = sorted(number for number in candidates if number < cursor)
    ledger = Ledger()
    ledger.begin(step=7, cursor=cursor, open_ids=open_ids)
    for number in open_ids:
        ledger.append(Admitted(prompt=make_prompt(number)))
    accounts = ledger.accounts()
    assert (accounts.steps, accounts.admitted, accounts.lost) == (7, cursor, [])
    assert (accounts.trained, accounts.running) == (cursor - len(open_ids), len(open_ids))


def test_what_is_forgotten_is_issued_again() -> None:
    """Forgetting keeps the prompt and its place, and gives up its tokens and scores."""
    ledger = ledger_of(
        *(Admitted(prompt=make_prompt(number)) for number in range(3)),
        sampled(1, 0, chunk(7)),
        Scored(prompt_id=1, members=[0], scores=[Score(reward=1.0)]),
    )
    ledger.forget(1, "too_old")
    assert list(ledger.open) == [0, 1, 2]
    assert ledger.open[1] == Entry(prompt=make_prompt(1))

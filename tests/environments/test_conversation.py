"""Token in, token out across turns: which ids a turn is behind, and in which sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from prl.batch import make_samples
from prl.environments.conversation import Conversation, Place
from prl.tokenizer import Tokenizer
from prl.types import Completion, Prompt
from tests.environments.scripted import chat_prompt
from tests.factories import make_completion
from tests.tiny_tokenizers import END_ID


class Letters:
    """A tokenizer of one id a character, and of ids for pairs that no text becomes: it is no bijection."""

    def encode_rendered(self, text: str) -> list[int]:
        """One id a character."""
        return [ord(letter) for letter in text]

    encode = encode_rendered

    def decode_all(self, ids: Sequence[int]) -> str:
        """Ids above 1000 are two characters."""
        return "".join(chr(i - 1000) * 2 if i > 1000 else chr(i) for i in ids)


def conversation(prompt_text: str = "ask:") -> Conversation:
    """An episode of a plain prompt over ``Letters``."""
    prompt = Prompt(id=0, token_ids=Letters().encode(prompt_text), text=prompt_text, messages=[], fields={})
    return Conversation(prompt, Letters())  # type: ignore[arg-type]


def said(*token_ids: int) -> Completion:
    """A turn of these ids."""
    return make_completion(token_ids)


def ids(text: str) -> list[int]:
    """As ``Letters`` encodes."""
    return Letters().encode(text)


def test_sampled_ids_stay_as_they_are() -> None:
    """Field notes C, re-tokenising: a sampled id that no text would become stands in the next turn's prompt."""
    talk = conversation()
    first = talk.at_prompt()
    talk.add(first, said(1000 + ord("l"), ord("o")))
    second = talk.behind_text("ask:llo? ", is_rendered=False)
    assert second.token_ids == [*ids("ask:"), 1000 + ord("l"), ord("o"), *ids("? ")]
    talk.add(second, said(ord("y")))
    completion = talk.completion({})
    assert [(turn.sample, turn.context, turn.num_sampled) for turn in completion.turns] == [
        (0, ids("ask:"), 2),
        (0, ids("? "), 1),
    ]
    [sample] = make_samples(chat_prompt_of(talk), completion, [2.0] * len(completion.turns))
    assert sample.token_ids == [*second.token_ids, ord("y")]
    assert sample.loss_mask == [0] * 4 + [1] * 2 + [0] * 2 + [1]
    assert sample.advantages == [2.0 * mask for mask in sample.loss_mask]
    assert sample.versions == [-1] * 4 + [0] * 2 + [-1] * 2 + [0]


def chat_prompt_of(_: Conversation) -> Prompt:
    """Any prompt: the samples of an episode hold their own."""
    return Prompt(id=0, token_ids=[1], text="", messages=[], fields={})


def test_a_rewritten_history_begins_a_sample() -> None:
    """Field notes C, templates that rewrite: the turn is behind its own whole prompt, and both samples are trained."""
    talk = conversation()
    talk.add(talk.at_prompt(), said(*ids("abc")))
    rewritten = talk.behind_text("ask:c. more", is_rendered=False)
    assert (rewritten.sample, rewritten.token_ids) == (None, ids("ask:c. more"))
    talk.add(rewritten, said(*ids("d")))
    samples = make_samples(chat_prompt_of(talk), talk.completion({}), [-1.0] * talk.num_turns)
    assert [sample.token_ids for sample in samples] == [ids("ask:abc"), ids("ask:c. mored")]
    assert [sum(sample.loss_mask) for sample in samples] == [3, 1]
    assert {a for sample in samples for a, m in zip(sample.advantages, sample.loss_mask, strict=True) if m} == {-1.0}


def test_a_branch_begins_a_sample() -> None:
    """Of two turns behind the same ids, however they came about, the second has a sample of its own."""
    talk = conversation()
    first, again = talk.at_prompt(), talk.at_prompt()
    talk.add(first, said(*ids("a")))
    talk.add(again, said(*ids("b")))
    left, right = talk.behind_text("ask:a1", is_rendered=False), talk.behind_text("ask:a2", is_rendered=False)
    assert left.sample == right.sample == 0
    talk.add(left, said(*ids("x")))
    talk.add(right, said(*ids("y")))
    samples = make_samples(chat_prompt_of(talk), talk.completion({}), [1.0] * talk.num_turns)
    assert [(sample.token_ids, sum(sample.loss_mask)) for sample in samples] == [
        (ids("ask:a1x"), 2),
        (ids("ask:b"), 1),
        (ids("ask:a2y"), 1),
    ]


def test_a_turn_is_placed_behind_a_sample_as_it_was_seen() -> None:
    """A long text is placed in a thread: another turn that extends the sample meanwhile is in no prompt but its own."""
    talk = conversation()
    talk.add(talk.at_prompt(), said(ord("a")))

    class Text(str):
        """A text that is compared with a sample while another turn is added to it."""

        __slots__ = ()

        def startswith(self, *known: Any) -> bool:
            talk.add(talk.behind_text("ask:a1", is_rendered=False), said(ord("b")))
            return super().startswith(*known)

    place = talk.behind_text(Text("ask:a2"), is_rendered=False)
    assert (place.token_ids, place.num_known) == (ids("ask:a2"), len("ask:a"))
    talk.add(place, said(ord("c")))
    assert [(turn.sample, turn.context) for turn in talk.completion({}).turns] == [
        (0, ids("ask:")),
        (0, ids("1")),
        (1, ids("ask:a2")),
    ]


def test_a_reply_handed_back_stands_in_its_own_tokens(tokenizer: Tokenizer) -> None:
    """By its content but for white space, and by its calls; another message with the same words is the agent's."""
    prompt = chat_prompt(tokenizer, "hi")
    talk = Conversation(prompt, tokenizer)
    first = talk.behind_messages(prompt.messages, ())
    reply = [*tokenizer.encode_rendered("  one "), END_ID]
    talk.add(first, said(*reply))
    talk.handed_over({"role": "assistant", "content": "  one "}, reply[:-1])
    back = [*prompt.messages, {"role": "assistant", "content": "one"}, {"role": "user", "content": "one"}]
    assert talk.behind_messages(back, ()).token_ids[: len(first.token_ids) + len(reply)] == [*first.token_ids, *reply]
    other = [*prompt.messages, {"role": "assistant", "content": "one", "tool_calls": [{"id": "call_0"}]}]
    assert talk.behind_messages(other, ()).sample is None


def test_ids_are_taken_as_they_are() -> None:
    """A prompt of ids extends what begins with the same ids, and nothing else."""
    talk = conversation()
    talk.add(talk.behind_ids(ids("ask:")), said(*ids("a")))
    assert talk.behind_ids(ids("ask:ab")) == Place(ids("ask:ab"), "ask:ab", 0, 5)
    assert talk.behind_ids(ids("ask:b")).sample is None


def test_a_chat_goes_on_behind_the_stop_token(tokenizer: Tokenizer) -> None:
    """The sampled stop token is the one that the template writes; after a cut answer it is there, not trained."""
    prompt = chat_prompt(tokenizer)
    for answer, context in (
        ([*tokenizer.encode_rendered("yes"), END_ID], "u:go<|end|>a:"),
        (tokenizer.encode_rendered("yes"), "<|end|>u:go<|end|>a:"),
    ):
        talk = Conversation(prompt, tokenizer)
        talk.add(talk.at_prompt(), said(*answer))
        turns = [*prompt.messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go"}]
        talk.add(talk.behind_text(tokenizer.render_text(turns), is_rendered=True), said(END_ID))
        first, second = talk.completion({}).turns
        assert first.context == prompt.token_ids
        assert (second.sample, tokenizer.decode_all(second.context)) == (0, context)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.text("ab", max_size=3), st.text("ab", min_size=1)), max_size=12))
def test_every_sampled_token_is_in_one_sample_behind_its_own_ids(script: list[tuple[int, str, str]]) -> None:
    """Whatever an agent asks behind whatever it asked before, what is trained are the sampled tokens."""
    talk, texts = conversation(), ["ask:"]
    expected: list[tuple[str, str]] = []
    for behind, new, answer in [(0, "", "a"), *script]:
        text = texts[behind % len(texts)] + new
        place = talk.behind_text(text, is_rendered=False)
        assert place.token_ids == ids(text)
        talk.add(place, said(*ids(answer)))
        texts.append(text + answer)
        expected.append((text, answer))
    trained: list[tuple[str, str]] = []
    for sample in make_samples(chat_prompt_of(talk), talk.completion({}), [1.0] * talk.num_turns):
        text = Letters().decode_all(sample.token_ids)
        masks = sample.loss_mask
        starts = [t for t in range(len(masks)) if masks[t] and not masks[t - 1]]
        for start in starts:
            end = next((t for t in range(start, len(masks)) if not masks[t]), len(masks))
            trained.append((text[:start], text[start:end]))
    joined = sorted(before + answer for before, answer in expected)
    assert sum(len(answer) for _, answer in trained) == sum(len(answer) for _, answer in expected)
    for before, answer in trained:
        assert any(text.startswith(before + answer) for text in joined)

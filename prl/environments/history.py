"""Does the chat template keep what was said? Asked of a probe conversation when a run starts.

A template that rewrites earlier turns (many leave out the thinking in them) makes a turn's prompt another one than what
was sampled before it. Such turns are right as samples of their own, and each costs its whole prompt again.
"""

from __future__ import annotations

from prl.tokenizer import Tokenizer

_PLAIN = "2"
_THOUGHT = "<think>\n3\n</think>\n\n2"


def rewritten_history(tokenizer: Tokenizer) -> str | None:
    """What the template does to earlier turns, for people; None: it keeps them, or there is none."""
    if not tokenizer.has_template:
        return None
    for answer, what in ((_PLAIN, "rewrites earlier turns"), (_THOUGHT, "leaves the thinking out of earlier turns")):
        if not _keeps(tokenizer, answer):
            return (
                f"the chat template {what}: a turn behind one is trained as a sample of its own, with its whole prompt"
            )
    return None


def _keeps(tokenizer: Tokenizer, answer: str) -> bool:
    asked = [{"role": "user", "content": "1"}]
    said = [*asked, {"role": "assistant", "content": answer}, {"role": "user", "content": "4"}]
    return tokenizer.render_text(said).startswith(tokenizer.render_text(asked) + answer)

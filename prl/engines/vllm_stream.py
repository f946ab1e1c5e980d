"""One stream of vLLM outputs as TokenChunks, each token with the version that sampled it.

vLLM's output process notes, per request, at which token each weight version began, when the tokens come out of the
decode step. Outputs that a slow consumer has not taken yet are merged, so one may hold tokens of several versions; the
notes stay exact, because a token's position never changes. That is why versions are read from the notes and never
from the moment an output is seen.
"""

from __future__ import annotations

from typing import Any

from prl.errors import EngineError
from prl.types import Finish, TokenChunk

_FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}


class Stream:
    """What the engine knows of one open stream."""

    def __init__(self) -> None:
        self.request_id: str | None = None
        """The last one it was submitted under."""
        self.queue: Any = None
        """vLLM's collector of this request's outputs; None while it is not submitted."""
        self.starts: list[tuple[str, int]] | None = None
        """vLLM's own list of (version, index of its first token), growing as tokens come; None: not available, so
        that everything waits for the spans of the last output."""
        self.restart = False
        """The request was aborted before its first token, to be submitted again."""
        self._num_sent = 0
        self._held: list[Any] = []

    @property
    def sampled(self) -> bool:
        """Whether a token was sampled for it, sent or not."""
        queued = self.queue is not None and self.queue.output is not None
        return bool(self._num_sent or self._held or self.starts or queued)

    def chunks(self, output: Any) -> list[TokenChunk]:
        """The chunks that ``output`` (a vLLM ``RequestOutput`` in delta mode) completes.

        Raises:
            EngineError: vLLM failed this request, or gave no version for its tokens.
        """
        completion = output.outputs[0]
        finish = _finish(completion.finish_reason)
        starts = self.starts
        if starts is None and finish is not None and completion.weight_versions is not None:
            starts = [(span.version, span.start) for span in completion.weight_versions]
        self._held.append(completion)
        if starts is None and finish is None:
            return []
        held, self._held = self._held, []
        token_ids = [token for part in held for token in part.token_ids]
        logprobs = [value for part in held if part.token_ids for value in part.logprobs.logprobs]
        if len(token_ids) != len(logprobs):
            raise EngineError(f"vLLM gave {len(token_ids)} tokens with {len(logprobs)} log-probabilities")
        return self._split(token_ids, logprobs, starts or [], finish)

    def _split(
        self, token_ids: list[int], logprobs: list[float], starts: list[tuple[str, int]], finish: Finish | None
    ) -> list[TokenChunk]:
        first, end = self._num_sent, self._num_sent + len(token_ids)
        ends = [start for _, start in starts[1:]] + [end]
        chunks = []
        for (version, start), span_end in zip(starts, ends, strict=True):
            low, high = max(start, first), min(span_end, end)
            if low < high:
                here = slice(low - first, high - first)
                last = finish if high == end else None
                chunks.append(
                    TokenChunk(token_ids=token_ids[here], logprobs=logprobs[here], version=int(version), finish=last)
                )
        self._num_sent += sum(len(chunk.token_ids) for chunk in chunks)
        if self._num_sent != end:
            raise EngineError(f"vLLM named no weight version for {end - self._num_sent} of {end} tokens")
        if not token_ids and finish is not None:
            version = starts[-1][0] if starts else "0"
            chunks.append(TokenChunk(token_ids=[], logprobs=[], version=int(version), finish=finish))
        return chunks


def _finish(reason: str | None) -> Finish | None:
    if reason is None:
        return None
    if reason not in _FINISHES:
        raise EngineError(f"vLLM ended a stream for the reason {reason!r}")
    return _FINISHES[reason]

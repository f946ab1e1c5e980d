"""What vLLM's core sampled, as messages for the controller, without an object or a task per stream and step.

``AsyncLLM`` hands every decode step's outputs to its ``OutputProcessor``. This one takes those of the controller's
streams and leaves all others (scores) to vLLM's own; it does nothing of what text needs, which is most of the work.

Invariants:

- A token's version is the one that the core named for the step that sampled it. A message holds tokens of one version:
  what an older one sampled is sent before.
- A stream's tokens are sent every ``stream_interval`` steps, its last ones at once.
- What came for a stream that was closed meanwhile is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput

from prl.engines.host_protocol import Delta, Failed, Generate, Tokens
from prl.engines.host_side import end_process
from prl.types import Finish

_FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}


class Stream:
    """One stream of the controller."""

    def __init__(self, request: Generate) -> None:
        self.request = request
        self.request_id: str | None = None
        """vLLM's own id; None while it is not with vLLM."""
        self.sampled = False
        """Whether it has a token, sent or not."""
        self.finish: Finish | None = None
        self.token_ids: list[int] = []
        """Not sent yet."""
        self.logprobs: list[float] = []

    def take(self, token_ids: list[int], logprobs: list[float]) -> None:
        """One step's tokens: one, unless vLLM speculates."""
        self.sampled = True
        self.token_ids += token_ids
        self.logprobs += logprobs

    def delta(self) -> Delta:
        """What was not sent yet."""
        delta = Delta(self.request.stream, self.token_ids, self.logprobs, self.finish)
        self.token_ids, self.logprobs = [], []
        return delta


class StreamOutputs(OutputProcessor):  # type: ignore[misc]  # vLLM is untyped
    """Stands in for an ``AsyncLLM``'s output processor.

    Args:
        replaced: the one that vLLM made.
        stream_interval: steps between two messages.
        send: takes a message without waiting.
        on_end: called when streams have ended and left room for others.
    """

    def __init__(
        self,
        replaced: OutputProcessor,
        *,
        stream_interval: int,
        send: Callable[[Tokens | Failed], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(replaced.tokenizer, log_stats=False)
        self._interval, self._send, self._on_end = stream_interval, send, on_end
        self._expected: dict[str, Stream] = {}
        self._open: dict[str, Stream] = {}
        self._version = "0"
        self._num_steps = 0

    def expect(self, name: str, stream: Stream) -> None:
        """The request that is about to be added under this name is ``stream``."""
        self._expected[name] = stream

    def expect_no_more(self, name: str) -> None:
        """The request was refused."""
        self._expected.pop(name, None)

    def streams(self) -> list[Stream]:
        """The streams that vLLM has."""
        return list(self._open.values())

    def forget(self, stream: Stream) -> None:
        """Drop what may still come for a stream, and what was not sent."""
        if stream.request_id is not None:
            self._open.pop(stream.request_id, None)
            stream.request_id = None

    def flush(self) -> None:
        """Send what the stream interval holds back."""
        self._send_deltas([stream for stream in self._open.values() if stream.token_ids])

    # Called by vLLM -------------------------------------------------------------------------------------------------

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Know a stream by vLLM's id before the core can have an output for it."""
        super().add_request(request, *args, **kwargs)
        if (stream := self._expected.pop(request.external_req_id, None)) is not None:
            stream.request_id = request.request_id
            self._open[request.request_id] = stream

    def process_outputs(
        self,
        engine_core_outputs: list[Any],
        engine_core_timestamp: float | None = None,
        iteration_stats: Any = None,
        weight_version: str | None = None,
    ) -> OutputProcessorOutput:
        """Take one decode step."""
        if weight_version != self._version and weight_version is not None:
            self.flush()
            self._version = weight_version
        others, ended = [], []
        for output in engine_core_outputs:
            stream = self._open.get(output.request_id)
            if stream is None:
                others.append(output)
                continue
            if output.new_token_ids:
                stream.take(output.new_token_ids, output.new_logprobs.logprobs[:, 0].tolist())
            if output.finish_reason is not None:
                self._finish(stream, str(output.finish_reason))
                ended.append(stream)
        self._num_steps += 1
        if self._num_steps % self._interval == 0:
            self.flush()
        if ended:
            self._send_deltas([stream for stream in ended if stream.finish is not None])
            self._on_end()
        return super().process_outputs(others, engine_core_timestamp, iteration_stats, weight_version)

    def propagate_error(self, e: Exception) -> None:
        """The core is gone, or its outputs cannot be read."""
        end_process(f"vLLM's outputs ended: {e or type(e).__name__}")

    # ----------------------------------------------------------------------------------------------------------------

    def _finish(self, stream: Stream, reason: str) -> None:
        self._finish_request(self.request_states[stream.request_id])
        self.forget(stream)
        stream.finish = _FINISHES.get(reason)
        if stream.finish is None:
            error = f"vLLM ended a stream for the reason {reason!r}"
            self._send(Failed(stream=stream.request.stream, error=error))

    def _send_deltas(self, streams: list[Stream]) -> None:
        if not streams:
            return
        deltas = [stream.delta() for stream in streams]
        if any(len(delta.token_ids) != len(delta.logprobs) for delta in deltas):
            end_process("vLLM gave tokens without their log-probabilities")
        self._send(Tokens(version=int(self._version), deltas=deltas))

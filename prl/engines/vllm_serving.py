"""The commands of the controller, carried out on an ``AsyncLLM`` in the same process.

Invariants:

- At most ``max_num_seqs`` streams are with vLLM; the others wait here, in order. One request is handed over at a time,
  none while the engine stands still. Each is salted with the number of the load whose weights will serve it: versions
  do not tell weights apart once a trainer was started again.
- Commands are taken in the order they came; calls are answered one after the other.
- A request that has sampled nothing when a load completes is aborted and submitted again, so that neither its prompt's
  KV nor the salt of its prefix cache is of an older version.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from functools import partial
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

from prl.engines.base import Standstill
from prl.engines.host_protocol import (
    Call,
    Cancel,
    Connect,
    Failed,
    FromController,
    Generate,
    Load,
    Pause,
    Reply,
    Request,
    Resume,
    Score,
    Stage,
    Start,
    Swap,
)
from prl.engines.host_side import end_process
from prl.engines.transfer_info import init_info, update_info
from prl.engines.vllm_outputs import Stream, StreamOutputs
from prl.engines.vllm_settings import score_params, stream_params
from prl.errors import EngineError, PrlError, WeightSyncError
from prl.failure import together_as_it_was
from prl.types import WeightGroup, WeightUpdate
from prl.wire import Channel

_WATCH_INTERVAL_S = 0.1


async def _nothing() -> None:
    """The update is open."""


class Serving:
    """Serves one controller until its connection ends."""

    def __init__(self, llm: Any, start: Start, channel: Channel[FromController]) -> None:
        self._llm, self._channel = llm, channel
        self._room = asyncio.Event()
        self._outputs = StreamOutputs(
            llm.output_processor,
            stream_interval=start.config.stream_interval,
            send=channel.post,
            on_end=self._room.set,
        )
        llm.output_processor = self._outputs
        self._next_output = llm.engine_core.get_output_async
        llm.engine_core.get_output_async = self._output_or_end
        self._max_num_seqs = start.config.max_num_seqs
        self._ids = itertools.count()
        self._waiting: deque[Stream] = deque()
        self._calls: asyncio.Queue[Call] = asyncio.Queue()
        self._submitting = asyncio.Lock()
        self._num_loads = 0
        self._paused = False
        self._update_open = False

    async def serve(self, start: Call) -> None:
        """Answer ``start`` once a token was computed, then everything that comes."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_core())
            await self._llm.update_weight_version("0")
            await self._score([0])  # what the model's kernels cannot do shows here
            self._channel.post(Reply(id=start.id, vocab_size=self._llm.model_config.get_vocab_size()))
            for work in (self._read(), self._answer_calls(), self._admit_waiting()):
                tasks.create_task(work)

    async def _read(self) -> None:
        while True:
            match await self._channel.receive():
                case Generate() as request:
                    self._waiting.append(Stream(request))
                    await self._admit()
                case Cancel(stream=number):
                    await self._cancel(number)
                case Call() as call:
                    self._calls.put_nowait(call)

    async def _output_or_end(self) -> Any:
        """The core's next output. Its end must be told here: vLLM would push what the core last said out of the log."""
        try:
            return await self._next_output()
        except Exception:  # noqa: BLE001 -- whatever it is called, there will be no more
            end_process("the core of vLLM ended")

    async def _watch_core(self) -> None:
        """VLLM tells nobody that its core is gone: it sets a flag from a thread."""
        while not self._llm.errored:  # noqa: ASYNC110 -- told by nobody
            await asyncio.sleep(_WATCH_INTERVAL_S)
        end_process("the core of vLLM ended")

    # Streams --------------------------------------------------------------------------------------------------------

    async def _admit_waiting(self) -> None:
        while True:
            await self._room.wait()
            self._room.clear()
            await self._admit()

    async def _admit(self) -> None:
        async with self._submitting:
            while self._waiting and not self._paused and len(self._outputs.streams()) < self._max_num_seqs:
                await self._submit(self._waiting.popleft())

    async def _submit(self, stream: Stream) -> None:
        request, name = stream.request, f"{stream.request.stream}-{next(self._ids)}"
        self._outputs.expect(name, stream)
        try:
            await self._llm.add_request(name, self._prompt(request.token_ids), stream_params(request.decoding))
        except Exception as error:  # noqa: BLE001 -- one request's error, unless the core is gone
            self._check_core(error)
            self._outputs.expect_no_more(name)
            self._channel.post(Failed(stream=request.stream, error=f"refused a request: {error}"))

    async def _cancel(self, number: int) -> None:
        async with self._submitting:
            for stream in self._outputs.streams():
                if stream.request.stream == number:
                    await self._abort(stream)
            self._waiting = deque(stream for stream in self._waiting if stream.request.stream != number)
        self._room.set()

    async def _abort(self, stream: Stream) -> None:
        request_id = stream.request_id
        self._outputs.forget(stream)
        await self._llm.abort(request_id, internal=True)

    def _prompt(self, token_ids: list[int]) -> dict[str, Any]:
        """Rendered input, as vLLM calls it: it is taken as it is, without a detour through a thread."""
        return {"type": "token", "prompt_token_ids": token_ids, "cache_salt": str(self._num_loads)}

    async def _score(self, token_ids: list[int]) -> list[float]:
        if self._paused:
            raise EngineError("is paused and cannot score; resume it first")
        outputs = self._llm.generate(self._prompt(token_ids), score_params(), f"score-{next(self._ids)}")
        async with contextlib.aclosing(outputs):
            output = await anext(outputs)
        found = zip(token_ids[1:], output.prompt_logprobs[1:], strict=True)
        return [by_token[token].logprob for token, by_token in found]

    # Calls ----------------------------------------------------------------------------------------------------------

    async def _answer_calls(self) -> None:
        while True:
            call = await self._calls.get()
            try:
                reply = await self._do(call.id, call.request)
            except PrlError as error:
                reply = Reply(id=call.id, error=str(error))
            except Exception as error:  # noqa: BLE001 -- told to the caller, unless the core is gone
                self._check_core(error)
                what = type(call.request).__name__.lower()
                reply = Reply(id=call.id, error=f"{what} failed: {error or type(error).__name__}")
            self._channel.post(reply)

    async def _do(self, number: int, request: Request) -> Reply:
        match request:
            case Score(token_ids=token_ids):
                return Reply(id=number, logprobs=await self._score(token_ids))
            case Swap(update=update):
                return Reply(id=number, standstill=await self._swap(update))
            case Connect(group=group, rank=rank):
                await self._connect(group, rank)
            case Pause():
                await self._pause()
            case Resume():
                await self._resume()
            case Stage(update=update):
                await self._update(update, stage=True)
            case Load(update=update):
                await self._load(update)
                await self._serve_version(update.version)
            case Start():
                raise EngineError("is started already")
        return Reply(id=number)

    async def _connect(self, group: WeightGroup, rank_offset: int) -> None:
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info(group, rank_offset)))

    async def _pause(self) -> None:
        self._paused = True
        async with self._submitting:  # what was being handed over is
            # ``AsyncLLM.pause_generation`` is this and a sleep of 20 ms, in place of which comes the next line.
            await self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)
        await self._outputs_taken()
        self._outputs.flush()

    async def _resume(self) -> None:
        await self._llm.resume_generation()
        self._goes_on()

    def _goes_on(self) -> None:
        self._paused = False
        self._room.set()

    async def _swap(self, update: WeightUpdate) -> Standstill:
        """As few waits for the core as may be: for its last step, for the new weights, and for its going on.

        Nothing that is asked for together may be wrong where what it is asked with fails: no version is named, and
        nothing resumed, before the weights are known to be in place.
        """
        clock = time.monotonic  # an event loop's own counts milliseconds, which is what this is about
        begun = clock()
        await self._pause()
        still = clock()
        await self._load(update)
        version = partial(self._serve_version, update.version)
        await together_as_it_was("swap", version=version, resume=self._llm.resume_generation)
        self._goes_on()
        return Standstill(drain_s=still - begun, still_s=clock() - still)

    async def _update(self, update: WeightUpdate, *, stage: bool) -> None:
        was_open, self._update_open = self._update_open, stage
        request = WeightTransferUpdateRequest(update_info=update_info(update, stage=stage))
        start = _nothing if was_open else self._llm.start_weight_update
        finish = _nothing if stage else self._llm.finish_weight_update
        send = partial(self._llm.update_weights, request)
        try:  # asked for together and taken in this order, they wait for one decode step and not for each
            await together_as_it_was("update", start=start, send=send, finish=finish)
        except Exception:
            self._update_open = False  # vLLM closes an update that failed
            raise

    async def _load(self, update: WeightUpdate) -> None:
        if not self._paused:
            raise WeightSyncError("weights are loaded only while the engine is paused")
        await self._update(update, stage=False)
        self._num_loads += 1
        await self._outputs_taken()
        async with self._submitting:
            for stream in reversed([stream for stream in self._outputs.streams() if not stream.sampled]):
                await self._abort(stream)
                self._waiting.appendleft(stream)

    async def _serve_version(self, version: int) -> None:
        """Name the weights that were loaded."""
        await self._llm.update_weight_version(str(version))

    async def _outputs_taken(self) -> None:
        """Wait until all that came before the answer to the last call was processed: it came by the same socket."""
        while not self._llm.engine_core.outputs_queue.empty():  # noqa: ASYNC110 -- others take from it
            await asyncio.sleep(0)

    def _check_core(self, error: Exception) -> None:
        if self._llm.errored:
            raise error

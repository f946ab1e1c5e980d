"""The host process of the transformers engine: one model, one generation thread, one command thread.

Invariants:

- Commands run one after the other in the main thread. What touches the model (load, score) runs while the generation
  thread is parked between two steps.
- The process ends with its parent, with its connection, and with its generation thread: never a deaf or idle child.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from prl.engines.base import Standstill
from prl.engines.host_protocol import (
    Call,
    Cancel,
    Connect,
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
from prl.engines.host_side import connect_back, end_process
from prl.engines.transformers_batching import TokenRouter, make_manager
from prl.engines.transformers_sampling import Sampler
from prl.engines.transformers_weights import Arrived, load_model, receive_in_place, score
from prl.errors import WeightSyncError
from prl.transfer import GlooGroup
from prl.types import WeightUpdate
from prl.wire import BlockingChannel, WireClosedError

_WATCH_INTERVAL_S = 0.2


class Host:
    """Answers the controller until the connection ends."""

    def __init__(self, channel: BlockingChannel[FromController]) -> None:
        self._channel = channel
        self._send_lock = threading.Lock()
        self._held = contextlib.ExitStack()
        self._paused = False
        self._group: GlooGroup | None = None
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="prl-weights")
        self._staged: Future[Arrived] | None = None
        self._model: Any = None
        self._manager: Any = None
        self._router: TokenRouter | None = None

    def serve(self) -> None:
        """Take commands until the controller is gone."""
        while True:
            match self._channel.receive():
                case Generate() as message:
                    self._ready_router().add(message)
                case Cancel(stream=stream):
                    self._ready_router().cancel(stream)
                case Call(id=number, request=request):
                    self._send(self._answer(number, request))

    def _answer(self, number: int, request: Request) -> Reply:
        """Do what a call asks. What a load or a connection may meet is an answer; anything else ends the process."""
        try:
            match request:
                case Start():
                    return Reply(id=number, vocab_size=self._start(request))
                case Score(token_ids=token_ids):
                    with self._manager.pause():
                        return Reply(id=number, logprobs=score(self._model, token_ids))
                case Connect():
                    self._connect(request)
                case Pause():
                    self._pause()
                case Resume():
                    self._resume()
                case Stage():
                    self._staged = self._beside.submit(Arrived, self._model, request.update, self._joined())
                case Load():
                    self._load(request.update)
                case Swap():
                    return Reply(id=number, standstill=self._swap(request.update))
        except WeightSyncError as error:
            return Reply(id=number, error=str(error))
        return Reply(id=number)

    def _start(self, start: Start) -> int:
        torch.set_num_threads(start.num_threads)
        self._model = load_model(start)
        sampler = Sampler(start.seed)
        self._manager = make_manager(self._model, start, sampler)
        self._router = TokenRouter(self._manager, sampler, self._send, start.config.stream_interval)
        self._manager.start()
        threading.Thread(target=self._watch_generation, name="prl-generation-watch", daemon=True).start()
        return int(self._model.config.get_text_config().vocab_size)

    def _connect(self, connect: Connect) -> None:
        self._staged = None  # what was received in the group before and not put in place
        if self._group is not None:
            self._group.close()
        self._group = GlooGroup.join(connect.group, connect.rank)

    def _pause(self) -> None:
        if not self._paused:
            self._held.enter_context(self._manager.pause())
            self._paused = True
            self._ready_router().flush()

    def _resume(self) -> None:
        self._paused = False
        self._held.close()

    def _joined(self) -> GlooGroup:
        if self._group is None:
            raise WeightSyncError("this engine is in no weight group: connect it first")
        return self._group

    def _load(self, update: WeightUpdate) -> None:
        group = self._joined()
        if not self._paused:
            raise WeightSyncError("weights are loaded only while the engine is paused")
        staged, self._staged = self._staged, None
        if staged is None:
            receive_in_place(self._model, update, group)
        else:
            staged.result().put_in_place(update.version)
        self._ready_router().version = update.version

    def _swap(self, update: WeightUpdate) -> Standstill:
        begun = time.monotonic()
        self._pause()
        still = time.monotonic()
        self._load(update)
        self._resume()
        return Standstill(drain_s=still - begun, still_s=time.monotonic() - still)

    def _ready_router(self) -> TokenRouter:
        assert self._router is not None, "the controller starts the engine before it uses it"
        return self._router

    def _send(self, message: Any) -> None:
        """Both threads send; a message is whole."""
        try:
            with self._send_lock:
                self._channel.send(message)
        except WireClosedError as error:
            end_process(f"the controller is gone: {error}")

    def _watch_generation(self) -> None:
        while self._manager.is_running():
            time.sleep(_WATCH_INTERVAL_S)
        end_process("the generation thread has ended; its error stands above")


def main() -> None:
    """Connect back to the controller and serve it."""
    _, channel = connect_back()
    try:
        Host(channel).serve()
    except WireClosedError:
        end_process("the controller closed the connection")
    except Exception:  # noqa: BLE001 -- the generation thread is no daemon and would keep a failed process alive
        end_process(traceback.format_exc())


if __name__ == "__main__":
    main()

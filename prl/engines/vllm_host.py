"""The host process of the vLLM engine: it starts an ``AsyncLLM`` with its core and serves the controller.

Invariants:

- The core is forked where it computes by itself, before this process has an event loop: what vLLM's imports cost, in
  seconds and memory, is paid once.
- Every process ends with its parent, this one with the core and with its connection too; also while the core starts,
  where vLLM waits ten minutes for the first word of one that has ended.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import socket
import threading
import traceback
from multiprocessing.connection import wait
from typing import Any

import uvloop
from vllm.v1.engine.async_llm import AsyncLLM

from prl import stacks
from prl.engines.gloo_transfer import HOST
from prl.engines.host_protocol import Call, FromController, Start
from prl.engines.host_side import connect_back, end_process
from prl.engines.vllm_serving import Serving
from prl.engines.vllm_settings import engine_args, is_one_process
from prl.process import die_with_parent
from prl.wire import Channel, WireClosedError

_WATCH_S = 0.5


def watch_start(is_over: threading.Event) -> None:
    """End this process when a child of it ends before the start is over. For a thread."""
    ends = dict[int, int]()
    while not is_over.is_set():
        ends |= {child.pid: child.sentinel for child in multiprocessing.active_children() if child.pid is not None}
        if ends and wait(list(ends.values()), timeout=_WATCH_S) and not is_over.is_set():
            end_process("the core of vLLM ended while it started")
        is_over.wait(_WATCH_S)


def start_core(start: Start, sock: socket.socket) -> Any:
    """The ``AsyncLLM`` with its core ready, blocking; ``sock`` is not for other processes."""
    os.environ[HOST] = str(os.getpid())
    vllm_config = engine_args(start).create_engine_config()
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork" if is_one_process(start) else "spawn"
    parent = 0

    def before_fork() -> None:
        nonlocal parent
        parent = os.getpid()

    def after_fork() -> None:
        die_with_parent(parent)
        stacks.answer_requests("core")
        sock.close()

    os.register_at_fork(before=before_fork, after_in_child=after_fork)
    return AsyncLLM.from_vllm_config(vllm_config, disable_log_stats=True)


async def _serve(llm: Any, call: Call, start: Start, sock: socket.socket) -> None:
    channel: Channel[FromController] = Channel(*await asyncio.open_connection(sock=sock), FromController)
    await Serving(llm, start, channel).serve(call)


def main() -> None:
    """Connect back to the controller, start the core and serve."""
    sock, first = connect_back()
    try:
        call = first.receive()
        if not (isinstance(call, Call) and isinstance(call.request, Start)):
            end_process("the controller must start the engine before it uses it")
        is_over = threading.Event()
        threading.Thread(target=watch_start, args=(is_over,), name="prl-start-watch", daemon=True).start()
        llm = start_core(call.request, sock)
        is_over.set()
        gc.freeze()  # what the start made stays; a collection need not look at it
        uvloop.run(_serve(llm, call, call.request, sock))
    except* WireClosedError:
        end_process("the controller closed the connection")
    except* Exception:  # noqa: BLE001 -- the core and vLLM's threads would keep a failed process alive
        end_process(traceback.format_exc())


if __name__ == "__main__":
    main()

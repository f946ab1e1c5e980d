"""The life of one ``AsyncLLM``: its start in a thread, its death told with its log, its end within seconds.

Invariants:

- One thread starts the core and lives as long as it: the kernel ends the core with that thread (``vllm_process.py``).
- Whatever way this ends, no process of the core's group is left when ``close`` returns.
- Once the core is gone, every call raises ``EngineDeadError`` with the last lines of its log.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from prl.config import EngineConfig
from prl.engines.vllm_process import Launch, captured_environment
from prl.engines.vllm_settings import child_environment, engine_args, prepare_front_end
from prl.errors import EngineDeadError, EngineError
from prl.process import signal_group, tail

_POLL_S = 0.1
_SHUTDOWN_S = 5.0
"""How long the core may take to end by itself; it has nothing to save."""
_GIVE_UP_S = 8.0
"""How long a start that is no longer wanted may go on: importing vLLM cannot be interrupted."""

T = TypeVar("T")


class Core:
    """One ``AsyncLLM`` with its processes."""

    def __init__(self, name: str, log: Path, config: EngineConfig) -> None:
        self.name = name
        self.llm: Any = None
        """None until ``start`` returns and after ``close``."""
        self.vocab_size = 0
        self._log, self._config = log, config
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._starting: asyncio.Future[Any] | None = None
        self._launch: Launch | None = None
        self._closed = False
        self._why: str | None = None

    async def start(
        self, *, model: str, transport: str, seed: int, cores: list[int] | None, devices: list[int] | None
    ) -> None:
        """Import vLLM, start the core and wait until it is ready.

        Raises:
            EngineError: the core did not start; carries the last lines of its log.
        """
        self._log.parent.mkdir(parents=True, exist_ok=True)

        def begin() -> Any:
            return self._begin(model=model, transport=transport, seed=seed, cores=cores, devices=devices)

        self._starting = self._in_thread(begin)
        try:
            self.llm = await asyncio.shield(self._starting)
        except Exception as error:
            raise EngineError(
                f"{self.name} did not start: {error}; last lines of {self._log}:\n{tail(self._log)}"
            ) from error
        self.vocab_size = self.llm.model_config.get_vocab_size()

    def _begin(self, *, cores: list[int] | None, **choices: Any) -> Any:
        """In the engine's thread, blocking until the core is ready."""
        prepare_front_end(self._log.with_name("vllm.log"))
        from vllm.platforms import current_platform  # noqa: PLC0415 -- optional and heavy
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415 -- optional and heavy

        on_cpu = current_platform.is_cpu()
        args = engine_args(config=self._config, on_cpu=on_cpu, bound=cores is not None, **choices)
        with captured_environment() as changed:
            self._check_wanted()
            vllm_config = args.create_engine_config()
        environment = changed | child_environment(self._config, cores, on_cpu=on_cpu)
        with Launch(self._log, environment) as self._launch:
            self._check_wanted()
            return AsyncLLM.from_vllm_config(vllm_config, disable_log_stats=True)

    def _check_wanted(self) -> None:
        if self._closed:
            raise EngineError(f"{self.name} was closed while it started")

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    # Death ----------------------------------------------------------------------------------------------------------

    @property
    def dead(self) -> bool:
        """Whether the core is gone."""
        return self._why is not None or (self.llm is not None and self.llm.errored)

    def check_alive(self) -> None:
        """Raise unless the core is there."""
        if self._closed or self.llm is None:
            raise EngineDeadError(f"{self.name} is not open")
        if self.dead:
            raise EngineDeadError(self.why())

    def why(self) -> str:
        """Why the core is gone, with its last log lines; also ends what is left of its processes."""
        if self._why is None:
            self._why = f"the vLLM process of {self.name} ended; last lines of {self._log}:\n{tail(self._log)}"
        self._signal(signal.SIGKILL)
        return self._why

    def kill(self, why: str) -> None:
        """End the core because of ``why``."""
        self._why = self._why or f"{why}; last lines of {self._log}:\n{tail(self._log)}"
        self._signal(signal.SIGKILL)

    def translated(self, error: Exception, what: str) -> EngineError:
        """An error of vLLM as one of prl's."""
        if self.dead or type(error).__name__ == "EngineDeadError":
            return EngineDeadError(self.why())
        return EngineError(f"{self.name} {what}: {error or type(error).__name__}")

    async def call(self, call: Coroutine[Any, Any, T], what: str) -> T:
        """Await a call to the core that costs at most a step; ``what`` completes "engine-0 ..." in its error."""
        limit_s = self._config.token_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError:
            self.kill(f"{self.name} {what} within engine.token_timeout_s = {limit_s:g} s")
            raise EngineDeadError(self.why()) from None
        except Exception as error:
            raise self.translated(error, what) from error

    async def failed(self) -> str:
        """Wait until the core is gone without having been closed."""
        while self._closed or not self.dead:  # noqa: ASYNC110 -- vLLM tells nobody, it sets a flag from a thread
            await asyncio.sleep(_POLL_S)
        return self.why()

    def _signal(self, number: int) -> None:
        if self._launch is not None and self._launch.pid is not None:
            signal_group(self._launch.pid, number)

    # End ------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End every process. Idempotent and bounded, whatever has happened before."""
        self._closed = True
        await self._abandon_start()
        if self.llm is not None:
            await self._shut_down()
        self._signal(signal.SIGKILL)
        self._thread.shutdown(wait=False)

    async def _shut_down(self) -> None:
        llm, self.llm = self.llm, None
        done, _ = await asyncio.wait(
            [self._in_thread(functools.partial(llm.shutdown, timeout=_SHUTDOWN_S))], timeout=2 * _SHUTDOWN_S
        )
        llm.shutdown = _nothing  # its destructor calls it again, as late as when the interpreter is half gone
        await asyncio.sleep(0)  # vLLM has asked this loop to close its sockets; then what they lived in can go too
        sockets = llm.engine_core.resources.ctx
        done |= (await asyncio.wait([self._in_thread(functools.partial(sockets.destroy, linger=0))], timeout=1.0))[0]
        for call in done:
            call.result()

    async def _abandon_start(self) -> None:
        """Wait for a start under way, killing its core as soon as there is one."""
        if self._starting is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GIVE_UP_S
        while not self._starting.done() and loop.time() < deadline:
            self._signal(signal.SIGKILL)
            await asyncio.wait([self._starting], timeout=_POLL_S)
        if self._starting.done() and not self._starting.cancelled() and self._starting.exception() is None:
            self.llm = self.llm or self._starting.result()
        self._starting = None


def _nothing() -> None:
    """A shutdown of what is shut down."""

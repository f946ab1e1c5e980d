"""Python as a tool: each call is a program of its own, run in the sandbox of the reward ``code``.

Invariant: where the machine does not offer the isolation that was asked for, the environment is refused when it is
made; it is never silently weaker.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from prl.environments.session import Session
from prl.environments.tools import Tool, run_tools
from prl.log import get_logger
from prl.rewards.sandbox import Isolation, Limits, Ran, how_stopped, offered, run
from prl.types import Prompt

MAX_ERROR = 1_000
"""Last characters of an error that the model sees."""
MARGIN_S = 30.0
"""What a call may take beyond its program: setting it up, and putting it away."""

log = get_logger(__name__)


class Python:
    """Let the model run programs on its way to an answer, which ``[[rewards]]`` judge."""

    def __init__(
        self,
        *,
        isolation: Isolation = "namespace",
        num_workers: Annotated[int, Meta(ge=1, le=256)] = 2,
        cpu_s: Annotated[int, Meta(ge=1)] = 2,
        wall_s: Annotated[float, Meta(gt=0)] = 6.0,
        memory_mib: Annotated[int, Meta(ge=64)] = 512,
    ) -> None:
        """Limits are of one program; ``num_workers`` run at once. Raises PluginError where it cannot be shut in so."""
        self._isolation = isolation
        self._limits = Limits(
            cpu_s=cpu_s, wall_s=wall_s, memory_mib=memory_mib, disk_mib=16, num_processes=16, output_kib=64
        )
        log.info("python tool", isolation=offered(isolation, "the environment 'python'"))
        self._tool = Tool(
            name="python",
            description="Run a Python program and read what it prints. Nothing is kept between two programs.",
            parameters={
                "type": "object",
                "properties": {"program": {"type": "string", "description": "such as print(2 ** 100)"}},
                "required": ["program"],
            },
            call=self._run,
            timeout_s=wall_s + MARGIN_S,
            places=asyncio.Semaphore(num_workers),
        )

    async def __call__(self, session: Session, prompt: Prompt) -> None:
        """One episode."""
        messages = prompt.messages or [{"role": "user", "content": prompt.text}]
        await run_tools(session, messages, [self._tool])

    async def _run(self, program: str) -> str:
        """What the program printed, or how it failed. Raises SandboxError where it could not be shut in."""
        if not isinstance(program, str):
            raise ValueError("a program is a text")  # noqa: TRY004 -- what the model is told
        return self._told(await run(program, "", self._limits, self._isolation))

    def _told(self, ran: Ran) -> str:
        if (stopped := how_stopped(ran, self._limits)) is not None:
            return f"{ran.stdout}\nerror: {stopped}".strip()
        if ran.outcome == "exit" and ran.code == 0:
            return ran.stdout or "(it printed nothing)"
        error = ran.stderr.strip()[-MAX_ERROR:] or f"it ended with {ran.outcome} {ran.code}"
        return f"{ran.stdout}\nerror: {error}".strip()

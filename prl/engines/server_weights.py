"""How a server comes to new weights: vLLM's routes for reinforcement learning, in the order that vLLM wants them.

Invariants:

- What the server names as its version is ``<claim>/<version>`` from ``take_over`` on; only ``finish_weight_update`` of
  a load that succeeded changes it.
- After a load that failed or was interrupted ``broken`` says so, until one has succeeded.
- An update that somebody left open (a run that was killed between two calls) does not keep ours from beginning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from prl.engines.server_link import ServerAwayError, ServerLink, ServerRefusedError
from prl.engines.transfer_info import init_info, update_info
from prl.errors import EngineError, WeightSyncError
from prl.types import WeightGroup, WeightUpdate

_ANSWER_S = 30.0
"""Longest wait for an answer that needs no transfer."""
_REPLY_MARGIN_S = 5.0
"""The server's own deadline is the better told one, so the wait for its answer is this much longer."""
_ALREADY_OPEN = "already active"


class ServerWeights:
    """The weights of one server.

    Args:
        link: to it.
        claim: a word that nobody else uses.
    """

    def __init__(self, link: ServerLink, claim: str) -> None:
        self._link, self._claim = link, claim
        self.version = 0
        self.broken: str | None = None
        """Why it serves nothing; None: it serves."""
        self._num_loads = 0
        self._num_moving = 0
        self.num_moves = 0
        """Transfers and their parts that were begun."""
        self._timeout_s = _ANSWER_S
        self._is_update_open = False

    @property
    def salt(self) -> str:
        """Salts the prefix cache: different for every load, of every claim."""
        return f"{self._claim}-{self._num_loads}"

    @property
    def is_moving(self) -> bool:
        """Whether a transfer is under way, during which the server's core may not answer."""
        return self._num_moving > 0

    async def take_over(self) -> None:
        """Claim the server, and let it go on where a run that has ended left it paused."""
        await self._post("/update_weight_version", {"new_version": f"{self._claim}/0"}, _ANSWER_S)
        await self._post("/resume", None, _ANSWER_S)

    async def label(self, *, timeout_s: float) -> str:
        """What the server names as its version. Raises as ``ServerLink.ask``."""
        answer = await self._link.ask("GET", "/weight_info", timeout_s=timeout_s)
        return str(answer["weight_version"])

    async def let_go(self, *, timeout_s: float) -> None:
        """Leave the weight group and go on; what fails is nobody's business any more."""
        for path in ("/shutdown_weight_transfer_engine", "/resume"):
            with contextlib.suppress(EngineError, TimeoutError):
                await self._post(path, None, timeout_s)

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join a weight group. Raises WeightSyncError."""
        self._timeout_s = group.timeout_s + _REPLY_MARGIN_S
        self._is_update_open = False
        with self._moving("join the weight group"):
            body = {"init_info": init_info(group, rank_offset)}
            await self._post("/init_weight_transfer_engine", body, self._timeout_s)

    async def stage(self, update: WeightUpdate) -> None:
        """Begin to receive ``update`` beside generation. Raises WeightSyncError."""
        with self._moving(f"begin to receive version {update.version}"):
            await self._begin()
            await self._update(update, stage=True)

    async def load(self, update: WeightUpdate) -> None:
        """Receive ``update``, or what is left of it, and serve it. Raises WeightSyncError."""
        self.broken = f"the load of version {update.version} was interrupted"
        try:
            with self._moving(f"load version {update.version}"):
                await self._begin()
                await self._update(update, stage=False)
                label = f"{self._claim}/{update.version}"
                await self._post("/finish_weight_update", {"weight_version": label}, self._timeout_s)
        except WeightSyncError as error:
            self.broken = f"the load of version {update.version} failed: {error}"
            raise
        finally:
            self._is_update_open = False
        self.broken = None
        self.version = update.version
        self._num_loads += 1

    async def _begin(self) -> None:
        if self._is_update_open:
            return
        try:
            await self._post("/start_weight_update", None, self._timeout_s)
        except ServerRefusedError as error:
            if _ALREADY_OPEN not in error.said:
                raise
            await self._post("/finish_weight_update", {}, self._timeout_s)
            await self._post("/start_weight_update", None, self._timeout_s)
        self._is_update_open = True

    async def _update(self, update: WeightUpdate, *, stage: bool) -> None:
        try:
            body = {"update_info": update_info(update, stage=stage)}
            await self._post("/update_weights", body, self._timeout_s)
        except BaseException:
            self._is_update_open = False  # vLLM closes an update that failed
            raise

    @contextlib.contextmanager
    def _moving(self, what: str) -> Iterator[None]:
        """A transfer is under way; what goes wrong is a WeightSyncError."""
        self._num_moving += 1
        self.num_moves += 1
        try:
            yield
        except TimeoutError:
            raise WeightSyncError(f"{self._link.who} did not {what} within {self._timeout_s:g} s") from None
        except (ServerAwayError, ServerRefusedError) as error:
            raise WeightSyncError(f"{self._link.who} could not {what}: {error}") from error
        finally:
            self._num_moving -= 1

    async def _post(self, path: str, body: Any, timeout_s: float) -> Any:
        return await self._link.ask("POST", path, body, timeout_s=timeout_s)

"""``http``: a service of yours judges. Completions are posted in batches, and it answers with a value for each.

The request is ``{"items": [{"prompt": ..., "messages": [...], "completion": ..., "fields": {...}}]}``, the reply
``{"rewards": [1.0, null, {"value": 0.5, "reason": "short"}]}``: a number, null to abstain, or either with its reason,
in the order of the items. ``examples/reward_server.py`` is such a service.

- What is asked within ``batch_wait_s`` goes out together, at most ``batch_size`` items a request.
- A reply of another form is a failure of every item in it, and never a 0.
- Retries, the total deadline (``timeout_s``, in which waits for the rate are not counted) and the pause through an
  outage are the scorer's, as for every reward.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from prl.deadlines import uncounted
from prl.errors import RewardError
from prl.rewards.base import Judged
from prl.rewards.http_client import Client
from prl.types import Completion, Prompt


class _Answer(msgspec.Struct):
    """One value of a reply with its reason."""

    value: float | None
    reason: str = ""
    detail: str = ""


class _Reply(msgspec.Struct):
    rewards: list[float | _Answer | None]


class _Batch:
    """What goes out in one request."""

    def __init__(self) -> None:
        self.entries: list[tuple[dict[str, Any], asyncio.Future[Judged]]] = []
        self.is_out = asyncio.Event()
        """The rate has let it go, or nobody sends it any more."""


class Http:
    """What a reward server gives."""

    reads_all_fields = True  # they are sent

    def __init__(
        self,
        *,
        url: str,
        api_key_env: str | None = None,
        batch_size: Annotated[int, Meta(ge=1, le=4096)] = 16,
        batch_wait_s: Annotated[float, Meta(ge=0, le=10)] = 0.01,
        concurrency: Annotated[int, Meta(ge=1, le=4096)] = 64,
        request_timeout_s: Annotated[float, Meta(gt=0)] = 60.0,
        max_requests_per_s: Annotated[float, Meta(gt=0)] | None = None,
    ) -> None:
        """``url`` is posted to.

        Args:
            url: of the service.
            api_key_env: the environment variable whose value is sent as a bearer token.
            batch_size: most items of one request.
            batch_wait_s: how long the first item of a batch waits for others.
            concurrency: completions under way at once; also the size of the pool of connections. The smaller of this
                and the reward's own ``concurrency`` counts.
            request_timeout_s: longest silence of the service.
            max_requests_per_s: a limit of the rate.

        Raises ConfigError where the variable is not set.
        """
        self.concurrency = concurrency
        self._client = Client(
            url,
            api_key_env=api_key_env,
            concurrency=concurrency,
            request_timeout_s=request_timeout_s,
            max_requests_per_s=max_requests_per_s,
        )
        self._batch_size, self._batch_wait_s = batch_size, batch_wait_s
        self._batch = _Batch()
        self.open, self.close = self._client.open, self._client.close

    async def __call__(self, completion: Completion, prompt: Prompt) -> Judged:
        """Judge one completion, with others that are asked about at the same time."""
        item = {
            "prompt": prompt.text,
            "messages": prompt.messages,
            "completion": completion.text,
            "fields": prompt.fields,
        }
        future: asyncio.Future[Judged] = asyncio.get_running_loop().create_future()
        batch = self._batch
        batch.entries.append((item, future))
        try:
            if len(batch.entries) < self._batch_size:
                await asyncio.sleep(self._batch_wait_s)
            if self._batch is batch:  # nobody else has taken it along
                self._batch = _Batch()
                await self._send(batch)
            with uncounted():
                await batch.is_out.wait()
            return await future
        finally:
            batch.entries = [entry for entry in batch.entries if entry[1] is not future]

    async def _send(self, batch: _Batch) -> None:
        """Post what waits, for all who wait; they fail with the call that does it, and may try again."""
        try:
            await self._client.turn()
            entries = list(batch.entries)
            batch.is_out.set()
            values = _read(await self._client.post({"items": [item for item, _ in entries]}), len(entries))
        except BaseException as error:
            passed_on = error if isinstance(error, Exception) else RewardError("the request it went with was given up")
            for _, future in batch.entries:
                if not future.done():
                    future.set_exception(passed_on)
                    future.exception()  # whoever waits for it sees it; nobody has to
            raise
        finally:
            batch.is_out.set()
        for (_, future), value in zip(entries, values, strict=True):
            if not future.done():
                future.set_result(value)

    def statistics(self) -> dict[str, float]:
        """How many requests were made."""
        return {"requests": self._client.num_requests}


def _read(reply: Any, num_items: int) -> list[Judged]:
    try:
        rewards = msgspec.convert(reply, _Reply).rewards
    except msgspec.ValidationError as error:
        raise RewardError(f"the reward server's reply is not understood: {error}; got {reply!r:.200}") from error
    if len(rewards) != num_items:
        raise RewardError(f"the reward server gave {len(rewards)} values for {num_items} items")
    return [
        Judged(value=each.value, reason=each.reason, detail=each.detail)
        if isinstance(each, _Answer)
        else Judged(value=each)
        for each in rewards
    ]

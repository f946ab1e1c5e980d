"""An HTTP server that answers as ``vllm serve`` 0.32 does, word for word where prl reads the words, without a model.

It samples the token ``FIRST + n`` as the n-th of every stream, as soon as the test ``allow``s it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

FIRST = 10
INVALID = "Call to collective_rpc method failed: Invalid init_info for {}: missing arguments"


class FakeServer:
    """See the module; every attribute is how it was started, or what came of it."""

    def __init__(self) -> None:
        self.version, self.key, self.root, self.max_model_len = "0.32.0", "", "owner/model", 1024
        self.has_dev_mode = self.has_generate = self.names_versions_early = True
        self.engine: str | None = "GlooTransferEngine"
        self.vocab_size = 320
        self.logprobs_are_raw = False
        self.num_ranks, self.num_ranks_here = 1, 1
        """Data-parallel ranks, in all and behind this address."""
        self.score_of = [-1.0, -1.0]
        """What each says of every token."""
        self.label, self.paused, self.is_update_open = "default", False, False
        self.disagrees: asyncio.Event | None = None
        """Its ranks are met between two versions by the next question for their label; until when it is answered."""
        self.is_vllm = True
        self.calls: list[str] = []
        """Paths that were asked, in order, without those of the watch."""
        self.salts: list[str] = []
        """Of the streams, in order."""
        self.open_streams = 0
        self.url = ""
        self.tls: ssl.SSLContext | None = None
        self._allowed: asyncio.Condition = asyncio.Condition()
        self._num_allowed = 1_000_000
        self._changed = asyncio.Event()
        self._transports: set[Any] = set()
        self._runner: web.AppRunner | None = None
        self._port = 0

    # Life

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeServer]:
        """Listen while the body lasts."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        """Listen, at the port that it had before."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self.tls)
        await site.start()
        assert self._runner.addresses
        self._port = self._runner.addresses[0][1]
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """End as a killed process does: connections break."""
        self.break_streams()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def break_streams(self) -> None:
        """The connections of all open streams are lost."""
        for transport in self._transports:
            transport.abort()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds of what this server was asked."""
        while not condition():
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def allow(self, num_tokens: int) -> None:
        """Every stream may have so many tokens in all."""
        async with self._allowed:
            self._num_allowed = num_tokens
            self._allowed.notify_all()

    # Answers

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path, key = request.path, request.headers.get("Authorization", "")
        if path not in {"/weight_info", "/health"}:
            self.calls.append(path)
        if not self.is_vllm:
            return web.Response(text="<html>", content_type="text/html")
        if path == "/weight_info" and (until := self.disagrees) is not None:
            self.disagrees = None
            self._tell()
            await until.wait()
            return _failed("Engines returned different get_weight_version results: ['x/0', 'x/1']")
        if self.key and path.startswith(("/v1", "/inference")) and key != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = json.loads(await request.read() or b"null")
        if path == "/inference/v1/generate":
            return await self._generate(request, body)
        includes_dp = request.query.get("include_dp") != "false"
        answer = self._plain(path) or (self._dev(path, body, includes_dp=includes_dp) if self.has_dev_mode else None)
        return answer or web.json_response({"detail": "Not Found"}, status=404)

    def _plain(self, path: str) -> web.Response | None:
        match path:
            case "/health":
                return web.Response()
            case "/version":
                return web.json_response({"version": self.version})
            case "/v1/models":
                served = {"id": self.root, "root": self.root, "max_model_len": self.max_model_len}
                return web.json_response({"data": [served]})
        return None

    def _dev(self, path: str, body: Any, *, includes_dp: bool) -> web.Response | None:  # noqa: C901, PLR0911, PLR0912 -- one case a route
        match path:
            case "/is_paused":
                return web.json_response({"is_paused": self.paused})
            case "/pause" | "/resume":
                self.paused = path == "/pause"
                return web.json_response({})
            case "/get_world_size":
                return web.json_response({"world_size": 2 * self.num_ranks if includes_dp else 2})
            case "/weight_info":
                return web.json_response({"weight_version": self.label})
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/init_weight_transfer_engine":
                return self._init(body["init_info"])
            case "/start_weight_update":
                if self.is_update_open:
                    return _failed("start_weight_update called while a weight update is already active.")
                self.is_update_open = True
            case "/update_weights":
                if not self.is_update_open:
                    return _failed("start_weight_update must be called before update_weights.")
            case "/finish_weight_update":
                if not self.is_update_open:
                    return _failed("finish_weight_update called without a matching start_weight_update.")
                self.is_update_open = False
                self.label = body.get("weight_version") or self.label
            case "/shutdown_weight_transfer_engine":
                pass
            case _:
                return None
        return web.json_response({})

    def _init(self, init_info: dict[str, Any]) -> web.Response:
        if self.engine is None:
            return _failed("Weight transfer not configured. Please set weight_transfer_config to enable it.")
        expected = init_info.get("expects", {}).get("vocab_size", self.vocab_size)
        if expected != self.vocab_size:
            here = f"vocab_size {self.vocab_size}, not {expected}"
            return _failed(f"GlooTransferEngine: the model here has {here}; no group was joined")
        return web.json_response({}) if "master_port" in init_info else _failed(INVALID.format(self.engine))

    async def _generate(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not self.has_generate:
            return web.json_response({"error": {"message": "Scale-out endpoints are disabled."}}, status=403)
        sampling = body["sampling_params"]
        if not body.get("stream"):
            rank = int(request.headers.get("X-data-parallel-rank", 0))
            if rank >= self.num_ranks_here:
                message = f"data_parallel_rank {rank} is out of range [0, {self.num_ranks_here})."
                return web.json_response({"error": {"message": message, "code": 400}}, status=400)
            scores = [None, *({str(token): {"logprob": self.score_of[rank]}} for token in body["token_ids"][1:])]
            return web.json_response({"prompt_logprobs": scores})
        self.salts.append(body["cache_salt"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._transports.add(request.transport)
        self.open_streams += 1
        self._tell()
        try:
            await self._stream(response, sampling)
        finally:
            self.open_streams -= 1
            self._tell()
            self._transports.discard(request.transport)
        return response

    async def _stream(self, response: web.StreamResponse, sampling: dict[str, Any]) -> None:
        spans: list[dict[str, Any]] = []
        logprob = -1.0 if self.logprobs_are_raw or sampling["temperature"] == 1 else 0.0
        for number in range(sampling["max_tokens"]):
            async with self._allowed:
                while number >= self._num_allowed:
                    await self._allowed.wait()
            if not spans or spans[-1]["version"] != self.label:
                spans.append({"version": self.label, "start": number})
            spans[-1]["end"] = number + 1
            is_last = number + 1 == sampling["max_tokens"]
            choice = {
                "index": 0,
                "token_ids": [FIRST + number],
                "logprobs": {"content": [{"token_id": FIRST + number, "logprob": logprob, "rank": 1}]},
                "finish_reason": "length" if is_last else None,
                "weight_versions": spans if is_last or self.names_versions_early else None,
            }
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")


def _failed(message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": 500}}, status=500)

"""A reward server: judges batches of completions for the reward ``http``.

    python examples/reward_server.py --port 8090

and in the TOML of a run:

    [[rewards]]
    name = "http"
    options = { url = "http://127.0.0.1:8090/score" }

Replace ``judge`` by what you want. It may be as slow as it likes: put what blocks into a thread or a process.
"""

from __future__ import annotations

import argparse
import hmac
import os
from typing import Any

from aiohttp import web

KEY = os.environ.get("REWARD_SERVER_KEY", "")
"""Where it is set, requests need it as a bearer token (``api_key_env`` of the reward)."""


async def judge(item: dict[str, Any]) -> float | dict[str, Any] | None:
    """One item: a number, None to abstain, or either with its reason."""
    answer = item["fields"].get("answer")
    if answer is None:
        return {"value": None, "reason": "no_answer_field"}
    said = item["completion"].split()
    return float(bool(said) and said[-1].strip(".") == answer)


async def score(request: web.Request) -> web.Response:
    """``{"items": [...]}`` to ``{"rewards": [...]}``, in their order."""
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if KEY and not hmac.compare_digest(given, KEY):
        raise web.HTTPUnauthorized(text="a wrong key")
    items = (await request.json())["items"]
    return web.json_response({"rewards": [await judge(item) for item in items]})


def app() -> web.Application:
    """The application, for a test or another server."""
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_post("/score", score)
    return application


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090)
    arguments = parser.parse_args()
    web.run_app(app(), host=arguments.host, port=arguments.port)

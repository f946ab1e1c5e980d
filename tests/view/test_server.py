"""What the page is answered: every route of a recorded run, over HTTP, with the headers that keep a browser safe."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from prl.check_control import CONTROL_TOKEN
from prl.network import listener, origin_of
from prl.trainer.base import LOG_RATIO_EDGES
from prl.view.api import Api
from prl.view.listen import guard_of
from prl.view.runs import Runs
from prl.view.server import HEADERS, ViewServer
from tests.view import recorded
from tests.view.conftest import NUM_SAMPLES, NUM_STEPS


@asynccontextmanager
async def served(path: Path, address: str = "127.0.0.1") -> AsyncIterator[str]:
    """The address of a server of ``path``."""
    listening = listener(address, 0)
    server = ViewServer(Api(Runs(path)), guard_of(address, listening), listening, look_every_s=0.01)
    await server.open()
    try:
        yield f"{origin_of(listening)}/"
    finally:
        await server.close()


class Browser:
    """Asks a server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self.url = session, url

    async def ask(self, path: str, **headers: str) -> tuple[int, Any]:
        """Status and answer; while files are read, it asks again."""
        while True:
            async with self._session.get(URL(self.url + path, encoded=True), headers=headers) as response:
                assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
                found = await response.json()
                if response.status != 202:
                    return response.status, found
                assert 0 <= found["indexing"] <= 1

    async def good(self, path: str) -> Any:
        """The answer of a request that is well."""
        status, found = await self.ask(path)
        assert status == 200, found
        return found


@asynccontextmanager
async def browser(path: Path) -> AsyncIterator[Browser]:
    """Somebody who looks at ``path``."""
    async with served(path) as url, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield Browser(session, url)


async def test_every_view_of_a_recorded_run_is_answered(whole: Path) -> None:
    """Curves, histograms, evaluations, the timeline, groups, samples with their tokens, events, facts."""
    async with browser(whole.parent) as page:
        (line,) = (await page.good("api/runs"))["runs"]
        assert (line["run"], line["state"], line["step"]) == ("whole", "completed", NUM_STEPS)
        keys = await page.good("api/whole/keys")
        assert (keys["rewards"], keys["steps"]) == (["answer", "format"], NUM_STEPS)
        assert keys["histograms"] == ["lag_histogram", "ratio_histogram"]
        assert {"reward_mean", "pass@1", "pass@4"} <= set(keys["evaluations"])
        told = await page.good("api/whole/series?keys=reward_mean,never&x=at&points=10&from=11&to=30")
        assert (told["total"], len(told["x"]), told["step"][-1]) == (20, 10, 30)
        assert told["series"]["never"]["mean"] == [None] * 10
        lags = await page.good("api/whole/histograms?key=lag_histogram&points=5")
        assert (len(lags["counts"]), lags["edges"]) == (5, [0, 1, 2, 3])
        ratios = await page.good("api/whole/histograms?key=ratio_histogram")
        assert (ratios["edges"], len(ratios["counts"][0])) == (list(LOG_RATIO_EDGES), len(LOG_RATIO_EDGES) + 1)
        assert [each["step"] for each in await page.good("api/whole/evaluations")][-1] == NUM_STEPS
        timeline = await page.good("api/whole/timeline?gauges=1&points=50")
        assert (timeline["begin"], len(timeline["lanes"])) == (recorded.START, 5)
        assert len(timeline["gauges"]["slots.running"]) == len(timeline["gauges"]["at"]) == 50
        groups = await page.good("api/whole/groups?sort=-step&limit=5&q=user")
        assert (groups["total"], len(groups["groups"])) == (NUM_SAMPLES // 8, 5)
        group = await page.good(f"api/whole/groups/{groups['groups'][0]['group']}")
        assert [each["member"] for each in group["samples"]] == list(range(8))
        for each in group["samples"]:
            sample = await page.good(f"api/whole/samples/{each['sample']}")
            assert "".join(sample["tokens"]).removesuffix("<|im_end|>") == sample["completion"]
            assert len(sample["tokens"]) == len(sample["token_ids"])
        (error,) = (await page.good("api/whole/events?order=newest&level=error"))["events"]
        assert "<script>" in error["event"]
        run = await page.good("api/whole/run")
        differs = {each["key"]: each["value"] for each in run["config"] if each["differs"]}
        assert differs["engine.count"] == 2
        assert (run["state"], run["summary"]["status"], run["status"], run["skipped"]) == (
            "completed",
            "done",
            None,
            {},
        )


async def test_a_run_is_known_by_its_name_whatever_that_is(tmp_path: Path) -> None:
    """Below another folder, with signs that an address spells otherwise, or with markup."""
    names = ["sweep/ü %2F?#&", "runs", "<script>alert(1)<%2Fscript>"]
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1}\n')
    async with browser(tmp_path) as page:
        assert sorted(each["run"] for each in (await page.good("api/runs"))["runs"]) == sorted(names)
        for name in names:
            assert (await page.good(f"api/{quote(name, safe='')}/keys"))["steps"] == 1


async def test_what_cannot_be_answered_says_why(whole: Path) -> None:
    """A run, group, sample or view that is not there, and parameters that mean nothing: one line each."""
    async with browser(whole.parent) as page:
        for path, expected in {
            "api/nobody/keys": "there is no run 'nobody'",
            f"api/{quote('../whole', safe='')}/keys": "there is no run '../whole'",
            f"api/{quote('..', safe='')}/keys": "",
            "api/whole/nothing": "of a run can be asked keys, series",
            "api/whole/groups/1": "there is no group 1",
            "api/whole/samples/x": "number = 'x' must be a number",
            "api/whole/series?points=0": "points = 0 must be from 1 to",
            "api/whole/series?keys=a&x=colour": "x = 'colour' must be one of step",
            "api/whole/series?from=nan": "from = 'nan' must be a number",
            "api/whole/groups?sort=size": "sort = 'size' must be one of",
            "api/whole/groups?from=1e400": "from = '1e400' must be a number",
            "api/whole/events?after=1.5": "after = '1.5' must be a whole number",
            "missing.js": "there is no missing.js",
            "%2e%2e/server.py": "there is no ../server.py",
            "..%2fserver.py": "there is no ../server.py",
            "vendor/%5c..": "there is no vendor/",
        }.items():
            status, told = await page.ask(path)
            assert status in {400, 404}, path
            assert expected in told["error"]


async def test_only_reading_is_possible_and_only_for_our_own_page(whole: Path) -> None:
    """Another method is no method here; the guard comes before everything, unknown paths included."""
    async with served(whole) as url, aiohttp.ClientSession() as session:
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            async with session.request(method, f"{url}api/runs") as response:
                assert response.status == 405
                assert response.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]
        for headers, status in (({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403)):
            for path in ("api/runs", "nothing", "main.js"):
                async with session.get(url + path, headers=headers) as response:
                    assert response.status == status


async def test_the_page_itself_has_no_script_or_style_within(whole: Path) -> None:
    """Its policy would not let them run; and a browser is told what each file is."""
    async with served(whole) as url, aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
        assert (response.status, response.content_type, response.charset) == (200, "text/html", "utf-8")
        assert " style=" not in text
        assert "<style" not in text
        assert "onload=" not in text
        assert "http://" not in text.replace("http://www.w3.org", "")


async def test_a_token_opens_the_page_once_and_the_cookie_from_then_on(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where PRL_CONTROL_TOKEN is set, on loopback too; the cookie is out of reach of scripts and of other sites."""
    monkeypatch.setenv(CONTROL_TOKEN, "0123456789abcdef")
    async with browser(whole) as page:
        assert (await page.ask("api/runs"))[0] == 401
        async with page._session.get(f"{page.url}?token=wrong") as response:
            assert (response.status, "Set-Cookie" in response.headers) == (401, False)
        async with page._session.get(f"{page.url}?token=0123456789abcdef") as response:
            assert response.status == 200
            cookie = response.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "0123456789abcdef" not in cookie
        assert (await page.ask("api/runs"))[0] == 200


async def told(response: aiohttp.ClientResponse, kind: str) -> tuple[str, Any]:
    """The next event of this kind, with its id."""
    event = number = ""
    while True:
        line = (await response.content.readline()).decode().rstrip("\n")
        name, _, value = line.partition(": ")
        if name == "id":
            number = value
        elif name == "event":
            event = value
        elif name == "data" and event == kind:
            return number, json.loads(value)
        assert line or not response.content.at_eof()


async def test_what_is_new_is_told_and_who_comes_back_misses_nothing(tmp_path: Path) -> None:
    """Steps, events, evaluations as they are written, to one who listens and to one who had before; the end."""
    run = tmp_path / "live"
    recorded.make(run, num_steps=3, num_samples=8, ended=False)
    (run / "lock").write_text(f"{os.getpid()}\n")

    def write(name: str, row: dict[str, Any]) -> None:
        with (run / name).open("ab") as file:
            file.write(json.dumps(row).encode() + b"\n")

    async with served(run) as url, aiohttp.ClientSession() as session, asyncio.timeout(10):
        async with session.get(f"{url}api/live/stream") as response:
            assert response.content_type == "text/event-stream"
            await response.content.readline()
            write("metrics.jsonl", {"step": 4, "at": 5.0})
            heard_at, step = await told(response, "step")
            assert step == {"step": 4, "at": 5.0}
            write("events.jsonl", {"event": "<b>\nnew"})
            assert (await told(response, "event"))[1]["event"] == "<b>\nnew"
        write("evaluations.jsonl", {"step": 4, "reward_mean": 0.5})
        for number in range(5, 300):
            write("metrics.jsonl", {"step": number})
        async with session.get(f"{url}api/live/stream", headers={"Last-Event-ID": heard_at}) as response:
            assert (await told(response, "step"))[1] == {"step": 299, "at": None}
            assert (await told(response, "evaluation"))[1]["reward_mean"] == 0.5
        (run / "summary.json").write_text('{"status": "stopped"}')
        async with session.get(f"{url}api/live/stream", headers={"Last-Event-ID": "no.such.id"}) as response:
            assert (await told(response, "end"))[1] == {"state": "stopped"}
            assert await response.content.read() == b"\n"
        async with session.get(f"{url}api/nobody/stream") as response:
            assert response.status == 404


async def test_lines_that_make_no_sense_are_counted_and_told(tmp_path: Path) -> None:
    """A damaged file shows what is whole in it, and says how much is not."""
    run = tmp_path / "damaged"
    recorded.make(run, num_steps=3, num_samples=8)
    for name in ("metrics.jsonl", "samples.jsonl", "timeline.jsonl", "events.jsonl"):
        with (run / name).open("ab") as file:
            file.write(b'{"half": \n[[[[\n' + b"[" * 100_000 + b"\n\xff\n")
    async with browser(run) as page:
        for what in ("keys", "groups", "timeline", "events"):
            await page.good(f"api/damaged/{what}")
        told = (await page.good("api/damaged/run"))["skipped"]
        assert told == dict.fromkeys(("metrics.jsonl", "samples.jsonl", "timeline.jsonl", "events.jsonl"), 4)

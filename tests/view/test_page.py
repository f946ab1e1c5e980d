"""The page in a real browser: every view, of runs that are recorded, large, hostile and going on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.test_cli import ROOT, SIMULATED
from tests.view import recorded
from tests.view.browser import ARGUMENTS, CHROMIUM, WAIT_MS, Visit, served

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs a browser: there is no {CHROMIUM}")
EVIL = "<img src=x onerror=alert(7)>"
LARGE_STEPS = 100_000
NUM_CONNECTIONS = 6
"""That a browser has at once to one server."""
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
VIEWS = ("/learning", "/policy", "/pipeline", "/samples", "/run")
expect.set_options(timeout=WAIT_MS)


def large(path: Path) -> None:
    """A folder of 100,000 steps; of what is not drawn by step it has less."""
    recorded.make(path, num_steps=1000, num_samples=8000)
    lines = (path / "metrics.jsonl").read_bytes().splitlines()
    rests = [line.partition(b",")[2] for line in lines]
    with (path / "metrics.jsonl").open("wb") as file:
        file.writelines(b'{"step":%d,%b\n' % (step + 1, rests[step % len(rests)]) for step in range(LARGE_STEPS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded runs: two to compare, one with a name that would like to be markup, and a large one."""
    path = tmp_path_factory.mktemp("runs")
    for name in ("math", "math-b", EVIL):
        recorded.make(path / name, num_steps=60, num_samples=960)
    large(path / "large")
    return path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Where they are served."""
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests here; while it is open no other event loop can run in this thread."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    """A page that has done nothing wrong at the end."""
    found = Visit(browser, url)
    yield found
    found.close()
    assert found.troubles == []


def violations(page: Page) -> list[str]:
    """What axe finds."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}" for each in found for node in each["nodes"]
    ]


def ask(url: str, path: str) -> Any:
    """An answer of the API."""
    with urllib.request.urlopen(f"{url}api/{path}", timeout=60) as answer:
        return json.load(answer)


def rewards(url: str) -> list[float]:
    """Of the run ``math``, by step."""
    return ask(url, "math/series?keys=reward_mean")["series"]["reward_mean"]["mean"]


def a_sample(url: str, run: str, *, having: str) -> dict[str, Any]:
    """One that has this key, or these words in its completion."""
    for group in ask(url, f"{quote(run, safe='')}/groups?limit=100")["groups"]:
        for member in ask(url, f"{quote(run, safe='')}/groups/{group['group']}")["samples"]:
            found = ask(url, f"{quote(run, safe='')}/samples/{member['sample']}")
            if having in found or having in found["completion"]:
                return found
    raise AssertionError(having)


@pytest.mark.timeout(600)  # it reads every view twice, on a machine that may have other work
def test_every_view_has_no_violation_light_and_dark_and_at_phone_width(visit: Visit, url: str) -> None:
    """Axe has nothing to say against any view, light on a desk or dark at 360 pixels; there nothing sticks out."""
    turns = a_sample(url, "math", having="messages")["sample"]
    page = visit.open()
    for rest in ("", *VIEWS, f"/samples/{turns}"):
        visit.go("math" if rest else "", rest)
        page.emulate_media(color_scheme="light")
        assert violations(page) == [], f"light {rest}"
        page.set_viewport_size(PHONE)
        page.emulate_media(color_scheme="dark")
        assert violations(page) == [], f"dark, phone {rest}"
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], rest
        page.set_viewport_size(DESK)


def test_a_run_of_100_000_steps_is_drawn_zoomed_and_compared(visit: Visit) -> None:
    """All of it is there, as bands of least and most; a part is asked for anew; another run is drawn beside it."""
    page = visit.open("large", "/learning")
    reward = page.get_by_role("slider", name="Reward", exact=True)
    expect(reward).to_have_attribute("aria-valuetext", re.compile(r"^step 100,000: reward 0\.8\d*$"))
    page.evaluate("location.hash = location.hash + '?from=1&to=60&with=math'")
    expect(page.get_by_role("button", name="show all steps")).to_contain_text("60")
    expect(page.get_by_role("region", name="Reward", exact=True)).to_contain_text("large")
    reward.focus()
    page.keyboard.press("0")
    expect(reward).to_have_attribute("aria-valuemax", "1059")
    for rest in VIEWS[1:]:
        visit.go("large", rest)


def test_a_run_that_is_served_alone_is_compared_with_those_beside_it(browser: Browser, folder: Path) -> None:
    """They are offered by name; each has one colour, and each k of pass@k its chart; nothing else of them is told."""
    with served(folder / "math") as url:
        visit = Visit(browser, url)
        page = visit.open()
        page.get_by_role("button", name="Compare").click()
        dialog = page.get_by_role("dialog", name="Compare with")
        expect(dialog.get_by_role("checkbox")).to_have_count(3)
        dialog.get_by_role("checkbox", name="math-b").check()
        dialog.get_by_role("button", name="Done").click()
        for title in ("Reward", "Held out", "Held out, pass@1", "Held out, pass@4"):
            expect(page.get_by_role("region", name=title, exact=True)).to_contain_text("math-b")
        assert "with=math-b" in page.url
        assert visit.troubles == []
        visit.close()
        with pytest.raises(HTTPError, match="404"):
            ask(url, "math-b/groups")


def test_a_list_of_a_thousand_groups_holds_only_the_rows_in_sight(visit: Visit) -> None:
    """The end of the list is reached at once; filters narrow it; what was opened has an address."""
    page = visit.open("large", "/samples")
    groups = page.get_by_role("listbox", name="Groups")
    groups.focus()
    page.keyboard.press("End")
    expect(groups.get_by_role("option").last).to_have_attribute("aria-posinset", "1000")
    expect(groups.get_by_role("option", selected=False).first).to_contain_text("step")
    assert groups.get_by_role("option").count() < 40
    page.get_by_label("Step from").fill("11")
    page.get_by_label("Step to").fill("20")
    expect(page.get_by_text("10 groups", exact=True)).to_be_visible()
    groups.get_by_role("option").nth(2).click()
    expect(page.get_by_role("table")).to_contain_text("word")
    page.reload()
    expect(page.get_by_text("10 groups", exact=True)).to_be_visible()


def test_markup_in_names_prompts_answers_and_events_stays_text(visit: Visit, url: str) -> None:
    """What a run or a model wrote is shown as it is and makes nothing happen."""
    evil = a_sample(url, EVIL, having="<script>")
    page = visit.open()
    expect(page.get_by_role("link", name=EVIL)).to_be_visible()
    for rest in VIEWS:
        visit.go(EVIL, rest)
        expect(page.get_by_role("heading", name=EVIL)).to_be_visible()
    expect(page.get_by_text("engine-1 died <script>alert(1)</script>")).to_be_visible()
    visit.go(EVIL, f"/samples/{evil['sample']}")
    shown = page.get_by_role("listbox", name="Tokens").inner_text()
    assert "".join(shown.split()) == "".join("".join(evil["tokens"]).split())
    assert page.locator("main img, main script, main style, main [onerror]").count() == 0


def test_a_link_to_a_sample_opens_it(visit: Visit, url: str) -> None:
    """Its tokens, its reward with what each part said, its group; numbers of a token where it is pointed at."""
    sample = a_sample(url, "math", having="word")
    page = visit.open("math", f"/samples/{sample['sample']}")
    article = page.get_by_role("article")
    expect(article).to_contain_text(sample["part_messages"]["answer"])
    expect(article).to_contain_text("abstained")
    options = page.get_by_role("listbox", name="Tokens").get_by_role("option")
    assert options.count() == len(sample["token_ids"])
    options.nth(1).hover()
    expect(article).to_contain_text(f"id{sample['token_ids'][1]}")
    page.get_by_role("radio", name="Ratio").click()
    page.get_by_role("checkbox", name="Numbers").check()
    ratio = page.evaluate("([now, then]) => Number(Math.exp(now - then).toPrecision(3)).toString()",
                          [sample["trained_logprobs"][1], sample["logprobs"][1]])  # fmt: skip
    assert options.nth(1).get_attribute("data-number") == ratio


def test_the_keyboard_reaches_everything(visit: Visit, url: str) -> None:
    """Skip link, tabs, charts, the timeline, the lists and the tokens work without a mouse; keys are listed."""
    page = visit.open("math", "/learning")
    press = page.keyboard.press
    press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    reward = page.get_by_role("slider", name="Reward", exact=True)
    reward.focus()
    press("Home")
    press("ArrowRight")
    expect(reward).to_have_attribute("aria-valuetext", f"step 2: reward {rewards(url)[1]:.3g}")
    press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    press("Escape")
    page.get_by_role("tab", name="Learning").focus()
    press("ArrowRight")
    press("ArrowRight")
    expect(page.get_by_role("tab", name="Pipeline")).to_be_focused()
    visit.settled()
    timeline = page.locator("[aria-roledescription=timeline]")
    timeline.focus()
    press("ArrowDown")
    press("ArrowRight")
    expect(page.locator("#said")).to_contain_text("paused · engine-0")
    expect(page.locator("#said")).to_contain_text("weights of version 1")
    press("]")
    expect(page.locator("#said")).to_contain_text("Update to weights")
    expect(page).to_have_url(re.compile("for="))
    press("4")
    visit.settled()
    page.get_by_role("listbox", name="Groups").focus()
    press("ArrowDown")
    press("Enter")
    expect(page.get_by_role("heading", name="Prompt 1")).to_be_visible()
    press("j")
    page.get_by_role("listbox", name="Tokens").focus()
    press("ArrowRight")
    expect(page.locator("#said")).to_contain_text("token 2 of")
    expect(page.get_by_text("2 of ", exact=False).first).to_be_visible()


def test_smoothing_is_debiased_and_in_the_address(visit: Visit, url: str) -> None:
    """The first value is the first value; a link carries how curves are drawn."""
    page = visit.open("math", "/learning?smooth=0.5&log=1&x=at")
    told = page.evaluate("import('./smoothing.js').then(({ smoothed }) => smoothed([4, null, 1], 0.5))")
    assert told == [4, None, 2]
    expect(page.get_by_role("radio", name="Time")).to_be_checked()
    expect(page.get_by_label("Log scale")).to_be_checked()
    mean = page.evaluate("all => import('./smoothing.js').then(it => it.smoothed(all, 0.5).at(-1))", rewards(url))
    reward = page.get_by_role("slider", name="Reward", exact=True)
    expect(reward).to_have_attribute("aria-valuetext", f"after 2:00 min: reward {mean:.3g}")


def test_the_theme_is_kept(visit: Visit) -> None:
    """Chosen by a key, shown before the first paint at the next visit."""
    page = visit.open("math", "/run")
    page.keyboard.press("t")
    page.keyboard.press("t")
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_nothing_there_says_what_to_do(visit: Visit) -> None:
    """A run that is not there, a part that none recorded."""
    visit.may_be_gone = True  # the browser itself notes an answer of 404 in its console
    page = visit.open("nowhere", "/learning")
    expect(page.get_by_role("alert").first).to_contain_text("there is no run 'nowhere'")


def test_a_run_that_goes_on_is_followed_until_its_server_is_gone(browser: Browser, tmp_path: Path) -> None:
    """Steps, spans, samples and events come without a reload in every view; the end is told, and a lost server."""
    run = tmp_path / "live"
    recorded.make(run, num_steps=20, num_samples=160, ended=False)
    (run / "lock").write_text(f"{os.getpid()}\n")
    told = (run / "metrics.jsonl").read_text().replace('"pause_s":0.02', '"pause_s":1.0')
    (run / "metrics.jsonl").write_text(told.replace('"engine_busy":0.9', '"engine_busy":0.4'))
    later = {name: list(islice(make(60), skip, None)) for name, make, skip in (
        ("metrics.jsonl", recorded.metrics, 20), ("timeline.jsonl", recorded.timeline, 20 * 11))}  # fmt: skip

    def append(name: str, *lines: Any) -> None:
        with (run / name).open("ab") as file:
            file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)

    with served(tmp_path) as url:
        append("evaluations.jsonl", {"step": 20, "complete": False, "reason": "eval.timeout_s = 9", "num_answers": 3})
        visit = Visit(browser, url)
        page = visit.open("live", "/learning")
        expect(page.get_by_text("live", exact=True).last).to_be_visible()
        expect(page.locator(".figures")).to_contain_text("84.0")
        for step, rest in enumerate(VIEWS):
            visit.go("live", rest)
            append("timeline.jsonl", *later["timeline.jsonl"][11 * step : 11 * step + 11])
            append("metrics.jsonl", later["metrics.jsonl"][step])
            expect(page.locator(".progress")).to_contain_text(f"step {21 + step}")
            if rest == "/pipeline":
                expect(page.get_by_text("of their time, for new weights")).to_be_visible()
        append("events.jsonl", {"time": "2026-09-21T00:00:00+00:00", "level": "warning", "event": "just now"})
        expect(page.get_by_text("just now", exact=True)).to_be_visible()
        visit.go("live", "/learning")
        expect(page.get_by_role("slider", name="Entropy")).to_have_attribute("aria-valuemax", "24")
        assert visit.troubles == []
        visit.may_be_gone = True
    expect(page.get_by_text("The connection to the run is lost")).to_be_visible()
    visit.close()


def test_many_tabs_share_one_stream(browser: Browser, tmp_path: Path) -> None:
    """More than the connections that a browser has to a server; one that is closed or hidden is followed by another."""
    run = tmp_path / "live"
    recorded.make(run, num_steps=2, num_samples=8, ended=False)
    (run / "lock").write_text(f"{os.getpid()}\n")

    def goes_on(step: int, *tabs: Page) -> None:
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "time_s": 1.0}) + "\n")
        for tab in tabs:
            expect(tab.locator(".progress")).to_contain_text(f"step {step} of")

    def is_hidden(tab: Page, hidden: str) -> None:
        tab.evaluate(f"Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {hidden}}})")
        tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    with served(tmp_path) as url:
        visit = Visit(browser, url)
        visit.open("live", "/run")
        others = [visit.another("live", "/run") for _ in range(NUM_CONNECTIONS)]
        goes_on(3, visit.page, *others)
        visit.page.close()
        goes_on(4, *others)
        for tab in others:
            is_hidden(tab, "true")
        assert others[0].evaluate("navigator.locks.query().then(({ held }) => held.length)") == 0
        goes_on(5)
        is_hidden(others[-1], "false")
        goes_on(6, *others)
        assert visit.troubles == []
        visit.close()


@pytest.mark.timeout(600)  # two processes start, the page's at low priority
def test_a_run_shows_itself(browser: Browser, tmp_path: Path) -> None:
    """The page that ``prl run`` serves, of parts without a model, in every view; it ends with its run."""
    (tmp_path / "try.toml").write_text(SIMULATED.replace("num_steps = 3", "num_steps = 1000000"))
    command = [sys.executable, "-m", "prl", "run", "try.toml", "--run-dir", "try"]
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, **told) as run:
        try:
            found = next(match for line in run.stdout if (match := re.search(r"page\s+(http\S+)", line)))
            visit = Visit(browser, found[1])
            page = visit.open()
            expect(page.get_by_role("heading", name="try")).to_be_visible()
            expect(page.locator(".progress")).to_contain_text(re.compile("step [1-9]"))
            for rest in VIEWS:
                visit.go("try", rest)
            expect(page.get_by_role("region", name="Now")).to_contain_text("training")
            visit.go("try", "/samples")
            page.get_by_role("listbox", name="Groups").get_by_role("option").first.click()
            page.get_by_role("link", name="Member 0").click()
            expect(page.get_by_role("article")).to_contain_text("Log-prob")
            assert visit.troubles == []
            visit.may_be_gone = True
        finally:
            run.kill()
    expect(page.get_by_text("The connection to the run is lost")).to_be_visible()
    visit.close()

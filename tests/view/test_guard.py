"""Who may look at the page, judged from the headers alone."""

from __future__ import annotations

import pytest

from prl.view.guard import PageGuard

TOKEN = "0123456789abcdef"
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def status(
    headers: dict[str, str], *, path: str = "/api/runs", token: str | None = None, given: str | None = None
) -> int:
    """What such a request is told; 200: it passes."""
    guard = PageGuard(token, ["node7"], 8471)
    refusal = guard.refuses({"Host": "127.0.0.1:8471", **headers}, path, given)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"Host": "node7:8471"}, 200),
        ({"Host": "evil.example:8471"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "http://127.0.0.1:8471", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        (LINK, 403),
    ],
)
def test_no_page_of_another_site_asks_in_a_users_name(headers: dict[str, str], expected: int) -> None:
    """Neither under a name pointed here, nor by a request of its own, nor by opening an answer."""
    assert status(headers) == expected


def test_a_link_may_open_the_page_and_nothing_else() -> None:
    """Whoever follows a link to ``/`` sees the page; a frame, or a name that is not ours, gets nothing."""
    assert status(LINK, path="/") == 200
    assert status({**LINK, "Sec-Fetch-Dest": "iframe"}, path="/") == 403
    assert status({**LINK, "Host": "evil.example"}, path="/") == 421
    assert status({**LINK, "Origin": "http://evil.example"}, path="/") == 403
    assert status(LINK, path="/", token=TOKEN) == 401


def test_where_a_token_is_set_it_must_be_presented() -> None:
    """In the query, as a bearer, or as the cookie of this port, from which the token cannot be told."""
    guard = PageGuard(TOKEN, [], 8471)
    cookie = f"{guard.cookie_name}={guard.cookie}"
    good = [
        {"given": TOKEN},
        {"headers": {"Authorization": f"Bearer {TOKEN}"}},
        {"headers": {"Cookie": f"a=b; {cookie}"}},
    ]
    bad = [
        *({"given": given} for given in (None, "", TOKEN[:-1], f"{TOKEN}0", "é")),
        *({"headers": {"Authorization": given}} for given in (TOKEN, "Bearer", f"Basic {TOKEN}")),
        *(
            {"headers": {"Cookie": given}}
            for given in (guard.cookie, f"prl_view_1={guard.cookie}", f"{cookie}0", "[]=;")
        ),
        {"headers": {"Cookie": f"{guard.cookie_name}={TOKEN}"}},
    ]
    assert [status(**{"headers": {}, **each}, token=TOKEN) for each in good] == [200] * len(good)
    assert [status(**{"headers": {}, **each}, token=TOKEN) for each in bad] == [401] * len(bad)
    assert TOKEN not in guard.cookie
    assert not PageGuard(None, [], 1).accepts("")

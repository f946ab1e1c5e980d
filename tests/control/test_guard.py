"""Who may ask at the control address, judged from the headers alone."""

from __future__ import annotations

import pytest

from prl.control.guard import Guard

TOKEN = "0123456789abcdef"
GOOD = {"Host": "127.0.0.1:8470", "Authorization": f"Bearer {TOKEN}"}


def status(names: tuple[str, ...] = ("127.0.0.1",), **headers: str) -> int:
    """What a request with these headers is told; 200: it passes."""
    refusal = Guard(TOKEN, names).refuses({**GOOD, **{name.replace("_", "-"): text for name, text in headers.items()}})
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    "authorization", ["", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}0", f"Basic {TOKEN}", "Bearer é"]
)
def test_nothing_but_the_token_passes(authorization: str) -> None:
    """A missing, shortened, lengthened or otherwise presented token is a 401, on loopback too."""
    assert (status(), status(Authorization=authorization)) == (200, 401)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:1", 200),
        ("localhost:1", 200),
        ("LOCALHOST", 200),
        ("[::1]:1", 200),
        ("10.0.0.7:1", 200),
        ("node7:1", 421),
        ("evil.example:1", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_a_name_that_somebody_else_may_point_here_is_refused(host: str, expected: int) -> None:
    """DNS rebinding: only IP addresses, localhost and the address's own names are hosts, whatever is presented."""
    assert status(Host=host) == expected


def test_a_configured_name_is_a_host() -> None:
    """Who listens under a name may be asked under it."""
    assert (status(("Node7",), Host="node7:8470"), status(("node7",), Host="node8:8470")) == (200, 421)


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}]
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str]) -> None:
    """A browser that asks for a foreign page, or one of another port of this machine, is a 403 even with the token."""
    assert status(**headers) == 403
    assert status(Origin="http://127.0.0.1:9999") == 403


def test_the_address_s_own_page_may_ask() -> None:
    """The same origin, as browsers say it."""
    assert status(Origin="http://127.0.0.1:8470", Sec_Fetch_Site="same-origin") == 200

from __future__ import annotations

import socket

import pytest

from prl.network import LOOPBACK, address_towards, interface_of, is_loopback, meeting_address


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("10.0.0.1", False), ("n1", False)]
)
def test_loopback_is_this_machine_alone(host: str, expected: bool) -> None:
    """By address or by name."""
    assert is_loopback(host) is expected


def test_hosts_on_this_machine_meet_on_loopback() -> None:
    """Whatever they are called; of no hosts too."""
    assert meeting_address([]) == meeting_address(["127.0.0.1", "localhost"]) == LOOPBACK


def test_other_hosts_meet_at_the_address_that_leads_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that is not on this machine decides."""
    ways = {"127.0.0.1": (LOOPBACK, "127.0.0.1"), "here": ("10.0.0.2", "10.0.0.2"), "there": ("10.0.0.2", "10.0.0.9")}
    monkeypatch.setattr("prl.network._route", lambda host: ways[host])
    assert meeting_address(["127.0.0.1", "here", "there"]) == "10.0.0.2"
    assert meeting_address(["127.0.0.1", "here"]) == LOOPBACK


def test_a_name_that_nobody_has_is_an_error() -> None:
    """An OSError, which the caller can name."""
    with pytest.raises(OSError, match=r".+"):
        address_towards("no-such-host.invalid")


def test_an_interface_is_found_by_its_address() -> None:
    """The way to loopback leaves by the loopback interface; an address of nobody has none."""
    name = interface_of(address_towards("127.0.0.1"))
    assert name in {interface for _, interface in socket.if_nameindex()}
    assert interface_of("192.0.2.77") is None

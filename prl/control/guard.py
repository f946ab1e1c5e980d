"""Who may ask: the token, and what keeps a web page in a browser from asking in its user's name.

Invariants:

- Every request presents the token, compared in constant time; loopback is no exception, since others may use the
  machine. A second token, for whoever only measures, opens its paths alone.
- ``Host`` must be an IP address, ``localhost`` or a name of this address: a page of another site can point a name of
  its own at this machine (DNS rebinding), and no other way to ask under a name is needed.
- A request that a browser makes for a page of another origin is refused, whatever it presents.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit


class Refusal(NamedTuple):
    """Why a request is not served."""

    status: int
    message: str


class Names:
    """Judges under which name a request was sent, and for which page.

    Args:
        names: host names under which the address may be asked, besides ``localhost``.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {"localhost", *(name.lower() for name in names)}

    def refuses(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why this request is refused; None: it may pass. Names of ``headers`` are looked up as they are written."""
        host = headers.get("Host", "")
        if not self._knows(host):
            names = ", ".join(sorted(self._names))
            return Refusal(421, f"this is no name of this address: {host!r}; ask by its IP address, or as {names}")
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
        if (origin is not None and origin != f"http://{host}") or site not in {"none", "same-origin"}:
            return Refusal(403, "a page of another site may not ask here")
        return None

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in self._names:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class Guard:
    """Judges the headers of a request.

    Args:
        token: what must be presented.
        names: see ``Names``.
        reader_token: opens ``reader_paths`` as well; empty, there is none.
        reader_paths: what it opens.
    """

    def __init__(
        self, token: str, names: Iterable[str], *, reader_token: str = "", reader_paths: Iterable[str] = ()
    ) -> None:
        self._token, self._names = token.encode(), Names(names)
        self._reader_token, self._reader_paths = reader_token.encode(), frozenset(reader_paths)

    def refuses(self, headers: Mapping[str, str], path: str = "") -> Refusal | None:
        """Why this request is refused; None: it may pass. Names of ``headers`` are looked up as they are written."""
        if (refusal := self._names.refuses(headers)) is not None:
            return refusal
        scheme, _, presented = headers.get("Authorization", "").partition(" ")
        opens = hmac.compare_digest(presented.strip().encode(), self._token)
        if self._reader_token and path in self._reader_paths:
            opens |= hmac.compare_digest(presented.strip().encode(), self._reader_token)
        if scheme.lower() != "bearer" or not opens:
            return Refusal(401, "the token is missing or wrong: present it as `Authorization: Bearer TOKEN`")
        return None

"""Who may look at the page: the names of ``prl/control/guard.py``, and a token where others can reach the address.

Invariants:

- Under a name that somebody else may point at this machine nothing is answered, and nothing to a page of another site;
  the page itself may be opened by a link that stands elsewhere.
- Where a token is needed, a browser presents it once, as ``/?token=TOKEN``, and from then on a cookie that scripts
  cannot read, that no other site's page sends, and from which the token cannot be told; other clients present it as
  ``Authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie

from prl.control.guard import Names, Refusal

HOW = "the token is missing or wrong: open the page as /?token=TOKEN, or present `Authorization: Bearer TOKEN`"


class PageGuard:
    """Judges requests.

    Args:
        token: what must be presented; None: nothing.
        names: host names under which the page may be opened, besides ``localhost`` and IP addresses.
        port: of the address: cookies of one host are sent to all its ports, so this one's has it in its name.
    """

    def __init__(self, token: str | None, names: Iterable[str], port: int) -> None:
        self._token, self._names = token, Names(names)
        self.cookie_name = f"prl_view_{port}"

    def refuses(self, headers: Mapping[str, str], path: str, given: str | None) -> Refusal | None:
        """Why this request is refused; None: it may pass. ``given`` is the token in its query."""
        if (refusal := self._names.refuses(headers)) is not None and not _is_visit(refusal, headers, path):
            return refusal
        if self._token is None or self.accepts(given):
            return None
        scheme, _, presented = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.accepts(presented.strip()):
            return None
        return None if self._has_cookie(headers) else Refusal(401, HOW)

    def accepts(self, token: str | None) -> bool:
        """Whether this is the token."""
        return (
            self._token is not None
            and token is not None
            and hmac.compare_digest(token.encode(errors="replace"), self._token.encode())
        )

    @property
    def cookie(self) -> str:
        """What the cookie holds."""
        return hmac.new((self._token or "").encode(), b"the page of a run", hashlib.sha256).hexdigest()

    def _has_cookie(self, headers: Mapping[str, str]) -> bool:
        try:
            found = SimpleCookie(headers.get("Cookie", "")).get(self.cookie_name)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(errors="replace"), self.cookie.encode())


def _is_visit(refusal: Refusal, headers: Mapping[str, str], path: str) -> bool:
    """Whether somebody follows a link to the page, from wherever: its document holds nothing of a run."""
    is_opened = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return refusal.status == 403 and path == "/" and is_opened and "Origin" not in headers  # noqa: PLR2004 -- a status

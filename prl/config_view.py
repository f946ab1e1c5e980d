"""The table of the page, ``[view]``."""

from __future__ import annotations

from prl.config_control import Port
from prl.config_fields import Table


class ViewConfig(Table, frozen=True, kw_only=True):
    """``[view]``: the page of a run, which ``prl run`` serves while it goes on; ``prl view`` serves it at any time.

    It is made by a process of its own that starts when somebody opens it. On loopback it asks for no token, unless
    ``PRL_CONTROL_TOKEN`` is set: it shows what is in the run folder, and changes nothing.
    """

    enabled: bool = True
    """False: no page, and nothing listens."""
    address: str = "127.0.0.1"
    """Host name or IP address to listen on. Beyond loopback PRL_CONTROL_TOKEN must be set, and the page is opened as
    ``http://HOST:PORT/?token=TOKEN``. It is plain HTTP: across a network that others can read, tunnel it."""
    port: Port = 0
    """0 picks a free one, which is said at the start and stands in ``view.json``."""

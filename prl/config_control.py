"""The table of the control address, ``[control]``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from prl.config_fields import Table

Port = Annotated[int, Meta(ge=0, le=65535)]


class ControlConfig(Table, frozen=True, kw_only=True):
    """``[control]``: where a run can be asked and steered while it goes on.

    Whoever asks presents a token, on loopback too: others may use this machine. Without ``PRL_CONTROL_TOKEN`` it is a
    random one, which stands in ``control.json`` in the run folder for you alone to read; the token is never a key here.

    ``/metrics`` is for Prometheus (docs/monitoring.md): its scraper presents the same token, or that of
    ``PRL_METRICS_TOKEN``, which opens nothing else. It needs a fixed ``port``.
    """

    enabled: bool = True
    """False: nobody can ask, and nothing listens."""
    address: str = "127.0.0.1"
    """Host name or IP address to listen on. Beyond loopback PRL_CONTROL_TOKEN must be set. It is plain HTTP: across a
    network that others can read, tunnel it (``ssh -L``) in place of opening it."""
    port: Port = 0
    """0 picks a free one, which ``control.json`` names."""

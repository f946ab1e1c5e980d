"""What every host process does the same: tie itself to the controller, connect back, and end where its log says why."""

from __future__ import annotations

import os
import socket
import sys
from typing import NoReturn

from prl import stacks
from prl.engines.host_protocol import ADDRESS_VARIABLE, TOKEN_VARIABLE, FromController, Hello
from prl.process import die_with_parent
from prl.wire import BlockingChannel

_CONNECT_TIMEOUT_S = 30.0


def connect_back() -> tuple[socket.socket, BlockingChannel[FromController]]:
    """Die with the parent from now on, connect to it and say who this is."""
    die_with_parent()
    stacks.answer_requests()
    address, _, port = os.environ[ADDRESS_VARIABLE].rpartition(":")
    sock = socket.create_connection((address, int(port)), timeout=_CONNECT_TIMEOUT_S)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel: BlockingChannel[FromController] = BlockingChannel(sock, FromController)
    channel.send(Hello(token=os.environ[TOKEN_VARIABLE]))
    return sock, channel


def end_process(reason: str) -> NoReturn:
    """End this process from any thread; the controller reports the end with the last lines of the log."""
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(1)

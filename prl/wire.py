"""Typed messages over a byte stream: a 4-byte length, then msgpack by msgspec. No pickle.

The async half serves the controller, the blocking half serves worker processes that have no event loop. Both refuse a
frame above ``MAX_FRAME_BYTES`` before reading it, and both raise ``WireClosedError`` at the end of the stream, whether
the peer closed it or died, so a dead peer is an error at once and never a wait. What is no message of the protocol is a
``WireError``. A ``receive`` on the event loop that is cancelled loses nothing: the next one reads the same message.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import Any, Generic, TypeVar

import msgspec

MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct("!I")

M = TypeVar("M")


class WireClosedError(ConnectionError):
    """The other side closed the stream."""


class WireError(ConnectionError):
    """Something is no message of this protocol, or too large for one."""


def _checked_length(header: bytes) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        msg = f"a frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}"
        raise WireError(msg)
    return int(length)


def _frame(encoder: msgspec.msgpack.Encoder, message: Any) -> bytes:
    body = encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        msg = f"a {type(message).__name__} of {len(body)} bytes exceeds the limit of {MAX_FRAME_BYTES}"
        raise WireError(msg)
    return _LENGTH.pack(len(body)) + body


def _decode(decoder: msgspec.msgpack.Decoder[M], body: bytes) -> M:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        msg = f"a frame is no message of this protocol: {error}"
        raise WireError(msg) from error


class Channel(Generic[M]):
    """One side of a conversation on the event loop. ``M`` is the type (or union) of what it receives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, receives: Any) -> None:
        self._reader, self._writer = reader, writer
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(receives)
        self._encoder = msgspec.msgpack.Encoder()
        self._length: int | None = None
        """Of the message whose header was read and whose body was not."""

    async def send(self, message: Any) -> None:
        """Write one message and wait until the buffer takes it. The caller owns the deadline."""
        frame = _frame(self._encoder, message)
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:  # uvloop raises the latter for a closed transport
            raise WireClosedError(str(error) or "the stream is closed") from error

    def post(self, message: Any) -> None:
        """Write one message without waiting for the buffer to take it. The caller bounds what may pile up there."""
        try:
            self._writer.write(_frame(self._encoder, message))
        except RuntimeError as error:  # uvloop's for a closed transport
            raise WireClosedError(str(error)) from error

    async def receive(self) -> M:
        """Read one message. The caller owns the deadline."""
        if self._length is None:
            self._length = _checked_length(await self._read(_LENGTH.size))
        body = await self._read(self._length)
        self._length = None
        return _decode(self._decoder, body)

    async def _read(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except (asyncio.IncompleteReadError, OSError) as error:
            msg = "the other side closed the connection"
            raise WireClosedError(msg) from error

    def close(self) -> None:
        """Drop the stream without waiting."""
        self._writer.close()


class BlockingChannel(Generic[M]):
    """One side of a conversation in a process without an event loop. Several threads may send, one receives."""

    def __init__(self, sock: socket.socket, receives: Any) -> None:
        self._socket = sock
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(receives)
        self._encoder = msgspec.msgpack.Encoder()
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Write one message."""
        frame = _frame(self._encoder, message)
        try:
            with self._sending:
                self._socket.sendall(frame)
        except OSError as error:
            raise WireClosedError(str(error)) from error

    def receive(self) -> M:
        """Read one message; blocks until one comes or the stream ends."""
        return _decode(self._decoder, self._read(_checked_length(self._read(_LENGTH.size))))

    def _read(self, count: int) -> bytes:
        buffer = bytearray(count)
        view = memoryview(buffer)
        done = 0
        msg = "the other side closed the connection"
        while done < count:
            try:
                got = self._socket.recv_into(view[done:])
            except OSError as error:
                raise WireClosedError(msg) from error
            if got == 0:
                raise WireClosedError(msg)
            done += got
        return bytes(buffer)

    def close(self) -> None:
        """Drop the stream."""
        self._socket.close()

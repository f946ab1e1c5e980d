"""Typed messages over a byte stream: a 4-byte length, then msgpack by msgspec. No pickle.

The async half serves the controller, the blocking half serves worker processes that have no event loop. Both refuse a
frame above ``MAX_FRAME_BYTES`` before reading it, and both raise ``WireClosedError`` at the end of the stream, so a
dead peer is an error at once and never a wait.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Generic, TypeVar

import msgspec

MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct("!I")

M = TypeVar("M")


class WireClosedError(ConnectionError):
    """The other side closed the stream."""


class WireError(ConnectionError):
    """The other side sent something that is no message of this protocol."""


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
    except msgspec.DecodeError as error:
        msg = f"a frame is no message of this protocol: {error}"
        raise WireError(msg) from error


class Channel(Generic[M]):
    """One side of a conversation on the event loop. ``M`` is the type (or union) of what it receives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, receives: Any) -> None:
        self._reader, self._writer = reader, writer
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(receives)
        self._encoder = msgspec.msgpack.Encoder()

    async def send(self, message: Any) -> None:
        """Write one message and wait until the buffer takes it."""
        try:
            self._writer.write(_frame(self._encoder, message))
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise WireClosedError(str(error) or "the stream is closed") from error

    async def receive(self) -> M:
        """Read one message. The caller owns the deadline."""
        try:
            header = await self._reader.readexactly(_LENGTH.size)
            body = await self._reader.readexactly(_checked_length(header))
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError) as error:
            msg = "the other side closed the connection"
            raise WireClosedError(msg) from error
        return _decode(self._decoder, body)

    def close(self) -> None:
        """Drop the stream without waiting."""
        self._writer.close()


class BlockingChannel(Generic[M]):
    """One side of a conversation in a process without an event loop."""

    def __init__(self, sock: socket.socket, receives: Any) -> None:
        self._socket = sock
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(receives)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: Any) -> None:
        """Write one message."""
        try:
            self._socket.sendall(_frame(self._encoder, message))
        except OSError as error:
            raise WireClosedError(str(error)) from error

    def receive(self) -> M:
        """Read one message; blocks until one comes or the stream ends."""
        return _decode(self._decoder, self._read(_checked_length(self._read(_LENGTH.size))))

    def _read(self, count: int) -> bytes:
        buffer = bytearray(count)
        view = memoryview(buffer)
        done = 0
        while done < count:
            got = self._socket.recv_into(view[done:])
            if got == 0:
                msg = "the other side closed the connection"
                raise WireClosedError(msg)
            done += got
        return bytes(buffer)

    def close(self) -> None:
        """Drop the stream."""
        self._socket.close()

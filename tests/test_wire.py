"""Messages over byte streams: whole or an error, on both sides, on the event loop and off it."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import wire
from prl.types import Prompt
from prl.wire import BlockingChannel, Channel, WireClosedError, WireError
from tests.factories import make_group, make_prompt

DEADLINE_S = 10


class Ping(msgspec.Struct, frozen=True, tag=True):
    """A message."""

    number: int


class Load(msgspec.Struct, frozen=True, tag=True):
    """Another one of the same protocol."""

    values: list[float]


Message = Ping | Load


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one stream."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@asynccontextmanager
async def channel(sock: socket.socket, receives: Any = Message) -> AsyncIterator[Channel[Any]]:
    """A channel over one end, under a deadline."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    opened = Channel[Any](reader, writer, receives)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield opened
    finally:
        opened.close()


def receiving(reader: asyncio.StreamReader) -> Channel[Message]:
    """A channel that only receives, from bytes that a test hands out."""
    return Channel(reader, cast("asyncio.StreamWriter", None), Message)


def frame(body: bytes) -> bytes:
    """A frame as it stands on the stream."""
    return struct.pack("!I", len(body)) + body


PING = frame(msgspec.msgpack.encode(Ping(7)))


async def test_messages_arrive_in_order_with_their_types() -> None:
    """Each type of the protocol comes out as it went in, in order, both ways."""
    with pair() as (ours, theirs):
        async with channel(ours) as a, channel(theirs) as b:
            await a.send(Ping(1))
            await a.send(Load([0.5, -math.inf]))
            assert [await b.receive(), await b.receive()] == [Ping(1), Load([0.5, -math.inf])]
            await b.send(Ping(2))
            assert await a.receive() == Ping(2)


async def test_posted_messages_keep_their_place() -> None:
    """What is posted without waiting arrives between what was sent before and after it, however much it is."""
    with pair() as (ours, theirs):
        async with channel(ours) as sender, channel(theirs) as receiver, asyncio.TaskGroup() as group:
            large = Load(values=[0.5] * 500_000)
            sender.post(Ping(number=1))
            sender.post(large)
            group.create_task(sender.send(Ping(number=2)))
            assert [await receiver.receive() for _ in range(3)] == [Ping(number=1), large, Ping(number=2)]


async def test_the_loop_speaks_with_a_process_without_one() -> None:
    """An asynchronous and a blocking side understand each other, with values as rich as a group."""
    with pair() as (ours, theirs):
        theirs.setblocking(True)
        worker = BlockingChannel[Prompt](theirs, Prompt)
        async with channel(ours, type(make_group(0, [1.0]))) as controller:
            await controller.send(make_prompt(3, answer="7"))
            assert worker.receive() == make_prompt(3, answer="7")
            worker.send(make_group(3, [1.0, 0.0]))
            assert await controller.receive() == make_group(3, [1.0, 0.0])


async def test_a_message_larger_than_every_buffer() -> None:
    """A message of several megabytes passes, the sender waiting for the receiver."""
    values = [float(i) for i in range(400_000)]
    with pair() as (ours, theirs):
        async with channel(ours) as a, channel(theirs) as b, asyncio.TaskGroup() as group:
            group.create_task(a.send(Load(values)))
            received = await b.receive()
    assert received == Load(values)


@settings(deadline=None)
@given(st.lists(st.integers(1, 2 * len(PING) - 1), max_size=6).map(sorted))
def test_frames_may_be_split_and_joined_anywhere(cuts: list[int]) -> None:
    """However the stream hands out its bytes, the same messages come out, on the event loop and off it."""
    stream = PING + frame(msgspec.msgpack.encode(Load([])))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def on_the_loop() -> list[Message]:
        reader = asyncio.StreamReader()
        opened = receiving(reader)

        async def feed() -> None:
            for piece in pieces:
                reader.feed_data(piece)
                await asyncio.sleep(0)

        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            group.create_task(feed())
            return [await opened.receive(), await opened.receive()]

    assert asyncio.run(on_the_loop()) == [Ping(7), Load([])]
    with pair() as (ours, theirs):
        for piece in pieces:
            theirs.sendall(piece)
        blocking = BlockingChannel[Message](ours, Message)
        assert [blocking.receive(), blocking.receive()] == [Ping(7), Load([])]


async def test_a_cancelled_receive_loses_nothing() -> None:
    """A deadline that strikes between header and body leaves the message to the next receive."""
    reader = asyncio.StreamReader()
    opened = receiving(reader)
    reader.feed_data(PING[:6])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await opened.receive()
    reader.feed_data(PING[6:] + PING)
    async with asyncio.timeout(DEADLINE_S):
        assert [await opened.receive(), await opened.receive()] == [Ping(7), Ping(7)]


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_bytes", [0, 2, 4, 6])
async def test_a_peer_that_closes_is_an_error_at_once(num_bytes: int) -> None:
    """A stream that ends before, in, after a header or in a body is WireClosedError, never a wait or half a message."""
    with pair() as (ours, theirs):
        async with channel(ours) as opened:
            theirs.sendall(PING[:num_bytes])
            theirs.close()
            with pytest.raises(WireClosedError, match="closed the connection"):
                await opened.receive()
    with pair() as (ours, theirs):
        theirs.sendall(PING[:num_bytes])
        theirs.close()
        with pytest.raises(WireClosedError, match="closed the connection"):
            BlockingChannel[Message](ours, Message).receive()


async def test_a_peer_that_dies_is_an_error_too() -> None:
    """A reset, which a peer that dies with unread bytes sends, is WireClosedError as well and no bare OSError."""
    with pair() as (ours, theirs):
        async with channel(ours) as opened:
            await opened.send(Ping(1))
            theirs.close()
            with pytest.raises(WireClosedError):
                await opened.receive()
    with pair() as (ours, theirs):
        blocking = BlockingChannel[Message](ours, Message)
        blocking.send(Ping(1))
        theirs.close()
        with pytest.raises(WireClosedError):
            blocking.receive()


async def test_a_connection_that_times_out_in_the_kernel_is_closed() -> None:
    """The kernel's ETIMEDOUT is an end of the stream, and not the deadline of whoever waits."""
    with pair() as (ours, _):
        async with channel(ours) as opened:
            opened._reader.set_exception(TimeoutError(110, "Connection timed out"))
            with pytest.raises(WireClosedError):
                await opened.receive()


async def test_messages_before_the_end_are_received() -> None:
    """What was sent before the peer closed still arrives."""
    with pair() as (ours, theirs):
        async with channel(ours) as opened:
            theirs.sendall(PING)
            theirs.close()
            assert await opened.receive() == Ping(7)
            with pytest.raises(WireClosedError):
                await opened.receive()


async def test_sending_to_a_peer_that_is_gone() -> None:
    """Sending into a closed stream is WireClosedError once the system knows, on both sides."""
    with pair() as (ours, theirs):
        async with channel(ours) as opened:
            theirs.close()
            with pytest.raises(WireClosedError):
                await asyncio.gather(*(opened.send(Ping(i)) for i in range(10)))
    with pair() as (ours, theirs):
        theirs.close()
        with pytest.raises(WireClosedError):
            BlockingChannel[Message](ours, Message).send(Ping(1))


async def test_a_closed_channel_tells_its_peer() -> None:
    """Closing drops the stream without waiting, and the peer sees its end."""
    with pair() as (ours, theirs):
        async with channel(ours) as a, channel(theirs) as b:
            a.close()
            with pytest.raises(WireClosedError):
                await b.receive()
    with pair() as (ours, theirs):
        BlockingChannel[Message](ours, Message).close()
        with pytest.raises(WireClosedError):
            BlockingChannel[Message](theirs, Message).receive()


# ---- what is no message ----------------------------------------------------------------------------------------------


async def test_a_frame_above_the_limit_is_not_read() -> None:
    """A length above the limit, such as one read from text, is refused before a byte of the body is waited for."""
    header = b"HTTP/1.1 200"
    with pair() as (ours, theirs):
        async with channel(ours) as opened:
            theirs.sendall(header)
            with pytest.raises(WireError, match=r"1213486160 bytes exceeds the limit of 1073741824"):
                await opened.receive()
    with pair() as (ours, theirs):
        theirs.sendall(header)
        with pytest.raises(WireError, match="exceeds the limit"):
            BlockingChannel[Message](ours, Message).receive()


async def test_a_message_above_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is too large is refused by name before a byte is sent, and is no closed stream."""
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 50)
    with pair() as (ours, theirs):
        async with channel(ours) as a, channel(theirs) as b:
            with pytest.raises(WireError, match=r"a Load of .* bytes exceeds the limit of 50"):
                await a.send(Load([0.0] * 10))
            await a.send(Ping(1))
            assert await b.receive() == Ping(1)
    with pair() as (ours, theirs):
        with pytest.raises(WireError, match="a Load of"):
            BlockingChannel[Message](ours, Message).send(Load([0.0] * 10))
        BlockingChannel[Message](ours, Message).send(Ping(1))
        assert BlockingChannel[Message](theirs, Message).receive() == Ping(1)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_garbage_is_an_error_of_the_wire(body: bytes) -> None:
    """Bytes that are no message of the protocol are WireError, whatever they are; the stream stays in step."""
    with pair() as (ours, theirs):
        theirs.sendall(frame(body) + PING)
        opened = BlockingChannel[Message](ours, Message)
        with pytest.raises(WireError, match="no message of this protocol"):
            opened.receive()
        assert opened.receive() == Ping(7)


@pytest.mark.parametrize(
    "body",
    [
        msgspec.msgpack.encode({"type": "Pong", "number": 1}),
        msgspec.msgpack.encode({"type": "Ping", "number": "one"}),
        msgspec.msgpack.encode({"type": "Ping"}),
        msgspec.msgpack.encode(Ping(1)) + b"\x00",
        b"\x82\xa4type\xa4Ping\xa5extra" + b"\x91" * 100_000,
    ],
    ids=["unknown type", "wrong field", "missing field", "trailing bytes", "nested too deeply"],
)
async def test_wrong_messages_are_errors_of_the_wire(body: bytes) -> None:
    """A message of another protocol, or of another version of this one, is WireError and not a crash of the reader."""
    with pair() as (ours, theirs):
        async with channel(ours) as opened:
            theirs.sendall(frame(body))
            with pytest.raises(WireError, match="no message of this protocol"):
                await opened.receive()


def test_an_end_is_not_garbage() -> None:
    """Both are ConnectionErrors, and neither is the other: a reader can tell a dead peer from a wrong one."""
    assert issubclass(WireError, ConnectionError)
    assert issubclass(WireClosedError, ConnectionError)
    assert not issubclass(WireClosedError, WireError)
    assert not issubclass(WireError, WireClosedError)

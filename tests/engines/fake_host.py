"""A host process without a model: ``python -m tests.engines.fake_host``, told by a prompt's first token what to do.

It samples the prompt backwards, two tokens a message, all by version 5.
"""

from __future__ import annotations

import os
import signal

from prl.engines.host_protocol import (
    Call,
    Delta,
    Failed,
    FromController,
    FromHost,
    Generate,
    Pause,
    Reply,
    Start,
    Tokens,
)
from prl.engines.host_side import connect_back, end_process
from prl.wire import WireClosedError

VERSION, VOCAB_SIZE = 5, 100
REFUSE, KEEP_SILENT, END, SERVE = 0, 1, 2, 3


def main() -> None:
    """Serve until the connection ends."""
    _, channel = connect_back()
    try:
        while True:
            for answer in answers(channel.receive()):
                channel.send(answer)
    except WireClosedError:
        end_process("the controller closed the connection")


def answers(message: FromController) -> list[FromHost]:
    """What is said to a message: nothing to a pause."""
    match message:
        case Call(id=number, request=Start()):
            return [Reply(id=number, vocab_size=VOCAB_SIZE)]
        case Call(id=number, request=request) if not isinstance(request, Pause):
            return [Reply(id=number, error=f"cannot {type(request).__name__.lower()}")]
        case Generate(stream=stream, token_ids=[first, *_] as token_ids):
            if first == END:
                os.kill(os.getpid(), signal.SIGKILL)
            if first == REFUSE:
                return [Failed(stream=stream, error="will not")]
            return [*tokens(stream, token_ids[::-1])] if first == SERVE else []
    return []


def tokens(stream: int, token_ids: list[int]) -> list[Tokens]:
    """Two tokens a message."""
    messages = []
    for first in range(0, len(token_ids), 2):
        part = token_ids[first : first + 2]
        finish = "length" if first + 2 >= len(token_ids) else None
        messages.append(Tokens(version=VERSION, deltas=[Delta(stream, part, [-1.0] * len(part), finish)]))
    return messages


if __name__ == "__main__":
    main()

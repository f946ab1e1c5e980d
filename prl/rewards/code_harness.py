"""Calls of functions of a candidate program, inside the sandbox: the source that is put behind the program.

It is text for another process and imports nothing of prl. What is expected never enters the sandbox, and results go to
a descriptor that the program has not seen, behind a word that it is not given, so that printing does not forge one.
(A program that searches the frames that called it can find the word. It is judged by what it then says, or is wrong.)
"""

from __future__ import annotations

import json
import secrets
from typing import Any

import msgspec

_SOURCE = """\
def _prl_call():
    import io, json, os, sys, types
    asked = json.loads(sys.stdin.read())
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdin = io.StringIO("")
    sys.modules["candidate"] = module = types.ModuleType("candidate")
    names = module.__dict__
    results = []
    try:
        exec(compile(asked["program"], "program.py", "exec"), names)
    except BaseException as error:
        results = [{"error": f"{type(error).__name__}: {error}"[:200]} for _ in asked["calls"]]
    else:
        for call in asked["calls"]:
            try:
                value = names[call["function"]](*call["arguments"])
                results.append({"value": json.loads(json.dumps(value))})
            except BaseException as error:
                results.append({"error": f"{type(error).__name__}: {error}"[:200]})
    os.write(out, (asked["word"] + json.dumps(results)).encode())
    os._exit(0)


_prl_call()
"""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a function."""

    function: str
    arguments: list[Any]


def harness(program: str, calls: list[Call]) -> tuple[str, str, str]:
    """The program to run, its stdin, and the word before the results."""
    word = secrets.token_hex(16)
    asked = {"program": program, "calls": msgspec.to_builtins(calls), "word": word}
    return _SOURCE, json.dumps(asked), word


def results_of(stdout: str, word: str, num_calls: int) -> list[dict[str, Any]]:
    """What each call gave: ``{"value": ...}`` or ``{"error": ...}``; all errors where the program left no results."""
    _, found, said = stdout.rpartition(word)
    try:
        results = json.loads(said) if found else []
    except (ValueError, RecursionError):
        results = []
    is_told = isinstance(results, list) and all(isinstance(each, dict) for each in results)
    if not is_told or len(results) != num_calls:
        return [{"error": "the program ended before its functions were called"}] * num_calls
    return results

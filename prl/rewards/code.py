"""``code``: the program in the completion passes the prompt's ``tests``, run in a sandbox.

- A test is ``{"input": "1 2", "output": "3"}``, a run of the program with stdin and stdout, or
  ``{"function": "add", "arguments": [1, 2], "result": 3}``, a call of a function of it. A row has tests of one kind.
- The program is the last fenced block of the text behind the thinking, or with ``extract = "text"`` the whole of it.
- Output is compared line by line without white space at the ends of lines; results as JSON values, floats to 1e-9.
- ``isolation`` is what the program is shut in with (``sandbox.py``). Where the machine does not offer it the reward is
  refused when it is made: it is never silently weaker. A program that exhausts a limit fails its test, with that
  reason.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from prl.rewards.base import Judged
from prl.rewards.code_harness import Call, harness, results_of
from prl.rewards.extract import after_thinking, opens_thinking
from prl.rewards.sandbox import Isolation, Limits, Ran, how_stopped, offered, run
from prl.rewards.turns import Turns
from prl.types import Completion, Prompt

MAX_PROGRAM_CHARS = 100_000
_FENCE = re.compile(r"^[ \t]*```[^\n`]*$", re.MULTILINE)


class Streams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of the program."""

    input: str
    output: str


class Result(Call, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a function of the program."""

    result: Any


class Code:
    """1.0 where every test passes; with ``score = "share"`` the share of them that do."""

    required_fields = ("tests",)

    def __init__(
        self,
        *,
        isolation: Isolation = "namespace",
        extract: Literal["fenced", "text"] = "fenced",
        score: Literal["all", "share"] = "all",
        num_workers: Annotated[int, Meta(ge=1, le=256)] = 2,
        cpu_s: Annotated[int, Meta(ge=1)] = 2,
        wall_s: Annotated[float, Meta(gt=0)] = 6.0,
        memory_mib: Annotated[int, Meta(ge=64)] = 512,
        disk_mib: Annotated[int, Meta(ge=1)] = 16,
        num_processes: Annotated[int, Meta(ge=4)] = 16,
        output_kib: Annotated[int, Meta(ge=1)] = 256,
    ) -> None:
        """Limits are of one test, or of all calls of functions. ``num_workers`` programs run at once.

        A row's tests run one after the other until one fails, or with ``share`` all of them: keep ``timeout_s`` above
        what they take. Raises PluginError where the machine does not offer ``isolation``.
        """
        self._isolation, self._extract, self._score = isolation, extract, score
        self._turns = Turns(num_workers)
        self._limits = Limits(
            cpu_s=cpu_s,
            wall_s=wall_s,
            memory_mib=memory_mib,
            disk_mib=disk_mib,
            num_processes=num_processes,
            output_kib=output_kib,
        )
        self.notes = (offered(isolation, "the reward 'code'"),)

    async def __call__(self, completion: Completion, prompt: Prompt) -> Judged:
        """Judge one completion. Raises SandboxError where the program could not be shut in."""
        program = self._program(completion, prompt)
        if program is None:
            return Judged(value=0.0, reason="no_program", detail="there is no fenced block behind the thinking")
        if len(program) > MAX_PROGRAM_CHARS:
            return Judged(value=0.0, reason="program_too_long", detail=f"it has {len(program)} characters")
        tests = _tests(prompt.fields["tests"])
        async with self._turns.turn(prompt.id) as standing:
            faults = await self._faults(program, tests)
            standing.num_exhausted += any(fault is not None and fault[0].startswith("exhausted") for fault in faults)
        failed = [(number, *fault) for number, fault in enumerate(faults, 1) if fault is not None]
        if not failed:
            return Judged(value=1.0, reason="passed", detail=f"{len(tests)} tests passed")
        number, reason, detail = failed[0]
        share = (len(tests) - len(failed)) / len(tests) if self._score == "share" else 0.0
        return Judged(value=share, reason=reason, detail=f"test {number} of {len(tests)}: {detail}")

    def check_row(self, fields: Mapping[str, Any]) -> str | None:
        """What is wrong with a row's tests."""
        try:
            tests = _tests(fields["tests"])
        except (msgspec.ValidationError, ValueError) as error:
            return f"field 'tests': {error}"
        largest = max(len(test.input.encode()) if isinstance(test, Streams) else 0 for test in tests)
        if largest >= self._limits.disk_mib * 1024 * 1024:
            return (
                f"field 'tests': an input of {largest:,} bytes does not fit beside the program into disk_mib ="
                f" {self._limits.disk_mib}: raise disk_mib in the reward's options"
            )
        return None

    def _program(self, completion: Completion, prompt: Prompt) -> str | None:
        text = after_thinking(completion.text, opened=opens_thinking(prompt))
        if text is None or self._extract == "text":
            return text
        fences = list(_FENCE.finditer(text))
        if len(fences) < 2:  # noqa: PLR2004
            return None
        closing = fences[2 * (len(fences) // 2) - 1]
        return text[fences[2 * (len(fences) // 2) - 2].end() : closing.start()].strip("\n")

    async def _faults(self, program: str, tests: list[Streams] | list[Result]) -> list[tuple[str, str] | None]:
        """What is wrong with the program, by test; None where nothing is."""
        if isinstance(tests[0], Streams):
            return await self._faults_of_runs(program, [test for test in tests if isinstance(test, Streams)])
        return await self._faults_of_calls(program, [test for test in tests if isinstance(test, Result)])

    async def _faults_of_runs(self, program: str, tests: list[Streams]) -> list[tuple[str, str] | None]:
        faults: list[tuple[str, str] | None] = []
        for test in tests:
            if self._score == "all" and faults and faults[-1] is not None:
                break
            ran = await run(program, test.input, self._limits, self._isolation)
            fault = _ended_badly(ran, self._limits)
            if fault is None and _lines(ran.stdout) != _lines(test.output):
                fault = "wrong_output", f"it printed {ran.stdout[:80]!r} and not {test.output[:80]!r}"
            faults.append(fault)
        return faults

    async def _faults_of_calls(self, program: str, tests: list[Result]) -> list[tuple[str, str] | None]:
        source, given, word = harness(program, [Call(function=t.function, arguments=t.arguments) for t in tests])
        ran = await run(source, given, self._limits, self._isolation)
        if (fault := _ended_badly(ran, self._limits)) is not None:
            return [fault] * len(tests)
        results = await asyncio.to_thread(results_of, ran.stdout, word, len(tests))
        faults: list[tuple[str, str] | None] = []
        for test, result in zip(tests, results, strict=True):
            if "value" not in result:
                faults.append(("program_failed", f"{test.function} raised {result.get('error')}"))
            elif not _equal(result["value"], test.result):
                got, right = msgspec.json.encode(result["value"])[:80].decode(errors="replace"), test.result
                faults.append(("wrong_result", f"{test.function} gave {got} and not {right!r:.80}"))
            else:
                faults.append(None)
        return faults


def _tests(value: Any) -> list[Streams] | list[Result]:
    """A row's tests. Raises ValidationError or ValueError."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list of tests with something in it; got {value!r:.80}")
    if isinstance(value[0], dict) and "function" in value[0]:
        return msgspec.convert(value, list[Result])
    return msgspec.convert(value, list[Streams])


def _ended_badly(ran: Ran, limits: Limits) -> tuple[str, str] | None:
    if (stopped := how_stopped(ran, limits)) is not None:
        return ran.outcome, stopped
    if ran.outcome == "exit" and ran.code == 0:
        return None
    last = ran.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
    return "program_failed", f"it ended with {ran.outcome} {ran.code}: {last[0][:200]}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]  # not at what else Unicode takes for the end of a line


def _equal(given: Any, right: Any) -> bool:
    """JSON values, floats to 1e-9 of their size. A bool is no number."""
    if isinstance(given, bool) or isinstance(right, bool):
        return given is right
    if isinstance(given, float) or isinstance(right, float):
        numbers = isinstance(given, int | float) and isinstance(right, int | float)
        try:
            return numbers and math.isclose(given, right, rel_tol=1e-9, abs_tol=1e-12)
        except OverflowError:  # an int that no float is near
            return False
    if isinstance(given, list) and isinstance(right, list):
        return len(given) == len(right) and all(map(_equal, given, right))
    if isinstance(given, dict) and isinstance(right, dict):
        return given.keys() == right.keys() and all(_equal(given[key], right[key]) for key in right)
    return bool(type(given) is type(right) and given == right)

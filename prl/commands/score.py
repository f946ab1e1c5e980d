"""``prl score``: what a reward says of the rows of a file, and why."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prl.commands.arguments import FAILED, OK

HELP = "judge the rows of a file with one reward, and say why"
ABOUT = """\
Judge every row of FILE with REWARD, exactly as a run would, and write one JSON line for each with the verdict and its
reason. For people who write a reward, or wonder about one."""
EXAMPLES = """\
examples:
  prl score math answers.jsonl
  prl score math answers.jsonl --options units=required relative_tolerance=1e-3
  prl score short:short answers.jsonl                  short in short.py, in the working directory
  prl score format - --options 'pattern="<b>.*</b>"' < answers.jsonl
  prl eval configs/math.toml --out answers.jsonl; prl score math answers.jsonl | grep '"reward":0.0'

rows:
  {"completion": "So it is \\\\boxed{12}", "answer": "12"}
  A row has "completion", and what the reward needs of a prompt, such as "answer". "prompt" is optional, "finish" is
  "stop" or "length", and a reward of groups judges the rows with the same "group" together.

what is said:
  {"line":1,"reward":1.0,"reason":"same_text","detail":"...","parts":{"math":1.0}}
  "reward" is null where the reward abstained, or failed ("failed": true); a summary goes to stderr.

exit codes:
  0 every row was judged   1 the reward failed on some   2 a bad reward, option or row, nothing judged"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl score`` takes."""
    parser.add_argument(
        "reward",
        metavar="REWARD",
        help="a built-in (answer, math, ...), an entry point, or package.module:name",
    )
    parser.add_argument("file", metavar="FILE.jsonl", help="rows, one JSON object a line; - is stdin")
    parser.add_argument(
        "--options",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="options of the reward: value in TOML or a bare word",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=30.0, help="deadline of one row (default 30)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Judge; the exit code."""
    import asyncio  # noqa: PLC0415 - --help stays quick

    from prl.config import RewardConfig  # noqa: PLC0415 - the same
    from prl.errors import ConfigError  # noqa: PLC0415 - the same
    from prl.rewards.scorer import Scorer  # noqa: PLC0415 - the same
    from prl.rewards.scoring import Rows  # noqa: PLC0415 - the same

    if not arguments.timeout > 0:
        raise ConfigError(f"--timeout = {arguments.timeout:g}: it must be above 0")
    config = RewardConfig(name=arguments.reward, options=_options(arguments.options), timeout_s=arguments.timeout)
    scorer = Scorer([config])
    return asyncio.run(_score(Rows(arguments.file, _lines(arguments.file), scorer), scorer))


async def _score(rows: Any, scorer: Any) -> int:
    import msgspec  # noqa: PLC0415 - --help stays quick

    from prl.rewards.scoring import score_rows  # noqa: PLC0415 - the same

    num_failed = num_abstained = 0
    rewards: list[float] = []
    reasons: Counter[str] = Counter()
    async with scorer:
        async for scored in score_rows(rows, scorer):
            print(msgspec.json.encode(scored).decode(), flush=True)  # noqa: T201
            reasons[scored.reason] += bool(scored.reason)
            num_failed += scored.failed
            num_abstained += scored.reward is None and not scored.failed
            rewards += [] if scored.reward is None else [scored.reward]
    mean = f"mean {sum(rewards) / len(rewards):.4g} of {len(rewards)}" if rewards else "no reward"
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common() if reason)
    said = f"{mean}; {num_abstained} abstained, {num_failed} failed" + (f"; {counts}" if counts else "")
    print(said, file=sys.stderr)  # noqa: T201
    return FAILED if num_failed else OK


def _lines(name: str) -> Iterator[bytes]:
    from prl.errors import DataError  # noqa: PLC0415 - --help stays quick

    if name == "-":
        yield from sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as file:
            yield from file
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from error


def _options(words: list[str]) -> dict[str, Any]:
    """``key=value`` words as options: the value is TOML where it reads as such, and else the word itself."""
    import tomllib  # noqa: PLC0415 - --help stays quick

    from prl.errors import ConfigError  # noqa: PLC0415 - the same

    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise ConfigError(f"--options {word!r} does not read as key=value")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
    return options

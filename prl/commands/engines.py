"""``prl engines``: who samples in a run that goes on; one more, or one less."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prl.commands.arguments import FAILED, OK

if TYPE_CHECKING:
    from prl.control.client import Client
    from prl.engines.seat import EngineStatus

HELP = "list, add or remove the engines of a run that goes on"
ABOUT = """\
Ask a run that goes on who samples for it, and change that: an engine that is added starts beside the others, receives
the current weights and then serves; one that is removed hands its sequences over, behind their tokens, and ends.
Training goes on meanwhile."""
EXAMPLES = """\
examples:
  prl engines list runs/math
  prl engines add runs/math                  one more
  prl engines add runs/math --count 2
  prl engines add runs/math http://node7:8000    a vllm serve process, started as docs/servers.md says
  prl engines command configs/math.toml --port 8000    how to start one
  prl engines remove runs/math engine-1      or just 1; its sequences go on with the others
  prl engines list http://node7:8470         a run elsewhere, whose token is in PRL_CONTROL_TOKEN

RUN is a run folder, where control.json says where the run listens, or the address itself ([control] in the TOML).

exit codes:
  0 done   1 the run refused, or did not answer   2 bad input: no run goes on there, or the token is wrong"""
_RUN = "a run folder, such as runs/math, or the address of a run, such as http://127.0.0.1:8470"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl engines`` takes: a verb, and what that takes."""
    verbs = parser.add_subparsers(title="what to do", metavar="VERB", required=True)
    for name, does, text in (
        ("list", _list, "who there is, how far each is, and what it did"),
        ("add", _add, "start more, in the background"),
        ("remove", _remove, "take some out"),
    ):
        verb = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=EXAMPLES)
        verb.add_argument("run", metavar="RUN", help=_RUN)
        if name == "add":
            verb.add_argument("servers", metavar="SERVER", nargs="*", help="the address of a vllm serve process")
            verb.add_argument("--count", metavar="N", type=int, help="how many to start here (1)")
        if name == "remove":
            verb.add_argument("names", metavar="ENGINE", nargs="+", help="its name or number: engine-1 or 1")
            verb.add_argument("--force", action="store_true", help="even below engine.min_engines")
        verb.add_argument("--json", action="store_true", help="JSON in place of text")
        verb.set_defaults(does=does)

    what = "print the command that starts a server for a configuration"
    verb = verbs.add_parser("command", help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=EXAMPLES)
    verb.add_argument("config", metavar="CONFIG", help="the TOML of the run")
    verb.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help="change a key")
    verb.add_argument("--host", default="127.0.0.1", help="where it listens (127.0.0.1): 0.0.0.0 is everywhere")
    verb.add_argument("--port", type=int, default=8000, help="at which port (8000)")
    verb.add_argument(
        "--for", dest="device", choices=["cpu", "cuda"], help="the machine that it is for (like this one)"
    )
    verb.set_defaults(does=_command)


def run(arguments: argparse.Namespace) -> int:
    """Ask; the exit code."""
    from prl.control import client  # noqa: PLC0415 - --help stays quick
    from prl.errors import RefusedError  # noqa: PLC0415 - the same

    if arguments.does is _command:
        _command(arguments)
        return OK
    does: Callable[[Client, argparse.Namespace], None] = arguments.does
    try:
        does(client.find(arguments.run), arguments)
    except (RefusedError, client.Unanswered) as error:
        sys.stderr.write(f"prl: {error}\n")
        return FAILED
    return OK


def _list(run: Client, arguments: argparse.Namespace) -> None:
    from prl.engines.seat import EngineStatus  # noqa: PLC0415 - --help stays quick

    engines: list[EngineStatus] = run.ask("GET", "/engines", list[EngineStatus])
    if arguments.json:
        _say_json(engines)
        return
    print(f"{'engine':12}{'state':10}{'for':>9}{'version':>9}{'streams':>9}{'tokens':>14}{'busy':>9}{'restarts':>10}")  # noqa: T201
    for engine in engines:
        print(_line(engine))  # noqa: T201


def _line(engine: EngineStatus) -> str:
    from prl.progress import duration  # noqa: PLC0415 - --help stays quick

    state_s, busy_s = duration(engine.state_s), duration(engine.busy_s)
    counts = f"{engine.version:>9}{engine.streams:>9}{engine.tokens_generated:>14,}{busy_s:>9}{engine.restarts:>10}"
    where = f"\n  {engine.address}" if engine.address else ""
    why = where + (f"\n  {engine.why.splitlines()[0]}" if engine.why else "")
    return f"{engine.name:12}{engine.state:10}{state_s:>9}{counts}{why}"


def _add(run: Client, arguments: argparse.Namespace) -> None:
    from prl.control.routes import Added, ToAdd  # noqa: PLC0415 - --help stays quick
    from prl.errors import ConfigError  # noqa: PLC0415 - the same

    count, servers = arguments.count, arguments.servers
    if count is not None and servers:
        raise ConfigError("--count is of engines that are started here: leave it out where servers are named")
    if count is not None and not 1 <= count <= ToAdd.MOST:
        raise ConfigError(f"--count {count} must be from 1 to {ToAdd.MOST}")
    answer: Added = run.ask("POST", "/engines", Added, ToAdd(count=1 if count is None else count, servers=servers))
    if arguments.json:
        _say_json(answer)
        return
    starts = "starts" if len(answer.added) == 1 else "start"
    print(f"{', '.join(answer.added)} {starts}: prl engines list {arguments.run} shows when it serves")  # noqa: T201


def _command(arguments: argparse.Namespace) -> None:
    from prl.engines import server_command  # noqa: PLC0415 - --help stays quick
    from prl.machinery import transport_of  # noqa: PLC0415 - the same
    from prl.models import resolve_model  # noqa: PLC0415 - the same
    from prl.settings import load_config  # noqa: PLC0415 - the same

    config = load_config(arguments.config, arguments.overrides)
    on_cpu = None if arguments.device is None else arguments.device == "cpu"
    command = server_command.server_command(
        resolve_model(config.model),
        config.engine,
        transport_of(config),
        host=arguments.host,
        port=arguments.port,
        on_cpu=on_cpu,
    )
    print(server_command.as_shell(server_command.server_environment(config.engine, on_cpu=on_cpu), command))  # noqa: T201


def _remove(run: Client, arguments: argparse.Namespace) -> None:
    from urllib.parse import quote  # noqa: PLC0415 - --help stays quick

    from prl.control.routes import Leaving  # noqa: PLC0415 - the same

    force = "?force=true" if arguments.force else ""
    for name in arguments.names:
        answer: Leaving = run.ask("DELETE", f"/engines/{quote(name, safe='')}{force}", Leaving)
        if arguments.json:
            _say_json(answer)
        else:
            print(f"{answer.leaving} leaves: its sequences go on with the others")  # noqa: T201


def _say_json(value: Any) -> None:
    import msgspec  # noqa: PLC0415 - --help stays quick

    print(msgspec.json.encode(value).decode())  # noqa: T201

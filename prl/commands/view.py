"""``prl view``: the page of a run, or of a folder of runs, in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from prl.commands.arguments import OK

HELP = "show a run, or a folder of runs, in a browser"
ABOUT = """\
Serve the page of a run, one that goes on or one that has ended, or of all runs of a folder, on this machine: curves,
who waits for whom, samples token by token. A run serves its own page while it goes on; this one stays."""
EXAMPLES = """\
examples:
  prl view runs/math
  prl view runs --open                            all runs of a folder, to compare them
  prl view runs --port 8471                       then, on your own machine: ssh -L 8471:127.0.0.1:8471 HOST
  PRL_CONTROL_TOKEN=... prl view runs --address 0.0.0.0      for others, who open http://HOST:PORT/?token=...

exit codes:
  0 ended by Ctrl-C   2 bad input: no run is there, or the address cannot be had"""
_MAX_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl view`` takes."""
    parser.add_argument("path", metavar="PATH", help="a run folder, such as runs/math, or a folder of runs")
    parser.add_argument("--port", metavar="N", type=int, default=0, help="port to listen on; else a free one")
    parser.add_argument("--address", metavar="HOST", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--open", action="store_true", help="open it in this machine's browser")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C; the exit code."""
    import asyncio  # noqa: PLC0415 - --help stays quick
    import os  # noqa: PLC0415 - the same
    import webbrowser  # noqa: PLC0415 - the same

    from prl.check_control import CONTROL_TOKEN, check_address, check_tokens  # noqa: PLC0415 - the same
    from prl.errors import ConfigError  # noqa: PLC0415 - the same
    from prl.network import listener, origin_of  # noqa: PLC0415 - the same
    from prl.view.child import serve  # noqa: PLC0415 - the same
    from prl.view.runs import Runs  # noqa: PLC0415 - the same

    host, port = arguments.address, arguments.port
    found = [*check_address("--address", host, os.environ), *check_tokens(os.environ)]
    if not 0 <= port <= _MAX_PORT:
        found.append(f"--port {port} must be from 0 to {_MAX_PORT}; 0 is a free one")
    if found:
        raise ConfigError("\n".join(found))
    runs = Runs(Path(arguments.path))
    try:
        listening = listener(host, port)
    except OSError as error:
        raise ConfigError(f"--address {host} --port {port}: {error.strerror}; name another port, or 0") from error
    token = " (as ?token=..., what PRL_CONTROL_TOKEN is)" if os.environ.get(CONTROL_TOKEN) else ""
    url = f"{origin_of(listening)}/"
    print(f"{runs.shown}\npage  {url}{token}\nCtrl-C ends it", flush=True)  # noqa: T201
    if arguments.open:
        webbrowser.open(url)
    asyncio.run(serve(runs, host, listening))
    return OK

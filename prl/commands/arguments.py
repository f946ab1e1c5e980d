"""Arguments that several commands share, so that they read and mean the same everywhere."""

from __future__ import annotations

import argparse
import shlex

OK, FAILED = 0, 1


def add_config(parser: argparse.ArgumentParser) -> None:
    """CONFIG, and ``--set`` for the keys that this call changes."""
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, such as configs/math.toml")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key: value in TOML or a bare word; 'unset' takes the key away; may be given again",
    )


def said(command: str, arguments: argparse.Namespace) -> str:
    """The call as it was typed, but for what names a folder: to be said again."""
    overrides = [word for override in arguments.set for word in ("--set", override)]
    return shlex.join(["prl", command, arguments.config, *overrides])

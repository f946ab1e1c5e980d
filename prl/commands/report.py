"""``prl report``: one HTML file, and a picture, of a run or of several."""

from __future__ import annotations

import argparse
from pathlib import Path

from prl.commands.arguments import OK

HELP = "write a report of runs: one HTML file, and a picture of the curves"
ABOUT = """\
Write what a run was, did and learned into one HTML file that holds everything: facts, curves, configuration,
accounting, warnings, samples. It has no script and asks for nothing from anywhere. Several runs are compared."""
EXAMPLES = """\
examples:
  prl report runs/math                             writes runs/math/report.html and, with the extra 'report', report.png
  prl report runs/math --png curves.png            the picture of the main curves goes there
  prl report runs/a runs/b --out compared.html

exit codes:
  0 written   2 bad input: no run is there, or the file cannot be written"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl report`` takes."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run folder, such as runs/math; several are compared")
    parser.add_argument("--out", metavar="FILE", help="the HTML file; else RUN/report.html, or report.html for several")
    parser.add_argument("--png", metavar="FILE", help="the picture of the main curves; else beside the HTML file")


def run(arguments: argparse.Namespace) -> int:
    """Write; the exit code."""
    from prl.errors import ConfigError, MissingExtraError  # noqa: PLC0415 - --help stays quick
    from prl.report import picture  # noqa: PLC0415 - the same
    from prl.report.curves import panels  # noqa: PLC0415 - the same
    from prl.report.gather import gather  # noqa: PLC0415 - the same
    from prl.report.page import report  # noqa: PLC0415 - the same

    told = [gather(Path(path)) for path in arguments.runs]
    out = Path(arguments.out or (told[0].path / "report.html" if len(told) == 1 else "report.html"))
    try:
        out.write_text(report(told), encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; name another file with --out") from error
    print(out)  # noqa: T201
    png = Path(arguments.png) if arguments.png else out.with_suffix(".png")
    try:
        picture.write(png, ", ".join(each.name for each in told), panels(told))
    except (ConfigError, MissingExtraError) as error:
        if arguments.png:
            raise
        print(f"no picture: {error}")  # noqa: T201
    else:
        print(png)  # noqa: T201
    return OK

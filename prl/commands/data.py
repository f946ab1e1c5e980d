"""``prl data``: what a run would see of its data, before anything is started."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from prl.commands.arguments import OK, add_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from prl.data.report import Lengths, Report, Shown

HELP = "show what a run would see of its data"
ABOUT = """\
Read and check every row that CONFIG names, and show what a run would see: rows by source, how long the prompts are,
what is left out and why, and the first prompts as the engines get them, token by token. Nothing is started."""
EXAMPLES = """\
examples:
  prl data configs/math.toml
  prl data configs/math.toml --num 10                        ten prompts instead of three
  prl data my.toml --set data.source=parquet --set data.path=train.parquet --set data.columns.prompt=question
  prl data my.toml --set data.source=dataset --set data.path=openai/gsm8k --set data.subset=main \\
      --set data.columns.prompt=question --set 'data.answer_after="####"' --set eval.split=test
  prl data my.toml --set data.source=reasoning_gym --set data.task=chain_sum --set data.options.max_terms=3
  prl data my.toml --json | jq .left_out                     for scripts

several sources, mixed by weight, in the TOML:
  [[data.sources]]                       [[data.sources]]
  source = "jsonl"                       source = "reasoning_gym"
  path = "mine.jsonl"                    task = "chain_sum"
  weight = 3

what is left out, and by which key:
  too_long           the prompt leaves no room for sampling.max_tokens in engine.max_model_len
  too_short, above_max_tokens, solve_rate    data.filter
  bad_row            data.skip_bad_rows: without it the first malformed row ends it all, with file, line and field
  held_out           a generated problem that is among the held-out ones
  too_easy, too_hard     data.curriculum.band, in a run: what it measured decides

exit codes:
  0 done   2 bad input: a row, a file, a key"""
NUM_PROMPTS = 3
_MOST_TOKENS, _BAR = 200, 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``prl data`` takes."""
    add_config(parser)
    parser.add_argument(
        "--num",
        metavar="N",
        type=_count,
        default=NUM_PROMPTS,
        help=f"prompts to show, in the order of training (default {NUM_PROMPTS})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the tables")


def run(arguments: argparse.Namespace) -> int:
    """Show it; the exit code."""
    import msgspec  # noqa: PLC0415 - --help stays quick

    from prl.data.report import report  # noqa: PLC0415 - the same
    from prl.models import resolve_model  # noqa: PLC0415 - the same
    from prl.preflight import before_data  # noqa: PLC0415 - the same
    from prl.prompts import open_source  # noqa: PLC0415 - the same
    from prl.rewards.scorer import Scorer  # noqa: PLC0415 - the same
    from prl.settings import load_config  # noqa: PLC0415 - the same
    from prl.tokenizer import Tokenizer  # noqa: PLC0415 - the same

    config = load_config(arguments.config, arguments.set)
    before_data(config)
    scorer = Scorer(config.rewards) if config.rewards else None
    needed = (scorer.required_fields, scorer.check_row) if scorer else ()
    tokenizer = Tokenizer.load(resolve_model(config.model))
    reads_all = scorer is not None and scorer.reads_all_fields
    source = open_source(config, tokenizer, *needed, reads_all_fields=reads_all)
    found = report(config, tokenizer, source, arguments.num)
    if arguments.json:
        print(msgspec.json.encode(found).decode())  # noqa: T201
        return OK
    from prl.panel import make_console, show  # noqa: PLC0415 - the same

    console = make_console()
    for part in _parts(found):
        show(console, part)
    return OK


def _parts(found: Report) -> Iterator[RenderableType]:
    """What is shown, from the top."""
    from rich.table import Table  # noqa: PLC0415 - --help stays quick
    from rich.text import Text  # noqa: PLC0415 - the same

    sources = Table("source", "share", "rows", "held out", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for row in found.sources:
        sources.add_row(Text(row.name), f"{row.share:.1%}", f"{row.num_rows:,}", f"{row.num_held_out:,}")
    yield sources
    yield Text()
    yield from _plot(found.lengths)
    yield Text()
    whole = "of one epoch" if found.is_complete else f"among the first {found.lengths.num_prompts:,} prompts"
    left_out = ", ".join(f"{reason} {count:,}" for reason, count in sorted(found.left_out.items()))
    yield Text(f"left out {whole}: {left_out or 'none'}")
    if found.repeated:
        yield Text(f"note: {found.repeated:,} prompts say the same as one before them", "yellow")
    if found.leaked:
        yield Text(f"note: {found.leaked:,} prompts say the same as a held-out one", "yellow")
    for warning in found.warnings:
        yield Text(f"note: {warning}", "yellow")
    for prompt in found.prompts:
        yield Text()
        yield from _prompt(prompt)


def _plot(lengths: Lengths) -> Iterator[RenderableType]:
    """The lengths as bars."""
    from rich.text import Text  # noqa: PLC0415 - --help stays quick

    yield Text(
        f"prompts of {lengths.shortest} to {lengths.longest} tokens, median {lengths.median:g};"
        f" the context leaves {lengths.most}"
    )
    largest = max(each.count for each in lengths.bins)
    wide = len(str(lengths.longest))
    for each in lengths.bins:
        bar = "#" * max(-(-each.count * _BAR // largest), 0)
        yield Text.assemble(f"  {each.low:>{wide}} to {each.high:>{wide}}  ", (bar, "cyan"), f" {each.count:,}")


def _prompt(prompt: Shown) -> Iterator[RenderableType]:
    from rich.text import Text  # noqa: PLC0415 - --help stays quick

    yield Text(f"prompt {prompt.id}  {prompt.where}  {len(prompt.token_ids)} tokens", "bold")
    yield Text(prompt.text)
    pairs = [f"{number} {piece!r}" for number, piece in zip(prompt.token_ids, prompt.tokens, strict=True)]
    more = f"  ... and {len(pairs) - _MOST_TOKENS} more" if len(pairs) > _MOST_TOKENS else ""
    yield Text("ids: " + "  ".join(pairs[:_MOST_TOKENS]) + more, "dim")
    if prompt.answer is not None:
        yield Text.assemble(("answer: ", "dim"), prompt.answer)
    if prompt.fields:
        yield Text.assemble(("fields: ", "dim"), str(prompt.fields)[:1000])


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of prompts")
    return int(text)

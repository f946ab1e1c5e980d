"""The names that the benchmarks take from prl and from one another exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))


def path_of(module: str) -> Path | None:
    """Where a module of prl or a benchmark is; None: neither."""
    parts = module.split(".")
    folder = ROOT if parts[0] == "prl" else ROOT / "benchmarks"
    candidates = [folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")]
    return next((path for path in candidates if path.is_file()), None)


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module binds at its top level, under ``if`` too, and its submodules; read, not imported."""
    found = {child.stem for child in path.parent.iterdir()} if path.name == "__init__.py" else set[str]()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    found |= {alias.asname or alias.name.split(".")[0] for alias in names}
                case ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
                case _:
                    waiting.append(node)
    return frozenset(found)


def missing_in(source: str) -> Iterator[str]:
    """Each ``module.name`` that a script uses and that is not there."""
    tree, modules = ast.parse(source), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if path_of(alias.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and (path := path_of(node.module)):
            for alias in node.names:
                if alias.name not in names_in(path):
                    yield f"{node.module}.{alias.name}"
                if path_of(f"{node.module}.{alias.name}"):
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (module := modules.get(ast.unparse(node.value))):
            path = path_of(module)
            if path is None or node.attr not in names_in(path):
                yield f"{module}.{node.attr}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_name_that_a_benchmark_takes_exists(script: Path) -> None:
    """A function that was renamed in prl, or in a benchmark beside it, is found without a run of hours."""
    assert list(missing_in(script.read_text())) == []


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("from prl import parts\nparts.make_buffer\nparts.make_nothing()", ["prl.parts.make_nothing"]),
        ("from prl.engines.base import Decoding, Nothing", ["prl.engines.base.Nothing"]),
        ("import throughput_model as model\nmodel.Costs\nmodel.Nothing", ["throughput_model.Nothing"]),
        ("from prl import Config, nothing", ["prl.nothing"]),
    ],
)
def test_a_name_that_is_not_there_is_found(source: str, missing: list[str]) -> None:
    """Imported from a module, or read from one that was imported under another name."""
    assert list(missing_in(source)) == missing

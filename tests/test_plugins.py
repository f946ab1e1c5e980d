"""Finding plug-ins: every way to name one, and one clear line for every way to fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prl.errors import PluginError
from prl.plugins import Registry

ENTRY_POINTS = "[test.things]\nshared = {module}:shared\n"


@pytest.fixture
def registry() -> Registry:
    """A registry with one built-in."""
    return Registry("thing", "test.things", {"join": "os.path:join"})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_registered_name_is_found(registry: Registry) -> None:
    """What was registered comes back under its name, the same object."""
    assert registry.register("mine", here) is here
    assert registry.find("mine") is here


def test_builtin_is_imported_when_asked_for(registry: Registry) -> None:
    """A built-in is the attribute that its path names."""
    import os.path

    assert registry.find("join") is os.path.join


def test_path_finds_what_lies_in_the_working_directory(registry: Registry, here: Path) -> None:
    """``package.module:name`` works for a file next to where the command runs, whatever sys.path was."""
    (here / "pack").mkdir()
    (here / "pack" / "own_things.py").write_text("def thing(): return 41\n")
    assert registry.find("pack.own_things:thing")() == 41


def test_entry_point_is_found(registry: Registry, here: Path) -> None:
    """An installed package offers a plug-in through its entry points; two that disagree are refused."""
    sys.path.insert(0, str(here))
    for module in ("first_pack", "other_pack"):
        (here / f"{module}.py").write_text("def shared(): return __name__\n")
        info = here / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(ENTRY_POINTS.format(module=module))
        if module == "first_pack":
            assert registry.find("shared")() == "first_pack"
            assert registry.names() == ["join", "shared"]
    with pytest.raises(PluginError, match=r"several installed packages .* \(first_pack:shared, other_pack:shared\)"):
        registry.find("shared")


def test_unknown_name_answers_with_the_closest_and_the_list(registry: Registry) -> None:
    """One line with the nearest name, all names, and how to name one's own."""
    with pytest.raises(PluginError) as caught:
        registry.find("jion")
    message = str(caught.value)
    assert "there is no thing 'jion' (did you mean 'join'?); known: join;" in message
    assert "'package.module:name'" in message
    assert "\n" not in message


@pytest.mark.parametrize("path", ["os:", ":join", "os path:join", "os.path:join:x", "..os:join"])
def test_malformed_path_is_refused(registry: Registry, path: str) -> None:
    """A path that is no path says what a path looks like."""
    with pytest.raises(PluginError, match=r"does not read as 'package\.module:name'"):
        registry.find(path)


def test_missing_attribute_names_file_and_nearest(registry: Registry, here: Path) -> None:
    """A misspelt name in a file that exists answers with the file and the nearest name in it."""
    (here / "things_here.py").write_text("def shortest(): ...\n")
    with pytest.raises(PluginError, match=r"things_here\.py has no 'shortst' \(did you mean 'shortest'\?\)"):
        registry.find("things_here:shortst")


@pytest.mark.parametrize(
    ("source", "cause"),
    [(None, ModuleNotFoundError), ("import no_such_package", ModuleNotFoundError), ("1 / 0", ZeroDivisionError)],
)
def test_module_that_cannot_be_imported(
    registry: Registry, here: Path, source: str | None, cause: type[Exception]
) -> None:
    """A missing module, and one that fails while it is imported, are one line with the cause chained."""
    if source is not None:
        (here / "broken_thing.py").write_text(source)
    with pytest.raises(PluginError, match=rf"'broken_thing:x' cannot be imported: {cause.__name__}") as caught:
        registry.find("broken_thing:x")
    assert isinstance(caught.value.__cause__, cause)


def test_same_definition_may_be_registered_again(registry: Registry) -> None:
    """A module that is run twice registers twice; the newer object counts."""

    def make() -> object:
        def thing() -> None: ...

        return thing

    registry.register("twice", make())
    newer = make()
    registry.register("twice", newer)
    assert registry.find("twice") is newer


def test_name_taken_by_another_definition_is_refused(registry: Registry) -> None:
    """Two definitions under one name are an error that names both, and so is the name of a built-in."""
    registry.register("taken", test_registered_name_is_found)
    with pytest.raises(PluginError, match=r"two things are named 'taken': .*test_registered_.* and .*test_builtin"):
        registry.register("taken", test_builtin_is_imported_when_asked_for)
    with pytest.raises(PluginError, match="'join' is built in"):
        registry.register("join", test_registered_name_is_found)
    with pytest.raises(PluginError, match="has no colon"):
        registry.register("a:b", test_registered_name_is_found)

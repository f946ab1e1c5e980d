from pathlib import Path

import pytest

from prl.errors import ConfigError
from prl.models import BUILTIN_MODELS, resolve_model


def test_a_builtin_is_its_folder_in_the_package() -> None:
    """``builtin:tiny-math`` is a folder that ships with prl and holds a model."""
    folder = Path(resolve_model("builtin:tiny-math"))
    assert folder == BUILTIN_MODELS["tiny-math"]
    assert (folder / "config.json").is_file()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("builtin:tiny-maths", "builtin:tiny-math'"),
        ("builtin:mathe", "builtin:tiny-math'"),
        ("builtin:counting", "builtin:tiny-counting'"),
        ("builtin:", "builtin:tiny-"),
        ("builtin:x", "builtin:tiny-"),
    ],
)
def test_an_unknown_builtin_names_the_closest(name: str, meant: str) -> None:
    """A misspelt built-in is refused with the one that was probably meant, or with any where nothing is near."""
    with pytest.raises(ConfigError, match=f"did you mean '{meant}") as caught:
        resolve_model(name)
    assert repr(name) in str(caught.value)


def test_a_folder_with_a_config_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, relative and home paths, and a bare name that exists, are folders; ``~`` is expanded."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model(str(folder)) == str(folder)
    assert resolve_model("~/my-model") == str(folder)
    assert Path(resolve_model("./my-model")).resolve() == folder
    assert Path(resolve_model("my-model")).resolve() == folder


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "~/absent", "../absent"])
def test_a_missing_path_is_never_taken_for_a_hub_name(name: str) -> None:
    """What looks like a path and does not exist is refused, not looked up online."""
    with pytest.raises(ConfigError, match="does not exist"):
        resolve_model(name)


def test_a_home_of_nobody_is_refused() -> None:
    """``~name`` of a user that this machine does not know is one clear error."""
    with pytest.raises(ConfigError, match="home folder"):
        resolve_model("~no-such-user-here/model")


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    """A folder that holds no model says which file it lacks."""
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        resolve_model(str(tmp_path))


def test_a_file_is_refused(tmp_path: Path) -> None:
    """A path to a file, such as the weights themselves, is refused: the folder is wanted."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"")
    with pytest.raises(ConfigError, match="is a file"):
        resolve_model(str(weights))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2"])
def test_anything_else_is_a_hub_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is neither built in nor a path is given on unchanged."""
    monkeypatch.chdir(tmp_path)
    assert resolve_model(name) == name


def test_an_empty_name_is_refused() -> None:
    """An empty ``model`` is refused with the three things it may be."""
    with pytest.raises(ConfigError, match="model is empty"):
        resolve_model("  ")

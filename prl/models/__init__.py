"""What the config's ``model`` names: a built-in model, a folder, or a name on the hub.

Resolving reads no more than the file system: no torch, no network, no guess. A value that looks like a path is a path,
and a path that holds no model is refused here rather than taken for a hub name and looked up online.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from prl.errors import ConfigError

BUILTIN_PREFIX = "builtin:"
BUILTIN_MODELS: dict[str, Path] = {
    "tiny-math": Path(__file__).parent / "tiny_math",
    "tiny-counting": Path(__file__).parent / "tiny_counting",
}
"""Models that ship with the package, by name."""
MAKERS = {"SmolLM2-135M-Instruct": ("prl.models.make_smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct")}
"""Folders that a script makes, by their last name: the script's module, and the model's name on the hub."""
MADE = "models"
"""Where the scripts put them: no owner on the hub, so a path."""


def resolve_model(name: str) -> str:
    """Turn the config's ``model`` into what transformers and vLLM load: a folder, or a hub name as it was given.

    Raises:
        ConfigError: an unknown built-in, a path that is no folder, or a folder without ``config.json``.
    """
    if not name.strip():
        raise ConfigError("model is empty: name a built-in ('builtin:tiny-math'), a folder or a hub name")
    if name.startswith(BUILTIN_PREFIX):
        return str(_builtin(name.removeprefix(BUILTIN_PREFIX)))
    if name.startswith((".", "/", "~", f"{MADE}/")) or name.count("/") > 1 or Path(name).exists():
        return str(_folder(name))
    return name


def local_folder(model: str) -> Path | None:
    """The files of a resolved model that is on this machine; None for a hub name that was never downloaded.

    Raises:
        ConfigError: it can be neither.
    """
    if Path(model).is_dir() or Path(model).is_absolute():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - only for hub names
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415 - the same

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError as error:
        raise ConfigError(f"model = {model!r} is neither a folder nor a name on the hub: {error}") from error
    return Path(cached).parent if isinstance(cached, str) else None


def _builtin(name: str) -> Path:
    if name in BUILTIN_MODELS:
        return BUILTIN_MODELS[name]
    closest = difflib.get_close_matches(name, BUILTIN_MODELS, n=1, cutoff=0.0)[0]
    given, nearest = BUILTIN_PREFIX + name, BUILTIN_PREFIX + closest
    raise ConfigError(f"model = {given!r}: there is no such built-in model, did you mean {nearest!r}?")


def _folder(name: str) -> Path:
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"model = {name!r}: no such user's home folder; write the path in full") from error
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        if path.name in MAKERS and not path.exists():
            module, hub_name = MAKERS[path.name]
            raise ConfigError(
                f"model = {name!r}: {path.absolute()} does not exist; make it with"
                f" python -m {module} --out {name}, or take {hub_name!r} from the hub"
            )
        raise ConfigError(f"model = {name!r}: {path.absolute()} {found}; name a folder with config.json and weights")
    if not (path / "config.json").is_file():
        export = ", did you mean its export/?" if (path / "export" / "config.json").is_file() else ""
        raise ConfigError(
            f"model = {name!r}: {path.absolute()} has no config.json; name a Hugging Face model folder{export}"
        )
    return path

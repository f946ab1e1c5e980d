"""What is looked at before a run, and what ``--check`` adds: bad input is found and nothing is started."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl import machinery, memory, preflight
from prl.config import Config
from prl.data import source
from prl.errors import ConfigError, MissingExtraError
from prl.models import resolve_model
from prl.prompts import open_source
from prl.tokenizer import Tokenizer
from tests.model_folder import make_model_folder


def config(model: Path | str, **changes: Any) -> Config:
    """A valid configuration with changes."""
    engine = {"max_model_len": 256, "kind": "transformers", **changes.pop("engine", {})}
    tree = {"model": str(model), "rewards": [{"name": "answer"}], "sampling": {"max_tokens": 64}, **changes}
    return msgspec.convert({**tree, "engine": engine}, Config)


def facts(findings: list[preflight.Finding]) -> dict[str, str]:
    """The findings that are no notes, by topic."""
    return {finding.topic: finding.text for finding in findings if not finding.is_note}


def notes(findings: list[preflight.Finding]) -> list[str]:
    """The notes."""
    return [finding.text for finding in findings if finding.is_note]


def test_it_says_what_would_run(tmp_path: Path) -> None:
    """Engine and why, parameters, memory, port, pace."""
    found = facts(preflight.before_start(config(make_model_folder(tmp_path), pipeline={"max_lag": 1})))
    assert found["engine"] == "1 x transformers (as configured)"
    assert found["model"].endswith("1.3 k parameters, context 512")
    assert found["memory"].startswith("about 2.")
    assert found["weights"] == (
        "gloo, buckets of 64 MiB, staged beside generation, for a second copy of its weights in each engine's main"
        " memory, 0.0 GiB"
    )
    assert found["port"] == "127.0.0.1, any free port"
    assert found["pace"] == "8 prompts x 8 completions a step, lag at most 1"


def test_how_weights_travel_is_said(tmp_path: Path) -> None:
    """In turns of how many, beside generation or into place; and that one engine has nobody to take turns with."""
    weights = {"staged": False, "rolling": 2, "bucket_bytes": 1 << 20}
    found = preflight.before_start(config(make_model_folder(tmp_path), weights=weights))
    said = "gloo, buckets of 1 MiB, into place, while engines stand still, at most 2 engines at once"
    assert [each.text for each in found if each.topic == "weights"] == [said, *notes(found)]
    assert notes(found) == ["weights.rolling = 2 and there is one engine: it has nobody to take turns with"]


def test_what_adapters_train_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank, parameters, and how they travel; a wrong layer is refused, and peft must be there."""
    model = make_model_folder(tmp_path)
    found = facts(preflight.before_start(config(model, lora={"rank": 2})))
    assert found["lora"] == "rank 2, 64 parameters, 4.9% of the model's, published merged"
    assert "lora" not in facts(preflight.before_start(config(model)))
    with pytest.raises(ConfigError, match="did you mean 'q_proj'"):
        preflight.before_start(config(model, lora={"rank": 2, "target_modules": ["k_proj"]}))
    monkeypatch.setattr(preflight, "installed", lambda package: package != "peft")
    with pytest.raises(MissingExtraError, match=r"lora.rank = 2 .*prl-train\[lora\]"):
        preflight.before_start(config(model, lora={"rank": 2}))


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    """A path that holds nothing, a name that the hub cannot have."""
    with pytest.raises(ConfigError, match="does not exist"):
        preflight.before_start(config(tmp_path / "none"))
    with pytest.raises(ConfigError, match="neither a folder nor a name on the hub"):
        preflight.before_start(config("no such name"))


def test_a_hub_name_that_was_never_downloaded_is_not_guessed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said that nothing was verified; nothing is fetched."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (note,) = notes(preflight.before_start(config("nobody/no-such-model")))
    assert "not verified" in note


def test_a_context_longer_than_the_models_is_refused(tmp_path: Path) -> None:
    """The model's own limit is in its config.json."""
    with pytest.raises(ConfigError, match=r"engine.max_model_len = 513 .* max_position_embeddings = 512"):
        preflight.before_start(config(make_model_folder(tmp_path), engine={"max_model_len": 513}))


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    """By its key and where it was looked for; a folder is no file."""
    model = make_model_folder(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"data.path = 'none.jsonl': /.*none.jsonl does not exist"):
        preflight.before_start(config(model, data={"source": "jsonl", "path": "none.jsonl"}))
    with pytest.raises(ConfigError, match=r"data.path = '.*': .* is a folder; name a file"):
        preflight.before_start(config(model, data={"source": "parquet", "path": str(tmp_path)}))
    with pytest.raises(ConfigError, match=r"eval.path = 'none.csv': .* does not exist"):
        preflight.before_start(config(model, eval={"path": "none.csv"}))


def test_a_port_in_use_is_found(tmp_path: Path) -> None:
    """The trainer's port is bound and let go, so a port that is taken is known before anything starts."""
    model = make_model_folder(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"trainer.listen = '{listen}': .*[Aa]ddress.*in use"):
            preflight.before_start(config(model, trainer={"listen": listen}))
    assert facts(preflight.before_start(config(model, trainer={"listen": listen})))["port"] == f"{listen} is free"


def test_a_host_that_is_not_here_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of no interface of this machine cannot be listened on."""
    monkeypatch.setenv("PRL_TOKEN", "secret")
    with pytest.raises(ConfigError, match=r"trainer.listen = '192.0.2.1:0'"):
        preflight.before_start(config(make_model_folder(tmp_path), trainer={"listen": "192.0.2.1:0"}))


def test_a_model_that_cannot_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the machine has is an error; more than is free now is a note."""
    run = config(make_model_folder(tmp_path))
    monkeypatch.setattr(memory, "machine_memory", lambda: (2 * memory.GIB, memory.GIB))
    with pytest.raises(ConfigError, match=r"memory: this needs about 2\.\d GiB .* the machine has 2.0 GiB"):
        preflight.before_start(run)
    monkeypatch.setattr(memory, "machine_memory", lambda: (64 * memory.GIB, memory.GIB))
    assert notes(preflight.before_start(run)) == [
        "about 2.3 GiB in all (engine 0.0 GiB, trainer rank 0.0 GiB) of 1.0 GiB available"
    ]


def test_gpus_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few are an error where CUDA is asked for and a note where it is not; too small ones always."""
    model = make_model_folder(tmp_path)
    monkeypatch.setattr(memory, "gpu_memory", lambda: [80 * memory.GIB] * 2)
    enough = config(model, trainer={"device": "cuda"})
    assert facts(preflight.before_start(enough))["memory"].startswith("2 GPUs wanted, 2 found")
    with pytest.raises(ConfigError, match=r"= 2 x 1 \+ 1 = 3 GPUs, and 2 are visible"):
        preflight.before_start(config(model, engine={"count": 2}, trainer={"device": "cuda"}))
    assert notes(preflight.before_start(config(model, engine={"count": 2})))[0].startswith("3 GPUs wanted, 2 found")
    monkeypatch.setattr(memory, "gpu_memory", lambda: [1 << 10] * 2)
    with pytest.raises(ConfigError, match="memory: an engine needs at least"):
        preflight.before_start(enough)
    monkeypatch.setattr(memory, "gpu_memory", lambda: [1 << 20] * 2)
    with pytest.raises(ConfigError, match="memory: a trainer rank needs about"):
        preflight.before_start(enough)


def test_an_engine_that_is_not_installed_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` falls back and says so; asking for vLLM by name does not."""
    monkeypatch.setattr(machinery, "installed", lambda package: package != "vllm")
    model = make_model_folder(tmp_path)
    with pytest.raises(MissingExtraError, match=r"prl-train\[vllm\]"):
        preflight.before_start(config(model, engine={"kind": "vllm"}))
    assert "transformers" in facts(preflight.before_start(config(model, engine={"kind": "auto"})))["engine"]


def test_what_may_surprise_is_a_note(tmp_path: Path) -> None:
    """Engine places that the lag bound leaves empty; a warm-up that outlasts the run."""
    run = config(
        make_model_folder(tmp_path),
        pipeline={"max_lag": 0, "groups_per_step": 2, "group_size": 2},
        trainer={"warmup_steps": 20},
        run={"num_steps": 10},
    )
    empty, warmup = notes(preflight.before_start(run))
    assert "max_lag = 0 admits 4" in empty
    assert "warmup_steps = 20 is not over at step 10" in warmup


def test_check_reads_tokenizer_data_and_rewards(tmp_path: Path) -> None:
    """Rows are counted; those that are too long are noted and not fatal, and so are missing held-out prompts."""
    rows = ['{"prompt": "1 + 1 = ?", "answer": "2"}'] * 20 + [f'{{"prompt": "{"9" * 600}", "answer": "2"}}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    run = config(
        "builtin:tiny-math",
        data={"source": "jsonl", "path": str(tmp_path / "rows.jsonl"), "shuffle": False},
        eval={"num_samples": 8},
        rewards=[{"name": "answer"}, {"name": "format", "weight": 0.5, "options": {"pattern": "x"}}],
    )
    findings = preflight.check(run)
    found = facts(findings)
    assert found["rewards"] == "answer x 1, format x 0.5"
    assert "a chat template" in found["tokenizer"]
    assert found["data"].endswith("rows.jsonl: 17 prompts an epoch")
    assert any("1 prompts are too long" in note for note in notes(findings))
    assert any("3 prompts, fewer than eval.num_samples = 8" in note for note in notes(findings))


def test_check_says_how_many_lengths_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is too long behind them is left out when it comes up; nobody is told that all were looked at."""
    monkeypatch.setattr(source, "MEASURED_AT_OPEN", 5)
    rows = ['{"prompt": "1 + 1 = ?", "answer": "2"}'] * 8 + [f'{{"prompt": "{"9" * 600}", "answer": "2"}}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    data = {"source": "jsonl", "path": str(tmp_path / "rows.jsonl"), "shuffle": False}
    run = config("builtin:tiny-math", data=data, eval={"num_samples": 0}, rewards=[{"name": "answer"}])
    (found,) = [finding.text for finding in preflight.check(run) if "lengths" in finding.text]
    assert "the lengths of the first 5 are known" in found
    opened = open_source(run, Tokenizer.load(resolve_model(run.model)))
    assert opened.statistics().num_too_long == 0
    for _ in range(9):
        opened.next()
    assert (opened.passed_over(), opened.statistics().num_too_long) == ([(8, "too_long")], 1)


def test_check_finds_a_malformed_row(tmp_path: Path) -> None:
    """File and line, as when the run would open it."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1", "answer": "2"}\n{"prompt": 3}\n')
    run = config("builtin:tiny-math", data={"source": "jsonl", "path": str(tmp_path / "rows.jsonl")})
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2"):
        preflight.check(run)


def test_check_names_the_nearest_reward() -> None:
    """A reward that does not exist is found before the tokenizer is even loaded."""
    with pytest.raises(ConfigError, match="did you mean 'answer'"):
        preflight.check(config("builtin:tiny-math", rewards=[{"name": "anwser"}]))

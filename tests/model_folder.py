"""A Hugging Face model folder of a few kilobytes, written without torch: headers and numbers, no sense."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

SHAPES = {
    "model.embed_tokens.weight": [64, 16],
    "model.layers.0.self_attn.q_proj.weight": [16, 16],
    "model.norm.weight": [16],
}
NUM_PARAMETERS = 64 * 16 + 16 * 16 + 16
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}


def make_model_folder(folder: Path, **changes: Any) -> Path:
    """Write ``config.json`` (with ``changes``) and ``model.safetensors``, float32."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in SHAPES.items():
        begin = end
        size = 4
        for length in shape:
            size *= length
        end = begin + size
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(end))
    return folder

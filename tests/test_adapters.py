"""LoRA adapters are judged from their files, before any weights are loaded."""

import json
import struct

import pytest

from negolab.errors import NegolabError
from negolab.policies.adapters import load_adapter
from test_memory import QWEN3_30B, SMALL


def write_adapter(folder, shapes, **config):
    """An adapter as peft writes it; ``shapes``: of A and B by module."""
    folder.mkdir(exist_ok=True)
    given = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(given))
    header, at = {}, 0
    for module, (a, b) in shapes.items():
        for name, shape in (("lora_A", a), ("lora_B", b)):
            end = at + 4 * shape[0] * shape[1]
            header[f"base_model.model.{module}.{name}.weight"] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": [at, end],
            }
            at = end
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return folder


Q_PROJ = {"model.layers.3.self_attn.q_proj": ([8, 64], [64, 8])}


def test_what_an_adapter_changes_is_read_from_its_weights(tmp_path):
    folder = write_adapter(tmp_path / "a", Q_PROJ, base_model_name_or_path="owner/base")
    found = load_adapter(str(folder), SMALL, "m")
    assert (found.rank, found.base, found.targets) == (8, "owner/base", ("q_proj",))
    assert not found.on_experts and not found.problems


@pytest.mark.parametrize(
    ("shapes", "config"),
    [
        ({"model.layers.0.mlp.experts.3.up_proj": ([8, 2048], [768, 8])}, {}),
        ({"model.layers.0.mlp.experts": ([8, 2048], [768, 8])}, {}),
        ({"model.layers.0.mlp.gate": ([8, 2048], [128, 8])}, {}),
        (
            {"model.layers.0.self_attn.q_proj": ([8, 2048], [4096, 8])},
            {"target_parameters": ["mlp.experts.down_proj"]},
        ),
    ],
)
def test_adapters_on_experts_are_recognised(tmp_path, shapes, config):
    assert load_adapter(str(write_adapter(tmp_path / "a", shapes, **config)), QWEN3_30B, "m").on_experts


def test_attention_of_a_model_with_experts_is_no_expert(tmp_path):
    shapes = {"model.layers.0.self_attn.q_proj": ([8, 2048], [4096, 8])}
    assert not load_adapter(str(write_adapter(tmp_path / "a", shapes)), QWEN3_30B, "m").on_experts


def test_what_plain_lora_has_no_place_for(tmp_path):
    given = {"use_dora": True, "bias": "all", "modules_to_save": ["lm_head"]}
    found = load_adapter(str(write_adapter(tmp_path / "a", Q_PROJ, **given)), SMALL, "m")
    assert found.problems == ("DoRA", "bias all", "whole modules (lm_head)")


@pytest.mark.parametrize(
    ("shapes", "config", "says"),
    [
        (
            {"model.layers.0.self_attn.q_proj": ([8, 96], [64, 8])},
            {},
            "trained on a model of width 96, but m is 64 wide",
        ),
        ({"model.layers.4.self_attn.q_proj": ([8, 64], [64, 8])}, {}, "changes layer 4, but m has 4 layers"),
        ({}, {}, "holds no LoRA weights"),
        (Q_PROJ, {"peft_type": "IA3"}, "is of type IA3"),
        (Q_PROJ, {"r": 0}, "rank 0; allowed: LORA, rank from 1"),
    ],
)
def test_adapters_that_do_not_fit(tmp_path, shapes, config, says):
    with pytest.raises(NegolabError, match=says):
        load_adapter(str(write_adapter(tmp_path / "a", shapes, **config)), SMALL, "m")


def test_folders_that_hold_no_adapter(tmp_path):
    with pytest.raises(NegolabError, match="no folder, and no name on the hub"):
        load_adapter(str(tmp_path / "nowhere"), SMALL, "m")
    with pytest.raises(NegolabError, match=r"has no adapter_config\.json; give a folder that peft wrote"):
        load_adapter(str(tmp_path), SMALL, "m")
    folder = write_adapter(tmp_path / "a", Q_PROJ)
    whole = (folder / "adapter_model.safetensors").read_bytes()
    for broken, says in [
        (whole[:-1], "is damaged: it is cut off"),
        (whole[:40], "is damaged"),
        (b"", "is damaged"),
        (struct.pack("<Q", 1 << 60), "its header is too long"),
    ]:
        (folder / "adapter_model.safetensors").write_bytes(broken)
        with pytest.raises(NegolabError, match=says):
            load_adapter(str(folder), SMALL, "m")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(NegolabError, match="has no weights"):
        load_adapter(str(folder), SMALL, "m")
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(NegolabError, match=r"its adapter_config.json cannot be read"):
        load_adapter(str(folder), SMALL, "m")

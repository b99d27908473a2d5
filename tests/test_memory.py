"""Memory estimates against published sizes, the real models' parameters, and files."""

import json

import pytest

from negolab.errors import NegolabError
from negolab.policies.memory import GIB, estimate, number_format, shape_of, stored_bytes

# As published with the weights of Qwen3-30B-A3B-Instruct-2507.
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000}
SMALL |= {"intermediate_size": 160, "num_key_value_heads": 2, "max_position_embeddings": 2048}


def test_qwen3_30b_a3b_as_published():
    shape = shape_of(QWEN3_30B)
    assert round(shape.parameters / 1e9, 1) == 30.5
    assert 3.3 <= shape.active / 1e9 < 3.4
    found = estimate(QWEN3_30B, length=8192, batch=64)
    assert found.kv_token == 98_304
    assert found.kv_conversation == 98_304 * 8192 == 0.75 * GIB
    assert found.weights == 2 * shape.parameters
    assert found.dtype == "bfloat16"


def test_on_one_large_gpu_it_fits_and_on_a_small_one_it_says_what_would_help():
    told = estimate(QWEN3_30B, length=16_384, batch=256).sentences(139 * GIB, 0.9)
    assert "weights 56.9 GiB (30.5 billion parameters, bfloat16)" in told[0]
    assert "98,304 bytes a token" in told[0]
    assert "it fits, with 43 conversations at once (batch is 256; what does not fit waits)" in told[1]
    with pytest.raises(NegolabError, match=r"does not fit: .* but 0.9 of 48.0 GiB may be used; give tensor_parallel 2"):
        estimate(QWEN3_30B, length=16_384).sentences(48 * GIB, 0.9)
    with pytest.raises(NegolabError, match="give a smaller max_model_len"):  # 24 GiB of keys and values, on any number
        estimate(QWEN3_30B | {"num_key_value_heads": 1}, length=10_000_000).sentences(24 * GIB, 0.9)


def test_tensor_parallel_shares_weights_and_heads_and_repeats_a_head_rather_than_halve_it():
    whole, half, many = (estimate(QWEN3_30B, length=100, tensor_parallel=n) for n in (1, 2, 8))
    assert half.weights == -(-whole.weights // 2)
    assert (half.kv_token, many.kv_token) == (98_304 // 2, 98_304 // 4)


def test_layers_with_a_window_stop_growing():
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    shape = shape_of(SMALL | {"layer_types": kinds, "sliding_window": 100})
    of_one_layer = 2 * 2 * 8 * 2  # key and value, two heads of eight numbers, two bytes
    assert shape.kv_bytes(1000, 2) == of_one_layer * (1000 + 3 * 100)
    assert shape.kv_bytes(50, 2) == of_one_layer * 4 * 50
    linear = shape_of(SMALL | {"layer_types": ["linear_attention"] * 3 + ["full_attention"]})
    assert linear.kv_bytes(1000, 2) == of_one_layer * 1000
    assert shape_of(SMALL | {"sliding_window": 100, "use_sliding_window": False}).full_layers == 4


def test_latent_attention_stores_one_vector_whatever_the_number_of_gpus():
    deepseek = SMALL | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    shape = shape_of(deepseek)
    assert shape.kv_bytes(1, 2) == shape.kv_bytes(1, 2, tensor_parallel=8) == 4 * (512 + 64) * 2


def test_the_language_model_inside_a_model_that_sees():
    assert shape_of({"text_config": SMALL, "vision_config": {"hidden_size": 8}}) == shape_of(SMALL)


def test_number_formats():
    assert number_format(QWEN3_30B, "auto") == "bfloat16"
    assert number_format({"dtype": "float32"}, "auto") == "bfloat16"  # as vLLM does
    assert number_format({"dtype": "float16"}, "auto") == "float16"
    assert number_format(QWEN3_30B, "float32") == "float32"


def test_weights_on_disk_are_taken_as_they_are(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1_000_000}}))
    assert stored_bytes(tmp_path) == 1_000_000
    assert stored_bytes(tmp_path / "nowhere") == 0
    quantised = SMALL | {"quantization_config": {"quant_method": "awq"}, "torch_dtype": "float16"}
    assert estimate(quantised, weights_on_disk=1_000_000).weights == 1_000_000
    assert estimate(SMALL | {"dtype": "bfloat16"}, dtype="float32", weights_on_disk=1_000_000).weights == 2_000_000


def test_a_configuration_that_says_too_little():
    with pytest.raises(NegolabError, match="gives no num_hidden_layers"):
        shape_of({"hidden_size": 8})
    with pytest.raises(NegolabError, match="gives no vocab_size"):
        shape_of(SMALL | {"vocab_size": "many"})


FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"head_dim": 16},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"head_dim": 16, "num_experts": 6, "moe_intermediate_size": 32, "mlp_only_layers": [1]},
    "mixtral": {"num_local_experts": 4},
    "deepseek_v3": {
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 8,
    },
    "gemma3_text": {"head_dim": 16},
    "glm4": {"head_dim": 16, "pad_token_id": 0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_model_itself(family):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model(family, **(SMALL | FAMILIES[family]))
    with torch.device("meta"):
        real = sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
    assert shape_of(config.to_dict()).parameters == pytest.approx(real, rel=0.002)  # some families have more norms


def test_smollm2_is_as_large_as_its_file():
    config = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    config |= {"num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True, "dtype": "float32"}
    assert estimate(config, dtype="float32").weights == 538_060_032

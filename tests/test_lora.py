"""LoRA on a mixture of experts as transformers 5 holds it: what is trained is what was asked for, and nothing else."""

import json

import pytest

from negolab.errors import NegolabError
from negolab.policies.adapters import VERSIONS, check_versions, load_adapter
from negolab.trainer.lora import (
    ATTENTION,
    LoraSettings,
    attach,
    planned,
    save,
    serving_problem,
)
from test_adapters import write_adapter
from test_memory import QWEN3_30B, SMALL

TINY_MOE = {
    "model_type": "qwen3_moe",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
}


@pytest.fixture
def moe():
    """A random mixture of experts of 2 layers and 4 experts."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen3MoeConfig.from_dict(TINY_MOE))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rank": 0}, "lora.rank is 0; allowed: a whole number from 1"),
        ({"rank": True}, "lora.rank is True"),
        ({"alpha": 1.5}, "lora.alpha is 1.5"),
        ({"targets": "all-linear"}, "lora.targets is 'all-linear'; allowed: a list of names"),
        ({"targets": ["all-linear"]}, "the router as well"),
        ({"targets": ["q_proj", "gate"]}, "names gate, the router of experts, which is never trained"),
        ({"targets": ["q_proj", "q_proj"]}, "names one twice"),
        ({"targets": []}, "nothing would be trained"),
        ({"experts": "yes"}, "lora.experts is 'yes'; allowed: true or false"),
        ({"experts": True, "dropout": 0.1}, "with lora.experts it must be 0"),
        ({"dropout": 1}, "lora.dropout is 1; allowed"),
        ({"r": 8}, "lora has no setting 'r'; allowed: rank, alpha"),
    ],
)
def test_settings_that_cannot_work(given, says):
    with pytest.raises(NegolabError, match=says):
        LoraSettings.from_mapping(given)


def test_the_30b_model_by_hand():
    """32 times the sides of 48 layers' four projections: 2048 in, 4096 for queries, 512 for keys and for values."""
    found = planned(QWEN3_30B, LoraSettings())
    each = 32 * ((2048 + 4096) * 2 + (2048 + 512) * 2)
    assert found.parameters == 48 * each == 26_738_688
    assert [group.places for group in found.groups] == [48] * 4
    assert found.lines()[0].startswith("Trained: 26,738,688 parameters by LoRA, 0.088% of the model's 30,532,")
    with_experts = planned(QWEN3_30B, LoraSettings(experts=True))
    experts = 48 * 128 * 32 * ((2048 + 1536) + (768 + 2048))
    assert with_experts.parameters == found.parameters + experts
    assert [group.name for group in with_experts.groups[4:]] == ["experts.gate_up_proj", "experts.down_proj"]


def test_a_target_that_the_configuration_does_not_have():
    with pytest.raises(NegolabError, match=r"names gate_proj, which the model does not have; .*: set lora.experts"):
        planned(QWEN3_30B, LoraSettings(targets=("q_proj", "gate_proj")))
    assert planned(SMALL, LoraSettings(targets=("gate_proj",), rank=2)).parameters == 4 * 2 * (64 + 160)
    with pytest.raises(NegolabError, match="the model has no experts"):
        planned(SMALL, LoraSettings(experts=True))


@pytest.mark.parametrize(
    "lora", [LoraSettings(rank=4), LoraSettings(rank=4, experts=True), LoraSettings(targets=["o_proj"])]
)
def test_what_is_attached_is_what_was_planned(moe, lora):
    made, found = attach(moe, lora)
    assert found == planned(TINY_MOE, lora)
    assert found.parameters == sum(p.numel() for p in made.parameters() if p.requires_grad)
    assert not any(".gate." in name for name, p in made.named_parameters() if p.requires_grad)  # the router


def test_a_target_that_matches_nothing_in_the_model(moe):
    with pytest.raises(NegolabError, match=r"names up_proj, which the model does not have; it has .*set lora.experts"):
        attach(moe, LoraSettings(targets=("q_proj", "up_proj")))
    assert not any("lora" in name for name, _ in moe.named_parameters())


def test_experts_are_wanted_of_a_model_without_any():
    pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, Qwen3Config

    dense = {k: v for k, v in TINY_MOE.items() if "expert" not in k and not k.startswith("mo")}
    with pytest.raises(NegolabError, match=r"no parameters mlp.experts.gate_up_proj, mlp.experts.down_proj \(trans"):
        attach(AutoModelForCausalLM.from_config(Qwen3Config(**dense)), LoraSettings(experts=True))


def test_something_else_that_would_be_trained(moe):
    from negolab.trainer.lora import trained_of

    made, found = attach(moe, LoraSettings(rank=2))
    router = next(p for name, p in made.named_parameters() if name.endswith("mlp.gate.weight"))
    router.requires_grad_(True)
    with pytest.raises(NegolabError, match=r"mlp.gate.weight would be trained, but lora names only q_proj"):
        trained_of(made, LoraSettings(rank=2), found.all_parameters)


@pytest.mark.parametrize("experts", [False, True])
def test_one_step_changes_the_adapter_and_nothing_else(moe, experts):
    import torch

    made, _ = attach(moe, LoraSettings(rank=4, experts=experts))
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    ids = torch.randint(0, 64, (2, 12))
    first = made(input_ids=ids).logits
    with made.disable_adapter():
        assert torch.equal(first, made(input_ids=ids).logits)  # B is zero
    optimiser = torch.optim.AdamW([p for p in made.parameters() if p.requires_grad], lr=0.01, weight_decay=0.0)
    made(input_ids=ids, labels=ids).loss.backward()
    optimiser.step()
    changed = {name for name, p in made.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if ".lora_B." in name}
    with made.disable_adapter():
        assert torch.equal(first, made(input_ids=ids).logits)
    assert not torch.allclose(first, made(input_ids=ids).logits)


def test_the_first_values_are_the_seed_s(moe):
    import torch
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    models = [AutoModelForCausalLM.from_config(Qwen3MoeConfig.from_dict(TINY_MOE)) for _ in range(3)]
    state = torch.get_rng_state()
    made = [attach(model, LoraSettings(rank=2), seed) for model, seed in zip(models, (1, 1, 2), strict=True)]
    assert torch.equal(state, torch.get_rng_state())
    a = [next(p for name, p in model.named_parameters() if ".lora_A." in name) for model, _ in made]
    assert torch.equal(a[0], a[1]) and not torch.equal(a[0], a[2])


def test_what_is_stored_can_be_judged_again(moe, tmp_path):
    import peft
    import torch
    import transformers

    made, _ = attach(moe, LoraSettings(rank=4))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if ".lora_B." in name:
                parameter.normal_()
    folder = save(made, tmp_path / "adapter")
    found = load_adapter(str(folder), TINY_MOE, "tiny")
    assert (found.rank, found.targets, found.on_experts) == (4, tuple(sorted(ATTENTION)), False)
    wrote = json.loads((folder / VERSIONS).read_text())
    assert wrote == {"transformers": transformers.__version__, "peft": peft.__version__}
    check_versions(folder)
    ids = torch.randint(0, 64, (1, 8))
    expected = made(input_ids=ids).logits
    base = made.unload()
    again = peft.PeftModel.from_pretrained(base, folder)
    assert torch.allclose(again(input_ids=ids).logits, expected, atol=1e-6)
    save(again, folder)  # over the last one
    assert not list(tmp_path.glob("*.tmp"))


def test_an_adapter_of_another_generation_is_refused(tmp_path):
    pytest.importorskip("transformers")
    check_versions(tmp_path)  # says nothing of itself
    (tmp_path / VERSIONS).write_text('{"transformers": "4.57.1", "peft": "0.17.0"}')
    with pytest.raises(NegolabError, match=r"trained with transformers 4.57.1; this is 5\."):
        check_versions(tmp_path)
    shapes = {"model.layers.0.self_attn.q_proj": ([8, 64], [64, 8])}
    with pytest.raises(NegolabError, match=r"trained with transformers 4.57.1; this is 5\."):
        load_adapter(str(write_adapter(tmp_path, shapes)), SMALL, "small")
    (tmp_path / VERSIONS).write_text("{")
    with pytest.raises(NegolabError, match="cannot be read"):
        check_versions(tmp_path)


def test_experts_are_refused_where_the_engine_would_leave_them_out(moe, tmp_path):
    lora = LoraSettings(rank=4, experts=True)
    assert "lora.experts is on, which vLLM (here: " in serving_problem(lora, "vllm")
    assert serving_problem(lora, "transformers") == ""
    assert serving_problem(LoraSettings(), "vllm") == ""
    assert "lm_head" in serving_problem(LoraSettings(targets=("lm_head",)), "vllm")
    made, _ = attach(moe, lora)
    assert load_adapter(str(save(made, tmp_path / "a")), TINY_MOE, "tiny").on_experts


@pytest.fixture
def alone_together(tmp_path):
    """A group of one process, on the CPU."""
    torch = pytest.importorskip("torch")
    if torch.distributed.is_initialized():
        pytest.skip("there is a process group already")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_an_adapter_that_fsdp_spreads_is_gathered_whole(moe, tmp_path, alone_together):
    """Frozen weights in 16 bits, the adapter in 32, as on GPUs; what is written is what was there before."""
    import torch
    from safetensors.torch import load_file
    from torch.distributed import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from negolab.trainer.lora import adapter_state, is_sharded
    from negolab.trainer.probe import _changed

    made, _ = attach(moe.to(torch.bfloat16), LoraSettings(rank=4))
    before = adapter_state(made)
    assert {p.dtype for name, p in before.items()} == {torch.float32} and len(before) == 2 * 4 * 2
    save(made, tmp_path / "whole")
    mesh = init_device_mesh("cpu", (1,))
    for layer in made.get_base_model().model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    assert all(is_sharded(p) for p in made.parameters())
    save(made, tmp_path / "spread")
    whole, spread = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "spread"))
    assert whole.keys() == spread.keys() and all(torch.equal(whole[name], spread[name]) for name in whole)
    with _changed(made, 0.5):
        moved = adapter_state(made)
        assert all(torch.equal(moved[n], before[n] + 0.5 * (".lora_B." in n)) for n in before)
    assert all(torch.equal(value, before[name]) for name, value in adapter_state(made).items())
    assert save(made, tmp_path / "other", write=False) and not (tmp_path / "other").exists()
    made(input_ids=torch.arange(8)[None]).logits[..., 3].sum().backward()
    assert next(p for n, p in made.named_parameters() if ".lora_B." in n).grad.full_tensor().abs().sum() > 0

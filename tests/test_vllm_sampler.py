"""The learner's replies from vLLM (built for CPUs): they follow the trainer; a sampler that does not is found out."""

import csv
import math
import os

import pytest

from negolab.errors import NegolabError
from negolab.policies import vllm_runtime
from negolab.policies.hf_model import LEARNER
from negolab.policies.model import LanguageModel
from negolab.trainer.lora import LoraSettings
from negolab.trainer.probe import Probe, prove, trainer_logprobs
from negolab.trainer.settings import TrainSettings
from negolab.trainer.vllm_sampler import VllmSampler, learner_spec, sharing
from tiny_models import save_model

OPTIONS = {"max_model_len": 3072}
TOKENS = list(range(20, 60))


def settings_for(model, **changes):
    given = {"model": str(model), "sampler": "vllm", "sampler_batch": 8, "sampler_options": OPTIONS, "dtype": "float32"}
    return TrainSettings(**{**given, "lora": LoraSettings(rank=4), "max_tokens": 8, **changes})


# -- without vLLM ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"top_p": 0.9}, "top_p is 0.9; with sampler vllm it must be 1"),
        ({"sampler_options": {"temperature": 0.5}}, "sampler_options names temperature; that is a setting of its own"),
        ({"sampler_options": {"max_len": 5}}, "unknown option 'max_len'"),
    ],
)
def test_settings_that_vllm_cannot_sample_with(changes, says):
    with pytest.raises(NegolabError, match=says):
        learner_spec(settings_for("owner/model", **changes))


def test_who_shares_the_learner_s_engine():
    adapter = LoraSettings()

    def shared(model="vllm:owner/model", lora=adapter, **options):
        settings = settings_for("owner/model", lora=lora, buyers={"*": {"model": model, **options}})
        return sharing(settings, settings.opponents()["*"])

    found = shared(temperature=0.7, max_tokens=99, adapter="some/adapter", thinking=False)
    assert (found.temperature, found.max_tokens, found.adapter, found.thinking) == (0.7, 99, "some/adapter", False)
    assert (found.max_model_len, found.batch, found.dtype) == (3072, 8, "float32")  # the learner's
    assert shared(max_model_len=3072, batch=8) is not None
    assert shared(model="vllm:owner/another") is None and shared(model="openai:owner/model") is None
    assert shared(max_model_len=512) is None  # asked for otherwise
    assert shared(lora=None) is None  # the model before training is not there any more


def test_the_probe_s_alarms():
    probe = Probe([1, 2, 3], "float32")
    with pytest.raises(NegolabError, match="step 0: a log-probability of the probe is not finite"):
        probe.check(0, [0.0, math.nan], [0.0, 0.0])
    assert probe.check(0, [-1.0, -2.0], [-1.0, -2.0004]).mean == pytest.approx(2e-4)
    found = probe.check(1, [-1.5, -2.0], [-1.5, -2.0])
    assert (found.moved_sampler, round(found.moved_trainer, 4)) == (0.25, 0.2502)
    with pytest.raises(NegolabError, match=r"step 2: the trainer's .* moved by 0.25 on average, the sampler's not at"):
        probe.check(2, [-1.0, -2.0], [-1.5, -2.0004])
    with pytest.raises(NegolabError, match=r"step 3: sampler and trainer are not the same model: .* differ by 0.05, 0"):
        probe.check(3, [-1.0, -2.1], [-1.0, -2.0])
    assert Probe([1, 2], "bfloat16").check(0, [-1.0], [-1.08]).worst == pytest.approx(0.08)


# -- with vLLM, built for CPUs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    for package in ("vllm", "peft"):
        if vllm_runtime.importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    made = tmp_path_factory.mktemp("model")
    # vLLM has no attention kernel for heads of 8 on a CPU.
    return save_model(made, "qwen3", "chatml", head_dim=32, initializer_range=0.2)


def loaded(folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def moved(model, by=0.1, only=""):
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and only in name:
                parameter.add_(by * torch.randn_like(parameter))


@pytest.fixture(scope="module")
def adapted(folder, tmp_path_factory):
    """A sampler whose learner has an adapter, its model, and the folder of the handovers."""
    import torch

    from negolab.trainer.lora import attach

    torch.manual_seed(3)
    model, tokenizer = loaded(folder)
    settings = settings_for(folder, buyers={"*": {"model": f"vllm:{folder}", "temperature": 0.7}})
    model, _ = attach(model, settings.lora)
    place = tmp_path_factory.mktemp("handover")
    sampler = VllmSampler(model, tokenizer, settings, place)
    yield sampler, model, place
    sampler.close()
    assert not place.exists()


@pytest.mark.vllm
def test_the_sampler_follows_the_adapter(adapted):
    import torch

    sampler, model, place = adapted
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    sampler.sync(0)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    frozen = sampler.engine.score(TOKENS)
    assert sampler.engine.score(TOKENS, LEARNER) == pytest.approx(frozen, abs=1e-5)  # B is zero
    for step in (1, 2, 3):
        moved(model, only="lora_B")
        sampler.sync(step)
        theirs = sampler.engine.score(TOKENS, LEARNER)
        assert theirs == pytest.approx(trainer_logprobs(model, TOKENS), abs=1e-4)
        assert max(abs(a - b) for a, b in zip(theirs, frozen, strict=True)) > 0.05
        assert sampler.engine.score(TOKENS) == pytest.approx(frozen, abs=1e-5)  # the frozen opponents' model
        assert len(sampler.engine._llm.list_loras()) == 1
        assert 0 < sampler.numbers["probe_mean"] < 1e-4
    assert all(torch.equal(p, before[name]) == ("lora_B" not in name) for name, p in model.named_parameters())
    assert not list(place.iterdir())


@pytest.mark.vllm
def test_an_adapter_that_does_not_arrive_is_found_out(adapted, monkeypatch):
    sampler, model, _ = adapted
    sampler.sync(3)
    monkeypatch.setattr(sampler.engine, "take_adapter", lambda folder, step: None)
    moved(model, only="lora_B")
    with pytest.raises(NegolabError, match="step 4: "):
        sampler.sync(4)
    with pytest.raises(NegolabError, match="weights changed on purpose moved the trainer's log-probabilities by"):
        prove(model, sampler._probe, lambda: sampler._hand_over(4), sampler._score)
    monkeypatch.undo()
    sampler.sync(4)


@pytest.mark.vllm
def test_what_was_remembered_of_prompts_is_dropped(adapted):
    """The same long prompt behind another adapter: nothing of it is in the cache, and it is scored anew."""
    from negolab.policies.engine import Prompt, Sampling
    from vllm_equal import answers

    sampler, model, _ = adapted
    sampler.sync(4)
    text = [{"role": "user", "content": "We bargain about a lamp. " * 40}]
    prompt = Prompt((0, 0), text, 1, Sampling(0, 1, 0, 2, None), LEARNER)
    first, again = answers(sampler.engine, [prompt]), answers(sampler.engine, [prompt])
    assert first[0].cached_tokens == 0 and again[0].cached_tokens > 0
    moved(model, only="lora_B")
    sampler.sync(5)
    (after,) = answers(sampler.engine, [prompt])
    assert after.cached_tokens == 0


@pytest.mark.vllm
def test_learner_and_frozen_buyers_are_one_engine(adapted):
    from negolab.trainer.preparation import make_task

    sampler, _, _ = adapted
    learner = sampler.policy(0.7)
    assert isinstance(learner, LanguageModel) and learner.engine is sampler.engine
    assert learner.spec.temperature == 0.7 and sampler.policy().spec.temperature == 1.0
    described = sampler.engine.describe()
    assert "adapters" not in described and str(sampler._folder) not in str(described)
    assert sampler.base(0.7).spec.adapter == ""
    buyers = {"*": {"model": f"vllm:{sampler._spec.model}", "max_tokens": 4}}
    task = make_task(settings_for(sampler._spec.model, groups=1, group_size=2, sub_steps=1, buyers=buyers))
    assert set(sampler.adopt(task.opponents)) == {player.name for player in task.opponents}
    assert {player.engine for player in task.opponents} == {sampler.engine}


@pytest.mark.vllm
def test_weights_do_not_change_under_a_reply(adapted):
    from negolab.policies.engine import Prompt, Sampling

    sampler, _, _ = adapted
    prompt = Prompt((1, 0), [{"role": "user", "content": "hello"}], 1, Sampling(0, 1, 0, 2, None), "")
    sampler.engine.submit([prompt], lambda *_: None)
    with pytest.raises(NegolabError, match="weights cannot change while replies are under way"):
        sampler.sync(99)
    sampler.engine.forget((1, 0))
    while sampler.engine._queue or sampler.engine._under_way:
        sampler.engine.run()


@pytest.mark.vllm
def test_the_sampler_follows_a_model_that_is_trained_whole(folder):
    model, tokenizer = loaded(folder)
    sampler = VllmSampler(model, tokenizer, settings_for(folder, lora=None))
    try:
        sampler.sync(0)
        first = sampler.engine.score(TOKENS)
        for step in (1, 2):
            moved(model, 0.02)
            sampler.sync(step)
            assert sampler.engine.score(TOKENS) == pytest.approx(trainer_logprobs(model, TOKENS), abs=1e-4)
        assert max(abs(a - b) for a, b in zip(sampler.engine.score(TOKENS), first, strict=True)) > 0.01
        with pytest.raises(ValueError, match="all weights are trained"):
            sampler.base(0.7)
        sampler.engine.take_weights = lambda folder, step: None
        moved(model, 0.02)
        with pytest.raises(NegolabError, match="step 3: "):
            sampler.sync(3)
    finally:
        sampler.close()


@pytest.mark.vllm
@pytest.mark.parametrize("adapter", [LoraSettings(rank=4, alpha=8), None])
def test_a_training_run_with_replies_from_vllm(folder, tmp_path, monkeypatch, adapter):
    """Two steps with a rate so high that a sampler left behind would be far off. The reward is one that a random model
    gets more or less of; the buyers are the model before training where it is there."""
    pytest.importorskip("trl")
    from negolab.trainer.loop import train
    from negolab.trainer.task import SellerTask

    monkeypatch.setattr(SellerTask, "reward", lambda self, episode: episode.turns[-1].text.count("e") / 10)
    settings = settings_for(
        folder,
        lora=adapter,
        steps=2,
        groups=2,
        group_size=4,
        sub_steps=2,
        learning_rate=0.05 if adapter else 0.005,
        max_tokens=24,
        eval_every=0,
        buyers={"*": {"model": f"vllm:{folder}", "max_tokens": 2}} if adapter else {},
    )
    told: list[str] = []
    train(settings, tmp_path / "run", say=told.append, progress=False)
    assert any("is played by the learner's engine" in line for line in told) == (adapter is not None)
    with (tmp_path / "run" / "metrics.csv").open() as file:
        steps = [{k: float(v) for k, v in row.items() if v != "n/a"} for row in csv.DictReader(file)]
    assert len(steps) == 2
    for row in steps:
        assert row["trained_tokens"] > 8 and row["grad_norm"] > 0
        assert row["mismatch_mean"] < 1e-4 and row["mismatch_max"] < 1e-2  # every sampled token, by both
        assert 0 < row["probe_mean"] < 1e-4
    # The second sub-step meets weights that the first one moved.
    assert steps[0]["ratio_max"] > 1.01

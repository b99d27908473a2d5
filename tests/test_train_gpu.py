"""The GPU profile as far as it can be seen without one: the paper's values, memory, files for accelerate."""

import csv
import dataclasses
import importlib.util
import json
import re
from types import SimpleNamespace

import pytest

from negolab.cli import main
from negolab.errors import NegolabError
from negolab.paths import data_dir
from negolab.policies.adapters import load_adapter
from negolab.trainer import estimate, gpu, lengths
from negolab.trainer.lora import planned
from negolab.trainer.settings import load_profile
from test_lora import TINY_MOE
from test_memory import QWEN3_30B
from tiny_models import save_model

ACCELERATE = data_dir() / "accelerate"


@pytest.fixture(scope="module")
def profile():
    return load_profile("gpu")


def test_tables_5_and_6(profile):
    """Written out by hand from section 9.2."""
    assert (profile.loss, profile.clip_low, profile.clip_high) == ("cispo", 0.8, 6.0)
    assert profile.learning_rate == 3e-5
    assert (profile.groups, profile.group_size, profile.sub_steps, profile.steps) == (64, 8, 3, 72)
    assert profile.temperature == 1.0
    (buyer,) = profile.opponents().values()
    assert buyer.temperature == 0.7
    ((regime, weight),) = profile.weighted_regimes()
    assert weight == 1.0
    assert (regime.n_buyers, regime.message_budget, regime.per_buyer_cap) == (3, 7, 3)
    tiers = [(float(low), float(high)) for low, high in regime.budget_tiers]
    assert tiers == [(0.40, 0.55), (0.65, 0.80), (1.00, 1.15)]
    assert [float(end) for end in regime.first_offer] == [0.25, 0.30]


def test_the_model_is_table_3_s(profile):
    (buyer,) = profile.opponents().values()
    assert profile.model == buyer.model == "Qwen/Qwen3-30B-A3B-Instruct-2507"
    assert (profile.sampler, buyer.engine) == ("vllm", "vllm")


# -- accelerate ------------------------------------------------------------------------------------------------------


@pytest.fixture
def launched():
    """What accelerate's own launcher makes of a file: its settings, and the environment of the processes."""
    launch = pytest.importorskip("accelerate.commands.launch")

    def made(name):
        from accelerate.commands.config.config_args import load_config_from_file

        config = load_config_from_file(str(ACCELERATE / f"{name}.yaml"))  # unknown keys are an error
        parser = launch.launch_command_parser()
        args = parser.parse_args(["--config_file", str(ACCELERATE / f"{name}.yaml"), "-m", "negolab.cli"])
        known = set(vars(args))
        for key in (*config.fsdp_config, *config.deepspeed_config):
            assert key in known, f"{name}.yaml: accelerate's launcher has no option {key}"
        args, _, _ = launch._validate_launch_command(args)
        return args

    return made


def test_accelerate_reads_one_gpu(launched):
    args = launched("one_gpu")
    assert (args.num_processes, args.use_fsdp, args.use_deepspeed, args.multi_gpu) == (1, False, False, False)


def test_accelerate_reads_fsdp(launched):
    from accelerate.utils.launch import prepare_multi_gpu_env
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoePreTrainedModel

    args = launched("fsdp")
    assert (args.num_processes, args.use_fsdp, args.use_deepspeed) == (8, True, False)
    env = prepare_multi_gpu_env(args)
    assert env["FSDP_VERSION"] == "2" and env["FSDP_RESHARD_AFTER_FORWARD"] == "true"
    assert [env["FSDP_TRANSFORMER_CLS_TO_WRAP"]] == list(Qwen3MoePreTrainedModel._no_split_modules)


def test_accelerate_reads_zero3(launched):
    from accelerate.utils.launch import prepare_deepspeed_cmd_env
    from transformers.models.qwen3_moe import modeling_qwen3_moe

    args = launched("zero3")
    assert (args.num_processes, args.use_fsdp, args.use_deepspeed) == (8, False, True)
    args.deepspeed_fields_from_accelerate_config = ""  # as launching does, from the same file
    _, env = prepare_deepspeed_cmd_env(args)
    assert env["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert hasattr(modeling_qwen3_moe, env["ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"])


# -- the dry run -----------------------------------------------------------------------------------------------------


def run_dry(capsys, *options):
    """The command's exit code and what it printed."""
    code = main(["train", "--profile", "gpu", "--set", "data=sample", "--dry-run", *options])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_the_dry_run_says_what_the_paper_s_run_needs(capsys):
    code, told = run_dry(capsys, "--gpu", "h200")
    assert code == 0
    assert "26,738,688 parameters by LoRA, 0.088% of the model's 30,532,122,624" in told
    assert "72 steps of 64 markets x 8 rollouts = 512 episodes, 36,864 in all; 3 optimiser steps each, 216" in told
    assert "Buyers are played by the learner's engine, without its adapter." in told
    assert (
        "vLLM 67.1 (weights 56.9" in told and "trainer " in told and "(weights 56.9, adapter and optimiser 0.4" in told
    )
    assert "Disk: 0.30 GiB a checkpoint, 1.2 GiB at most." in told
    assert re.search(r"72 steps take about [\d.]+ hours", told)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--gpu h100-80gb", r"vLLM may use 38.0 GiB of each GPU \(sampler_options.gpu_memory 0.48\), but needs 60.2"),
        (
            "--gpu h100-80gb --gpus 2 --set sampler_options.gpu_memory=0.9",
            "leaves vLLM .*: give micro_batch_tokens 2048, or more GPUs",
        ),
        ("--gpu h200 --set sampler_options.gpu_memory=0.6", r"more than 60.2: give sampler_options.gpu_memory 0.\d\d$"),
        ("--gpu h200 --gpus 3", "groups 64 is no multiple of the 3 GPUs"),
        ("--gpu h200 --set lora.experts=true", "lora.experts is on, which vLLM .* is not known to serve"),
        ("--gpu h200 --set lora.targets=[q_proj,up_proj]", "names up_proj, which the model does not have"),
        ("--gpu h200 --set max_tokens=15000", "with max_tokens 15,000 that exceeds max_model_len 16,384"),
        ("--gpu h200 --set sampler_options.max_model_len=300000", "max_model_len is 300,000, but .* is 262,144"),
        ("--gpu h200 --set sampler_options.tensor_parallel=2", "in training it must be 1"),
        (
            "--gpu h200 --set buyers.*.max_model_len=9000",
            r"second model .*\(max_model_len: 9000 there, 16384 for the l",
        ),
        ("--gpu h200 --set lora=null --set gradient_checkpointing=false", "trainer needs .* GiB of each GPU's 139.8"),
        (
            "--gpu h200 --set model=owner/unheard-of",
            "the shapes of owner/unheard-of are not known here: (fetch it first|pip install)",
        ),
        ("--gpu h200 --set model=/nowhere", "/nowhere: no such folder or file"),
        ("--set sampler_options.warmth=1", "unknown option 'warmth'"),
        ("--set task=buyer --set task_options.turns=none", "whole number from 1"),
        ("--set task=buyer --set task_options.seller=nobody", "unknown seller 'nobody'"),
        ("--gpu v100", "no GPU 'v100' is known; allowed: a100-40gb"),
    ],
)
def test_what_would_stop_a_run_is_told_by_the_dry_run(capsys, options, says):
    code, told = run_dry(capsys, *options.split())
    assert code == 2 and told.count("\n") == 1 and re.search(says, told), told


def test_more_gpus_leave_more_room_and_take_less_time(profile):
    config, long = estimate.config_of(profile.model), lengths.Lengths(5, 2700, 6700, 7, 3400)
    one, four = (estimate.trainer_memory(profile, config, n, long.longest) for n in (1, 4))
    assert one.weights == 4 * four.weights == 2 * 30_532_122_624
    assert one.trained == 16 * 26_738_688 and (one.gathered, four.gathered > 0) == (0, True)
    assert one.logits == 6700 * 151_936 * 8
    a, b = (estimate.step_time(profile, config, gpu.box("h200", n), long, 60, n) for n in (1, 4))
    assert a.training == pytest.approx(4 * b.training) and a.writing == pytest.approx(4 * b.writing)
    # 512 episodes of 2,700 tokens; 8 operations for each of 3.35 billion active parameters, at 12 % of 989 TFLOP/s.
    assert a.training == pytest.approx(512 * 2700 * 8 * 3.35e9 / (0.12 * 989e12), rel=0.01)


def test_lengths_are_those_of_the_markets(profile):
    found = lengths.lengths_of(dataclasses.replace(profile, data="sample"))
    assert 1 <= found.learner_turns <= 7 and 3 <= found.opponent_turns <= 10
    assert found.learner_turns * lengths.LEARNER_REPLY < found.learner_conversation < found.longest
    scripted = lengths.lengths_of(dataclasses.replace(profile, data="sample", buyers={}))
    assert (scripted.opponent_turns, scripted.opponent_conversations) == (0, 0)
    assert scripted.learner_turns == found.learner_turns


def test_a_buyer_s_lengths_are_those_of_its_game_and_its_seller_counts_where_it_is_a_model():
    profile = load_profile("gpu_buyer", ["data=sample"])
    found = lengths.lengths_of(profile)
    turns = profile.task_options["turns"]
    # Who answers speaks as often as who asks, or once less: the buyer opens and may end the game.
    assert 1 < found.learner_turns <= turns and found.learner_turns - 1 <= found.opponent_turns <= found.learner_turns
    assert found.opponent_turns * lengths.OPPONENT_REPLY < found.opponent_conversations
    assert found.learner_turns * lengths.LEARNER_REPLY < found.learner_conversation < found.longest
    scripted = lengths.lengths_of(profile.changed({"task_options": {**profile.task_options, "seller": "persona"}}))
    assert (scripted.opponent_turns, scripted.opponent_conversations) == (0, 0)
    assert scripted.learner_conversation == found.learner_conversation
    shorter = lengths.lengths_of(profile.changed({"task_options": {**profile.task_options, "turns": 2}}))
    assert shorter.learner_turns <= 2 and shorter.learner_conversation < found.learner_conversation


def test_the_dry_run_of_the_buyer_says_what_it_needs(capsys):
    assert main(["train", "--profile", "gpu_buyer", "--set", "data=sample", "--dry-run", "--gpu", "h200"]) == 0
    told = capsys.readouterr().out
    assert "The seller is played by the learner's engine, without its adapter." in told
    assert "trainer " in told and "(weights 56.9, adapter and optimiser 0.4" in told and "vLLM 67.1" in told
    assert re.search(r"70 steps take about [\d.]+ hours", told) and "Disk: 0.30 GiB a checkpoint" in told
    second = ["--set", "task_options.seller.max_model_len=9000"]
    code = main(["train", "--profile", "gpu_buyer", "--set", "data=sample", "--dry-run", "--gpu", "h200", *second])
    assert code == 2
    assert "task_options, seller: vLLM would load a second model beside the learner's" in capsys.readouterr().err


def test_evaluations_of_the_buyer_count_its_personas(capsys):
    changes = ("data=sample", "eval_products=3", "eval_per_product=2", "task_options.eval_personas=[neutral, begging]")
    given = [part for change in changes for part in ("--set", change)]
    assert main(["train", "--profile", "gpu_buyer", *given, "--dry-run", "--gpu", "h200"]) == 0
    assert "Evaluations: 8 of 12 episodes, every 10 steps." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["smoke", "laptop", "laptop_buyer"])
def test_without_a_gpu_no_gpu_is_assumed_for_what_needs_none(capsys, monkeypatch, name):
    monkeypatch.setattr(gpu, "box_here", lambda: gpu.box("h200", 1)._replace(assumed=True, absent=True))
    args = ["train", "--profile", name, "--set", "data=sample", "--dry-run"]
    assert main(args) == 0
    told = capsys.readouterr().out
    assert told.startswith("No GPU here: memory and time on a processor are not estimated")
    assert "Trained: all 1," in told and "Disk: " in told
    assert not re.search("h200|TFLOP|seconds: |hours|GiB of each|Memory of", told)
    for more in (["--gpu", "h200"], ["--gpus", "1"]):  # who asks for one is told
        assert main([*args, *more]) == 0
        told = capsys.readouterr().out
        assert "1 x h200" in told and "Memory of each GPU" in told and "hours" in told


def test_one_step_is_one_step(capsys, monkeypatch):
    assert (
        main(["train", "--profile", "smoke", "--set", "steps=1", "--set", "sub_steps=1", "--gpu", "h200", "--dry-run"])
        == 0
    )
    told = capsys.readouterr().out
    assert "1 step of 4 markets" in told and "1 optimiser step each" in told and "1 step takes about" in told
    assert not re.search(r"\b1 (steps|optimiser steps|markets|episodes)\b", told)


def test_the_driver_s_list_of_gpus(monkeypatch):
    def says(text, code=0):
        done = SimpleNamespace(stdout=text, returncode=code)
        monkeypatch.setattr(gpu.subprocess, "run", lambda *args, **options: done)
        return gpu.box_here()

    found = says("NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\n")
    assert (found.gpus, found.memory, found.flops, found.assumed) == (2, 81559 << 20, 989e12, False)
    assert says("NVIDIA H200, 143771\n").bandwidth == 4.8e12
    assert says("Some Card, 24576\n").assumed and says("Some Card, 24576\n").memory == 24 << 30
    assert says("", code=9) == says("no devices were found\n") == gpu.box("h200", 1)._replace(assumed=True, absent=True)


def test_the_facts_about_the_model_are_those_that_were_published(profile):
    facts = estimate.FACTS[profile.model]
    assert facts == {name: QWEN3_30B[name] for name in facts}


# -- the model's kind, in small --------------------------------------------------------------------------------------


@pytest.mark.parametrize("experts", [False, True])
def test_a_training_step_on_a_mixture_of_experts(tmp_path, monkeypatch, experts):
    """The profile's losses and adapter on 2 layers of 4 experts, replies by transformers."""
    pytest.importorskip("trl")
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    from negolab.trainer.loop import train
    from negolab.trainer.task import SellerTask

    torch.manual_seed(0)
    folder = save_model(tmp_path / "model", "qwen3")
    sizes = {**TINY_MOE, "vocab_size": json.loads((folder / "config.json").read_text())["vocab_size"]}
    config = Qwen3MoeConfig.from_dict({**sizes, "max_position_embeddings": 4096, "initializer_range": 0.2})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    monkeypatch.setattr(SellerTask, "reward", lambda self, episode: episode.turns[-1].text.count("e") / 10)
    small = {"model": str(folder), "data": "sample", "dtype": "float32", "buyers": {}, "sampler": "transformers"}
    small |= {"sampler_options": {}, "steps": 1, "groups": 3, "group_size": 4, "max_tokens": 12, "eval_every": 0}
    settings = load_profile("gpu").changed({**small, "lora": {"rank": 4, "experts": experts}, "learning_rate": 0.01})
    told: list[str] = []
    train(settings, tmp_path / "run", say=told.append, progress=False)
    config = json.loads((folder / "config.json").read_text())
    planned_here = planned(config, settings.lora)
    assert [line for line in told if "parameters" in line][: len(planned_here.lines())] == planned_here.lines()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["adapter"] == planned_here.manifest() and manifest["trained_parameters"] == planned_here.parameters
    found = load_adapter(str(tmp_path / "run" / "model"), config, "tiny")
    assert found.on_experts == experts and found.rank == 4
    weights = load_file(tmp_path / "run" / "model" / "adapter_model.safetensors")
    moved = {
        name.split(".lora_B")[0].rsplit(".", 1)[-1] for name, w in weights.items() if ".lora_B" in name and w.any()
    }
    assert moved == {"q_proj", "k_proj", "v_proj", "o_proj", *(["experts", "base_layer"] if experts else [])}
    with (tmp_path / "run" / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["grad_norm"]) > 0 and float(row["mismatch_mean"]) < 1e-4


def test_a_pocket_models_shapes_are_known_by_its_name():
    from negolab.policies.spec import pocket_models

    found = estimate.config_of("pocket-base")
    assert found == json.loads((pocket_models()["pocket-base"] / "config.json").read_text(encoding="utf-8"))
    with pytest.raises(NegolabError, match="no model 'pocket-bse' comes with negolab; there are: pocket-base"):
        estimate.config_of("pocket-bse")


def test_without_the_hubs_package_the_papers_model_is_known_and_others_say_what_to_install(monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "huggingface_hub" else known(name))
    assert estimate.config_of("Qwen/Qwen3-30B-A3B-Instruct-2507")["num_experts"] > 1
    with pytest.raises(NegolabError, match=r"pip install 'negolab\[train\]', or give a folder"):
        estimate.config_of("someone/some-model")

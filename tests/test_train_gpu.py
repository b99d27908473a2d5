"""The GPU profile as far as it can be seen without one: the paper's values, memory, files for accelerate."""

import pytest

from negolab.paths import data_dir
from negolab.trainer.settings import load_profile

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

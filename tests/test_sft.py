"""Supervised fine-tuning: loss and gradient by hand, resumption, what is written, and what a user may do wrong."""

import csv
import json
import re
import signal
import subprocess
import sys
import time

import pytest

from negolab.cli import main
from negolab.errors import NegolabError
from negolab.policies.spec import pocket_models
from runs import call, command, default_interrupt, environment, one_line

pytest.importorskip("trl")

import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from negolab.policies.chat_template import ChatFormat
from negolab.trainer import sft
from negolab.trainer.checkpoints import complete
from negolab.trainer.sft_data import build, order_of
from sft_models import pocket, save_pocket, settings
from training import Stop


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small random model; not to be changed."""
    return save_pocket(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def data(model):
    return build(settings(model), ChatFormat(pocket()), 4096)


def by_hand(weights, samples):
    """Cross-entropy summed over learnt tokens, one sample at a time without padding, and how many there are."""
    total, n = 0.0, 0
    for sample in samples:
        ids = torch.tensor(sample.ids.astype("int64"))
        logits = weights(input_ids=ids[None]).logits[0, :-1].float()
        own = torch.tensor(sample.own[1:])
        total = total + torch.nn.functional.cross_entropy(logits[own], ids[1:][own], reduction="sum")
        n += int(own.sum())
    return total, n


def rows(folder, name="metrics.csv"):
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


# -- the loss ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_loss_and_gradient_are_the_cross_entropy_of_the_seats_own_tokens(model, data, tmp_path, micro_batch):
    """However the batch is cut and padded; no other token has a part in it."""
    from negolab.trainer.sft_trainer import IGNORED, SampleTrainer, dataset_of

    order = order_of(data.train, 4, 1, seed=0)
    chosen = [data.train[at] for at in order]
    assert len({len(sample) for sample in chosen}) > 2  # else nothing would be padded
    for sample, row in zip(chosen, dataset_of(chosen), strict=True):
        assert row["input_ids"] == sample.ids.tolist()
        assert [label for label in row["labels"] if label != IGNORED] == sample.ids[sample.own].tolist()

    weights = AutoModelForCausalLM.from_pretrained(model)
    loss, n = by_hand(weights, chosen)
    (loss / n).backward()
    loss = float(loss.detach())
    expected = torch.cat([p.grad.flatten() for p in weights.parameters()])

    found, losses = [], []

    class Catch(TrainerCallback):
        def on_pre_optimizer_step(self, *given, **rest):
            found.append(torch.cat([p.grad.detach().flatten() for p in trained.parameters()]).clone())
            losses.append(float(trainer._tr_loss))
            raise Stop

    trained = AutoModelForCausalLM.from_pretrained(model)
    chosen_settings = settings(model, micro_batch=micro_batch, max_grad_norm=0.0)
    trainer = SampleTrainer(trained, pocket(), chosen_settings, tmp_path, data.train, order)
    trainer.add_callback(Catch())
    with pytest.raises(Stop):
        trainer.train()
    assert losses[0] == pytest.approx(loss / n, rel=1e-5)
    assert torch.allclose(found[0], expected, atol=1e-6, rtol=1e-4)
    assert float(expected.abs().max()) > 1e-3


def test_nothing_learnt_is_no_gradient(model, data, tmp_path):
    """A batch in which no token counts: zero, not a division by it."""
    from negolab.trainer.sft_trainer import IGNORED, SampleTrainer

    weights = AutoModelForCausalLM.from_pretrained(model)
    trainer = SampleTrainer(weights, pocket(), settings(model), tmp_path, data.train, [0, 1, 2, 3])
    sample = min(data.train, key=len)
    batch = trainer.data_collator([{"input_ids": sample.ids, "labels": [IGNORED] * len(sample)}])
    loss = trainer.compute_loss(weights, dict(batch), num_items_in_batch=torch.tensor(0))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(p.grad is None or float(p.grad.abs().max()) == 0.0 for p in weights.parameters())


def test_metrics_hold_the_hand_computed_loss_and_held_out_loss(model, tmp_path):
    given = settings(model, steps=2, held_out=0.2, eval_every=1, learning_rate=1e-2)
    found = sft.tune(given, tmp_path / "run", progress=False)
    made = sft.read(given)
    before = AutoModelForCausalLM.from_pretrained(model)
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    first = [made.train[at] for at in order_of(made.train, 4, 2, seed=0)[:4]]
    with torch.no_grad():
        loss, n = by_hand(before, first)
        held_before, m = by_hand(before, made.held_out)
        held_after, _ = by_hand(after, made.held_out)
    table, held = rows(tmp_path / "run"), rows(tmp_path / "run", "eval.csv")
    assert table[0]["loss"] == pytest.approx(float(loss) / n, rel=1e-5)
    assert table[0]["learnt_tokens"] == n
    assert table[0]["tokens"] == sum(map(len, first))
    assert [row["step"] for row in held] == [0, 1, 2]
    assert held[0]["loss"] == pytest.approx(float(held_before) / m, rel=1e-5)
    assert held[-1]["loss"] == pytest.approx(float(held_after) / m, rel=1e-5)
    assert held[-1]["loss"] < held[0]["loss"]
    assert found.steps_now == 2 and found.last_loss == pytest.approx(table[-1]["loss"])


# -- learning ----------------------------------------------------------------------------------------------------------


def parse_rate(folder, given):
    """Share of the seller's replies, sampled greedily on the markets that were learnt, that can be read."""
    from negolab.environment.base import Move
    from negolab.parser import parse_seller
    from negolab.policies.registry import make_buyers, make_models
    from negolab.policies.spec import TransformersSpec
    from negolab.rollout import play
    from negolab.trainer.sft_data import sources_of

    played = [episode for source in sources_of(given) for episode in source.episodes]
    scenarios = [episode.scenario._replace(episode=at) for at, episode in enumerate(played)]
    spec = TransformersSpec(model=str(folder), temperature=0.0, max_tokens=160)
    player = make_models([spec])[spec]
    read = [
        isinstance(parse_seller(turn.text, episode.scenario.product.listing.codename), Move)
        for episode in play(
            scenarios, player, make_buyers({kind for scenario in scenarios for kind in scenario.buyer_types})
        )
        for turn in episode.turns
        if turn.seat == 0
    ]
    player.engine.close()
    return sum(read) / len(read)


def test_a_small_model_learns_the_format(tmp_path):
    model = save_pocket(tmp_path / "model", hidden=64)
    small = {
        "in_distribution": {"n_buyers": 1, "message_budget": 2, "per_buyer_cap": 2},
        "two": {"n_buyers": 2, "message_budget": 3},
    }
    given = settings(model, regimes=(), teacher="prober", scripted=8, steps=60, batch=4, micro_batch=4)
    given = given.changed({"regimes": small, "learning_rate": 5e-3, "schedule": "linear"})
    before = parse_rate(model, given)
    found = sft.tune(given, tmp_path / "run", progress=False)
    after = parse_rate(found.folder / "model", given)
    assert before == 0.0
    assert found.last_loss < 0.3 * found.first_loss
    assert after > 0.8, after


# -- resuming ----------------------------------------------------------------------------------------------------------


class Interrupted:
    """Ctrl-C after so many steps have been written down."""

    def __init__(self, monkeypatch, after):
        real = sft._Run._after

        def stopping(run, step, numbers):
            made = real(run, step, numbers)
            if step + 1 == after:
                monkeypatch.undo()
                raise KeyboardInterrupt
            return made

        monkeypatch.setattr(sft._Run, "_after", stopping)


LORA = {"rank": 4, "alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.2}


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapter with dropout"])
@pytest.mark.parametrize("after", [2, 3])
def test_resumed_is_as_if_never_stopped(model, tmp_path, monkeypatch, lora, after):
    """Stopped after a checkpoint, and between two: the same numbers and weights to the byte."""
    given = settings(model, steps=5, save_every=2, held_out=0.2, eval_every=2, schedule="linear")
    given = given.changed({"lora": lora, "learning_rate": 1e-2})
    sft.tune(given, tmp_path / "whole", progress=False)
    Interrupted(monkeypatch, after)
    with pytest.raises(KeyboardInterrupt):
        sft.tune(given, tmp_path / "parts", progress=False)
    assert not (tmp_path / "parts" / "model").exists()
    assert set(complete(tmp_path / "parts")) == ({2} if after == 3 else set())
    told = []
    found = sft.tune(given, tmp_path / "parts", say=told.append, progress=False)
    assert ("going on after step 2 of 5" in told) == (after == 3)
    assert found.steps_now == (3 if after == 3 else 5)
    for name in ("metrics.csv", "eval.csv", "manifest.json", "model/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name
    assert [row["step"] for row in rows(tmp_path / "parts")] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows(tmp_path / "parts", "eval.csv")] == [0, 2, 4, 5]


def test_ctrl_c_in_a_process_is_one_line_and_loses_nothing(model, tmp_path):
    args = ["sft", "--model", str(model), "--teacher", "prober", "--scripted", "16", "--out", str(tmp_path / "run")]
    for change in ("words=pocket", "steps=400", "batch=4", "micro_batch=4", "save_every=1000", "learning_rate=0.001"):
        args += ["--set", change]
    process = subprocess.Popen(
        command(args), env=environment(), stderr=subprocess.PIPE, text=True, preexec_fn=default_interrupt
    )
    metrics = tmp_path / "run" / "metrics.csv"
    until = time.monotonic() + 240
    while time.monotonic() < until and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("negolab: interrupted; what was finished is kept")
    assert "Traceback" not in err
    (done,) = complete(tmp_path / "run")
    assert done >= 3
    assert [row["step"] for row in rows(tmp_path / "run")] == list(range(done))


def test_another_run_is_not_resumed_and_a_finished_one_is_left_alone(model, tmp_path):
    given = settings(model, steps=1)
    sft.tune(given, tmp_path / "run", progress=False)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}
    told = []
    assert sft.tune(given, tmp_path / "run", say=told.append, progress=False).steps_now == 0
    assert told[-1] == f"{tmp_path / 'run'} is complete: 1 step"
    with pytest.raises(NegolabError, match=r"holds another run \(settings.learning_rate: 0.001 there, 0.01 now"):
        sft.tune(given.changed({"learning_rate": 0.01}), tmp_path / "run", progress=False)
    with pytest.raises(NegolabError, match=r"settings.seats: \"learner\" there, \"all\" now.*; task.samples: 16 there"):
        sft.tune(given.changed({"seats": "all"}), tmp_path / "run", progress=False)
    assert {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()} == before
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["task"]["name"] == "sft"


# -- what is written ---------------------------------------------------------------------------------------------------


def test_the_command_end_to_end_and_its_model_plays(model, tmp_path, capsys):
    out = tmp_path / "run"
    args = ["sft", "--profile", "smoke", "--model", str(model), "--out", str(out)]
    args += ["--set", "steps=2"]  # words: what the model can write
    code, text, err = call(capsys, *args)
    assert code == 0
    assert text.startswith(f"2 steps; {out}\nloss ")
    told = err.splitlines()
    assert told.pop(0) == "Scripted players speak in the few words that this model knows (words: pocket)."
    assert told[0] == "24 of 24 conversations are kept."
    assert json.loads((out / "manifest.json").read_text())["settings"]["words"] == "pocket"
    assert told[1].split() == "game seat N T conversations samples tokens learnt longest".split()
    assert told[-1].startswith("Trained on: ") and len(told) == 5  # no bar, no library's chatter
    play = [
        "evaluate",
        "--seller",
        f"transformers:{out / 'model'}",
        "--products",
        "1",
        "--out",
        str(tmp_path / "played"),
    ]
    assert call(capsys, *play, "--seller-option", "max_tokens=8")[0] == 0
    code, text, err = call(capsys, *args[:-4], "--dry-run")
    assert code == 0 and err == ""
    assert text.splitlines()[-1] == "4 steps of 8 samples."
    assert call(capsys, *args[:-4], "--dry-run", "--set", "steps=1")[1].splitlines()[-1] == "1 step of 8 samples."


def test_scripted_players_speak_so_that_the_model_can_write_it(model, tmp_path):
    """A pocket model or any other one; what is asked for is taken as it is."""
    from tiny_models import save_model

    other = save_model(tmp_path / "other", "qwen3")
    given = settings(model, words="auto")
    assert [sft._settled(given.changed({"model": str(where)})).words for where in (model, other)] == ["pocket", "plain"]
    assert sft._settled(given.changed({"model": "owner/model"})).words == "plain"
    assert sft._settled(settings(other, words="pocket")).words == "pocket"
    assert {sft._settled(given.changed({"model": str(path)})).words for path in pocket_models().values()} == {"pocket"}
    assert sft.read(given).sha256 == sft.read(settings(model)).sha256


def test_a_finished_run_says_so_before_anything_is_loaded(model, tmp_path):
    """From the command line: no torch, no transformers; with other data it is another run."""
    args = ["sft", "--profile", "smoke", "--model", str(model), "--out", str(tmp_path / "run"), "--set", "steps=1"]
    assert main(args) == 0
    program = (
        "import sys; from negolab.cli import main; code = main(sys.argv[1:]); "
        "print([name for name in ('torch', 'transformers', 'trl') if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *args], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == f"{tmp_path / 'run'} is complete: 1 step\n", done.stderr
    assert done.stdout == f"1 step; {tmp_path / 'run'}\n[]\n"
    again = subprocess.run(
        [sys.executable, "-c", program, *args, "--scripted", "30"], env=environment(), capture_output=True, text=True
    )
    assert again.returncode == 2 and "holds another run" in again.stderr


def test_without_a_terminal_lines_say_how_far_a_run_is(model, tmp_path):
    args = ["sft", "--profile", "smoke", "--model", str(model), "--out", str(tmp_path / "run")]
    done = subprocess.run(command(args), env=environment(), capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if line.startswith("step ")]
    held = [row["loss"] for row in rows(tmp_path / "run", "eval.csv")]
    losses = [row["loss"] for row in rows(tmp_path / "run")]
    assert [re.sub(r"\d+:\d\d", "M:SS", line) for line in told] == [
        "step 0 of 4: measuring on held-out products",
        f"step 0 of 4: held-out loss {held[0]:.4f}",
        f"step 1 of 4: loss {losses[0]:.4f}; M:SS left",
        "step 2 of 4: measuring on held-out products",
        f"step 2 of 4: held-out loss {held[1]:.4f}",
        f"step 4 of 4: loss {losses[3]:.4f}; took M:SS",
        "step 4 of 4: measuring on held-out products",
        f"step 4 of 4: held-out loss {held[2]:.4f}",
    ], done.stderr


def test_a_revision_of_a_folder_is_refused(model, tmp_path):
    with pytest.raises(NegolabError, match=r"revision is 'main', but .* is on this machine"):
        sft.tune(settings(model, revision="main"), tmp_path / "run")


def test_an_adapter_is_kept_alone_and_in_the_weights(model, tmp_path):
    given = settings(model, steps=2).changed({"lora": {**LORA, "dropout": 0.0}, "learning_rate": 1e-2})
    told = []
    sft.tune(given, tmp_path / "run", say=told.append, progress=False)
    assert any("parameters by LoRA" in line for line in told)
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(model)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    ids = torch.arange(40)[None]
    with torch.no_grad():
        plain = base(input_ids=ids).logits
        adapted = PeftModel.from_pretrained(base, tmp_path / "run" / "adapter")(input_ids=ids).logits
        assert torch.allclose(merged(input_ids=ids).logits, adapted, atol=1e-4)
        assert not torch.allclose(plain, adapted, atol=1e-2)
    before = dict(AutoModelForCausalLM.from_pretrained(model).named_parameters())
    for name, weight in merged.named_parameters():
        assert torch.equal(weight, before[name]) != any(target in name for target in LORA["targets"]), name
    sft.tune(given.changed({"merge": False}), tmp_path / "alone", progress=False)
    assert not (tmp_path / "alone" / "model").exists()
    assert (tmp_path / "alone" / "adapter" / "adapter_model.safetensors").is_file()


def test_the_model_can_be_trained_further(model, tmp_path):
    sft.tune(settings(model, steps=1), tmp_path / "first", progress=False)
    again = settings(tmp_path / "first" / "model", steps=1)
    sft.tune(again, tmp_path / "second", progress=False)
    assert rows(tmp_path / "second")[0]["loss"] < rows(tmp_path / "first")[0]["loss"]


def test_a_mixture_of_experts_learns_what_was_said_only(data, tmp_path):
    """TRL would add the balance of the experts to the loss; here it is not, and files stay as they were."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from negolab.trainer.sft_trainer import SampleTrainer

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(pocket()), hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
        router_aux_loss_coef=0.5, output_router_logits=True, max_position_embeddings=4096,
    )  # fmt: skip
    weights = Qwen3MoeForCausalLM(config)
    order = order_of(data.train, 4, 1, seed=0)
    with torch.no_grad():
        loss, n = by_hand(weights, [data.train[at] for at in order])
    logged = []
    trainer = SampleTrainer(
        weights,
        pocket(),
        settings("moe"),
        tmp_path,
        data.train,
        order,
        lambda step, found: logged.append(found) or found,
    )
    trainer.train()
    assert logged[0]["loss"] == pytest.approx(float(loss) / n, rel=1e-5)
    assert weights.config.router_aux_loss_coef == 0.5 and weights.config.output_router_logits is True


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--teacher", "nobody"], "unknown seller 'nobody'; allowed: random, satisficer"),
        (["--regimes", "in_distribution"], "teacher names nobody to sell in in_distribution"),
        (
            ["--teacher", "prober", "--regimes", "elsewhere", "--set", "regimes.elsewhere.base=mars"],
            "unknown regime 'mars'",
        ),
        ([], "nothing to learn from: give run folders (--episodes), or a --teacher for scripted games"),
        (["--episodes", "missing"], "missing does not exist; expected a run folder"),
        (["--teacher", "prober", "--set", "betas=3"], "unknown setting 'betas'; allowed: model, revision"),
        (["--teacher", "prober", "--scripted", "4"], "batch is 16, but there are only 4 samples to learn from"),
        (
            ["--teacher", "prober", "--scripted", "16", "--set", "warmup_steps=9"],
            "warmup_steps 9 is above the run's 1 step",
        ),
        (["--teacher", "prober", "--set", "max_length=99999"], "max_length is 99,999; the model's context is 4,096"),
        (
            ["--teacher", "prober", "--set", "max_length=50", "--scripted", "9"],
            "nothing is left to learn from: 9 longer than 50 tokens",
        ),
        (["--teacher", "prober", "--set", "split=none"], "none"),
        (["--profile", "huge"], "no profile 'huge'; there are: laptop, smoke"),
        (["--teacher", "prober", "--seats", "everyone"], "seats is 'everyone'; allowed: learner"),
    ],
)
def test_mistakes_are_told_in_one_line_before_weights_are_read(model, tmp_path, capsys, monkeypatch, args, says):
    from negolab.policies import hf_model

    monkeypatch.setattr(hf_model, "read_weights", lambda *given: pytest.fail("weights are read"))
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "sft", "--model", str(model), *args, "--out", "run")
    assert (code, out) == (2, "")
    told = one_line("\n".join([*err.splitlines()[-1:], ""]))  # statistics of the data may stand before it
    assert says in told
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_further_mistakes(model, tmp_path, capsys):
    code, _, err = call(capsys, "sft", "--teacher", "prober", "--out", str(tmp_path / "run"))
    assert code == 2 and "model names nothing to train; give --model" in one_line(err)
    code, _, err = call(capsys, "sft", "--teacher", "prober", "--model", str(tmp_path / "no"), "--out", "run")
    assert code == 2 and "no such folder or file" in one_line(err)
    code, _, err = call(capsys, "sft", "--teacher", "prober", "--model", str(model))
    assert code == 2 and "--out is required" in one_line(err)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    code, _, err = call(capsys, "sft", "--teacher", "prober", "--model", str(model), "--out", str(tmp_path / "full"))
    assert code == 2 and "is not empty and no training run" in one_line(err)
    args = [
        "--set",
        "words=pocket",
        "--set",
        "lora.rank=4",
        "--set",
        "lora.targets=[nothing]",
        "--out",
        str(tmp_path / "new"),
    ]
    code, _, err = call(capsys, "sft", "--teacher", "prober", "--scripted", "16", "--model", str(model), *args)
    assert code == 2 and "lora.targets names nothing, which the model does not have" in err
    assert not (tmp_path / "new").exists()


def test_settings_are_listed(capsys):
    code, out, _ = call(capsys, "sft", "--list-settings")
    assert code == 0
    assert "held_out (0.0): Share of products" in out
    assert "micro_batch (4): Samples that go through the model at once" in out

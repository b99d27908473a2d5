"""Training runs: written down, stopped, resumed to the same numbers, and their models played."""

import csv
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from negolab.cli import main
from negolab.environment.base import SELLER
from negolab.errors import NegolabError
from negolab.trainer import checkpoints, loop, records
from negolab.trainer.rows import rows_of
from negolab.trainer.sampler import LiveSampler
from negolab.trainer.settings import load_profile
from negolab.trainer.task import SellerTask
from runs import ROOT, environment
from servers import MODEL, ModelServer, name_of, reply
from training import save_short, score, seller_task, settings

CHANGES = (
    "steps=4",
    "groups=2",
    "group_size=2",
    "max_tokens=12",
    "eval_every=2",
    "eval_products=1",
    "learning_rate=0.003",
    "schedule=linear",
    "warmup_steps=1",
    "keep_checkpoints=0",
)
SAME = ("metrics.csv", "eval.csv", "model/model.safetensors")


def tokens_with_e(self: SellerTask, episode: Any) -> float:
    """A reward in which a random model's replies differ: how many of the first one's tokens are even."""
    first = next(at for at, turn in enumerate(episode.turns) if turn.seat == SELLER)
    ids = episode.notes[first]["ids"]
    return sum(token % 2 == 0 for token in ids) / len(ids)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_short(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(autouse=True)
def paid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SellerTask, "reward", tokens_with_e)


def chosen(base: Path, *more: str) -> Any:
    over = {change.split("=")[0] for change in more}
    return load_profile("smoke", [f"model={base}", *(c for c in CHANGES if c.split("=")[0] not in over), *more])


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps that nobody stopped."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SellerTask, "reward", tokens_with_e)
        loop.train(chosen(base), out)
    return out


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def same(first: Path, second: Path) -> None:
    for name in SAME:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_a_run_writes_down_every_step(whole, base):
    rows = table(whole / "metrics.csv")
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    for row in rows:
        assert int(row["episodes"]) == 4
        assert float(row["rows_per_episode"]) == 1 and float(row["fork_fraction"]) == 0
        assert 4 <= int(row["trained_tokens"]) <= 4 * 12
        assert float(row["mismatch_max"]) < 1e-4  # the sampler plays with the weights that are trained
        assert 0 < float(row["entropy"]) < 8
    assert float(rows[0]["learning_rate"]) == 0.0 or float(rows[0]["learning_rate"]) < float(rows[1]["learning_rate"])
    times = table(whole / "timings.csv")
    assert [row["step"] for row in times] == ["0", "1", "2", "3"]
    assert [float(row["save"]) > 0 for row in times] == [False, True, True, True]  # the checkpoint before the step
    evaluated = table(whole / "eval.csv")
    assert sorted({row["step"] for row in evaluated}) == ["0", "2", "4"]
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["settings"]["model"] == "tiny" and manifest["base"]["sha256"]
    assert str(base) not in (whole / "manifest.json").read_text()
    assert sorted(checkpoints.complete(whole)) == [1, 2, 3, 4]


def test_the_weights_move_and_the_model_that_is_kept_is_the_last_checkpoints(whole, base):
    from safetensors.torch import load_file

    first, last = load_file(base / "model.safetensors"), load_file(whole / "model" / "model.safetensors")
    saved = load_file(checkpoints.complete(whole)[4] / "model.safetensors")
    assert any(not torch.equal(first[name], last[name]) for name in last)
    assert all(torch.equal(saved[name], last[name]) for name in last)


def test_the_trained_model_plays_and_its_evaluations_verify(whole, tmp_path, capsys):
    seller = ["--seller", f"transformers:{whole / 'model'}", "--seller-option", "max_tokens=12"]
    assert main(["evaluate", *seller, "--products", "1", "--out", str(tmp_path / "run")]) == 0
    assert main(["verify", str(whole / "evals" / "step-000004" / "in_distribution")]) == 0
    assert "2 of 2 episodes replay" in capsys.readouterr().out


def test_markets_do_not_depend_on_what_happened_before():
    task, again = seller_task(groups=3, group_size=2), seller_task(groups=3, group_size=2)
    [task.markets(step) for step in range(5)]
    assert task.markets(7) == again.markets(7) != again.markets(6)
    assert seller_task(groups=3, group_size=2, seed=1).markets(7) != again.markets(7)


def test_a_group_shares_all_but_the_learners_own_word():
    markets = seller_task(groups=4, group_size=3).markets(2)
    assert [m.episode for m in markets] == list(range(12))
    for at in range(0, 12, 3):
        group = markets[at : at + 3]
        assert len({m._replace(episode=0, keys=m.keys[1:]) for m in group}) == 1
        assert len({m.keys[0] for m in group}) == 3


def test_an_epoch_shows_every_product_at_most_once():
    task = seller_task(groups=5, group_size=2)
    for epoch in range(2):
        steps = range(epoch * int(task.steps_per_epoch), (epoch + 1) * int(task.steps_per_epoch))
        seen = [m.product.listing.codename for step in steps for m in task.markets(step)[::2]]
        assert len(seen) == len(set(seen)) == 5 * int(task.steps_per_epoch)


def test_a_run_that_was_cut_off_goes_on_to_the_same_bytes(whole, base, tmp_path):
    for kept in (1, 2, 3):
        out = tmp_path / str(kept)
        shutil.copytree(whole, out)
        for step, path in checkpoints.complete(out).items():
            if step > kept:
                shutil.rmtree(path)
        shutil.rmtree(out / "model")
        found = loop.train(chosen(base), out)
        assert found.steps_now == 4 - kept
        same(whole, out)


def test_half_a_checkpoint_is_none(whole, base, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "model")
    for step in (3, 4):
        weights = checkpoints.complete(out)[step] / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
    (out / "metrics.csv").write_bytes((out / "metrics.csv").read_bytes() + b"4,to")
    loop.train(chosen(base), out)
    same(whole, out)


def test_a_finished_run_is_not_played_again(whole, base):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file() and path.suffix != ".lock"}
    told: list[str] = []
    assert loop.train(chosen(base), whole, say=told.append).steps_now == 0
    assert f"{whole} is complete: 4 steps" in told
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_finished_run_says_so_before_anything_is_loaded(whole, base, tmp_path):
    """In a process of its own, from the command line: no torch, no transformers, whatever the run was made of."""
    changes = [part for change in (f"model={base}", *CHANGES) for part in ("--set", change)]
    program = (
        "import sys; from negolab.cli import main; code = main(sys.argv[1:]); "
        "print([name for name in ('torch', 'transformers', 'trl') if name in sys.modules]); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "train", "--profile", "smoke", *changes]
    done = subprocess.run([*command, "--out", str(whole)], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == f"{whole} is complete: 4 steps\n", done.stderr
    assert done.stdout == f"4 steps; the trained model: {whole / 'model'}\n[]\n"


@pytest.mark.parametrize("what", ["model", "checkpoint", "settings", "base", "data"])
def test_only_the_same_run_and_all_of_it_is_finished(whole, base, tmp_path, what):
    out, given = tmp_path / "run", chosen(base)
    shutil.copytree(whole, out)
    assert loop._is_finished(given, out)
    manifest = json.loads((out / "manifest.json").read_text())
    if what == "model":
        (out / "model" / "config.json").unlink()
    elif what == "checkpoint":
        shutil.rmtree(checkpoints.complete(out)[4])
    elif what == "settings":
        given = chosen(base, "learning_rate=0.001")
    elif what == "base":
        other = shutil.copytree(base, tmp_path / "other" / base.name)
        (other / "config.json").write_text((other / "config.json").read_text() + " ")
        given = chosen(other)
    else:
        manifest["task"]["data"]["sha256"] = "0" * 64
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert not loop._is_finished(given, out)


def test_another_run_is_not_mixed_in(whole, base, tmp_path):
    with pytest.raises(NegolabError, match=r"holds another run \(settings.seed: 0 there, 5 now\)"):
        loop.train(chosen(base, "seed=5"), whole)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NegolabError, match="not empty and no training run"):
        loop.train(chosen(base), tmp_path)


def test_a_reward_that_is_no_number_stops_the_run_with_the_episode(base, tmp_path, monkeypatch):
    monkeypatch.setattr(SellerTask, "reward", lambda self, e: float("nan") if e.scenario.episode == 3 else 0.0)
    with pytest.raises(NegolabError, match="episode 3 of the batch has reward nan"):
        loop.train(chosen(base, "eval_every=0"), tmp_path / "run")


def test_equal_rewards_are_counted_and_change_no_weight(base, tmp_path, monkeypatch):
    monkeypatch.setattr(SellerTask, "reward", lambda self, e: -1.0)
    out = tmp_path / "run"
    loop.train(chosen(base, "eval_every=0", "steps=1"), out)
    (row,) = table(out / "metrics.csv")
    assert row["equal_groups"] == "2" and float(row["grad_norm"]) == 0
    from safetensors.torch import load_file

    first, last = load_file(base / "model.safetensors"), load_file(out / "model" / "model.safetensors")
    assert all(torch.equal(first[name], last[name]) for name in last)


def told_without_a_terminal(base: Path, out: Path, *more: str) -> list[str]:
    """What a process of ``negolab train`` writes to a standard error that is a pipe."""
    changes = [part for change in (f"model={base}", *CHANGES) for part in ("--set", change)]
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import test_trainer_loop as t; " + (
        "t.SellerTask.reward = t.tokens_with_e; from negolab.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "train", "--profile", "smoke", *changes, *more, "--out", str(out)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_without_a_terminal_lines_say_how_far_a_run_is(base, tmp_path):
    told = [line for line in told_without_a_terminal(base, tmp_path / "run") if line.startswith("step ")]
    number = r"[+-]\d\.\d{3}"
    evaluated = rf"evaluated: in_distribution reward {number} ± \d\.\d{{3}} \(n = 2\)"
    step = rf"reward {number}, violations \d\.\d{{3}}"
    patterns = [
        "step 0 of 4: evaluating on held-out products",
        f"step 0 of 4: {evaluated}",
        rf"step 1 of 4: {step}; \d+:\d\d left",
        "step 2 of 4: evaluating on held-out products",
        f"step 2 of 4: {evaluated}",
        rf"step 4 of 4: {step}; took \d+:\d\d",
        "step 4 of 4: evaluating on held-out products",
        f"step 4 of 4: {evaluated}",
    ]
    assert len(told) == len(patterns), told
    for line, pattern in zip(told, patterns, strict=True):
        assert re.fullmatch(pattern, line), line
    # The same numbers as in the tables, and a pipe that nobody wants to fill stays silent.
    rewards = [row["mean"] for row in table(tmp_path / "run" / "eval.csv") if row["metric"] == "reward"]
    assert [float(line.split("reward ")[1].split(" ")[0]) for line in told if "evaluated" in line] == [
        pytest.approx(float(reward), abs=5e-4) for reward in rewards
    ]
    quiet = told_without_a_terminal(base, tmp_path / "quiet", "--quiet")
    assert not [line for line in quiet if line.startswith("step ")]


SLOW = """
import sys, time
sys.path.insert(0, {tests!r})
import test_trainer_loop as t
from negolab.trainer.task import SellerTask
SellerTask.reward = t.tokens_with_e
markets = SellerTask.markets
def slowly(self, step):
    print("step", step, flush=True)
    time.sleep(0.5)
    return markets(self, step)
SellerTask.markets = slowly
from negolab.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of this kind are POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_goes_on_to_the_same_bytes(whole, base, tmp_path, number, code):
    out = tmp_path / "run"
    changes = [part for change in (f"model={base}", *CHANGES, "save_every=100") for part in ("--set", change)]
    command = [sys.executable, "-c", SLOW.format(tests=str(ROOT / "tests"))]
    process = subprocess.Popen(
        [*command, "train", "--profile", "smoke", *changes, "--out", str(out)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts tests in the background has interrupts ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 2"):
            break
    time.sleep(0.1)
    process.send_signal(number)
    _, told = process.communicate(timeout=120)
    assert process.returncode == code, told
    assert "run the same command again to go on" in told and "Traceback" not in told
    assert list(checkpoints.complete(out)) == [2]  # nothing but the interrupt asked for it
    loop.train(chosen(base, "save_every=100"), out)
    for name in SAME:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def served(base: Path, server: ModelServer, most: int = 1) -> list[str]:
    """Options of a run whose buyers are on a server, with no checkpoint but the last one. ``most``: how many requests
    may fail."""
    buyers = {"model": f"openai:{MODEL}", "base_url": server.url, "retries": 0, "max_failures": most}
    changes = (f"model={base}", *CHANGES, "save_every=100", f"buyers={json.dumps({'*': buyers})}")
    return ["train", "--profile", "smoke", *(part for change in changes for part in ("--set", change))]


@pytest.mark.parametrize("where", ["markets", "evaluations"])
@pytest.mark.parametrize("most", [1, 1000])
def test_buyers_whose_server_gives_up_end_the_run_in_one_line_and_lose_no_step(
    base, tmp_path, monkeypatch, capsys, where, most
):
    """In the third step, or in the evaluation before it; as the run's last straw, or one episode's."""
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    real, calls = getattr(SellerTask, where), []
    down: list[bool] = []

    def going_down(self: SellerTask, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == {"markets": 3, "evaluations": 2}[where]:
            down.append(True)
        return real(self, *given)

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return reply(body, content=f"Thought: {name_of(body)[:6]}")

    with ModelServer(lambda body, nth: "broken" if down else None, answer_with=answer) as server:
        assert main([*served(base, server), "--out", str(tmp_path / "whole")]) == 0
        assert len(server.bodies) > 50
        monkeypatch.setattr(SellerTask, where, going_down)
        args = served(base, server, most)
        capsys.readouterr()
        assert main([*args, "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert told.splitlines()[-1].endswith("; 2 of 4 steps are kept, run the same command again to go on"), told
    assert told.count("run the same command again") == 1 and "Traceback" not in told
    assert list(checkpoints.complete(tmp_path / "run")) == [2]  # nothing but the failure asked for it
    monkeypatch.setattr(SellerTask, where, real)
    with ModelServer(answer_with=answer) as server:  # back again, at another address
        assert main([*served(base, server, most), "--out", str(tmp_path / "run")]) == 0
    assert "going on after step 2 of 4" in capsys.readouterr().err
    about_the_same(tmp_path / "whole", tmp_path / "run")


def about_the_same(first: Path, second: Path) -> None:
    """When a server's replies come decides what is computed together, and that decides how sums are rounded."""
    from safetensors.torch import load_file

    assert (first / "eval.csv").read_bytes() == (second / "eval.csv").read_bytes()
    rows = [table(run / "metrics.csv") for run in (first, second)]
    assert [len(found) for found in rows] == [4, 4]
    for one, other in zip(*rows, strict=True):
        for name, value in one.items():
            if value != "n/a" and not name.startswith("mismatch"):
                assert float(value) == pytest.approx(float(other[name]), rel=1e-3, abs=1e-6), name
    weights = [load_file(run / "model" / "model.safetensors") for run in (first, second)]
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-5) for name in weights[0])


def test_a_resumed_run_may_find_its_server_elsewhere_but_no_other_player(tmp_path):
    def opened(**options: Any) -> list[str]:
        settings = {"buyers": {"*": {"model": "openai:m", **options}}, "retries": options.get("retries", 0)}
        return records.open_manifest(tmp_path, records.new_manifest(settings, {}, {}))

    opened(base_url="http://a/v1", temperature=0.7)
    assert opened(base_url="http://b/v1", temperature=0.7, timeout=5.0) == []
    with pytest.raises(NegolabError, match=r"settings\.buyers\.\*\.temperature: 0.7 there, 0.8 now"):
        opened(base_url="http://a/v1", temperature=0.8)
    with pytest.raises(NegolabError, match=r"settings\.retries: 0 there, 3 now"):  # a setting, whatever it is called
        opened(base_url="http://a/v1", temperature=0.7, retries=3)


def test_a_server_that_gives_up_in_the_first_step_keeps_nothing_and_says_so(base, tmp_path, monkeypatch, capsys):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    with ModelServer(lambda body, nth: "broken" if "Codename" in str(body) else None) as server:
        assert main([*served(base, server), "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith("; no step was finished, run the same command again to begin anew"), told


def test_missing_vllm_is_told_before_anything_is_loaded(tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "vllm" else find(name, *more))
    for name in ("make_task", "load_model"):
        monkeypatch.setattr(loop, name, lambda *given: pytest.fail("something was loaded"))
    out = tmp_path / "run"
    assert main(["train", "--profile", "gpu", "--set", "data=sample", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "sampler is vllm, which needs the package vllm: pip install 'negolab[vllm]'" in told
    assert told.count("\n") == 1 and not out.exists()


def test_the_sampler_follows_the_weights(base):
    """Its log-probabilities are the trainer's own, before and after the weights change, caches or not."""
    model, task = AutoModelForCausalLM.from_pretrained(base), seller_task(groups=2, group_size=2)
    sampler = LiveSampler(model, AutoTokenizer.from_pretrained(base), settings(max_tokens=12))
    before = None
    for step in range(2):
        sampler.sync(step)
        assert not model.training
        rows = [row for e in task.play(task.markets(0), sampler.policy()) for row in rows_of(e, SELLER)]
        sampled = [row.logprobs[:] for row in rows]
        score(model, rows)
        for row, drawn in zip(rows, sampled, strict=True):
            assert drawn == pytest.approx(row.logprobs, abs=2e-5)
        assert [row.ids for row in rows] != before
        before = [row.ids for row in rows]
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(1.3)
    sampler.close()


def test_a_mistake_is_one_line_and_leaves_no_folder(base, tmp_path, capsys):
    out = tmp_path / "run"
    wrong = {
        "profile smoke.yaml: unknown setting 'step'": ["step=3"],
        "model names nothing to train": ["model="],
        "holds no model": [f"model={tmp_path}"],
        "allowed: cispo, dapo, grpo": ["loss=ppo"],
        "sub_steps 5 is above groups 2": ["sub_steps=5", "groups=2"],
        "split 'none' does not exist": [f"model={base}", "train_split=none"],
        "unknown regime knob": [f"model={base}", "regimes.x.n=3"],
        "allowed: a regime's knobs by name": [f"model={base}", "regimes.in_distribution=5"],
        "'../x' is no name": [f"model={base}", "regimes={../x: {}}"],
        "learns in markets, not in the bilateral game": [f"model={base}", "regimes={two: {base: bilateral}}"],
        "lora is 8; allowed: settings such as": [f"model={base}", "lora=8"],
        "sampler_options names temperature": [f"model={base}", "sampler_options.temperature=0.5"],
        "unknown option 'warmth'": [f"model={base}", "sampler_options.warmth=1"],
        "report_to names 'nobody'": [f"model={base}", "report_to=[nobody]"],
        "exceeds the model's context": [f"model={base}", "max_tokens=4096"],
    }
    for line, changes in wrong.items():
        given = [part for change in changes for part in ("--set", change)]
        assert main(["train", "--profile", "smoke", *given, "--out", str(out)]) == 2
        told = capsys.readouterr().err
        assert line in told and told.count("\n") == 1, told
        assert not out.exists()

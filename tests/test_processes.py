"""Several processes that train one model: the same numbers as one, and the files of one."""

import csv
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from negolab.errors import NegolabError
from negolab.trainer import alarm, checkpoints
from negolab.trainer.batches import SubStep
from negolab.trainer.processes import Processes, together
from negolab.trainer.rows import Row
from negolab.trainer.settings import TrainSettings
from runs import default_interrupt, environment
from tiny_models import save_model

SCRIPT = """
import json, sys
from negolab.trainer.loop import train
from negolab.trainer.settings import TrainSettings
from negolab.trainer.lora import LoraSettings
from negolab.trainer.task import SellerTask
# What a random model gets more or less of: its replies are no offers.
SellerTask.reward = lambda self, episode: episode.turns[-1].text.count("e") / 10
given = json.loads(sys.argv[1])
train(TrainSettings(**given, lora=LoraSettings(rank=4, alpha=8)), sys.argv[2], say=print, progress=False)
"""


def test_work_is_dealt_out_once():
    four = [Processes(rank, 4) for rank in range(4)]
    episodes = list(range(24))
    dealt = [processes.groups(episodes, 3) for processes in four]
    assert dealt[1] == [3, 4, 5, 15, 16, 17]
    assert sorted(one for part in dealt for one in part) == episodes
    lengths = [5, 9, 2, 7, 7, 1, 3]
    part = SubStep([Row(at, [0] * n, [False, *[True] * (n - 1)], [0.0] * n) for at, n in enumerate(lengths)], [0.5] * 7)
    shares = [Processes(rank, 2).rows(part) for rank in (0, 1)]
    assert [[len(row) for row in share.rows] for share in shares] == [[9, 7, 3, 1], [7, 5, 2]]
    assert sum(share.trained for share in shares) == part.trained
    assert Processes().rows(part) is part and Processes().gathered((1, 2)) == [1, 2]


@pytest.mark.parametrize(
    ("spread", "changes", "says"),
    [
        (
            "ACCELERATE_USE_FSDP",
            {},
            "sampler is transformers, .* where FSDP spreads them over processes it must be vllm",
        ),
        ("ACCELERATE_USE_DEEPSPEED", {"sampler": "vllm"}, "lora is not set: where DEEPSPEED spreads weights"),
        ("", {"groups": 3, "sub_steps": 1}, "groups is 3, fewer than the 4 processes"),
    ],
)
def test_what_cannot_be_done_together(monkeypatch, spread, changes, says):
    assert together(TrainSettings()) == Processes(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    if spread:
        monkeypatch.setenv(spread, "true")
    with pytest.raises(NegolabError, match=says):
        together(TrainSettings(**changes))


def run(script: Path, model: Path, out: Path, *launcher: str) -> list[dict[str, float]]:
    """Train two steps; the rows of metrics.csv."""
    given = {"model": str(model), "dtype": "float32", "steps": 2, "groups": 2, "group_size": 3, "sub_steps": 2}
    given |= {"learning_rate": 0.01, "max_tokens": 12, "eval_every": 2, "eval_products": 2, "eval_per_product": 1}
    command = [sys.executable, *launcher, str(script), json.dumps(given), str(out)]
    extra = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**environment(), **extra}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Trained: ") == 1, done.stdout  # one of them speaks
    with (out / "metrics.csv").open() as file:
        return [{k: float(v) for k, v in row.items() if v != "n/a"} for row in csv.DictReader(file)]


def test_two_processes_are_as_one(tmp_path):
    pytest.importorskip("trl")
    import torch
    from safetensors.torch import load_file

    model = save_model(tmp_path / "model", "qwen3", initializer_range=0.2)
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    one = run(script, model, tmp_path / "one")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    two = run(script, model, tmp_path / "two", *launcher)
    assert len(one) == len(two) == 2 and one[0]["grad_norm"] > 0
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"mismatch_mean", "mismatch_max"}:  # differences of rounding
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-5), name
        assert a["trained_tokens"] == b["trained_tokens"] and b["mismatch_mean"] < 1e-5
    assert (tmp_path / "one" / "eval.csv").read_text() == (tmp_path / "two" / "eval.csv").read_text()
    weights = [load_file(tmp_path / name / "model" / "adapter_model.safetensors") for name in ("one", "two")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-5) for name in weights[0])
    files = [
        {str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*")} for name in ("one", "two")
    ]
    assert {path for path in files[0] ^ files[1] if "rng_state" not in path} == set()


# -- where one of them fails -------------------------------------------------------------------------------------------


class Store(dict):
    """What an alarm uses of torch's; ``gone``: its process has left."""

    gone = False

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        if self.gone:
            raise RuntimeError("connection reset")
        return all(key in self for key in keys)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(alarm, "EVERY", 0.01)
    monkeypatch.setattr(alarm, "GRACE", 0.5)


@pytest.mark.parametrize("how", ["another rings", "the store has gone", "nothing", "ends by itself"])
def test_the_alarm_ends_who_waits(quick, how, capsys):
    store, ended = Store(), []
    with alarm.Alarm(store, 1, ended.append):
        if how in ("another rings", "ends by itself"):
            alarm.Alarm(store, 0).ring()
        store.gone = how == "the store has gone"
        until = time.monotonic() + (10 if how in ("another rings", "the store has gone") else 0.1)
        while time.monotonic() < until and not ended:
            time.sleep(0.01)
    time.sleep(0.7)
    assert ended == ([2] if how in ("another rings", "the store has gone") else [])
    assert ("another process of this run has ended" in capsys.readouterr().err) == bool(ended)


def side_by_side(script: str, tmp_path: Path, *args: str, **options: Any) -> list[tuple[int, str]]:
    """Two processes that nobody watches, as torchrun would start them: exit code and errors of each. Those that still
    wait after minutes are ended, and their exit code is negative."""
    path = tmp_path / "run.py"
    path.write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    made = []
    for rank in ("0", "1"):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = environment(**place, ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1")
        made.append(
            subprocess.Popen([sys.executable, str(path), *args], env=env, stderr=subprocess.PIPE, text=True, **options)
        )
    until = time.monotonic() + 240
    while time.monotonic() < until and any(process.poll() is None for process in made):
        time.sleep(0.05)
    for process in made:
        process.kill()
    return [(process.returncode, process.communicate()[1]) for process in made]


MEET = """
import os, sys, time
import torch.distributed as dist
from negolab.errors import NegolabError
from negolab.trainer import alarm
from negolab.trainer.processes import Elsewhere, Processes, known_to_all
alarm.EVERY, alarm.GRACE = 0.1, 0.5
dist.init_process_group("gloo")
rank = dist.get_rank()
us = Processes(rank, 2)

def fails(of, error):
    def make():
        if rank in of:
            raise error
        return rank
    return make

def outcome(call, *given):
    try:
        return call(*given)
    except BaseException as error:
        assert known_to_all(error)
        return f"{type(error).__name__}: {error}"

assert outcome(us.agreed, fails((), None)) == rank
assert outcome(us.from_main, fails((), None)) == 0
told = [outcome(us.agreed, fails((1,), NegolabError("disk"))), outcome(us.from_main, fails((0,), NegolabError("disk")))]
assert told[1 - rank] == "NegolabError: disk", told
assert told[rank] == f"Elsewhere: process {1 - rank} of this run: disk", told
both = outcome(us.agreed, fails((0, 1), NegolabError("server")))
assert both == ("NegolabError: server" if rank == 0 else "Elsewhere: process 0 of this run: server"), both
assert outcome(us.agreed, fails((0, 1), KeyboardInterrupt())).startswith("KeyboardInterrupt")
us.wait()
how = sys.argv[1]
try:
    with us.guarded():
        if rank == 1:
            if how == "dies":
                os._exit(9)
            raise ValueError("a bug") if how == "fails" else NegolabError("a mistake")
        us.wait()
except NegolabError as error:
    print(error, file=sys.stderr, flush=True)
    if how == "lives on" and rank == 1:  # as a notebook's process: its connections stay open
        time.sleep(5)
    os._exit(2)
"""


@pytest.mark.parametrize(("how", "code"), [("fails", 1), ("dies", 9), ("lives on", 2)])
def test_no_process_waits_for_one_that_has_failed(tmp_path, how, code):
    pytest.importorskip("torch")
    first, second = side_by_side(MEET, tmp_path, how)
    assert (first[0], second[0]) == (2, code), (first, second)
    assert "another process of this run has ended" in first[1]


FAILING = """
import json, os, signal, sys
from negolab.errors import NegolabError
from negolab.trainer.grpo import RowTrainer
from negolab.trainer.task import SellerTask
SellerTask.reward = lambda self, episode: episode.turns[-1].text.count("e") / 10
how, calls = sys.argv[1], []

def at_second(real, act):
    def changed(self, *given):
        calls.append(1)
        if len(calls) == 2:
            act()
        return real(self, *given)
    return changed

def give_up():
    raise NegolabError("the server is gone")

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

if os.environ["RANK"] == "1":
    if how == "gives up":
        SellerTask.play = at_second(SellerTask.play, give_up)
    elif how == "interrupted while it plays":
        SellerTask.play = at_second(SellerTask.play, interrupt)
    else:
        real = RowTrainer._compute_loss
        def learning(self, *given):
            if self.steps_done == 1 and not calls:
                calls.append(interrupt())
            return real(self, *given)
        RowTrainer._compute_loss = learning
from negolab.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("how", "code", "kept"),
    [("gives up", 2, 1), ("interrupted while it plays", 130, 1), ("interrupted while it learns", 130, 2)],
)
def test_all_end_with_a_checkpoint_where_one_cannot_go_on(tmp_path, how, code, kept):
    pytest.importorskip("trl")
    model = save_model(tmp_path / "model", "qwen3", initializer_range=0.2)
    out = tmp_path / "run"
    args = ["train", "--profile", "smoke", "--out", str(out)]
    for change in (
        *(f"model={model}", "steps=3", "groups=2", "group_size=2", "sub_steps=1", "max_tokens=4", "eval_every=0"),
        "save_every=100",
    ):
        args += ["--set", change]
    first, second = side_by_side(FAILING, tmp_path, how, *args, preexec_fn=default_interrupt)
    assert (first[0], second[0]) == (2, code), (first, second)
    assert "Traceback" not in first[1] + second[1]
    told = [line for _, err in (first, second) for line in err.splitlines() if line.startswith("negolab: ")]
    assert len(told) == 1 and told[0].endswith("run the same command again to go on"), told
    assert list(checkpoints.complete(out)) == [kept]

"""Several processes that train one model: the same numbers as one, and the files of one."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from negolab.errors import NegolabError
from negolab.trainer.batches import SubStep
from negolab.trainer.processes import Processes, together
from negolab.trainer.rows import Row
from negolab.trainer.settings import TrainSettings
from runs import environment
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

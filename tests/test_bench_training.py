"""``tests/benchmarks/training.py`` runs at a tiny size, and its comparison can fail."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import torch

from negolab.errors import NegolabError

BENCHMARKS = Path(__file__).resolve().parent / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """The script as a module, under a name of its own: tests/training.py is another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        spec = importlib.util.spec_from_file_location("bench_training", BENCHMARKS / "training.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "bench_training", module)
        spec.loader.exec_module(module)
        for name in ("rollouts", "losses"):
            sys.modules.pop(name)
    return module


def test_it_runs_on_eight_episodes(bench, capsys):
    sizes = ["--groups", "2", "--group-size", "4", "--repeats", "1", "--trl-rows", "2"]
    assert bench.main([*sizes, "--set", "data=sample", "--set", "sub_steps=1"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])
    ours, rows, _, theirs = found["loss"].values()
    assert theirs["rows"] == rows["rows"] == 8 and 0 < ours["rows"] <= 8
    assert theirs["micro_batches"] == 4
    assert theirs["positions"] > rows["positions"] >= ours["positions"]
    # All tokens of the rows, with what is padded, are the same on both sides.
    assert theirs["positions"] * (1 - theirs["padded"]) == pytest.approx(rows["positions"] * (1 - rows["padded"]))
    assert all(side["apart"]["gradient"] < 1e-5 for side in (rows, theirs))
    assert theirs["apart"]["of"] > 0
    played, plain = found["rollout"]["ours"], found["rollout"]["generate"]
    assert played["episodes"] == plain["episodes"] == 8
    assert plain["computed"] == plain["prompt_tokens"] and played["computed"] < played["prompt_tokens"]
    assert played["sampled"] > played["replies"] >= 8
    parts = found["step"]
    assert parts["whole"]["median"] >= parts["rollout"]["median"] + parts["loss"]["median"] > 0


class Side:
    """Leaves gradients as it is told."""

    def __init__(self, model, loss, gradient):
        self._model, self._loss, self._gradient = model, loss, gradient

    def run(self, note):
        self._model.weight.grad = torch.tensor([self._gradient])
        note(self._loss)


def test_sides_that_compute_different_things_are_not_compared(bench):
    model = torch.nn.Linear(2, 1, bias=False)
    ours = Side(model, 0.5, [1.0, 2.0])
    assert bench.difference(ours, Side(model, 0.5, [1.0, 2.0]), model) == {"of": 0.5, "loss": 0.0, "gradient": 0.0}
    for loss, gradient in ((0.501, [1.0, 2.0]), (0.5, [1.001, 2.0]), (0.5, [1.0, float("nan")])):
        with pytest.raises(NegolabError, match="the sides compute different things"):
            bench.difference(ours, Side(model, loss, gradient), model)


def test_sides_take_turns_and_ratios_are_of_one_repeat(bench):
    order = []
    times = bench.alternated({name: lambda name=name: order.append(name) for name in "abc"}, 3)
    assert "".join(order) == "abccbaabc"
    assert [len(side) for side in times.values()] == [3, 3, 3]
    base = [bench.Spent(1.0, 1.0), bench.Spent(10.0, 2.0)]
    mine = [bench.Spent(3.0, 2.0), bench.Spent(20.0, 6.0)]
    found = bench.compared(mine, base)
    assert found["ratio_wall"] == {"median": 2.5, "least": 2.0, "most": 3.0}
    assert found["ratio_cpu"] == {"median": 2.5, "least": 2.0, "most": 3.0}
    # Four and five units where the base did two and ten: half of the time each, and twice.
    assert bench.compared(mine, base, [4, 5], [2, 10])["ratio_wall"] == {"median": 2.75, "least": 1.5, "most": 4.0}


@pytest.mark.parametrize(
    "given, says",
    [
        (["--profile", "nothing"], "no profile 'nothing'"),
        (["--groups", "0"], "groups"),
        (["--set", "sampler=vllm"], "no other sampler"),
    ],
)
def test_mistakes_are_one_line(bench, given, says, capsys):
    assert bench.main(given) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1

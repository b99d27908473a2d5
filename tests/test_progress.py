"""How far a run is: lines now and then, a bar on a terminal, nothing where output is captured."""

import io
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from negolab.commands import sft, train
from negolab.errors import NegolabError
from negolab.trainer import progress
from negolab.trainer.loop import Trained
from negolab.trainer.progress import Progress, counted
from negolab.trainer.sft import Tuned
from negolab.trainer.sft_data import Kind, Sample, SftData, order_of


class Clock:
    """Seconds that a test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_at_the_first_step_then_every_half_minute_and_at_the_last(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with Progress(100, 40, True) as shown:
        for _ in range(60):
            clock.now += 7.0
            shown.advance("loss 1.5")
            if shown.done == 70:
                shown.tell("held-out loss 1.2")
    told = out.getvalue().splitlines()
    assert told[0] == "step 41 of 100: loss 1.5; 6:53 left"  # 59 steps of 7 seconds
    steps = [int(line.split()[1]) for line in told if "left" in line]
    assert steps == list(range(41, 100, 5))  # 35 seconds, the first multiple of 7 from 30 on
    assert "step 70 of 100: held-out loss 1.2" in told
    assert told[-1] == "step 100 of 100: loss 1.5; took 7:00"


def test_hours_are_told(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with Progress(3, 0, True) as shown:
        clock.now += 3725
        shown.advance("loss 1")
    assert out.getvalue() == "step 1 of 3: loss 1; 2:04:10 left\n"


@pytest.mark.parametrize(
    ("own", "terminal", "shown", "bar", "lines"),
    [
        (True, False, None, False, True),  # a file or a pipe
        (True, False, False, False, False),
        (False, False, None, False, False),  # a notebook, a test
        (False, False, True, False, True),
        (True, True, None, True, False),
        (True, True, False, False, False),
        (False, True, None, True, False),
    ],
)
def test_where_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, own: bool, terminal: bool, shown: bool | None, bar: bool, lines: bool
) -> None:
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    if own:
        monkeypatch.setattr(sys, "__stderr__", out)
    with Progress(2, 0, shown) as made:
        made.advance("loss 1")
        made.advance("loss 1")
    assert ("\r" in out.getvalue()) == bar and ("step 2 of 2: loss 1" in out.getvalue()) == lines
    assert bool(out.getvalue()) == (bar or lines)


def test_one_is_not_many() -> None:
    assert [counted(n, "step") for n in (0, 1, 2, 1200)] == ["0 steps", "1 step", "2 steps", "1,200 steps"]


def test_what_commands_say_of_one_step_and_of_one_sample() -> None:
    folder = Path("run")
    trained = Trained(folder, 1, {"rollout": 1.5, "whole": 2.0}, 1)
    assert train.summary(trained).splitlines() == [
        f"1 step; the trained model: {folder / 'model'}",
        "seconds of this step: rollout 1.50; in all 2.00",
    ]
    assert "seconds for each of 2 steps: rollout 0.75; in all 1.00" in train.summary(replace(trained, steps_now=2))
    assert sft.summary(Tuned(folder, 1, 1, 3.0, 0.5, 0.5)) == "1 step; run\nloss 0.5000 in this step; 3.00 seconds"
    kind = Kind("market", "seller", 3, 7)
    sample = Sample(np.array([1, 2], dtype=np.int32), np.array([False, True]), kind, "toys_1")
    told = SftData([sample], [sample], Counter({kind: 1}), Counter()).lines()
    assert told[0] == "1 of 1 conversation is kept."
    assert told[-1] == "Trained on: 1 sample, 2 tokens, 1 of them learnt (50.0%); 1 sample is held out."
    with pytest.raises(NegolabError, match=r"^batch is 2, but there is only 1 sample to learn from$"):
        order_of([sample], 2, 1, seed=0)

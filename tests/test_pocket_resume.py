"""``negolab pocket pretrain`` killed, interrupted and run again: the same bytes, or one line that says why not."""

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from negolab.errors import NegolabError

pytest.importorskip("torch")
pytest.importorskip("transformers")

from negolab.pocket import corpus, pretrain, unfinished, words
from negolab.pocket.pretrain import batches
from negolab.pocket.settings import PocketSettings
from negolab.pocket.teacher import Teacher
from negolab.pocket.tokenizer import learn
from negolab.trainer import checkpoints, records
from runs import default_interrupt, environment

SMALL = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "feed_forward": 64, "batch_tokens": 1500}
TINY = PocketSettings(seed=7, episodes=24, **SMALL)

CHILD = f"""
import functools, os, signal, sys
from negolab import cli
from negolab.pocket import corpus, pretrain, settings
from negolab.trainer import checkpoints
shown, mark, marked = corpus.shown, checkpoints._mark, []
corpus.shown = lambda: shown(12)  # seconds instead of a quarter of a minute
settings.PocketSettings = functools.partial(settings.PocketSettings, **{SMALL!r})
pretrain.batches = functools.partial(pretrain.batches, pool=50)
def dies(folder):
    marked.append(folder)
    if len(marked) == int(os.environ.get("DIES_WRITING_CHECKPOINT", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    mark(folder)
checkpoints._mark = dies
sys.exit(cli.main(sys.argv[1:]))
"""


def child(out: Path, dies: int = 0) -> subprocess.Popen:
    """``negolab pocket pretrain`` of a small model in a process, which kills itself in its ``dies``-th checkpoint."""
    args = ["pocket", "pretrain", "--out", str(out), "--episodes", "160", "--save-every", "6", "--threads", "1"]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *args],
        env=environment(DIES_WRITING_CHECKPOINT=str(dies), OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_interrupt,
    )


def newest(out: Path) -> int:
    return (checkpoints.newest(out / "unfinished") or (0, None))[0]


def after(process: subprocess.Popen, out: Path, step: int, what: signal.Signals) -> str:
    """Send a signal once a checkpoint of that many steps is there; what the process said on standard error."""
    deadline = time.monotonic() + 120
    while newest(out) < step and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(what)
    return process.communicate(timeout=60)[1]


def table(out: Path) -> list[dict[str, str]]:
    """``pretrain.csv`` without its seconds."""
    with (out / "pretrain.csv").open(encoding="utf-8", newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def record(out: Path) -> dict:
    return json.loads((out / "pretrain.json").read_text(encoding="utf-8"))


def weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def test_killed_twice_and_interrupted_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    process = child(whole)
    told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert record(whole)["steps"] > 60 and record(whole)["resumed"] == 0

    process = child(out, dies=2)  # in the middle of its second checkpoint
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL and newest(out) == 6
    process = child(out)
    assert "going on after step 6:" in after(process, out, 18, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL and not (out / "model.safetensors").exists()
    killed = newest(out)
    process = child(out)
    errors = after(process, out, killed + 6, signal.SIGINT)
    lines = [line for line in errors.splitlines() if line.startswith("negolab: ")]
    assert process.returncode == 130 and "Traceback" not in errors
    assert len(lines) == 1 and "run the same command again to go on" in lines[0]
    assert 18 <= killed < newest(out) < record(whole)["steps"]
    process = child(out)
    told = process.communicate(timeout=300)
    assert process.returncode == 0, told

    assert weights(out) == weights(whole)
    assert table(out) == table(whole) and len(table(whole)) >= 2
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in whole.iterdir())
    assert not (out / "unfinished").exists()
    mine, theirs = record(out), record(whole)
    assert mine.pop("resumed") == 3 and theirs.pop("resumed") == 0
    assert mine.pop("seconds") and theirs.pop("seconds")
    assert mine == theirs


@pytest.fixture(autouse=True)
def few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer of few texts, learnt in a second."""
    shown = corpus.shown
    monkeypatch.setattr(corpus, "shown", lambda: shown(12))


def made(out: Path, settings: PocketSettings = TINY, start: Path | None = None) -> list[str]:
    """Make a base in this process; what it said."""
    said: list[str] = []
    pretrain.pretrain(settings, out, start=start, save_every=2, progress=False, say=said.append)
    return said


def stopped(out: Path, step: int = 3, settings: PocketSettings = TINY, start: Path | None = None) -> Path:
    """A base in the making whose process died in the middle of a step."""
    whole_step, steps = pretrain._step, []

    def dies(*given: Any) -> tuple[float, float]:
        steps.append(1)
        if len(steps) > step:
            raise KeyboardInterrupt
        return whole_step(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "_step", dies)
        with pytest.raises(KeyboardInterrupt):
            made(out, settings, start)
    assert newest(out) == step // 2 * 2
    return out


def refused(out: Path, settings: PocketSettings = TINY, start: Path | None = None) -> str:
    """The one line that says why; no model is made first, and nothing changes."""
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(pretrain, "new_model")
        with pytest.raises(NegolabError) as caught:
            made(out, settings, start)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_run_does_not_go_on_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = stopped(tmp_path / "out")
    told = refused(out, replace(TINY, muon_lr=0.01, seed=8))
    assert "holds another run" in told and "settings.muon_lr: 0.02 there, 0.01 now" in told
    assert "settings.seed: 7 there, 8 now" in told and "resume it as it was begun, or give a new folder" in told

    described = Teacher.describe
    with monkeypatch.context() as patch:
        patch.setattr(Teacher, "describe", lambda self: {**described(self), "version": 99})
        assert "teacher.version: " in refused(out)
    with monkeypatch.context() as patch:
        patch.setattr(words, "SPOKEN", (*words.SPOKEN, "a phrase that nobody says"))
        assert "tokenizer_sha256: " in refused(out)
    with records.locked(out / "unfinished"), pytest.raises(NegolabError, match="is being written by another process"):
        made(out)
    made(out)
    assert record(out)["resumed"] == 1


def test_a_finished_folder_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made(out)
    before = weights(out)
    assert made(out) == [f"{out} is complete: {record(out)['steps']} steps"]
    assert weights(out) == before
    told = refused(out, replace(TINY, episodes=25))
    assert "is finished and was made otherwise (settings.episodes: 24 there, 25 now)" in told


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "thesis.txt").write_text("mine")
    assert "not empty" in refused(tmp_path)


def test_it_goes_on_from_another_model_to_the_same_bytes(tmp_path: Path) -> None:
    start, second = tmp_path / "start", replace(TINY, seed=8)
    made(start)
    made(tmp_path / "whole", second, start)
    out = stopped(tmp_path / "out", 3, second, start)
    assert "start: " in refused(out, second)
    said = made(out, second, start)
    assert said[0].startswith("going on after step 2: ")
    assert weights(out) == weights(tmp_path / "whole") != weights(start)
    assert record(out)["before"] == record(start)
    config = start / "config.json"
    config.write_text(config.read_text() + " ")
    again = stopped(tmp_path / "again", 3, second, start)
    config.write_text(config.read_text().rstrip())
    assert "start: " in refused(again, second, start)


def test_other_threads_and_packages_are_told_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    out, n = stopped(tmp_path / "out"), torch.get_num_threads()
    monkeypatch.setattr(pretrain, "_versions", lambda: {"torch": "0.0"})
    torch.set_num_threads(n + 1)
    try:
        said = made(out)
    finally:
        torch.set_num_threads(n)
    note = f"threads: {n} there, {n + 1} now; from here on numbers may differ"
    assert note in said and note in record(out)["changed"]
    assert any(line.startswith('versions.torch: "') for line in record(out)["changed"])
    assert record(out)["resumed"] == 1


def test_what_a_crash_left_half_written_is_not_gone_on_from(tmp_path: Path) -> None:
    made(tmp_path / "whole")
    out = stopped(tmp_path / "out")
    (state,) = (out / "unfinished").rglob("state.pt")
    content = state.read_bytes()
    state.write_bytes(b"\0" * len(content))  # as many bytes: taken for whole
    told = refused_reading(out)
    assert "state.pt cannot be read" in told and "to begin anew" in told
    state.write_bytes(content[:-1])
    said = made(out)
    assert len(said) == 1 and record(out)["resumed"] == 0
    assert weights(out) == weights(tmp_path / "whole")
    empty = tmp_path / "empty"  # killed before there was a manifest
    (empty / "unfinished").mkdir(parents=True)
    (empty / "unfinished" / "run.lock").touch()
    made(empty)
    assert weights(empty) == weights(out)


def refused_reading(out: Path) -> str:
    with pytest.raises(NegolabError) as caught:
        made(out)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_checkpoint_is_kept_and_it_is_the_newest(tmp_path: Path) -> None:
    out = stopped(tmp_path / "out", step=5)
    assert [path.name for path in (out / "unfinished" / "checkpoints").iterdir()] == ["step-000004"]


def test_a_full_disk_is_one_line_and_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = stopped(tmp_path / "out")

    def full(self: Path, data: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        told = refused_reading(out)
    assert "No space left on device" in told and newest(out) == 2
    made(out)
    assert record(out)["resumed"] == 2


def test_examples_that_were_read_are_left_out_and_whole_pools_of_them_not_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tok, settings = learn(corpus.shown(), words.SPOKEN), replace(TINY, episodes=20)
    examples, played = corpus.examples, []

    def counted(tok: object, settings: PocketSettings, numbers: range) -> list[corpus.Text]:
        played.append(numbers.start)
        return examples(tok, settings, numbers)

    monkeypatch.setattr(corpus, "examples", counted)
    every = list(batches(settings, tok, pool=8))
    assert played == [0, 8, 16] and len(every) > 4
    seen = 0
    for at, batch in enumerate(every):
        played.clear()
        rest = list(batches(settings, tok, skip=seen, pool=8))
        assert len(rest) == len(every) - at
        assert all(
            np.array_equal(one.ids, other.ids) and np.array_equal(one.weights, other.weights)
            for mine, theirs in zip(rest, every[at:], strict=True)
            for one, other in zip(mine, theirs, strict=True)
        )
        assert len(played) == 3 - sum(seen >= corpus.count(settings, range(end)) for end in (8, 16, 20))
        seen += len(batch)
    assert list(batches(settings, tok, skip=seen, pool=8)) == []


def test_the_place_of_checkpoints_is_part_of_the_commands_help(capsys: pytest.CaptureFixture[str]) -> None:
    from negolab.cli import main

    assert main(["pocket", "pretrain", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Run the same command again to resume" in told and f"DIR/{unfinished.UNFINISHED}" in told

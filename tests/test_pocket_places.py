"""``negolab pocket pretrain``: what is wrong with its folders is told before anything is made."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from negolab.cli import main


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["pocket", "pretrain", *options]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1, told
    return told


def test_a_start_that_is_no_pocket_model_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "base"
    told = refused(capsys, "--from", str(tmp_path / "nowhere"), "--out", str(out))
    assert "holds no pocket model" in told and not out.exists()


def test_a_file_is_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "base"
    out.write_text("mine")
    assert "is a file" in refused(capsys, "--out", str(out)) and out.read_text() == "mine"


@pytest.mark.parametrize("seed", [4, 1])
def test_no_stretch_reads_what_one_before_has_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    record = {"settings": {"seed": 4}, "before": {"settings": {"seed": 1}}}
    (tmp_path / "pretrain.json").write_text(json.dumps(record))
    out = tmp_path / "on"
    told = refused(capsys, "--from", str(tmp_path), "--seed", str(seed), "--out", str(out))
    assert f"was made with seed {seed}" in told and not out.exists()

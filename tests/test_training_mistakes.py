"""What users write and disks do wrong in training: one clear line each, and manifests that tell of no machine."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from negolab.catalog import SAMPLE, load_catalog
from negolab.errors import NegolabError
from negolab.scenario import IN_DISTRIBUTION
from negolab.trainer import checkpoints, records
from negolab.trainer.loop import _Run
from negolab.trainer.settings import TrainSettings, load_profile
from negolab.trainer.sft_settings import load_sft
from negolab.trainer.task import SellerTask, Weighted

# -- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["0012345", "1234567", "2024-13-01", "2024-01-01", "on", "1e5", "null", "a # b", "x: y"]
)
def test_a_setting_that_is_a_text_is_taken_as_it_stands(text: str) -> None:
    assert load_profile("smoke", [f"revision={text}"]).revision == text
    assert load_sft("", [f"revision={text}"], {"teacher": "prober"}).revision == text


def test_a_text_may_be_quoted_or_empty() -> None:
    assert load_profile("smoke", ["revision='12'"]).revision == "12"
    assert load_profile("smoke", ["revision="]).revision == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("steps=010", "010 is read as another number"),  # YAML's 8
        ("steps=1:30", "1:30 is read as another number"),  # 90
        ("steps=0x10", "0x10 is read as another number"),
        ("scale_by_std=yes", "yes is read as True"),
        ("groups=2024-13-01", "is read as a date"),
        ("seed=" + "9" * 5000, "--set seed: '999"),
        ("learning_rate=1" + "0" * 400, "learning_rate is 1000"),
        ("steps=" + "[" * 3000, "nested too deeply"),
        ("regimes={a: {n_buyers: 2}, a: {}}", "a is there twice"),
        ("lora.targets=5", "lora.targets is 5; allowed: a list of names"),
        ("lora.targets=all-linear", "lora.targets is 'all-linear'"),
    ],
)
def test_what_is_no_value_is_told(change: str, says: str) -> None:
    with pytest.raises(NegolabError) as told:
        load_profile("smoke", [change])
    assert says in str(told.value)
    assert len(str(told.value)) < 600


def test_numbers_switches_and_lists_are_read_as_before() -> None:
    made = load_profile("smoke", ["learning_rate=1e-4", "eval_products=", "report_to=[wandb]", "scale_by_std=true"])
    assert (made.learning_rate, made.eval_products, made.report_to, made.scale_by_std) == (1e-4, None, ("wandb",), True)


@pytest.mark.parametrize("regimes", ["[in_distribution]", "5"])
def test_a_profiles_regimes_that_are_no_names_are_told(tmp_path: Path, regimes: str) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(f"regimes: {regimes}\nteacher: prober\n")
    with pytest.raises(NegolabError, match=r"mine\.yaml: regimes is .*; allowed: names with their settings"):
        load_sft(str(profile), regimes=["in_distribution"])


# -- the disk ---------------------------------------------------------------------------------------------------------

_FULL = """
import resource, signal, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from negolab.errors import NegolabError
from negolab.trainer import checkpoints, records

kind, folder = sys.argv[1], Path(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
write = torch.save if kind == "torch" else save_file
try:
    with records.locked(folder):
        if kind != "model":
            with checkpoints.saving(folder, 1) as place:
                (place / "checkpoint-1").mkdir()
                write({"a": torch.zeros(100_000)}, place / "checkpoint-1" / "weights")
        write({"a": torch.zeros(100_000)}, folder / "weights")
except NegolabError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            "torch",
            "cannot write a checkpoint to .*: torch could not write a file to its end; the last whole one is kept",
        ),
        ("safetensors", "cannot write a checkpoint to .*: File too large.*; the last whole one is kept"),
        ("model", "cannot write to .*: File too large.*; what was finished is kept"),
    ],
)
def test_a_disk_that_is_full_is_one_line_whoever_writes(tmp_path: Path, kind: str, says: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    done = subprocess.run([sys.executable, "-c", _FULL, kind, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    import re

    assert re.search(says, done.stdout), done.stdout
    assert not checkpoints.complete(tmp_path / "run")


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "reset"), RuntimeError("gloo/transport: gone"), KeyError(1)]
)
def test_other_failures_are_not_blamed_on_the_disk(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)), records.locked(tmp_path), checkpoints.saving(tmp_path, 1):
        raise error


def test_a_table_that_somebody_wrote_into_is_told(tmp_path: Path) -> None:
    table = records.Table(tmp_path / "metrics.csv", ("step", "loss"))
    table.cut(0)
    table.append([{"step": 0, "loss": 1.5}])
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("mean,1.5\n")
    with pytest.raises(NegolabError, match="a row that begins with no step"):
        table.cut(1)


# -- manifests --------------------------------------------------------------------------------------------------------


def test_a_manifest_tells_neither_folders_nor_addresses(tmp_path: Path) -> None:
    folder = tmp_path / "secret" / "seller"
    settings: dict[str, Any] = {
        "buyers": {
            "*": {"model": f"transformers:{folder}", "adapter": str(folder), "device": "cpu", "temperature": 0.5},
            "iter-50": {"model": "openai:org/deep/name", "base_url": "http://secret:1/v1", "key_env": "SECRET"},
            "iter-60": {"model": "vllm:org/name", "adapter": "org/adapter"},
        },
        "task_options": {"seller": f"transformers:{folder}", "personas": ["begging"]},
        "train_split": str(folder / "mine.json"),
        "eval_split": "test",
    }
    kept = records.new_manifest(settings, {}, {})["settings"]
    assert "secret" not in json.dumps(kept).lower()
    assert kept == {
        "buyers": {
            "*": {"model": "transformers:seller", "adapter": "seller", "temperature": 0.5},
            "iter-50": {"model": "openai:org/deep/name"},
            "iter-60": {"model": "vllm:org/name", "adapter": "org/adapter"},
        },
        "task_options": {"seller": "transformers:seller", "personas": ["begging"]},
        "train_split": "file",
        "eval_split": "test",
    }


def test_a_run_that_began_before_manifests_were_short_goes_on(tmp_path: Path) -> None:
    settings = {"buyers": {"*": {"model": "transformers:/models/a", "device": "cuda"}}, "steps": 3}
    old = {**records.new_manifest(settings, {}, {}), "settings": settings}
    records.write_whole(tmp_path / records.MANIFEST, json.dumps(old).encode())
    assert records.open_manifest(tmp_path, records.new_manifest(settings, {}, {})) == []
    with pytest.raises(NegolabError, match=r"settings\.buyers\.\*\.model"):
        records.open_manifest(
            tmp_path, records.new_manifest({**settings, "buyers": {"*": {"model": "transformers:/models/b"}}}, {}, {})
        )


def test_a_split_from_a_file_is_known_by_its_products(tmp_path: Path) -> None:
    catalog = load_catalog(SAMPLE)
    names = [product.listing.codename for product in catalog.split("train")]

    def described(chosen: list[str], name: str) -> dict[str, Any]:
        path = tmp_path / name
        path.write_text(json.dumps(chosen))
        regimes = [Weighted(IN_DISTRIBUTION, 1.0)]
        return SellerTask(catalog, regimes, seed=0, groups=2, group_size=2, train_split=str(path)).describe()

    first = described(names[:6], "a.json")
    assert described(names[:6], "b.json") == first
    assert described(names[1:7], "a.json") != first and first["train_products"] == 6
    usual = SellerTask(catalog, [Weighted(IN_DISTRIBUTION, 1.0)], seed=0, groups=2, group_size=2).describe()
    assert "train_products_sha256" not in usual


def test_a_run_says_what_it_learns_from_and_that_the_real_products_are_missing() -> None:
    described = {"train_products": 96, "data": {"name": "sample"}}
    for data, missing in (("auto", True), ("sample", False)):
        task = SimpleNamespace(describe=lambda: described)
        run: Any = SimpleNamespace(settings=TrainSettings(model="m", data=data, steps=3), task=task)
        said = _Run._plan(run)
        assert said.startswith("3 steps of 64 markets x 8 episodes, 96 products of sample to learn from")
        assert ("negolab data fetch" in said) == missing

"""Where a model's name leads: folders, models that come along, the hub; and what is said of a mistyped path."""

from pathlib import Path

import pytest

from negolab.errors import NegolabError
from negolab.policies.registry import make_models
from negolab.policies.spec import TransformersSpec, located, pocket_models
from negolab.trainer import estimate
from runs import call, one_line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to start from, with two training runs and a model."""
    for name in ("runs/pocket-seller/model", "runs/pocket-buyer/model", "gpt-2", "base/tiny"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "runs" / "pocket-seller" / "evals").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "base" / "small.gguf").write_text("GGUF")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("runs/pocket-seler/model", "did you mean runs/pocket-seller/model or runs/pocket-buyer/model?"),
        ("rnus/pocket-seller/model", "did you mean runs/pocket-seller/model?"),
        ("runs/pocket-seler", "did you mean runs/pocket-seller/model or runs/pocket-buyer/model?"),
        ("./base/tny", "did you mean base/tiny?"),
        ("base/smal.gguf", "did you mean base/small.gguf?"),
        ("rns/pocket-seller", "did you mean runs/pocket-seller/model?"),
        ("Base/tiny", "did you mean base/tiny?"),
        ("gpt2", "did you mean gpt-2? To have gpt2 of the hub, start from a folder without gpt-2"),
        ("runs/zzz", "runs is there and holds pocket-buyer, pocket-seller. To have"),
        ("notes/zzz/model", "notes is there, but holds no folder"),
        ("/zzz-nowhere/model", "nothing here has a name like it"),
        ("~nobody-of-this-name/model", "nothing here has a name like it"),
        ("a/b/" + "c" * 300, "no such folder or file"),
        ("C:models", "no such folder or file"),
        ("runs\\pocket-seller", "no such folder or file"),
        ("zzz/model.gguf", "nothing here has a name like it"),
    ],
)
def test_a_mistyped_path_is_told_with_what_is_like_it(here: Path, name: str, says: str) -> None:
    if name == "Base/tiny" and Path("Base").exists():
        pytest.skip("a file system on which this is no mistake")
    with pytest.raises(NegolabError) as told:
        located(name)
    assert str(told.value).startswith(f"{name}: no such folder or file") and says in str(told.value)
    assert "\n" not in str(told.value)


def test_names_on_the_hub_and_paths_that_are_there_pass(here: Path) -> None:
    for name in (
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "distilgpt2-large",
        "note",
        "runs/pocket-seller/model",
        "base/tiny",
    ):
        assert located(name) == name
    assert located(str(here / "base")) == str(here / "base")
    assert located("pocket-base") == str(pocket_models()["pocket-base"])


def test_the_home_folder_is_found_where_a_shell_leaves_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    assert located("~/base/tiny") == str(here / "base" / "tiny")
    with pytest.raises(NegolabError, match=r"base/tin: no such folder or file; did you mean .*base/tiny\?"):
        located("~/base/tin")


def test_players_and_training_ask_no_hub(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from negolab.policies import registry

    monkeypatch.setattr(registry, "make_engine", lambda specs: pytest.fail("an engine is made"))
    with pytest.raises(NegolabError, match="did you mean runs/pocket-seller/model"):
        make_models([TransformersSpec(model="runs/pocket-seler")])
    with pytest.raises(NegolabError, match="did you mean runs/pocket-seller/model"):
        estimate.config_of("runs/pocket-seler")
    for command in (
        ["train", "--profile", "smoke", "--set", "model=runs/pocket-seler"],
        ["sft", "--model", "runs/pocket-seler"],
    ):
        code, out, err = call(capsys, *command, "--out", "new")
        assert (code, out) == (2, "") and "did you mean runs/pocket-seller/model" in one_line(err)
    assert not Path("new").exists()

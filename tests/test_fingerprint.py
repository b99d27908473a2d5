"""Models are told apart by what is in their files, not by where they lie."""

import shutil

import pytest

from negolab.errors import NegolabError
from negolab.policies.fingerprint import fingerprint


@pytest.fixture
def folder(tmp_path):
    there = tmp_path / "here" / "checkpoint-10"
    there.mkdir(parents=True)
    (there / "config.json").write_text('{"hidden_size": 8}')
    (there / "model.safetensors").write_bytes(bytes(range(256)) * (17 << 12))  # 17 MiB: counts by blocks
    return there


def test_a_copy_is_the_same_model_wherever_it_lies(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "there" / "checkpoint-10")
    found = fingerprint(str(folder))
    assert found == fingerprint(str(copy)) == fingerprint(f"{copy}/")
    assert found["model"] == "checkpoint-10" and str(tmp_path) not in str(found)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", lambda data: data.replace(b"8", b"9")),
        ("model.safetensors", lambda data: b"x" + data[1:]),
        ("model.safetensors", lambda data: data[:-1] + b"x"),
        ("model.safetensors", lambda data: data[:-1]),
        ("model.safetensors", lambda data: bytes(255 - value for value in data[:256]) * (len(data) // 256)),
    ],
)
def test_another_file_is_another_model(folder, name, change):
    before = fingerprint(str(folder))
    path = folder / name
    path.write_bytes(change(path.read_bytes()))
    assert fingerprint(str(folder)) != before


def test_what_a_trainer_leaves_beside_it_does_not_count(folder):
    before = fingerprint(str(folder))
    (folder / "trainer_state.json").write_text("{}")
    (folder / "README.md").write_text("notes")
    (folder / ".cache").mkdir()
    assert fingerprint(str(folder)) == before


def test_names_on_the_hub_and_folders_without_a_model(tmp_path):
    assert fingerprint("owner/model-1B", "abc") == {"model": "owner/model-1B", "commit": "abc"}
    with pytest.raises(NegolabError, match="holds no file of a model"):
        fingerprint(str(tmp_path))

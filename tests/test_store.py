"""The run folder: no end of the writer spoils it, and nothing in it is believed unchecked."""

import os
import shutil
import signal
import sys
from pathlib import Path

import orjson
import pytest

from negolab.cli import main
from negolab.errors import DamagedRun, NegolabError
from negolab.store import DAMAGED, EPISODES, MANIFEST, METRICS_CSV, PID, PRODUCTS, Run, seal
from negolab.verify import verify
from negolab.writer import RunWriter
from runs import contents, evaluate_args, make_run, one_line, reseal

SMALL = ("--products", "4", "--per-product", "3", "--regime", "ood_diverse")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of twelve episodes; not to be changed."""
    return make_run(tmp_path_factory.mktemp("store") / "reference", *SMALL)


@pytest.fixture
def run(reference: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


def again(folder: Path) -> int:
    """The evaluation that made the folder, once more."""
    return main(evaluate_args(folder, *SMALL))


def writer_of(folder: Path, like: Path) -> RunWriter:
    """A writer on ``folder`` with the manifest and products of the run ``like``."""
    run = Run(like)
    return RunWriter(folder, run.manifest, list(run.products.values()))


# -- kills ------------------------------------------------------------------------------------------------------------


def killed_at(step: int, folder: Path) -> bool:
    """Evaluate in a child that kills itself at its ``step``-th touch of a file there; False if it got through."""
    child = os.fork()
    if child == 0:
        left = step

        def count(event: str, args: tuple) -> None:
            nonlocal left
            if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(folder) in str(args[0]):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(again(folder))
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def test_a_kill_between_any_two_file_operations_leaves_a_folder_that_can_be_resumed(reference, tmp_path):
    step = 0
    while killed_at(step, tmp_path / str(step)):
        folder = tmp_path / str(step)
        assert again(folder) == 0
        assert contents(folder) == contents(reference), f"killed at step {step}"
        assert not list(folder.glob("*.tmp")), f"killed at step {step}"
        step += 1
    assert step > 12


def test_kills_in_a_row_and_during_repairs(reference, tmp_path):
    folder, step = tmp_path / "run", 0
    while killed_at(step, folder):
        if (folder / EPISODES).exists():
            with (folder / EPISODES).open("ab") as file:
                file.write(b'{"episode":3,"sc')
        step += 1
    assert contents(folder) == contents(reference)


# -- torn tails and damage --------------------------------------------------------------------------------------------


def test_cut_at_every_byte_of_the_last_record(tmp_path, monkeypatch):
    """One buyer, one message: the shortest record there is, cut everywhere."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # thousands of them take a busy disk minutes
    short = ("--products", "2", "--per-product", "1", "--buyers", "1", "--messages", "1", "--cap", "1")
    reference = make_run(tmp_path / "reference", *short)
    whole = (reference / EPISODES).read_bytes()
    last = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    folder = tmp_path / "run"
    shutil.copytree(reference, folder)
    for cut in range(last, len(whole)):
        (folder / EPISODES).write_bytes(whole[:cut])
        (folder / DAMAGED).unlink(missing_ok=True)
        if cut % 16 == last % 16:
            report = verify(folder)
            assert report.verified == 1
            assert ["torn" in problem for problem in report.problems] == ([True, False] if cut > last else [False])
        with writer_of(folder, reference) as writer:
            assert list(writer.owed()) == [1]
            assert len(writer.set_aside) == (cut > last)
            writer.append([1], [whole[last:-1]])
            writer.finish()
        assert contents(folder) == contents(reference)
        assert (folder / DAMAGED).exists() == (cut > last)
        if cut > last:
            assert (folder / DAMAGED).read_bytes() == whole[last:cut] + b"\n"


@pytest.mark.parametrize("kept", [0, 1, 500, -1])
def test_a_torn_record_is_told_set_aside_and_played_again(kept, reference, run, capsys):
    whole = (reference / EPISODES).read_bytes()
    last = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    (run / EPISODES).write_bytes(whole[: last + kept if kept >= 0 else kept])
    assert main(["verify", str(run)]) == 1
    assert "1 of 12 episodes are missing" in capsys.readouterr().err
    assert again(run) == 0
    err = capsys.readouterr().err
    assert ("set aside to episodes.damaged.jsonl and played again: line 12: the last line is torn" in err) == (
        kept != 0
    )
    assert contents(run) == contents(reference)


def damage(kind: str, lines: list[bytes]) -> list[bytes]:
    """One kind of damage in the middle of the file."""
    third = lines[3]
    match kind:
        case "garbage":
            lines[3] = b"\x00\xff garbage \x80\n"
        case "foreign":
            lines.insert(3, reseal(third, lambda data: data.update(episode=12)))
        case "negative":
            lines.insert(3, reseal(third, lambda data: data.update(episode=-1)))
        case "huge number":
            lines.insert(3, reseal(third, lambda data: data.update(episode=2**63)))
        case "twice":
            lines.insert(3, lines[1])
        case "blank":
            lines[3:3] = [b"\n", b"  \r\n"]
        case "fused":
            lines[3] = third[:-1]
        case "50 MB":
            lines.insert(3, b"x" * 50_000_000 + b"\n")
        case "not an object":
            body = b"[1]"
            lines[3] = b'%s,"crc":"00000000"}\n' % body
        case "half":
            lines[3] = third[: len(third) // 2] + b"\n"
        case "zeros":
            lines[3] = bytes(len(third))
    return lines


KINDS = ("garbage", "foreign", "negative", "huge number", "twice", "blank", "fused", "50 MB", "not an object", "half")


@pytest.mark.parametrize("kind", [*KINDS, "zeros"])
def test_damaged_lines_are_found_set_aside_and_played_again_once(kind, reference, run, capsys):
    lines = damage(kind, (run / EPISODES).read_bytes().splitlines(keepends=True))
    (run / EPISODES).write_bytes(b"".join(lines))
    assert main(["verify", str(run)]) == 1
    err = capsys.readouterr().err
    assert "problem: line 4" in err and len(err) < 2000
    assert ("line 4: the line is empty" in err) == (kind == "blank")
    assert main(["compare", str(reference), str(run)]) == 1
    assert "line 4" in one_line(capsys.readouterr().err)
    assert again(run) == 0
    assert "set aside" in capsys.readouterr().err
    assert contents(run) == contents(reference)
    assert (run / DAMAGED).stat().st_size > 0
    assert verify(run).ok and "episodes.damaged.jsonl" in verify(run).notes[0]


def test_a_flipped_bit_anywhere_in_a_line_is_found(reference, run):
    whole = (reference / EPISODES).read_bytes()
    for at in range(0, whole.index(b"\n") + 1, 23):
        for bit in (0, 5):
            spoiled = bytearray(whole)
            spoiled[at] ^= 1 << bit
            (run / EPISODES).write_bytes(spoiled)
            with pytest.raises(DamagedRun):
                list(Run(run).episodes())
    assert not verify(run).ok
    assert again(run) == 0
    assert contents(run) == contents(reference)


def test_files_that_are_empty_or_gone_are_made_again(reference, run):
    for spoil in (
        lambda: (run / EPISODES).write_bytes(b""),
        lambda: (run / EPISODES).unlink(),
        lambda: (run / PRODUCTS).unlink(),
        lambda: (run / PRODUCTS).write_bytes((run / PRODUCTS).read_bytes().replace(b"e", b"E", 1)),
        lambda: (run / PRODUCTS).write_bytes(b"\xff"),
        lambda: (run / METRICS_CSV).unlink(),
        lambda: (run / METRICS_CSV).write_bytes((run / METRICS_CSV).read_bytes().replace(b"0", b"1", 1)),
        lambda: (run / METRICS_CSV).write_bytes(b"\xff\xfe"),
    ):
        spoil()
        assert main(["verify", str(run)]) == 1
        assert again(run) == 0
        assert contents(run) == contents(reference)
        assert verify(run).ok


def test_verify_names_what_is_wrong_with_the_other_files(run, capsys):
    def told() -> str:
        assert main(["verify", str(run)]) == 1
        return capsys.readouterr().err

    (run / METRICS_CSV).write_bytes(b"metric\n")
    assert "metrics.csv does not follow from the episodes" in told()
    (run / METRICS_CSV).unlink()
    assert "metrics.csv is missing" in told()
    (run / PRODUCTS).write_bytes((run / PRODUCTS).read_bytes() + b"\n")
    assert "products.jsonl was changed after it was written" in one_line(told())
    (run / PRODUCTS).unlink()
    assert "products.jsonl is missing" in one_line(told())


def test_a_manifest_that_cannot_be_trusted_stops_everybody(reference, run, capsys):
    good = orjson.loads((run / MANIFEST).read_bytes())
    for spoiled, why in (
        (None, "holds episodes but no manifest.json"),
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "is not a manifest of format 2"),
        (orjson.dumps({**good, "format": 3}), "is not a manifest of format 2"),
        (orjson.dumps({**good, "episodes": 11}), "was changed after it was written"),
        (orjson.dumps({**good, "extra": 1}), "was changed after it was written"),
        (orjson.dumps(seal({**good, "episodes": True})), "was changed after it was written"),
        (orjson.dumps(seal({**good, "episodes": 2**60})), "cannot be"),
    ):
        (run / MANIFEST).unlink(missing_ok=True)
        if spoiled is not None:
            (run / MANIFEST).write_bytes(spoiled)
        for call in (["verify", str(run)], ["compare", str(reference), str(run)]):
            assert main(call) == 1
            assert why in one_line(capsys.readouterr().err)
        assert again(run) in (1, 2)
        one_line(capsys.readouterr().err)
        assert (run / EPISODES).read_bytes() == (reference / EPISODES).read_bytes()


# -- the folder and its lock ------------------------------------------------------------------------------------------


def test_a_second_writer_is_turned_away_with_the_first_ones_pid(run, capsys):
    with writer_of(run, run):
        assert (run / PID).read_text() == f"{os.getpid()}\n"
        assert again(run) == 2
        assert f"is being written by process {os.getpid()};" in one_line(capsys.readouterr().err)
        (run / PID).unlink()
        assert again(run) == 2
        assert "is being written by process unknown;" in one_line(capsys.readouterr().err)
    assert again(run) == 0
    assert not (run / PID).exists()


def test_the_lock_of_a_killed_writer_is_free(run, reference):
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        with writer_of(run, reference):
            os.write(done, b"x")
            signal.pause()
    os.read(ready, 1)
    assert again(run) == 2
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (run / PID).read_text() == f"{child}\n"
    assert again(run) == 0
    os.close(ready), os.close(done)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (["--seed", "1"], "settings.seed: 0 there, 1 now"),
        (["--per-product", "4"], "settings.per_product: 3 there, 4 now"),
        (["--products", "5"], "settings.products: 4 there, 5 now"),
        (["--split", "train"], 'settings.split: "test" there, "train" now'),
        (["--cap", "2"], "settings.regime.per_buyer_cap: 3 there, 2 now"),
        (["--seller", "greedy"], 'settings.seller: "prober" there, "greedy" now'),
        (["--buyer-types", "iter-50"], "settings.regime.buyer_types"),
        (["--regime", "in_distribution"], "settings.regime"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_other_settings_than_the_folders_are_refused_and_named(other, named, reference, run, capsys):
    before = contents(run)
    assert main(evaluate_args(run, *SMALL, *other)) == 2
    err = one_line(capsys.readouterr().err)
    assert "holds another run" in err and (named in err or "; ..." in err)
    assert contents(run) == before


def test_other_code_and_other_data_are_refused_in_words(run, tmp_path, capsys):
    manifest = orjson.loads((run / MANIFEST).read_bytes())
    manifest["code_sha256"] = "0" * 64
    manifest["data"]["sha256"] = "0" * 64
    (run / MANIFEST).write_bytes(orjson.dumps(seal(manifest)))
    assert again(run) == 2
    err = one_line(capsys.readouterr().err)
    assert "it was made by another version of the code; its catalogue has other contents" in err


def test_places_where_no_run_can_be(tmp_path, capsys):
    file, full = tmp_path / "file", tmp_path / "full"
    file.write_text("mine")
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    for place, why in (
        (file, "is a file"),
        (file / "below", "cannot write to"),
        (full, "is not empty and not a run folder"),
        ("/proc/nothing/here", "cannot write to"),
        ("", "--out is ''"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        assert again(place) == 2
        assert why in one_line(capsys.readouterr().err)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "full"]
    assert [p.name for p in full.iterdir()] == ["thesis.txt"]
    with pytest.raises(NegolabError, match="--out is"):
        RunWriter("a\0b", {"episodes": 1}, [])


def test_places_that_are_no_run_to_read(tmp_path, reference, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    for place, why in (
        ("nowhere", "does not exist"),
        ("empty", "is not a run folder"),
        ("file", "is not a folder"),
    ):
        for call in (["verify", str(tmp_path / place)], ["compare", str(reference), str(tmp_path / place)]):
            assert main(call) == 2
            assert why in one_line(capsys.readouterr().err)


def test_an_empty_folder_and_paths_of_all_letters_will_do(reference, tmp_path):
    for name in ("empty", "with blanks", "naïve 商品 Ж", "a/b/c"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        assert again(folder) == 0
        assert contents(folder) == contents(reference)


def test_what_a_killed_writer_left_half_made_is_cleared_away(reference, run):
    for name in (MANIFEST, PRODUCTS, EPISODES, METRICS_CSV):
        (run / f"{name}.tmp").write_bytes(b"half")
    assert again(run) == 0
    assert contents(run) == contents(reference) and not list(run.glob("*.tmp"))


def test_a_link_to_a_folder_is_a_folder(reference, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert again(tmp_path / "link") == 0
    assert contents(tmp_path / "real") == contents(reference)


def test_reading_stops_at_what_is_not_the_runs(run):
    lines = (run / EPISODES).read_bytes().splitlines(keepends=True)
    (run / EPISODES).write_bytes(b"".join(lines[:-1]))
    assert len(list(Run(run).episodes())) == 11
    with pytest.raises(DamagedRun, match="is not finished: 1 of 12 episodes are missing"):
        list(Run(run).episodes(complete=True))
    (run / EPISODES).write_bytes(b"".join([*lines, lines[4]]))
    with pytest.raises(DamagedRun, match="line 13: episode 4 is recorded twice"):
        list(Run(run).episodes())
    (run / EPISODES).write_bytes(b"".join([reseal(lines[0], lambda data: data.update(turns=7)), *lines[1:]]))
    with pytest.raises(DamagedRun, match="line 1: not an episode record"):
        list(Run(run).episodes())


def test_the_code_hash_covers_whatever_decides_an_episode_or_a_number():
    import subprocess
    import sys

    from negolab import store

    code = (
        "import sys, negolab.rollout, negolab.metrics, negolab.policies.registry as r, negolab.scenario as s\n"
        "r.make_buyers(s.OOD_DIVERSE.buyer_types)\n"
        "print(*[m for m in sys.modules if m.startswith('negolab.')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    rooms = {name.split(".")[1] for name in loaded}
    covered = {name.removesuffix(".py") for name in store._DECIDING}
    assert rooms - covered <= {"errors", "paths"}  # a message and a folder decide nothing
    assert "rollout" in rooms and "commands" not in covered


def test_a_run_of_an_earlier_format_is_named_as_such(tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(orjson.dumps({"format": 1, "episodes": 2}))
    with pytest.raises(NegolabError, match=r"earlier negolab \(format 1, now 2\); evaluate it anew"):
        Run(folder)

"""The command line under nonsense, odd terminals and odd places: one clear line, the right exit code."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import negolab
from negolab.cli import build_parser, main
from runs import (
    SMALL,
    call,
    command,
    contents,
    default_interrupt,
    environment,
    evaluate_args,
    one_line,
    run_command,
)

# -- calls that are wrong ---------------------------------------------------------------------------------------------

ODD_NUMBERS = [
    "-1",
    "1e3",
    "0x10",
    "9" * 23,
    " 7",
    "１２",
    "nan",
    "inf",
    "",
    "1.0",
    "1_000",
    "+5",
    "seven",
    "٣",
    "²",
    "1,000",
]


@pytest.mark.parametrize("value", ODD_NUMBERS)
@pytest.mark.parametrize(
    "option", ["--seed", "--per-product", "--products", "--workers", "--buyers", "--cap", "--messages"]
)
def test_numbers_that_are_none(option, value, tmp_path, capsys):
    code, out, err = call(capsys, *evaluate_args(tmp_path / "run", option, value))
    assert code == 2 and out == ""
    assert f"argument {option}: " in one_line(err) and "give a whole number from" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--per-product", "0", "from 1 to 1000000"),
        ("--products", "0", "from 1"),
        ("--workers", "0", "from 1 to 256"),
        ("--workers", "1000", "from 1 to 256"),
        ("--buyers", "0", "from 1 to 1000"),
        ("--buyers", "1001", "from 1 to 1000"),
        ("--cap", "0", "from 1 to 1000"),
        ("--messages", "0", "from 1 to 100000"),
        ("--seed", str(2**63), f"from 0 to {2**63 - 1}"),
        *[
            ("--budgets", value, "is not an interval such as 0.25-0.30")
            for value in ("", "a-b", "nan", "nan-nan", "inf", "0.4-inf", "1e-1-1", "-0.4", "0.4--0.5", "0.4-0.5-0.6")
        ],
        *[
            ("--budgets", value, "is not an interval such as 0.25-0.30")
            for value in ("0.4-0.5,", ",", "0.4_0-0.5", "０.4-0.5", "0.4 0.5", "-", ".", "0.4-", "$1-$2")
        ],
        ("--budgets", "0.5-0.4", "0 < low <= high <= 100"),
        ("--budgets", "0-0.4", "0 < low <= high <= 100"),
        ("--budgets", "0,4-0,5", "0 < low <= high <= 100"),
        ("--budgets", "0.4-101", "0 < low <= high <= 100"),
        ("--budgets", "0.4-0.5,9-8", "0 < low <= high <= 100"),
        ("--first-offer", "nan", "is not an interval"),
        ("--first-offer", "none", "is not an interval"),
        ("--first-offer", "Free", "is not an interval"),
        ("--first-offer", "0.3-0.2", "0 < low <= high <= 100"),
        ("--first-offer", "", "is not an interval"),
        ("--buyer-types", "", "holds an empty name"),
        ("--buyer-types", "iter-50,,iter-60", "holds an empty name"),
    ],
)
def test_values_that_are_not_allowed(option, value, allowed, tmp_path, capsys):
    code, out, err = call(capsys, *evaluate_args(tmp_path / "run", f"{option}={value}"))
    assert code == 2 and out == ""
    assert f"argument {option}: " in one_line(err) and allowed in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--seller", "nobody"], "unknown seller 'nobody'; allowed: random, satisficer, greedy, prober, oracle"),
        (["--regime", "mars"], "unknown regime 'mars'; allowed: in_distribution, ood_diverse"),
        (["--split", "nowhere"], "split 'nowhere' does not exist"),
        (["--split", "nowhere.json"], "cannot read nowhere.json"),
        (["--split", ""], "split '' does not exist"),
        (["--buyer-types", "iter-99"], "allowed: iter-50, iter-60, iter-70"),
        (["--data", "/nowhere"], "catalogue folder /nowhere does not exist"),
        (["--data", ""], "catalogue folder"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--work", "2"], "unrecognized arguments: --work 2"),
        (["--seed"], "expected one argument"),
        (["extra"], "unrecognized arguments: extra"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_call_leaves_nothing_on_the_disk(args, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *evaluate_args(tmp_path / "run", *args))
    assert code == 2 and out == ""
    assert told in one_line(err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "[1]", '["nobody_1"]', '["audio-gear_2", "audio-gear_2"]', "[", "\x00"]
)
def test_split_files_that_are_none(content, tmp_path, capsys):
    (tmp_path / "split.json").write_text(content)
    code, out, err = call(capsys, *evaluate_args(tmp_path / "run", "--split", str(tmp_path / "split.json")))
    assert code == 2 and out == "" and "split.json" in one_line(err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["evaluate"], "the following arguments are required: --out"),
        (["evaluate", "--out", "x"], "one of --seller and --panel is required"),
        (["evaluate", "--out", "x", "--seller", "prober", "--only", "prober"], "--only goes with --panel"),
        (["evaluate", "--out", "x", "--seller", "prober", "--panel", "table4"], "give --seller or --panel, not both"),
        (["verify"], "the following arguments are required: DIR"),
        (["compare"], "the following arguments are required: DIR"),
        (["parse"], "the following arguments are required: --jsonl"),
        (["verify", "a", "b"], "unrecognized arguments: b"),
        (["--verbose"], "the following arguments are required: COMMAND"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_half_a_call(args, told, capsys):
    code, out, err = call(capsys, *args)
    assert code == 2 and out == "" and told in one_line(err)


def commands(parser=None, path=()) -> list[tuple[str, ...]]:
    """Every command and sub-command."""
    found = [path]
    for action in (parser or build_parser())._actions:
        if hasattr(action, "_name_parser_map"):
            for name, sub in action.choices.items():
                found += commands(sub, (*path, name))
    return found


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help(path, capsys):
    code, out, err = call(capsys, *path, "--help")
    assert code == 0 and err == ""
    assert out.startswith(f"usage: negolab {' '.join(path)}".rstrip())


def test_version(capsys):
    assert call(capsys, "--version") == (0, f"negolab {negolab.__version__}\n", "")


def test_defaults_are_those_of_the_paper(tmp_path, capsys):
    code, out, _ = call(capsys, *evaluate_args(tmp_path / "run"))
    assert code == 0
    assert out.startswith("prober (scripted) against scripted buyers on sample, split test, in_distribution, seed 0\n")
    assert out.splitlines()[1].split() == ["metric", "mean", "se", "se_clustered", "n"]
    assert "written to" in out.splitlines()[-1]


def test_every_knob_reaches_the_run(tmp_path, capsys):
    knobs = ["--buyers", "2", "--cap", "2", "--messages", "3", "--budgets", "0.5,.9-1.", "--first-offer", "free"]
    code, _, _ = call(capsys, *evaluate_args(tmp_path / "run", *knobs, "--buyer-types", "iter-50, iter-70"))
    from negolab.store import Run

    assert code == 0
    assert Run(tmp_path / "run").manifest["settings"]["regime"] == {
        "name": "in_distribution",
        "n_buyers": 2,
        "per_buyer_cap": 2,
        "message_budget": 3,
        "budget_tiers": [[0.5, 0.5], [0.9, 1.0]],
        "first_offer": None,
        "buyer_types": ["iter-50", "iter-70"],
    }


# -- streams, locales, places -----------------------------------------------------------------------------------------


def shell(line: str, **changes) -> tuple[int, str, str]:
    """A shell line with ``$NEGOLAB`` as the command; the exit code is the command's own, not the pipe's."""
    env = environment(NEGOLAB=" ".join(command([])), **changes)
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_a_reader_that_goes_away_ends_nothing(finished, tmp_path):
    out = tmp_path / "run"
    code, first, err = shell(
        f"$NEGOLAB evaluate --seller prober --products 2 --out {out} | head -1; exit ${{PIPESTATUS[0]}}"
    )
    assert (code, err) == (0, "") and first.count("\n") == 1
    assert contents(out) == contents(finished)
    for line in ("--help", f"compare {finished} {finished}"):
        for unbuffered in (None, "1"):
            code, _, err = shell(f"$NEGOLAB {line} | true; exit ${{PIPESTATUS[0]}}", PYTHONUNBUFFERED=unbuffered)
            assert (code, err) == (0, "")


def test_a_verdict_is_the_exit_code_even_when_nobody_reads_it(finished, tmp_path):
    bad = tmp_path / "bad"
    bad.mkdir()
    for file in finished.iterdir():
        (bad / file.name).write_bytes(file.read_bytes())
    (bad / "metrics.csv").unlink()
    for unbuffered, more in (
        (None, "| true"),
        ("1", "| true"),
        (None, ">&-"),
        ("1", "2>&1 | true"),
        (None, "2>/dev/full"),
    ):
        line = f"$NEGOLAB verify {bad} {more}; exit ${{PIPESTATUS[0]}}"
        code, _, err = shell(line, PYTHONUNBUFFERED=unbuffered)
        assert code == 1 and "Traceback" not in err and "Exception ignored" not in err


def test_a_broken_error_stream_does_not_stop_the_work(finished, tmp_path):
    """T >= N x K and too few products are two notes: the second finds nobody to read it."""
    for number, more in enumerate(("2>&1 | true", "2>/dev/full", "2>&-", ">&- 2>&- <&-")):
        out = tmp_path / str(number)
        args = f"evaluate --seller prober --products 900 --messages 9 --per-product 1 --out {out}"
        code, _, err = shell(f"$NEGOLAB {args} {more}; exit ${{PIPESTATUS[0]}}")
        assert code == 0 and err == ""
        assert (out / "metrics.csv").exists()


def test_a_full_output_is_told(finished):
    for line in (f"verify {finished}", "--help", f"compare {finished} {finished}"):
        code, _, err = shell(f"$NEGOLAB {line} > /dev/full", PYTHONUNBUFFERED=None)
        assert code == 2 and "cannot write to standard output: No space left on device" in one_line(err)
    code, _, err = shell(f"$NEGOLAB verify {finished} > /dev/full", PYTHONUNBUFFERED="1")
    assert code == 2 and "No space left on device" in one_line(err)


def test_closed_streams(finished):
    for line, wanted in ((f"verify {finished}", 0), ("--help", 0), ("evaluate", 2)):
        code, out, err = shell(f"$NEGOLAB {line} >&-")
        assert code == wanted and out == "" and "Traceback" not in err
        code, out, err = shell(f"$NEGOLAB {line} 2>&-")
        assert code == wanted and err == "" and "negolab:" not in out


PRODUCT = {
    "title": "Café ☕ 商品 “set” 🍵",
    "description": "Thé, naïve, Ж: a set of five pieces.",
    "category": "tea",
    "list_price": "30.00",
    "highest_price": "30.00",
    "lowest_price": "12.00",
}


@pytest.fixture
def odd_place(tmp_path: Path) -> Path:
    """A folder whose name has blanks and letters of three scripts, with a catalogue of one product."""
    import json

    place = tmp_path / "ein Ordner – 商品 é"
    (place / "katalog ü").mkdir(parents=True)
    (place / "katalog ü" / "tea.json").write_text(json.dumps([PRODUCT], ensure_ascii=False), encoding="utf-8")
    return place


@pytest.mark.parametrize(
    "changes",
    [
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LANG": "C.UTF-8", "PYTHONIOENCODING": "ascii"},
        {
            "LANG": "C",
            "LC_ALL": "C",
            "PYTHONIOENCODING": "ascii",
            "PYTHONUTF8": "0",
            "HOME": None,
            "PYTHONCOERCECLOCALE": "0",
        },
    ],
    ids=["C", "ascii", "C and ascii, no HOME"],
)
def test_every_locale_takes_every_letter(changes, odd_place):
    env = environment(**changes)
    out, data = str(odd_place / "läuft"), str(odd_place / "katalog ü")
    args = ["evaluate", "--seller", "prober", "--split", "all", "--data", data, "--out", out, "--workers", "2"]
    for line in (args, ["verify", out], ["compare", out, out], ["data", "summary", "--data", data]):
        done = run_command(line, env=env)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert "商品".encode() in (odd_place / "läuft" / "products.jsonl").read_bytes()
    done = run_command(["verify", str(odd_place / "fehlt 商")], env=env)
    assert done.returncode == 2
    one_line(done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_no_text_at_all(tmp_path, odd_place):
    """Bytes that are not UTF-8, in a folder's name."""
    raw = os.fsencode(tmp_path) + b"/caf\xe9"
    Path(os.fsdecode(raw)).mkdir()
    (odd_place / "katalog ü" / "tea.json").rename(Path(os.fsdecode(raw + b"/tea.json")))
    for args in (
        [b"evaluate", b"--seller", b"prober", b"--split", b"all", b"--data", raw, b"--out", raw + b"/run"],
        [b"verify", raw + b"/run"],
        [b"verify", raw],
    ):
        line = [os.fsencode(part) for part in command([])]
        done = subprocess.run([*line, *args], env=environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 2) and "Traceback" not in done.stderr
        assert done.returncode == (2 if args[-1] == raw else 0), done.stderr


def test_a_folder_that_cannot_be_written_is_no_place_to_stand_in_the_way(finished, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    here.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        for cwd in (here, Path("/proc")):
            done = run_command(
                evaluate_args(tmp_path / cwd.name / "run" if cwd != here else tmp_path / "run", *SMALL), cwd=cwd
            )
            assert done.returncode == 0, done.stderr
    finally:
        here.chmod(stat.S_IRWXU)
    assert not list(here.iterdir())
    assert contents(tmp_path / "run") == contents(finished)


def handles_signals(pid: int) -> bool:
    """Whether the command has come so far as to handle SIGTERM (only Linux tells; a while is enough elsewhere)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_while_it_waits_for_input(how, code):
    args = ["parse", "--jsonl", "-", "--codename", "a_1", "--list-price", "3", "--cost", "1", "--buyers", "1"]
    process = subprocess.Popen(
        command(args),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_interrupt,
    )
    deadline = time.monotonic() + (20 if sys.platform == "linux" else 2)
    while not handles_signals(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)  # now it reads
    process.send_signal(how)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code and out == ""
    one_line(err)


def test_main_gives_back_the_signal_handlers(capsys):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    main(["--version"])
    main(["evaluate"])
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

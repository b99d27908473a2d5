"""The notebooks and their runner: hygiene, parameters, honest verdicts, and no kernel left behind.

Whether every notebook runs is shown by ``--nbmake notebooks`` in the default test command.
"""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import yaml
from matplotlib.figure import Figure

from negolab import notebook, plots
from negolab.catalog import SAMPLE, load_catalog
from negolab.environment.base import Turn
from negolab.errors import NegolabError
from negolab.notebook import examples, frames, profiles
from negolab.notebooks_runner import environment, problem, run
from negolab.papers import multi_buyer as paper
from negolab.parser.lines import render_seller
from negolab.paths import notebooks_dir
from runs import default_interrupt

FILES = sorted(notebooks_dir().glob("*.ipynb"))
PROFILES = sorted((notebooks_dir() / "profiles").glob("*.yaml"))
ROOT = Path(notebook.__file__).resolve().parent.parent.parent
NAMES = ["01_dataset", "03_benchmark", "04_out_of_distribution", "05_transcripts"]


def negolab(*args: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command line in another folder; a variable that is None is taken out of the environment."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "negolab.cli", "notebooks", *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The single line of a refused command."""
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    return result.stderr


# -- hygiene --------------------------------------------------------------------------------------------------------


def test_shipped_notebooks() -> None:
    assert {f.stem for f in FILES} >= set(NAMES)
    assert {p.stem for p in PROFILES} >= {"smoke", "laptop"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_hygiene(path: Path) -> None:
    raw = path.read_text(encoding="utf-8")
    book = nbformat.reads(raw, as_version=4)
    nbformat.validate(book)
    assert (book.nbformat, book.nbformat_minor >= 5) == (4, True)
    spec = book.metadata["kernelspec"]
    assert (spec["name"], spec["language"]) == ("python3", "python")
    assert "papermill" not in book.metadata
    code = [c for c in book.cells if c.cell_type == "code"]
    assert all(not c.outputs and c.execution_count is None for c in code)
    assert [i for i, c in enumerate(code) if "parameters" in c.metadata.get("tags", [])] == [0]
    assert all(set(c.metadata.get("tags", [])) <= {"parameters"} for c in book.cells)
    lines = [line for c in code for line in c.source.splitlines() if line.strip()]
    assert len(lines) <= 120
    for node in ast.walk(ast.parse("\n".join(c.source for c in code))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert node.end_lineno is not None and node.end_lineno - node.lineno < 2
    assert re.search(r"\bnotebook\.begin(_training)?\(", code[1].source), "the second cell checks the parameters"
    assert "study.write(" in code[-1].source, "the last cell writes tables and figures"
    assert not re.search(r"(?<![\w.$])(/(home|work|tmp|Users|root|mnt)/|[A-Z]:\\\\)", raw), "no absolute path"
    assert not re.search(r"\binput\(|getpass|plt\.show|matplotlib\.use|asyncio\.run", raw)
    assert not re.search(r"== object|select_dtypes|\.values\[|inplace=True", raw)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_parameters_are_plain_and_valid(path: Path) -> None:
    book = profiles.read_notebook(path)
    assert book.name == path.stem and book.title
    assert set(book.parameters) <= set(notebook.PARAMETERS)
    notebook.check(book.parameters)


@pytest.mark.parametrize("path", PROFILES, ids=lambda p: p.stem)
def test_profile_reads_alike_everywhere(path: Path) -> None:
    values = profiles.load_profile(path.stem)
    assert values == yaml.safe_load(path.read_text(encoding="utf-8")) == profiles.load_profile(str(path))
    books = profiles.shipped()
    for name, mine in profiles.assign(values, {}, books, books).items():
        notebook.check(mine)
        assert mine, f"{name} takes nothing from the profile"


# -- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("per_product", "2"),
        ("per_product", 0),
        ("per_product", 2.0),
        ("per_product", True),
        ("products", -1),
        ("products", None),
        ("seed", "00"),
        ("seed", -1),
        ("seeds", 0),
        ("data", ""),
        ("data", False),
        ("data", None),
        ("split", "tets"),
        ("sellers", "prober, nobody"),
        ("sellers", "prober, prober"),
        ("baseline", "nobody"),
        ("data", "no/such/folder"),
        ("out", 3),
    ],
)
def test_bad_parameter_is_one_clear_line(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(notebook.ParameterError) as caught:
        notebook.begin("03_benchmark", **{"data": SAMPLE, "out": str(tmp_path / "run"), name: value})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert caught.value._render_traceback_() == [f"ParameterError: {caught.value}"]
    assert not (tmp_path / "run" / "evaluations").exists()


def test_unknown_parameter_is_refused() -> None:
    with pytest.raises(notebook.ParameterError, match=r"'sed'.*seed"):
        notebook.begin("03_benchmark", sed=1)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("seeed: 0\n", r"unknown parameter 'seeed'.*seed"),
        ("seed: 010\n", r"010 reads as 8"),
        ("seed: 1_000\n", r"reads as 1000"),
        ("seed: 0x1F\n", r"reads as 31"),
        ("seed: '3'\n", r"whole number"),
        ("seed: 1e3\n", r"whole number"),
        ("seed: 1.0\n", r"whole number"),
        ("data: no\n", r"data is False.*in quotes"),
        ("seed: true\n", r"whole number"),
        ("seed: [1, 2]\n", r"whole number"),
        ("seed:\n", r"whole number"),
        ("seed: 1\nseed: 2\n", r"twice"),
        ("- seed\n", r"such as seed: 0"),
        ("seed: [\n", r"not YAML"),
        ("1: 2\n", r"such as seed: 0"),
        ("per_product: 0\n", r"from 1"),
        ("a: &x 1\n<<: *x\n", r"YAML|unknown"),
    ],
)
def test_bad_profile_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    books = profiles.shipped()
    with pytest.raises(NegolabError, match=what) as caught:
        profiles.assign(profiles.load_profile(str(path)), {}, books, books)
    assert "\n" not in str(caught.value)


def test_each_notebook_gets_what_it_knows() -> None:
    books = profiles.shipped()
    given = profiles.assign({"seed": 3, "data": "sample"}, {"seeds": "2"}, books, books)
    assert given["01_dataset"] == {"data": "sample"}
    assert given["03_benchmark"] == {"data": "sample", "seed": 3, "seeds": 2}


def test_command_line_values_get_the_notebook_s_types() -> None:
    assert profiles.typed("007", 1, "n") == 7 and profiles.typed("007", "", "n") == "007"
    assert profiles.typed("false", True, "x") is False and profiles.typed("3", 0.5, "lr") == 3.0
    for text, default in (("1e3", 1), ("yes", True), ("١", 1), ("", 1), ("1_0", 1), ("abc", 0.5)):
        with pytest.raises(NegolabError):
            profiles.typed(text, default, "x")


def test_relative_paths_are_the_caller_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(notebooks_dir().parent / "data" / "sample", tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    given = {"a": {"data": "mine", "split": "list.json"}, "b": {"data": "auto"}}
    profiles.settle_paths(given)
    assert given["a"] == {"data": str(tmp_path / "mine"), "split": str(tmp_path / "list.json")}
    assert given["b"] == {"data": "auto"}
    with pytest.raises(NegolabError, match="no folder"):
        profiles.settle_paths({"a": {"data": "elsewhere"}})


def test_auto_means_fetched_data_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEGOLAB_DATA", str(tmp_path / "gone"))
    with pytest.raises(NegolabError, match="NEGOLAB_DATA"):
        notebook.find_data("auto")
    monkeypatch.delenv("NEGOLAB_DATA")
    (tmp_path / "data" / "AmazonHistoryPrice").mkdir(parents=True)
    assert notebook.find_data("auto") != str(tmp_path / "data" / "AmazonHistoryPrice"), "an empty folder is no data"
    (tmp_path / "data" / "AmazonHistoryPrice" / "books.json").write_text("[]", encoding="utf-8")
    assert notebook.find_data("auto") == str(tmp_path / "data" / "AmazonHistoryPrice")
    assert notebook.find_data("sample") == SAMPLE


def test_where_unnamed_runs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEGOLAB_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    first, again = (notebook.begin("x", data=SAMPLE, products=2).out for _ in range(2))
    assert first == again and first.parent == tmp_path / "runs"
    assert notebook.begin("x", data=SAMPLE, products=3).out != first
    monkeypatch.setenv("NEGOLAB_RUNS", str(tmp_path / "else where é"))
    assert notebook.begin("x", data=SAMPLE).out.parent == tmp_path / "else where é"
    monkeypatch.delenv("NEGOLAB_RUNS")
    monkeypatch.chdir(notebooks_dir())
    out = notebook.begin("x", data=SAMPLE).out
    assert notebooks_dir().resolve() not in out.resolve().parents
    shutil.rmtree(out.parent)


# -- what the notebooks compute -------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", [paper.EXAMPLE_UNTRAINED, paper.EXAMPLE_TRAINED], ids=lambda e: e.name)
def test_example_runs_replay_to_the_printed_reward(example: paper.ExampleRun) -> None:
    episode = examples.replay(example, load_catalog(SAMPLE))
    assert episode.reward == example.reward and examples.path(episode) == list(example.offers)
    assert f"{episode.reward:.3f}" == {"untrained": "0.015", "trained": "0.847"}[example.name]
    assert f"[BUY] ${example.deal.cents / 100:.2f} @ turn" in examples.board_before(episode, example.deal.turn)


def test_frames_survive_one_episode_and_say_na(tmp_path: Path) -> None:
    study = notebook.begin("x", data=SAMPLE, products=1, out=str(tmp_path), sellers="random,oracle")
    panel = study.play("in_distribution")
    found = frames.metrics(panel)
    assert set(found["seller"]) == {"random", "oracle"}
    assert found[found["n"] < 2]["se"].isna().all()
    table = study.table(frames.differences(panel, "random"), "One pair.")
    assert "n/a" in table.text() and "n/a" in table.csv() and "nan" not in table.text().lower()
    assert "bundled synthetic sample" in table.text() and "bundled synthetic sample" in table.csv()
    assert list(frames.ranks(panel)["source"].unique()) == [paper.OURS]
    again = frames.metrics(study.play("in_distribution"))
    assert again.equals(found), "a second run takes up the first"


def test_what_ended_a_channel_is_on_the_path() -> None:
    played = examples.replay(paper.EXAMPLE_UNTRAINED, load_catalog(SAMPLE))
    code, opening = played.scenario.product.listing.codename, list(played.turns[:3])
    low = render_seller("DEAL", 1050, 1, "Agreed.", "Enough.", code)
    nobody = low.replace("Buyer 1", "Buyer 9")
    for ending, expected in (
        (Turn(2, 3, 3, "QUIT", (), ""), (2, 3, "quit", None)),
        (Turn(1, 0, None, "QUIT", (), ""), (1, 0, "quit", None)),
        (Turn(1, 0, None, None, (), low, "below_cost"), (1, 1, "violation", 1050)),
        (Turn(1, 0, None, None, (), nobody, "target"), (1, 0, "violation", 1050)),
        (Turn(1, 0, None, None, (), "What?", "format"), (1, 0, "violation", None)),
        (Turn(1, 2, None, None, (), "What?", "format"), (1, 2, "violation", None)),
    ):
        found = examples.path(replace(played, turns=[*opening, ending]))
        assert found == [*paper.EXAMPLE_UNTRAINED.offers[:3], expected]


def test_buyer_types_are_pooled_over_the_sellers_that_stand_for_the_paper_s(tmp_path: Path) -> None:
    study = notebook.begin("x", data=SAMPLE, products=8, out=str(tmp_path))
    panel = study.play("ood_diverse")
    types = frames.type_table(panel)
    pooled = "satisficer + greedy + prober"
    assert list(types["seller"].unique()) == ["all 13", pooled, *panel]
    for kind, rows in types[types["source"] == paper.OURS].groupby("buyer_type"):
        by_seller = rows.set_index("seller")["closing_rate_n"]
        assert by_seller[pooled] == by_seller[list(frames.POOLED)].sum(), kind
    said = frames.surplus_differences(types)
    assert "paper, all 13: iter-60 minus iter-50 +0.047 ± 0.012" in said and f"{paper.OURS}, {pooled}: iter-60" in said
    assert "nan" not in said
    alone = frames.type_table({"prober": panel["prober"]})
    assert list(alone["seller"].unique()) == ["all 13", "prober"]
    assert "± n/a" in frames.surplus_differences(types.assign(buyer_surplus_se=float("nan")))


def test_tables_name_their_data_row_by_row(tmp_path: Path) -> None:
    study = notebook.begin("x", data=SAMPLE, products=2, out=str(tmp_path), sellers="prober")
    side = paper.side_by_side(frames.metrics(study.play("ood_diverse")), "ood_diverse")
    lines = study.table(side, "Both.").csv().splitlines()
    assert sum(line.endswith(f"arXiv {paper.ARXIV}") for line in lines) == 13
    assert sum(line.endswith("bundled synthetic sample (invented products)") for line in lines) == 1


def test_what_a_cell_shows_has_a_short_repr(tmp_path: Path) -> None:
    """A notebook stores it beside the picture, page or table itself."""
    figure = Figure()
    study = notebook.begin("x", data=SAMPLE, products=2, out=str(tmp_path))
    table = study.published_table(paper.table("table9"), "Table 9.")
    page = notebook.Page("<p>" * 10_000)
    for shown in (notebook.show(figure), plots.save(figure, tmp_path, "figure"), study, table, page):
        assert len(repr(shown)) < 200 and "b'" not in repr(shown)
        assert str(tmp_path) not in repr(shown)


# -- running --------------------------------------------------------------------------------------------------------


def write_notebook(path: Path, *cells: str, parameters: str = 'out = ""') -> None:
    """A small notebook: a parameters cell, then ``cells``."""
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    book = nbformat.v4.new_notebook(cells=[first, *map(nbformat.v4.new_code_cell, cells)])
    book.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(book, path)


DIES = "import os, signal; print('before'); os.kill(os.getpid(), signal.SIGKILL)"


def test_verdicts_are_honest(tmp_path: Path) -> None:
    folder = tmp_path / "notebooks, très {neat}"
    folder.mkdir()
    write_notebook(folder / "a_good.ipynb", "import os; print(os.getcwd())", "print('finished: 0 files')")
    write_notebook(folder / "b_raises.ipynb", "print('kept')", "# why\n1 / 0", "print('finished: 0 files')")
    write_notebook(folder / "c_dies.ipynb", "x = 1", DIES, "print('finished: 0 files')")
    write_notebook(folder / "d_silent.ipynb", "print('almost')")
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    books, out = profiles.shipped(folder), tmp_path / "out, très {neat}"
    results = {r.name: r for r in run(books, {book.name: {} for book in books}, out)}
    assert [r.ok for r in results.values()] == [True, False, False, False]
    assert "code cell 3 (1 / 0): ZeroDivisionError" in results["b_raises"].error
    assert "code cell 3" in results["c_dies"].error and "died" in results["c_dies"].error
    assert "did not run to its end" in results["d_silent"].error
    assert all("\n" not in r.error for r in results.values())
    copies = {name: (out / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8") for name in results}
    assert str(out) in json.loads(json.dumps(copies["a_good"])), "the kernel works in the run folder"
    assert "kept" in copies["b_raises"], "partial output is kept"
    assert [r["ok"] for r in json.loads((out / "notebooks" / "results.json").read_text())] == [
        True,
        False,
        False,
        False,
    ]
    folder.chmod(0o755)


def test_timeout_and_no_kernel_left(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    write_notebook(
        tmp_path / "slow.ipynb",
        f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid()))",
        "\nwhile True: pass",
    )
    books = profiles.shipped(tmp_path)
    start = time.monotonic()
    [result] = run(books, {"slow": {}}, tmp_path / "out", timeout=20)
    assert not result.ok and "stopped after 20 s" in result.error and "code cell 3" in result.error
    assert time.monotonic() - start < 90
    assert gone(int(mark.read_text()))


def gone(pid: int) -> bool:
    """Is the process away within ten seconds? (A zombie is.)"""
    import psutil

    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_command_takes_the_kernel_along(tmp_path: Path, how: signal.Signals) -> None:
    mark = tmp_path / "pid"
    write_notebook(
        tmp_path / "slow.ipynb", f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    script = (
        "import sys; from pathlib import Path; from negolab import cli; from negolab.notebook import profiles;"
        f"books = profiles.shipped(Path({str(tmp_path)!r})); profiles.shipped = lambda: books;"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    profile = tmp_path / "none.yaml"
    profile.write_text("", encoding="utf-8")
    command = [
        sys.executable,
        "-c",
        script,
        "notebooks",
        "run",
        "--profile",
        str(profile),
        "--out",
        str(tmp_path / "o"),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=default_interrupt)
    for _ in range(600):
        if mark.exists() and mark.read_text():
            break
        assert process.poll() is None, process.stderr
        time.sleep(0.1)
    start = time.monotonic()
    process.send_signal(how)
    process.wait(10)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(how, -signal.SIGKILL)
    assert gone(int(mark.read_text())) and time.monotonic() - start < 10


def test_unknown_and_bad_arguments_exit_with_two(tmp_path: Path) -> None:
    assert "allowed: baseline" in one_line(negolab("run", "-p", "sed", "1", cwd=tmp_path))
    assert "allowed: data, out" in one_line(negolab("run", "--only", "01_dataset", "-p", "seed", "1", cwd=tmp_path))
    assert "smoke" in one_line(negolab("run", "--profile", "huge", cwd=tmp_path))
    assert "No such file" in one_line(negolab("run", "--profile", "none.yaml", cwd=tmp_path))
    assert "01_dataset" in one_line(negolab("run", "--only", "02_nothing", cwd=tmp_path))
    (tmp_path / "file").write_text("")
    assert "cannot write" in one_line(negolab("run", "--out", "file", cwd=tmp_path))
    assert "seconds" in one_line(negolab("run", "--timeout", "0", cwd=tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"], "nothing had started"


def test_list(tmp_path: Path) -> None:
    result = negolab("list", cwd=tmp_path)
    assert result.returncode == 0 and not result.stderr
    assert all(name in result.stdout for name in NAMES) and "per_product = 1" in result.stdout


def test_a_run_from_elsewhere_without_a_home(tmp_path: Path) -> None:
    place = tmp_path / "an other è folder"
    place.mkdir()
    before = sorted(notebooks_dir().rglob("*"))
    result = negolab("run", "--only", "01_dataset", cwd=place, HOME="", NEGOLAB_RUNS="", MPLBACKEND="TkAgg")
    assert result.returncode == 0, result.stderr
    assert not result.stderr, "quiet where nobody watches"
    [out] = (place / "runs").iterdir()
    assert (out / "figures" / "figure11_catalogue.png").stat().st_size > 10_000
    assert "bundled synthetic sample" in (out / "tables" / "prices.md").read_text(encoding="utf-8")
    assert not problem(out / "notebooks" / "01_dataset.ipynb", "")
    assert sorted(notebooks_dir().rglob("*")) == before, "nothing is written beside the notebooks"
    assert sorted(p.name for p in place.iterdir()) == ["runs"]


def test_executed_notebooks_hold_pictures_once(tmp_path: Path) -> None:
    books = profiles.chosen(profiles.shipped(), ",".join(NAMES))  # without those that load a model
    given = profiles.assign(profiles.load_profile("smoke"), {}, profiles.shipped(), books)
    for result in run(books, given, tmp_path):
        assert result.ok, result.error
        path = Path(result.copy)
        assert path.stat().st_size < 1_200_000, result.name
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", ()):
                plain = output.get("data", {}).get("text/plain", "")
                assert not re.search(r"""\bb['"]|\\x[0-9a-f]{2}""", plain) and len(plain) < 10_000


def test_plain_papermill_with_a_profile(tmp_path: Path) -> None:
    profile = notebooks_dir() / "profiles" / "laptop.yaml"
    source = notebooks_dir() / "01_dataset.ipynb"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NEGOLAB_RUNS": ""}
    command = [sys.executable, "-m", "papermill", str(source), "out.ipynb", "-f", str(profile), "--no-progress-bar"]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert not problem(tmp_path / "out.ipynb", "")
    assert [p.parent.name for p in (tmp_path / "runs").iterdir()] == ["runs"]


def test_missing_kernel_module_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("negolab.notebooks_runner._NEEDED", ("papermill", "no_such_module"))
    with pytest.raises(NegolabError, match="no_such_module"):
        run(profiles.shipped(), {}, tmp_path)


def test_two_runs_into_one_folder_are_refused(tmp_path: Path) -> None:
    from filelock import FileLock

    (tmp_path / "notebooks").mkdir()
    with FileLock(tmp_path / "notebooks" / ".lock"), pytest.raises(NegolabError, match="already running"):
        run([], {}, tmp_path)


def test_environment_without_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    env = environment(tmp_path)
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        assert Path(env[name]).is_dir()

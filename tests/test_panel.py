"""Panels: files that say one thing and mean it, rows that are played once, and tables that do not depend on crashes."""

import csv
import io
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from negolab.cli import main
from negolab.errors import NegolabError
from negolab.metrics import METRICS, paired
from negolab.panel import load_panel, packaged
from negolab.panel_table import FILES, finished
from negolab.papers import multi_buyer
from negolab.plan import plan
from negolab.policies.spec import OpenAISpec
from negolab.store import METRICS_CSV, Run
from runs import call, command, contents, environment, make_run, one_line
from servers import ModelServer

SCRIPTED = """
run: {per_product: 2, products: 3}
baseline: greedy
sellers:
  - seller: greedy
  - seller: prober
    params: none
  - seller: random
    name: "Any | thing: 50% & $1 é"
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    """A panel file's path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def with_models(url: str, more: str = "") -> str:
    """Two rows of one model between scripted ones."""
    return f"""
run: {{per_product: 2, products: 3}}
defaults: {{base_url: "{url}", price_input: 1, price_output: 10, concurrency: 4, retries: 0, timeout: 5}}
baseline: prober
sellers:
  - seller: prober
  - seller: openai:fake-1b
    params: 1B
  - seller: openai:fake-1b
    name: cool
    temperature: 0.2
{more}"""


def tables(out: Path) -> dict[str, str]:
    """The table's files."""
    return {name: (out / name).read_text(encoding="utf-8") for name in FILES}


def rows(out: Path) -> dict[str, dict[str, str]]:
    """Our lines of ``table.csv`` by seller."""
    found = csv.DictReader(io.StringIO((out / "table.csv").read_text(encoding="utf-8")))
    return {row["seller"]: row for row in found if row["source"] != multi_buyer.PAPER}


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def server():
    pytest.importorskip("openai")
    with ModelServer() as server:
        yield server


# -- files ----------------------------------------------------------------------------------------------------------


def test_the_papers_panel_is_its_table_4_under_the_settings_of_table_7():
    panel, published = load_panel("table4"), multi_buyer.table("table4")
    assert sorted(entry.name for entry in panel.entries) == sorted(published["seller"])
    sizes = dict(zip(published["seller"], published["params"], strict=True))
    assert {entry.name: entry.params for entry in panel.entries} == sizes
    specs = {entry.name: entry.seller for entry in panel.entries}
    assert all(isinstance(spec, OpenAISpec) and spec.temperature == 0.7 for spec in specs.values())
    assert all(spec.price_input is spec.price_cached is spec.price_output is None for spec in specs.values())
    for name, spec in specs.items():
        bodied = json.loads(spec.body).get("chat_template_kwargs", {}).get("thinking", spec.thinking)
        wanted = True if name.endswith(("-think", "-thinking")) else False if name.endswith("-nothink") else None
        assert bodied is wanted, name
    assert json.loads(specs["gpt-5.1-no-reasoning"].body)["reasoning_effort"] == "none"
    assert panel.run["per_product"] == 2 and panel.run["split"] == "test" and panel.run["regime"] == "in_distribution"


def test_the_papers_panel_plays_256_episodes_on_the_published_catalogue(real_data_dir):
    panel = load_panel("table4").changed(data=str(real_data_dir))
    from dataclasses import replace

    made = plan(replace(panel.settings(panel.entries[0]), seller="greedy"), panel.data)
    assert len(made.schedule) == multi_buyer.EPISODES == 256


def test_every_packaged_panel_reads():
    assert {"table4", "example"} <= packaged().keys()
    for name in packaged():
        panel = load_panel(name)
        assert panel.entries and panel.where == f"panel {name}.yaml"


MISTAKES = {
    "sellers: [": "panel mine.yaml is not YAML",
    "3": "panel mine.yaml must have the parts run, defaults, sellers, baseline",
    "sellers: []": "sellers must be a list of entries such as - seller: prober",
    "sellers: {seller: prober}": "sellers must be a list",
    "sellers: [prober]": "entry 1 is 'prober'; allowed: lines such as seller: prober",
    "sellers: [{name: x}]": "entry 1 needs seller:",
    "selers: []": "unknown 'selers'; allowed: run, defaults, sellers, baseline",
    "sellers: [{seller: probber}]": "entry 1 (probber): unknown seller; allowed: random, satisficer",
    "sellers: [{seller: 'my:'}]": "entry 1 (my:): unknown seller",
    "sellers: [{seller: 'openai:'}]": "entry 1 (openai:): unknown seller",
    "sellers: [{seller: prober, temperature: 0.7}]": "'temperature' goes with a language model; allowed here: name",
    "sellers: [{seller: prober}, {seller: prober}]": "entry 2: the name 'prober' is that of entry 1",
    "sellers: [{seller: 'a:b', name: X}, {seller: 'a:c', name: x}]": "entry 2: the name 'x' is that of entry 1",
    "sellers: [{seller: greedy, name: prober}]": "'prober' is the name of another player",
    "sellers: [{seller: 'openai:m', name: iter-60}]": "'iter-60' is the name of another player",
    "sellers: [{seller: prober, name: ''}]": "name is empty",
    "sellers: [{seller: prober, name: 1.10}]": "name is 1.1; allowed: a text of one line, in quotes",
    "sellers: [{seller: 'openai:m', name: 1.10}]": "(openai:m): name is 1.1; allowed: a text of one line; put it in",
    "sellers: [{seller: 'openai:m', temprature: 1}]": "(openai:m): unknown 'temprature'; allowed: name, thinking",
    "sellers: [{seller: 'openai:m', temperature: '0.7'}]": "temperature is '0.7'; allowed: a number from 0 to 10",
    "sellers: [{seller: 'openai:m', temperature: 11}]": "temperature is 11",
    "sellers: [{seller: 'openai:m', temperature: true}]": "temperature is True",
    "sellers: [{seller: 'openai:m', max_tokens: 10.5}]": "max_tokens is 10.5; allowed: a whole number from 1",
    "sellers: [{seller: 'openai:m', max_tokens: }]": "max_tokens is None; allowed: a whole number from 1",
    "sellers: [{seller: 'openai:m', thinking: maybe}]": "thinking is 'maybe'; allowed: true or false",
    "sellers: [{seller: 'openai:m', price_input: cheap}]": "price_input is 'cheap'; allowed: dollars",
    "sellers: [{seller: 'openai:m', body: [1]}]": "body is [1]",
    "sellers: [{seller: 'openai:m', dtype: auto}]": "unknown 'dtype'",
    "sellers: [{seller: 'openai:m', top_p: 1e-5}]": "line 1: 1e-5 is read as a text; write it as 0.5 or 1.0e-5",
    "sellers: [{seller: 'openai:m', max_tokens: 010}]": "line 1: 010 is read as another number",
    "sellers: [{seller: 'openai:m', max_tokens: 1_000}]": "line 1: 1_000 is read as another number",
    "sellers: [{seller: 'openai:m', max_tokens: 12:30}]": "line 1: 12:30 is read as another number",
    "sellers: [{seller: 'openai:m', temperature: .inf}]": "line 1: .inf is read as another number",
    "sellers: [{seller: 'openai:m', name: no}]": "line 1: no is read as False; write true or false, or quotes",
    "sellers: [{seller: 'openai:m', name: 2024-01-02}]": "line 1: 2024-01-02 is read as a date; put it in quotes",
    "sellers:\n- seller: prober\n  seller: greedy": "line 2: seller is there twice",
    "run: {seed: 1}\nrun: {seed: 2}\nsellers: [{seller: prober}]": "line 1: run is there twice",
    "run: {1: 2}\nsellers: [{seller: prober}]": "line 1: 1 is no name",
    "run: [1]\nsellers: [{seller: prober}]": "run must be lines such as seed: 0",
    "run: {sed: 1}\nsellers: [{seller: prober}]": "run: unknown 'sed'; allowed: regime, split",
    "run: {seed: -1}\nsellers: [{seller: prober}]": "run: seed is -1; allowed: a whole number from 0",
    "run: {per_product: 0}\nsellers: [{seller: prober}]": "run: per_product is 0",
    "run: {products: many}\nsellers: [{seller: prober}]": "run: products is 'many'",
    "run: {split: 3}\nsellers: [{seller: prober}]": "run: split is 3; allowed: a text",
    "run: {regime: mars}\nsellers: [{seller: prober}]": "run: unknown regime 'mars'",
    "run: {n_buyers: 0}\nsellers: [{seller: prober}]": "run: regime in_distribution: n_buyers is 0",
    "run: {buyers: clever}\nsellers: [{seller: prober}]": "run, buyers is 'clever'; allowed: scripted, or a model",
    "run: {buyers: {iter-99: {model: 'openai:m'}}}\nsellers: [{seller: prober}]": "no buyer of type 'iter-99'",
    "run: {buyers: {iter-60: 'openai:m'}}\nsellers: [{seller: prober}]": "run, buyers, iter-60 needs model:",
    "run: {buyers: {model: m}}\nsellers: [{seller: prober}]": "run, buyers needs model: ENGINE:MODEL",
    "run: {buyers: {model: 'openai:m', top_k: x}}\nsellers: [{seller: prober}]": "run, buyers: top_k is 'x'",
    "defaults: {name: x}\nsellers: [{seller: prober}]": "defaults: unknown 'name'",
    "defaults: {temperature: hot}\nsellers: [{seller: prober}]": "defaults: temperature is 'hot'",
    "baseline: nobody\nsellers: [{seller: prober}]": "baseline is 'nobody'; allowed: the name of an entry, prober",
    "a: &a [*a]\nsellers: [{seller: prober}]": "unknown 'a'",
    "sellers: [{seller: !!python/name:os.system x}]": "panel mine.yaml",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text.replace("\n", " ")[-60:])
def test_a_mistake_in_a_file_is_one_line_and_nothing_is_played(text, tmp_path, capsys):
    out = tmp_path / "out"
    code, printed, err = call(capsys, "evaluate", "--panel", written(tmp_path, text), "--out", str(out))
    assert code == 2 and printed == "" and not out.exists()
    assert MISTAKES[text] in one_line(err) and "panel mine.yaml" in err


def test_files_that_are_none(tmp_path, capsys):
    for name, told in (
        ("nothing", f"no panel 'nothing'; there are: {', '.join(packaged())}; or give"),
        ("no.yaml", "No such file"),
    ):
        code, _, err = call(capsys, "evaluate", "--panel", name, "--out", str(tmp_path / "out"))
        assert code == 2 and told in one_line(err)
    (tmp_path / "latin.yaml").write_bytes("sellers: [{seller: é}]".encode("latin-1"))
    with pytest.raises(NegolabError, match="not text in UTF-8"):
        load_panel(str(tmp_path / "latin.yaml"))


def test_defaults_go_to_the_models_that_know_them_and_an_entry_goes_before_them(tmp_path):
    text = """
defaults: {temperature: 0.3, base_url: "http://localhost:1/v1", dtype: float32, price_input: }
sellers:
  - seller: openai:a/b
  - seller: vllm:c/d
    temperature: 0
  - {seller: prober, params: "1"}
run: {buyers: {iter-60: {model: "openai:e", temperature: 1.0}}, first_offer: free, budget_tiers: [[0.5, 1.0]]}
"""
    panel = load_panel(written(tmp_path, text))
    a, c, scripted = panel.entries
    assert (a.name, a.seller.temperature, a.seller.base_url, a.seller.price_input) == (
        "b",
        0.3,
        "http://localhost:1/v1",
        None,
    )
    assert (c.name, c.seller.temperature, c.seller.dtype) == ("d", 0.0, "float32")
    assert scripted.params == "1" and panel.run["buyers"]["iter-60"].temperature == 1.0
    assert panel.settings(scripted).knobs == {"first_offer": "free", "budget_tiers": [[0.5, 1.0]]}


def test_folders_are_safe_and_no_two_entries_share_one(tmp_path):
    names = ["a/b", "a b", "..", "con", "CON.x", "table.md", "é", "日本", "x" * 300, "plain-1.5_B", "-rf", "a.", "a"]
    listed = "\n".join(f"  - {{seller: 'm:f', name: {json.dumps(name)}}}" for name in names)
    folders = [entry.folder for entry in load_panel(written(tmp_path, f"sellers:\n{listed}\n")).entries]
    assert len({folder.casefold() for folder in folders}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,90}", folder) for folder in folders)
    assert not any(folder.split(".")[0].lower() == "con" or folder.lower() == "table.md" for folder in folders)
    assert folders[names.index("plain-1.5_B")] == "plain-1.5_B" and folders[names.index("a")] == "a"


# -- runs -----------------------------------------------------------------------------------------------------------


def test_a_panel_is_its_single_runs_on_the_same_markets(tmp_path, capsys):
    out, panel = tmp_path / "out", written(tmp_path, SCRIPTED)
    code, printed, err = call(capsys, "evaluate", "--panel", panel, "--out", str(out))
    assert code == 0 and err == ""
    alone = make_run(tmp_path / "alone", "--products", "3", seller="prober")
    assert contents(out / "prober") == contents(alone)
    ours = rows(out)
    assert [*ours] == ["prober", "greedy", "Any | thing: 50% & $1 é"]  # by reward
    assert ours["prober"]["source"] == multi_buyer.OURS and ours["prober"]["data"] == "bundled sample"
    assert (ours["prober"]["episodes"], ours["prober"]["products"]) == ("6", "3")
    stored = {line.split(",")[0]: line.split(",")[1:] for line in (alone / METRICS_CSV).read_text().splitlines()}
    for name in ("reward", "surplus_ratio", "deal_rate", "violation_format", "below_cost_rate", "aborted_rate"):
        found = [ours["prober"][name + part] for part in ("", "_se", "_se_clustered", "_n")]
        assert found == stored[name]
    base, other = (Run(out / name) for name in ("greedy", "prober"))
    versus, n = paired(base.episodes(), other.episodes(), {"reward": METRICS["reward"]})
    assert n == 6 and ours["prober"]["minus_baseline_reward"] == repr(versus["reward"].mean)
    assert ours["prober"]["minus_baseline_reward_se_clustered"] == repr(versus["reward"].se_clustered)
    assert ours["greedy"]["minus_baseline_reward"] == "n/a" and ours["greedy"]["cost_dollars"] == "n/a"
    assert "6 on 3 products (bundled sample)" in printed and "Qwen3-30B-A3B-Instruct-2507-trained" in printed
    text = tables(out)
    assert (
        r"Any \| thing: 50% & $1 é" in text["table.md"] and r"Any \textbar{} thing: 50\% \& \$1 é" in text["table.tex"]
    )
    assert text["table.md"].count("| paper |") == text["table.tex"].count("& paper &") == 13
    assert "256 on 128 products (AmazonHistoryPrice)" in text["table.md"]


def test_the_papers_rows_are_left_out_where_the_market_is_another(tmp_path):
    out, panel = tmp_path / "out", written(tmp_path, SCRIPTED)
    assert main(["evaluate", "--panel", panel, "--out", str(out), "--buyers", "2", "--only", "greedy"]) == 0
    assert "paper" not in tables(out)["table.csv"].partition("\n")[2] and [*rows(out)] == ["greedy"]
    assert main(["evaluate", "--panel", panel, "--out", str(tmp_path / "ood"), "--regime", "ood_diverse"]) == 0
    assert "0.54" in (tmp_path / "ood" / "table.csv").read_text(encoding="utf-8")  # table 10's best


def test_the_command_line_goes_over_the_file_and_only_chooses(tmp_path, capsys):
    out, panel = tmp_path / "out", written(tmp_path, SCRIPTED)
    more = ("--products", "2", "--per-product", "3", "--seed", "5", "--split", "train")
    assert call(capsys, "evaluate", "--panel", panel, "--out", str(out), "--only", "prober", *more)[0] == 0
    assert Run(out / "prober").n == 6 and Run(out / "prober").manifest["settings"]["seed"] == 5
    assert not (out / "greedy").exists() and [*rows(out)] == ["prober"]
    assert call(capsys, "evaluate", "--panel", panel, "--out", str(out), "--only", "greedy", *more)[0] == 0
    assert [*rows(out)] == ["prober", "greedy"]  # what was finished before is shown too
    assert rows(out)["prober"]["minus_baseline_reward"] != "n/a"
    code, _, err = call(capsys, "evaluate", "--panel", panel, "--out", str(out), "--only", "prober,nobody", *more)
    assert code == 2 and "--only nobody: not in panel mine.yaml; there are: greedy, prober" in one_line(err)
    code, _, err = call(capsys, "evaluate", "--panel", panel, "--out", str(out), "--seller-option", "top_k=1")
    assert code == 2 and "--seller-option goes with --seller" in one_line(err)


def test_another_run_in_the_folder_ends_the_panel_before_anything_is_played(tmp_path, capsys):
    out, panel = tmp_path / "out", written(tmp_path, SCRIPTED)
    assert main(["evaluate", "--panel", panel, "--out", str(out), "--only", "prober"]) == 0
    before = tables(out)
    code, printed, err = call(capsys, "evaluate", "--panel", panel, "--out", str(out), "--seed", "1")
    assert code == 2 and printed == "" and f"{out / 'prober'} holds another run (" in one_line(err)
    assert not (out / "greedy").exists() and tables(out) == before


def test_folders_that_are_no_place_for_a_panel(tmp_path, capsys, finished: Path):
    panel = written(tmp_path, SCRIPTED)
    for out, told in (
        (panel, "is a file"),
        (str(tmp_path), "is not empty and not a panel's folder"),
        (str(finished), "is the run folder of a single seller"),
        ("", "--out is ''"),
    ):
        code, printed, err = call(capsys, "evaluate", "--panel", panel, "--out", out)
        assert code == 2 and printed == "" and told in one_line(err)


OWN = """
from negolab.policies.base import Reply

class Wrong:
    name = "wrong"
    def describe(self): return {"name": self.name}
    def reply(self, requests):
        if %r: raise ValueError("lost its nerve")
        return [Reply("no format") for _ in requests]
"""


def test_own_players_that_fail_alone(tmp_path, monkeypatch, capsys):
    """One cannot be made, one fails while it plays, one only plays badly: the others are played, and it is told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "panel_own_bad.py").write_text(OWN % True, encoding="utf-8")
    (tmp_path / "panel_own_good.py").write_text(OWN % False, encoding="utf-8")
    text = """
run: {products: 2}
sellers:
  - {seller: "panel_own_missing:X"}
  - {seller: "panel_own_bad:Wrong"}
  - {seller: "panel_own_good:Wrong", name: plays}
  - {seller: greedy}
"""
    code, printed, err = call(capsys, "evaluate", "--panel", written(tmp_path, text), "--out", "out")
    assert code == 2 and "panel_own_missing:X cannot be played: seller panel_own_missing:X cannot be made" in one_line(
        err
    )
    found = rows(Path("out"))
    assert {name: row["status"] for name, row in found.items()} == {
        "plays": "played",
        "greedy": "played",
        "panel_own_missing:X": "not played",
        "panel_own_bad:Wrong": "not played",
    }
    assert found["plays"]["source"] == multi_buyer.OURS_OWN and found["plays"]["violation_format"] == "1.0"
    assert found["panel_own_bad:Wrong"]["reason"] == "ValueError: lost its nerve"
    assert "Not played: panel_own_bad:Wrong: ValueError: lost its nerve" in printed


# -- models ---------------------------------------------------------------------------------------------------------


def without_seconds(out: Path) -> list[str]:
    """The tables without the time that replies took, which no two runs share."""
    text = tables(out)
    lines = list(csv.reader(io.StringIO(text["table.csv"])))
    at = lines[0].index("seconds")
    assert all(re.fullmatch(r"n/a|[0-9.e-]+|seconds", line[at]) for line in lines)
    plain = "\n".join(",".join(line[:at] + line[at + 1 :]) for line in lines)
    shown, spent = text["table.md"].split("Tokens and cost:")
    spent = "\n".join("|".join(line.split("|")[:6] + line.split("|")[7:]) for line in spent.splitlines())
    return [plain, shown, spent, text["table.tex"]]


def test_a_row_whose_server_is_down_is_left_out_and_played_later(tmp_path, capsys, server):
    out = tmp_path / "out"
    down = f"""
  - seller: openai:fake-1b
    name: down
    base_url: {server.url.replace("127.0.0.1", "127.0.0.2")}
  - seller: openai:fake-1b
    name: no key
    base_url: https://models.invalid/v1
    key_env: PANEL_TEST_KEY
  - seller: greedy
"""
    panel = written(tmp_path, with_models(server.url, down))
    code, printed, err = call(capsys, "evaluate", "--panel", panel, "--out", str(out))
    assert code == 2 and "note: down cannot be played: " in err and "Traceback" not in err
    assert "note: no key cannot be played: openai:fake-1b needs a key in the environment variable PANEL_TEST_KEY" in err
    found = rows(out)
    assert {name for name, row in found.items() if row["status"] == "played"} == {"prober", "fake-1b", "cool", "greedy"}
    assert "PANEL_TEST_KEY" in found["no key"]["reason"] and found["no key"]["reward"] == "n/a"
    assert "Not played: no key: " in printed and "not played" in printed
    asked = sum(server.answered.values())
    panel = written(tmp_path, with_models(server.url, down.replace("127.0.0.2", "127.0.0.1")))
    code, printed, err = call(capsys, "evaluate", "--panel", panel, "--out", str(out), "--only", "down")
    assert code == 0 and "no key" not in printed and rows(out)["down"]["status"] == "played"
    played = rows(out)["down"]
    assert sum(server.answered.values()) - asked == int(played["replies"])  # nobody else was asked again


def test_finished_rows_need_no_server_any_more(tmp_path, capsys):
    pytest.importorskip("openai")
    out = tmp_path / "out"
    with ModelServer() as server:
        panel = written(tmp_path, with_models(server.url))
        assert call(capsys, "evaluate", "--panel", panel, "--out", str(out))[0] == 0
    before = tables(out)
    for name in FILES:
        (out / name).unlink()
    code, _, err = call(capsys, "evaluate", "--panel", panel, "--out", str(out))
    assert code == 0 and err == "" and tables(out) == before
    # Not even a key: the address, and so what it asks for, may have changed since.
    moved = written(tmp_path, with_models("https://models.invalid/v1"))
    assert call(capsys, "evaluate", "--panel", moved, "--out", str(out))[0] == 0 and tables(out) == before


def test_tokens_and_costs_are_those_that_the_server_counted(tmp_path, capsys, server):
    out = tmp_path / "out"
    panel = written(tmp_path, with_models(server.url))
    assert call(capsys, "evaluate", "--panel", panel, "--out", str(out), "--only", "fake-1b")[0] == 0
    row = rows(out)["fake-1b"]
    sent = [sum(len(m["content"]) for m in body["messages"]) // 4 for body in server.bodies]
    assert int(row["replies"]) == len(sent) and int(row["prompt_tokens"]) == sum(sent)
    assert int(row["completion_tokens"]) == 40 * len(sent) and int(row["cached_tokens"]) == sum(n // 2 for n in sent)
    dollars = (sum(sent) * 1 + 40 * len(sent) * 10) / 1e6
    assert float(row["cost_dollars"]) == pytest.approx(dollars)
    assert float(row["episodes_per_dollar"]) == pytest.approx(6 / dollars)
    assert "| all |" in tables(out)["table.md"]


def killed_in_the_middle(args: list[str], ready: Callable[[], bool]) -> None:
    """Start the command and kill -9 it as soon as ``ready``."""
    process = subprocess.Popen(command(args), env=environment(OPENAI_API_KEY=None), stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not ready():
            assert process.poll() is None and time.monotonic() < until, "it ended before it could be killed"
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()


def test_a_panel_that_is_killed_and_resumed_gives_the_same_tables(tmp_path, capsys):
    """Killed three times: in the first model's row, in the second's, and between; no reply is paid for twice."""
    pytest.importorskip("openai")
    with ModelServer(delay=0.03) as server:
        panel = written(tmp_path, with_models(server.url))
        assert call(capsys, "evaluate", "--panel", panel, "--out", str(tmp_path / "whole"))[0] == 0
        whole = sum(server.answered.values())
        out = tmp_path / "killed"
        args = ["evaluate", "--panel", panel, "--out", str(out)]
        starts = sum(server.answered.values())
        for share in (0.2, 0.5, 0.8):
            killed_in_the_middle(args, lambda share=share: sum(server.answered.values()) - starts > share * whole)
        # What the server answered, but the killed process never got to keep, is asked for again: at most what was
        # under way at each kill.
        code, _, err = call(capsys, *args)
        assert code == 0 and "set aside" not in err.replace("torn", "")
        again = sum(server.answered.values()) - starts - whole
    assert 0 <= again <= 3 * 4
    assert without_seconds(out) == without_seconds(tmp_path / "whole")
    for name in ("prober", "fake-1b", "cool"):
        assert contents(out / name) == contents(tmp_path / "whole" / name) and finished(out / name)


def test_a_scripted_panel_that_is_killed_and_resumed_is_the_same_to_the_byte(tmp_path, capsys):
    text = SCRIPTED.replace("products: 3", "split: all").replace("per_product: 2", "per_product: 20")
    panel = written(tmp_path, text)
    assert call(capsys, "evaluate", "--panel", panel, "--out", str(tmp_path / "whole"))[0] == 0
    out = tmp_path / "killed"
    args = ["evaluate", "--panel", panel, "--out", str(out)]
    for name in ("greedy", "prober"):
        killed_in_the_middle(args, (out / name / "episodes.jsonl").exists)
    assert not (out / FILES[0]).exists()
    assert call(capsys, *args)[0] == 0
    assert tables(out) == tables(tmp_path / "whole")
    for name in FILES:
        (out / name).unlink()
    assert call(capsys, *args, "--workers", "2")[0] == 0 and tables(out) == tables(tmp_path / "whole")


def test_a_sum_of_dollars_stops_the_panel_and_a_larger_one_goes_on(tmp_path, capsys, server):
    """Two rows of 24 episodes, a few open at a time: the second is stopped; the third player costs nothing."""
    text = with_models(server.url, "  - seller: greedy\n").replace("per_product: 2", "per_product: 8")
    panel, out, whole = (
        written(tmp_path, text.replace("concurrency: 4", "concurrency: 1")),
        tmp_path / "out",
        tmp_path / "w",
    )
    args = ("evaluate", "--panel", panel, "--out", str(out))
    assert call(capsys, "evaluate", "--panel", panel, "--out", str(whole))[0] == 0
    each = float(rows(whole)["fake-1b"]["cost_dollars"])
    code, printed, _ = call(capsys, *args, "--max-cost", f"{each * 1.2:.9f}")
    found = rows(out)
    assert code == 2 and {n: row["status"] for n, row in found.items() if row["status"] != "played"} == {
        "cool": "not played"
    }
    assert (
        "stopped at --max-cost" in found["cool"]["reason"]
        and "used in all; the same command" in found["cool"]["reason"]
    )
    assert each * 0.2 <= float(found["cool"]["cost_dollars"]) < each
    assert "Not played: cool: stopped at --max-cost" in printed
    asked = sum(server.answered.values())
    code, _, _ = call(capsys, *args, "--max-cost", f"{each * 1.2:.9f}")
    assert code == 2 and sum(server.answered.values()) == asked  # nothing was left to spend
    assert call(capsys, *args, "--max-cost", "100")[0] == 0 and without_seconds(out) == without_seconds(whole)


def test_a_sum_needs_prices_and_models(tmp_path, capsys, server):
    unpriced = written(tmp_path, with_models(server.url).replace("price_input: 1, ", ""))
    out = str(tmp_path / "out")
    code, _, err = call(capsys, "evaluate", "--panel", unpriced, "--out", out, "--max-cost", "1")
    assert code == 2 and "--max-cost 1 needs the prices of fake-1b: give price_input" in one_line(err)
    code, _, err = call(capsys, "evaluate", "--panel", written(tmp_path, SCRIPTED), "--out", out, "--max-cost", "1")
    assert code == 2 and "--max-cost 1 is for language models, and none plays here" in one_line(err)
    for amount in ("0", "-1", "nan", "1e3", "x", ""):
        code, _, err = call(capsys, "evaluate", "--panel", unpriced, "--out", out, f"--max-cost={amount}")
        assert code == 2 and "give dollars above 0" in one_line(err)
    assert not Path(out).exists()


def test_buyers_can_be_models_too(tmp_path, capsys):
    """Their tokens are part of the row's account; here they say nothing that a buyer may, and the guard plays."""
    pytest.importorskip("openai")
    from servers import reply

    with ModelServer(answer_with=lambda body: reply(body, content="no format")) as server:
        text = f"""
run: {{products: 1, buyers: {{model: "openai:fake-1b", base_url: "{server.url}", price_input: 2, price_output: 2}}}}
sellers: [{{seller: greedy}}]
"""
        out = tmp_path / "out"
        code, printed, _ = call(capsys, "evaluate", "--panel", written(tmp_path, text), "--out", str(out))
        assert code == 0 and "buyers: fake-1b" in printed
        row = rows(out)["greedy"]
        assert int(row["replies"]) == sum(server.answered.values()) > 0 and float(row["cost_dollars"]) > 0

"""Tournaments of the trade game: files, runs, the same bytes whatever happens, tables and findings."""

import csv
import io
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from negolab.catalog import load_catalog
from negolab.cli import main
from negolab.errors import NegolabError
from negolab.papers import trade
from negolab.policies.registry import TRADERS
from negolab.store import EPISODES, Run
from negolab.tournament import Match, choose_products, load_tournament, packaged
from negolab.tournament_findings import findings, rank_correlation
from negolab.tournament_report import text_of
from negolab.tournament_table import Tournament
from runs import call, command, contents, environment, one_line, run_command
from servers import MODEL, ModelServer, reply
from trade_words import speak

THREE = """
run: {data: sample, products: 4, seed: 3}
traders:
  - trader: anchor
  - trader: accommodating
  - {trader: irrational, name: rash}
"""


@pytest.fixture
def three(tmp_path):
    return written(tmp_path, THREE)


def written(folder: Path, text: str) -> Path:
    path = folder / "three.yaml"
    path.write_text(text)
    return path


def args(file, out, *more: str) -> list[str]:
    return ["tournament", str(file), "--out", str(out), "--no-figures", *more]


def play(file, out, *more: str) -> Path:
    """A tournament played in this process."""
    assert main(args(file, out, *more)) == 0
    return Path(out)


def folders(out: Path) -> list[Path]:
    return sorted(path.parent for path in (out / "runs").rglob("manifest.json"))


def stored(out: Path) -> dict[str, bytes]:
    """Every file below the folder but locks, by name."""
    files = (path for path in out.rglob("*") if path.is_file() and path.name != "run.lock")
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


# -- files ------------------------------------------------------------------------------------------------------------


def test_packaged_tournaments_play_as_many_negotiations_as_the_paper():
    for name in packaged():
        settings = load_tournament(name)
        assert (settings.products * settings.gft_per_product, settings.products * settings.ngft_per_product) == (
            trade.GFT_PER_PAIR,
            trade.NGFT_PER_PAIR,
        )
        assert len(settings.matches()) == 2 * len(settings.entries) ** 2
    assert {entry.seller for entry in load_tournament("scripted").entries} == set(TRADERS)


def test_the_papers_models_have_its_prices():
    entries = {entry.name: entry.seller for entry in load_tournament("frontier").entries}
    assert tuple(entries) == trade.MODELS
    for row in trade.rows("models"):
        spec = entries[row["model"]]
        assert (spec.price_input, spec.price_output) == (row["usd_per_million_in"], row["usd_per_million_out"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("traders: []", "traders must be a list"),
        ("traders: [anchor]", "entry 1 is 'anchor'; allowed: lines such as trader: anchor"),
        ("traders: [{name: x}]", "entry 1 needs trader: one of anchor, .* a language model as transformers:MODEL"),
        ("traders: [{trader: prober}]", r"entry 1 \(prober\): unknown trader; allowed: anchor"),
        ("traders: [{trader: anchor, temperature: 1}]", "'temperature' goes with a language model"),
        ("traders: [{trader: taper, name: anchor}]", "'anchor' is the name of another player"),
        ("traders: [{trader: 'openai:anchor'}]", "'anchor' is the name of another player"),
        ("traders: [{trader: anchor}, {trader: anchor}]", "entry 2: the name 'anchor' is that of entry 1"),
        ("traders: [{trader: 'openai:m', top: 1}]", r"entry 1 \(openai:m\): unknown 'top'"),
        ("traders: [{trader: anchor}]\nsellers: []", "unknown 'sellers'; allowed: run, defaults, traders"),
        ("traders: [{trader: anchor}]\ndefaults: {warmth: 1}", "defaults: unknown 'warmth'"),
        ("traders: [{trader: anchor}]\nrun: {regime: trade}", "run: unknown 'regime'; allowed: data, split, products"),
        ("traders: [{trader: anchor}]\nrun: {products: 0}", "products is 0; allowed: a whole number from 1"),
        ("traders: [{trader: anchor}]\nrun: {seed: true}", "seed is True; allowed: a whole number"),
        ("traders: [{trader: anchor}]\nrun: {trade_draw: often}", "trade_draw is 'often'; allowed: redraw, cond"),
        ("traders: [{trader: anchor}]\nrun: {gft_per_product: 0, ngft_per_product: 0}", "both 0: nothing is played"),
    ],
)
def test_mistakes_in_a_file_are_named_where_they_are(tmp_path, text, message):
    with pytest.raises(NegolabError, match=message) as error:
        load_tournament(str(written(tmp_path, text)))
    assert "three.yaml" in str(error.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--only", "nobody"], "--only nobody: not in tournament three.yaml; there are: anchor, accommodating, rash"),
        (["--split", "nothing"], "split 'nothing' does not exist"),
        (["--max-cost", "0"], "give dollars above 0"),
        (["--gft-per-product", "0", "--ngft-per-product", "0"], "nothing is played"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_in_a_call_are_one_line_and_leave_nothing(three, tmp_path, capsys, more, message):
    code, out, err = call(capsys, *args(three, tmp_path / "out", *more))
    assert code == 2 and not out and message in one_line(err) and not (tmp_path / "out").exists()


def test_only_names_traders_or_pairs(three):
    settings = load_tournament(str(three))

    def pairs(*only: str) -> set[str]:
        return {f"{m.seller.name}/{m.buyer.name}" for m in settings.matches(only)}

    assert len(pairs()) == 9
    assert pairs("anchor", "rash") == {"anchor/anchor", "anchor/rash", "rash/anchor", "rash/rash"}
    assert pairs("anchor/rash") == {"anchor/rash"}
    assert pairs("rash", "anchor/accommodating") == {"rash/rash", "anchor/accommodating"}


def test_products_are_a_sample_that_only_the_number_changes(sample_catalog):
    names = {}
    for wanted in (5, 30, 120, 500):
        chosen, note = choose_products(sample_catalog, "all", wanted)
        names[wanted] = [p.listing.codename for p in chosen]
        assert len(chosen) == min(wanted, 120) and chosen == [p for p in sample_catalog.products if p in chosen]
        assert ("has 120 products, not 500" in note) == (wanted == 500)
    assert set(names[5]) < set(names[30]) < set(names[120])
    assert names[30] != names[120][:30]
    test, _ = choose_products(sample_catalog, "test", 10)
    assert len(test) == 10 and set(test) <= set(sample_catalog.split("test"))


# -- runs -------------------------------------------------------------------------------------------------------------


def test_each_run_is_the_one_that_evaluate_makes_and_verifies(three, tmp_path, capsys):
    out = play(three, tmp_path / "out")
    assert len(folders(out)) == 18
    for folder in folders(out):
        assert main(["verify", str(folder)]) == 0
        seller, buyer, kind = folder.parts[-3:]
        chosen = ["--seller", seller.replace("rash", "irrational"), "--buyer", buyer.replace("rash", "irrational")]
        per = "2" if kind == "gft" else "1"
        alone = ["evaluate", "--game", "trade", *chosen, "--gains", kind, "--per-product", per, "--seed", "3"]
        again = tmp_path / "again" / "-".join(folder.parts[-3:])
        assert main([*alone, "--split", str(out / "products.json"), "--out", str(again)]) == 0
        assert contents(again) == contents(folder)


def test_all_pairs_meet_the_same_scenarios(three, tmp_path):
    out = play(three, tmp_path / "out")
    for kind, count in (("gft", 8), ("ngft", 4)):
        drawn = [
            [e.scenario for e in Run(folder).episodes(complete=True)] for folder in folders(out) if folder.name == kind
        ]
        assert len(drawn) == 9 and len(drawn[0]) == count and all(one == drawn[0] for one in drawn)
        assert all((s.valuations[0][0] > s.reserve) == (kind == "gft") for s in drawn[0])


def test_workers_change_nothing(three, tmp_path):
    one, many = (play(three, tmp_path / n, "--products", "30", "--workers", n) for n in ("1", "3"))
    assert stored(one) == stored(many)
    assert sum(Run(folder).n for folder in folders(one)) == 9 * 90


def test_killed_anywhere_it_goes_on_to_equal_bytes(three, tmp_path):
    """The process is killed with SIGKILL several times, each time a little later, in the middle of the work."""
    more = ("--products", "100", "--workers", "2")
    whole = play(three, tmp_path / "whole", *more)
    out, kills, torn = tmp_path / "out", 0, False
    for share in (0.02, 0.2, 0.4, 0.6, 0.8):
        process = subprocess.Popen(
            command(args(three, out, *more)),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and size(out) < share * size(whole):
            time.sleep(0.001)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        done = sum((folder / EPISODES).exists() for folder in folders(out))
        torn = torn or 0 < done < 18
    assert kills >= 3 and torn
    play(three, out, *more)
    assert stored(out) == stored(whole)


def size(out: Path) -> int:
    """Bytes of all stored negotiations."""
    return sum(path.stat().st_size for path in (out / "runs").rglob(EPISODES))


def test_a_finished_run_is_left_alone_and_a_damaged_one_mended(three, tmp_path, capsys):
    out = play(three, tmp_path / "out")
    before = stored(out)
    spoiled, lost, good = folders(out)[:3]
    lines = (spoiled / EPISODES).read_bytes().splitlines(keepends=True)
    (spoiled / EPISODES).write_bytes(b"".join([lines[0], lines[1][:50] + b"x" + lines[1][51:], *lines[2:]]))
    (lost / "metrics.csv").unlink()
    made = (good / EPISODES).stat().st_mtime_ns
    code, _, err = call(capsys, *args(three, out))
    assert code == 0 and "set aside and played again: line 2" in err
    after = stored(out)
    assert after.pop(f"{spoiled.relative_to(out).as_posix()}/episodes.damaged.jsonl") and after == before
    assert (good / EPISODES).stat().st_mtime_ns == made


def test_other_scenarios_do_not_go_into_the_same_folder(three, tmp_path, capsys):
    out = play(three, tmp_path / "out")
    before = stored(out)
    for more in (("--seed", "4"), ("--products", "5"), ("--rounds", "6"), ("--trade-draw", "conditional")):
        code, _, err = call(capsys, *args(three, out, *more))
        assert code == 2 and "holds another run" in err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    code, _, err = call(capsys, *args(three, tmp_path / "other"))
    assert code == 2 and "not empty and not a tournament's folder" in err
    assert stored(out) == before


def test_pairs_may_be_played_one_after_the_other(three, tmp_path, capsys):
    whole, out = play(three, tmp_path / "whole"), tmp_path / "out"
    play(three, out, "--only", "anchor/rash")
    assert [folder.parts[-3:-1] for folder in folders(out)] == [("anchor", "rash")] * 2
    assert "Runs finished: 2 of 18" in (out / "report.md").read_text()
    play(three, out, "--only", "anchor,accommodating")
    assert "Runs finished: 10 of 18" in (out / "report.md").read_text()
    play(three, out)
    assert stored(out) == stored(whole)


def test_no_progress_where_there_is_no_terminal(three, tmp_path):
    done = run_command(args(three, tmp_path / "out"))
    assert done.returncode == 0 and "negotiations" not in done.stderr and "it/s" not in done.stderr
    assert re.search(r"note: 4 of catalogue sample's 120 products are played", one_line(done.stderr))


FAILING = """
class Player:
    name = "failing"
    def describe(self): return {"name": "failing"}
    def reply(self, requests): raise ValueError("no idea")
def make(): return Player()
"""


@pytest.mark.parametrize(("factory", "why"), [("make", "no idea"), ("none", "has no attribute 'none'")])
def test_who_cannot_play_is_left_out_and_said(tmp_path, capsys, monkeypatch, factory, why):
    (tmp_path / "their_trader.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = written(tmp_path, THREE + f"  - {{trader: 'their_trader:{factory}', name: theirs}}\n")
    code, _, err = call(capsys, *args(file, "out"))
    assert code == 2 and "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("not finished: anchor sells to theirs (gft)") and why in last and "and 11 more" in last
    table = (tmp_path / "out" / "report.md").read_text()
    assert "theirs (your own)" in table and "Runs finished: 18 of 32" in table and "| theirs |" not in table
    assert err.count("ValueError") <= 2  # asked once, not for each of its fourteen runs


def test_models_play_through_a_server_and_what_they_used_is_told(tmp_path, capsys, monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")

    def words(body):
        if len(body["messages"]) < 2:  # somebody asks whether the server lives
            return reply(body, content="OK")
        return reply(body, content=speak(body["messages"], body.get("seed")))

    text = (
        "run: {{products: 2}}\ntraders:\n  - trader: taper\n  - {{trader: 'openai:{0}', name: M, base_url: '{1}'{2}}}\n"
    )
    with ModelServer(answer_with=words) as server:
        file = written(tmp_path, text.format(MODEL, server.url, ""))
        code, _, err = call(capsys, *args(file, tmp_path / "dear", "--max-cost", "1"))
        assert code == 2 and "price" in one_line(err) and not (tmp_path / "dear").exists()
        file = written(tmp_path, text.format(MODEL, server.url, ", price_input: 1.0, price_output: 2.0"))
        code, out, err = call(capsys, *args(file, tmp_path / "out"))
        assert code == 0, err
        asked = sum(server.answered.values())
        code, again, err = call(capsys, *args(file, tmp_path / "out"))
        assert code == 0 and again == out and sum(server.answered.values()) == asked
        code, _, err = call(capsys, *args(file, tmp_path / "cheap", "--max-cost", "0.000001"))
        assert code == 2 and "stopped at --max-cost 1e-06" in err and "taper sells to taper" not in err
    assert re.search(r"^M: [0-9,]+ replies, [1-9][0-9,]* prompt tokens", out, re.MULTILINE) and "cost in all: $" in out
    assert "| M | ours (language model) |" in (tmp_path / "out" / "report.md").read_text()
    # Without its server, and with nothing owed, the tables are made all the same; what is owed is said.
    monkeypatch.delenv("OPENAI_API_KEY")
    assert call(capsys, *args(file, tmp_path / "out"))[0] == 0
    code, _, err = call(capsys, *args(file, tmp_path / "fresh"))
    assert code == 2 and "M cannot play" in err and (tmp_path / "fresh" / "runs" / "taper" / "taper").is_dir()


def test_ray_plays_the_same(three, tmp_path):
    pytest.importorskip("ray")
    alone = play(three, tmp_path / "alone")
    done = run_command(args(three, tmp_path / "ray", "--ray", "--workers", "2"), timeout=180)
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path / "ray") == stored(alone)


# -- tables and findings ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rash(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rash")
    return play(written(folder, THREE), folder / "out", "--products", "20")


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_pairs_are_counted_again_from_the_stored_negotiations(rash):
    pairs = {(r["seller"], r["buyer"], r["metric"]): r for r in rows_of(rash / "pairs.csv")}
    for folder in folders(rash):
        seller, buyer, kind = folder.parts[-3:]
        played = [(e, e.scenario.reserve, e.scenario.valuations[0][0]) for e in Run(folder).episodes(complete=True)]
        prices = [(e.outcome.price, s, b) for e, s, b in played if e.outcome.price is not None]
        row = pairs[seller, buyer, f"deal_rate_{kind}"]
        assert (float(row["mean"]), int(row["n"])) == (len(prices) / len(played), len(played))
        lost = sum(p > b for p, _, b in prices) / len(played)
        assert float(pairs[seller, buyer, f"buyer_violation_{kind}"]["mean"]) == lost
        if kind == "gft":
            shares = [(p - s) / (b - s) for p, s, b in prices if s <= p <= b]
            assert float(pairs[seller, buyer, "seller_surplus_share"]["mean"]) == pytest.approx(
                sum(shares) / len(shares)
            )


def test_report_has_every_table_ours_beside_the_papers(rash):
    text, latex = (rash / "report.md").read_text(), (rash / "report.tex").read_text()
    for number in (*range(14, 22), "22 to 26", "27 to 31"):
        assert f"table {number})" in text or f"tables {number})" in text
    for number in range(21, 30):
        assert f"(figure {number})" in text
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == text.count("\n| --- |")
    assert trade.LICENCE[1:] in text and "the bundled sample" in text and "rash (scripted)" in text
    o3 = next(line for line in text.splitlines() if line.startswith("| o3 | paper | 47.2%"))
    assert o3 == "| o3 | paper | 47.2% | 98.0% | 0.39 | 0.47 | 6.50 |"
    assert "| o3 | GPT-4.1 | paper | 0.50% | 11.50% |" in text


def test_csv_files_hold_the_papers_rows_under_the_same_names(rash):
    roles = {(r["source"], r["model"], r["role"], r["metric"]): r for r in rows_of(rash / "roles.csv")}
    assert float(roles["paper", "o3", "seller", "surplus_share"]["mean"]) == 0.77
    mine = roles["ours (scripted)", "anchor", "seller", "surplus_share"]
    pairs = [
        r for r in rows_of(rash / "pairs.csv") if r["metric"] == "seller_surplus_share" and r["seller"] == "anchor"
    ]
    means = [float(r["mean"]) for r in pairs]
    assert float(mine["mean"]) == pytest.approx(sum(means) / 3) and mine["opponents"] == "3"
    assert {r["source"] for r in rows_of(rash / "quintiles_by_opponent.csv")} == {"ours (scripted)", "paper"}
    assert len([r for r in rows_of(rash / "profiles.csv") if r["source"] == "paper"]) == 10


def test_findings_are_those_of_the_numbers(rash):
    found = {r["name"]: r for r in rows_of(rash / "findings.csv")}
    closed = lost = 0
    for folder in folders(rash):
        if folder.name == "ngft":
            for e in Run(folder).episodes(complete=True):
                closed += e.outcome.kind == "deal"
                lost += e.outcome.price is not None and e.outcome.price < e.scenario.reserve
    assert closed and f"{closed:,} of 180 negotiations without gains from trade closed" in found["ngft_deals"]["text"]
    assert f"rash as seller {lost}" in found["ngft_deals"]["text"]
    assert "anchor as" not in found["ngft_deals"]["text"]
    assert found["induced_violations"]["holds"] == "yes" and found["anchoring"]["holds"] in ("yes", "in part")


def role_row(model: str, role: str, metric: str, mean: float | None) -> dict[str, object]:
    return {"model": model, "role": role, "metric": metric, "mean": mean, "se_clustered": 0.01}


def claims(table: dict[str, dict[str, list[float]]], spreads: dict[str, float]) -> dict[str, str]:
    """What becomes of the paper's claims. ``table``: role -> metric -> one number per trader."""
    roles = [
        role_row(name, role, metric, value)
        for role, metrics in table.items()
        for metric, values in metrics.items()
        for name, value in zip("abc", values, strict=False)
    ]
    tiers = [{"model": name, "role": "buyer", "spread": spread} for name, spread in spreads.items()]
    return {finding.name: finding.holds for finding in findings(Tournament((), {}), roles, tiers) if finding.holds}


def test_claims_hold_where_the_numbers_say_so_and_fail_where_they_do_not():
    seller = {
        "initial_aggressiveness": [3.0, 2.0, 1.5],
        "surplus_share": [0.7, 0.5, 0.3],
        "deal_rate_gft": [0.95, 0.9, 0.8],
        "patience": [7.0, 6.0, 5.0],
    }
    buyer = {
        "surplus_share": [0.5, 0.4, 0.2],
        "patience": [7.0, 6.0, 5.0],
        "concession_rate": [0.4, 0.5, 0.7],
        "deal_rate_gft": [0.98, 0.95, 0.8],
        "self_violation_ngft": [0.0, 0.1, 0.2],
        "opponent_violation_ngft": [0.1, 0.0, 0.0],
    }
    names = ("anchoring", "patience", "accommodating", "price_tiers", "induced_violations")
    spreads = {"a": 0.02, "b": 0.05, "c": 0.2}
    assert claims({"seller": seller, "buyer": buyer}, spreads) == dict.fromkeys(names, "yes")
    half = {**seller, "deal_rate_gft": [0.8, 0.9, 0.95]}
    assert claims({"seller": half, "buyer": buyer}, spreads)["anchoring"] == "in part"
    turned = {name: values[::-1] for name, values in buyer.items() if name not in ("surplus_share", "deal_rate_gft")}
    against = claims({"seller": seller, "buyer": {**buyer, **turned}}, {"a": 0.2, "b": 0.05, "c": 0.02})
    assert against == {
        "anchoring": "yes",
        "patience": "in part",
        "accommodating": "no",
        "price_tiers": "no",
        "induced_violations": "no",
    }
    alone = {role: {m: values[:1] for m, values in t.items()} for role, t in (("seller", seller), ("buyer", buyer))}
    assert claims(alone, {"a": 0.02})["patience"] == claims(alone, {"a": 0.02})["price_tiers"] == "n/a"
    assert set(claims({}, {}).values()) == {"n/a"}


def test_the_papers_own_numbers_give_its_claims():
    roles = [{**row, "se_clustered": None} for row in trade.published()]
    spreads = trade.rows("table19")
    found = {f.name: f for f in findings(Tournament((), {}), roles, spreads) if f.holds}
    assert {name: f.holds for name, f in found.items()} == dict.fromkeys(found, "yes") and len(found) == 5
    assert "o3 opens highest, at 3.04 times" in found["anchoring"].text


def test_rank_correlation_is_spearmans():
    stats = pytest.importorskip("scipy.stats")
    for a, b in (([1, 2, 3, 4], [2, 1, 4, 3]), ([1, 1, 2, 5], [3, 3, 3, 1]), ([0.5, 0.1, 0.9], [3, 2, 1])):
        assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert rank_correlation([1, 2], [1, 2]) is None and rank_correlation([1, 2, 3], [1, 1, 1]) is None


@pytest.mark.parametrize(
    ("metric", "mean", "se", "text"),
    [
        ("surplus_share", 0.4718, 0.0123, "47.2% ± 1.2"),
        ("self_violation_ngft", 0.005, None, "0.50%"),
        ("buyer_utility_gft", -62.345, None, "-$62.34"),
        ("buyer_utility_gft", -0.001, None, "$0.00"),
        ("initial_aggressiveness", 3.041, 0.1, "3.04 ± 0.10"),
        ("anchoring", 0.4, None, "0.40"),
        ("rounds_gft", 6.5, None, "6.50"),
        ("deal_rate_gft", None, None, "n/a"),
    ],
)
def test_numbers_are_written_in_their_unit(metric, mean, se, text):
    assert text_of(metric, mean, se) == text


def test_folders_of_names_that_differ_are_different(tmp_path):
    names = ["a/b", "a b", "A-b", "con", "..", "a"]
    text = "traders:\n" + "".join(f"  - {{trader: anchor, name: '{name}'}}\n" for name in names)
    entries = load_tournament(str(written(tmp_path, text))).entries
    places = {Match(a, b, "gft").folder.as_posix().casefold() for a in entries for b in entries}
    assert len(places) == 36 and all(place.startswith("runs/") and place.count("/") == 3 for place in places)


def test_the_catalogue_may_lack_products(tmp_path, capsys):
    assert len(load_catalog("sample").products) == 120
    file = written(tmp_path, "run: {split: test}\ntraders: [{trader: accommodating}]\n")
    code, out, err = call(capsys, *args(file, tmp_path / "out"))
    assert code == 0 and "catalogue sample, split test has 24 products, not 200" in one_line(err)
    assert "each ordered pair plays 48 with gains from trade (GFT) and 24 without" in out

"""Panels on markets of several items: the right metrics and the right paper's rows, sellers of the right market."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from negolab.errors import NegolabError
from negolab.metrics import ITEM_METRICS, paired
from negolab.panel import load_panel
from negolab.panel_columns import changes, columns_of
from negolab.panel_table import FILES, published_rows
from negolab.papers import multi_item, tables
from negolab.papers.multi_buyer import OURS, OURS_MODEL, PAPER
from negolab.plan import plan
from negolab.policies.registry import ITEM_SELLERS
from negolab.policies.spec import OpenAISpec
from negolab.scenario import REGIMES, regime
from negolab.store import METRICS_CSV, Run
from runs import ROOT, call, contents, make_run, one_line

SIX = ("reward", "item_deal_rate", "violation_rate", "surplus_ratio", "optimal_pair_coverage", "top_buyer_rate")
PARTS = ("", "_se", "_se_clustered", "_n")
PANEL = """
run: {regime: multi_product, products: 8}
baseline: early-closer
sellers: [{seller: random}, {seller: satisficer}, {seller: early-closer}, {seller: screener}, {seller: oracle}]
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def texts(out: Path) -> dict[str, str]:
    return {name: (out / name).read_text(encoding="utf-8") for name in FILES}


def lines(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(texts(out)["table.csv"])))


def ours(out: Path) -> dict[str, dict[str, str]]:
    return {row["seller"]: row for row in lines(out) if row["source"] != PAPER}


def theirs(out: Path) -> dict[str, dict[str, str]]:
    return {row["seller"]: row for row in lines(out) if row["source"] == PAPER}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The panel of all scripted sellers on eight clusters of the sample, played once."""
    from negolab.cli import main

    folder = tmp_path_factory.mktemp("panel")
    assert main(["evaluate", "--panel", written(folder, PANEL), "--out", str(folder / "out")]) == 0
    return folder / "out"


# -- the table --------------------------------------------------------------------------------------------------------


def test_its_runs_are_single_runs_and_its_numbers_theirs(played, tmp_path):
    alone = make_run(tmp_path / "alone", "--regime", "multi_product", "--products", "8", seller="screener")
    assert contents(played / "screener") == contents(alone)
    stored = {row["metric"]: row for row in csv.DictReader((alone / METRICS_CSV).open(encoding="utf-8"))}
    row = ours(played)["screener"]
    assert (row["episodes"], row["clusters"], row["data"], row["source"]) == ("16", "8", "bundled sample", OURS)
    for name in (*SIX, "violation_item", "violation_below_cost", "items_sold", "aborted_rate", "reward_bound"):
        assert [row[name + part] for part in PARTS] == [stored[name][k] for k in ("mean", "se", "se_clustered", "n")]
    assert row["item_deal_rate_n"] == "48" and row["reward_n"] == "16"


def test_differences_are_of_the_six_metrics_on_the_same_markets(played):
    base, other = (Run(played / name) for name in ("early-closer", "screener"))
    found, n = paired(base.episodes(), other.episodes(), {name: ITEM_METRICS[name] for name in SIX})
    row = ours(played)["screener"]
    assert n == 16
    for name in SIX:
        e = found[name]
        assert [row[f"minus_baseline_{name}{part}"] for part in PARTS] == [*map(repr, e[:3]), str(e.n)]
    assert f"| {found['reward'].mean:+.3f} ± {found['reward'].se:.3f} (16) |" in texts(played)["table.md"]
    assert ours(played)["early-closer"]["minus_baseline_reward"] == "n/a"


def test_the_papers_ordering_shows_in_it(played):
    """Section 8: closing early sells more items and earns less than asking first and matching then."""
    rows = {name: {m: float(row[m]) for m in SIX} for name, row in ours(played).items()}
    screener, early = rows["screener"], rows["early-closer"]
    for metric in ("reward", "surplus_ratio", "optimal_pair_coverage"):
        assert screener[metric] > early[metric]
    assert screener["item_deal_rate"] <= early["item_deal_rate"]
    assert [*rows] == sorted(rows, key=lambda name: -rows[name]["reward"]) and next(iter(rows)) == "oracle"


def test_the_papers_cells_are_its_stated_ones_and_blank_elsewhere(played):
    with (ROOT / "data" / "papers" / "2609.33289" / "results.csv").open(encoding="utf-8", newline="") as file:
        stated = {(row["seller"], row["metric"]): row["value"] for row in csv.DictReader(file)}
    rows = theirs(played)
    assert rows.keys() == {seller for seller, _ in stated} and len(stated) == 13
    derived = {(seller, metric) for seller, row in rows.items() for metric in row["derived"].split() if metric != "n/a"}
    assert derived == {
        ("GPT-5.4-high-reasoning", "violation_rate"),
        ("Qwen3-30B-A3B-Instruct-2507-untrained", "surplus_ratio"),
    }
    for seller, row in rows.items():
        assert (row["status"], row["episodes"], row["clusters"], row["data"]) == (
            "published",
            "n/a",
            "240",
            "the paper's",
        )
        for metric in SIX:
            if (seller, metric) not in derived:
                assert row[metric] == stated.get((seller, metric), "n/a")
            assert [row[metric + part] for part in PARTS[1:]] == ["n/a"] * 3
            assert row[f"minus_baseline_{metric}"] == "n/a"
        r, s, v = (row[m] for m in ("reward", "surplus_ratio", "violation_rate"))
        if "n/a" not in (r, s, v):
            assert float(r) == pytest.approx((1 - float(v)) * float(s) - float(v), abs=0.001)
    assert all(row["derived"] == "n/a" for row in ours(played).values())


def test_a_derived_cell_is_marked_and_explained_in_every_notation(played):
    found = texts(played)
    assert "| +0.315 ± n/a |" in found["table.md"] and "| 0.5% ± n/a † |" in found["table.md"]
    assert r"& 0.5\% $\pm$ n/a \textdagger{} &" in found["table.tex"]
    for name in ("table.md", "table.tex"):
        for note in multi_item.notes():
            assert f"† {note}" in found[name]
        assert "arXiv 2609.33289" in found[name] and "2607.05863" not in found[name]


def test_the_papers_rows_are_not_ranked_since_half_of_its_sellers_are_unknown(played):
    md = texts(played)["table.md"].splitlines()
    assert all("**" not in line and "<u>" not in line for line in md if "| paper |" in line)
    best = next(line for line in md if line.startswith("| oracle "))
    assert best.count("**") >= 2
    tex = texts(played)["table.tex"].splitlines()
    assert not any("textbf" in line for line in tex if "& paper &" in line) and any("textbf" in line for line in tex)


def test_clusters_are_called_clusters(played):
    for text in texts(played).values():
        assert "product" not in text.replace("multi_product", "")
    md = texts(played)["table.md"]
    assert "16 on 8 clusters (bundled sample)" in md and "240 clusters (the paper's)" in md
    assert "episodes per cluster: 2" in md and "clustered by cluster" in md
    heads = [
        "Reward ↑",
        "Item Deal Rate ↑",
        "Violation Rate (all kinds) ↓",
        "Seller Surplus Extraction Ratio ↑",
        "Optimal-Pair Offer Coverage Rate ↑",
        "Deal on Top Buyer Rate ↑",
    ]
    assert " | ".join(heads) in md.splitlines()[0]
    assert "| Seller | format | target | item | deal | below cost | truncated | aborted |" in md


def test_the_terminal_has_the_same_columns(tmp_path, capsys, played):
    code, printed, err = call(capsys, "evaluate", "--panel", written(tmp_path, PANEL), "--out", str(played))
    assert code == 0 and err == ""  # finished: read again, not played again
    head = re.split(r"  +", printed.splitlines()[0])
    assert head[4:] == ["reward", "items sold", "violations", "surplus", "coverage", "top buyer", "reward - baseline"]
    assert "Best of a source marked ¹" in printed and all(f"† {note}" in printed for note in multi_item.notes())


def test_in_two_sittings_the_tables_are_the_same_to_the_byte(tmp_path, capsys, played):
    out, panel = tmp_path / "out", written(tmp_path, PANEL)
    args = ("evaluate", "--panel", panel, "--out", str(out))
    assert call(capsys, *args, "--only", "screener,random")[0] == 0
    assert [*ours(out)] == ["screener", "random"] and ours(out)["random"]["minus_baseline_reward"] == "n/a"
    assert call(capsys, *args, "--workers", "2")[0] == 0
    assert texts(out) == texts(played)


def test_tables_of_one_item_have_their_columns_and_no_others(tmp_path, capsys):
    panel = written(tmp_path, "run: {products: 1}\nbaseline: greedy\nsellers: [{seller: greedy}, {seller: prober}]")
    out = tmp_path / "out"
    code, printed, _ = call(capsys, "evaluate", "--panel", panel, "--out", str(out))
    found = texts(out)
    head = found["table.csv"].split("\n", 1)[0].split(",")
    assert code == 0 and head[:9] == [*"seller,source,params,status,reason,data,episodes,products,reward".split(",")]
    measured = [name.removesuffix("_se_clustered") for name in head if name.endswith("_se_clustered")]
    table = ["reward", "surplus_ratio", "deal_rate", "distinct_buyers", "top_buyer_rate", "below_cost_rate"]
    kinds = ["violation_format", "violation_target", "violation_deal", "violation_truncated"]
    versus = [f"minus_baseline_{name}" for name in table]
    assert measured == [*table, "violation_rate", *kinds, "aborted_rate", "reward_bound", *versus]
    assert not any(word in text for text in (*found.values(), printed) for word in ("cluster:", "†", "2609.33289"))
    assert "2607.05863" in found["table.md"] and "clustered by product" in found["table.md"]


# -- the paper's setting, and others ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "shown"),
    [
        ("regime: multi_product", True),
        ("regime: multi_product, n_items: 3, first_offer_rate: 0.5", True),  # as it is anyway
        ("regime: multi_product, seed: 7, per_product: 1, data: auto", True),
        ("regime: multi_product, split: held_out", False),
        ("regime: multi_product, split: train", False),
        ("regime: multi_product, n_items: 4", False),
        ("regime: multi_product, item_correlation: 0.1", False),
        ("regime: multi_product, first_offer: free", False),
        ("regime: multi_varied", False),
        ("regime: multi_expanded", False),
        ("regime: multi_item_heavy", False),
        ("regime: in_distribution, protocol: tags", False),
    ],
)
def test_the_papers_rows_are_there_in_its_own_setting_only(tmp_path, run, shown):
    panel = load_panel(written(tmp_path, f"run: {{{run}}}\nsellers: [{{seller: random}}]"))
    found = published_rows(panel)
    assert [row.seller for row in found] == ([*multi_item.known()] if shown else [])


def test_what_was_changed_of_a_regime_is_said():
    assert changes("multi_product", REGIMES["multi_product"]) == ""
    drawn = regime("multi_product", n_items=4, first_offer="free", budget_tiers=[(0.5, 1.0), (1.0, 1.1)])
    assert changes("multi_product", drawn) == "budget_tiers 0.5-1.0,1.0-1.1, first_offer free, n_items 4"
    assert changes("multi_varied", regime("multi_varied", buyer_types=("a", "b"))) == "buyer_types a,b"
    one = regime("multi_product", buyer_types=("iter-50",), budget_tiers=[(0.5, 1.0)])
    assert changes("multi_product", one) == "budget_tiers 0.5-1.0, buyer_types iter-50"


def test_units_are_what_is_drawn_from():
    assert columns_of(regime("multi_product")).unit == "cluster"
    assert columns_of(regime("multi_product", n_items=1)).unit == columns_of(REGIMES["ood_diverse"]).unit == "product"
    assert columns_of(regime("in_distribution", protocol="tags")).main == SIX
    assert columns_of(regime("in_distribution")).main != SIX


def test_knobs_of_the_file_decide_the_markets(tmp_path, capsys):
    text = """
run:
  regime: multi_product
  products: 2
  split: held_out
  n_items: 2
  n_buyers: 4
  message_budget: 5
  first_offer_rate: 1.0
  item_correlation: 0.25
  buyer_correlation: 0.5
sellers: [{seller: oracle}]
"""
    out = tmp_path / "out"
    code, printed, _ = call(capsys, "evaluate", "--panel", written(tmp_path, text), "--out", str(out), "--items", "3")
    assert code == 0  # the command line goes over the file
    drawn = Run(out / "oracle").manifest["settings"]["regime"]
    wanted = {"n_items": 3, "n_buyers": 4, "message_budget": 5, "item_correlation": 0.25, "buyer_correlation": 0.5}
    wanted["protocol"] = "tags"
    assert {name: drawn[name] for name in wanted} == wanted
    for episode in Run(out / "oracle").episodes():
        assert episode.scenario.n_items == 3 and episode.scenario.n_buyers == 4
        assert episode.scenario.openings is not None and None not in episode.scenario.openings
    told = "multi_product with n_buyers 4, message_budget 5, first_offer_rate 1.0, item_correlation 0.25"
    assert told in printed and not theirs(out)


def test_one_item_in_the_tag_form_is_drawn_from_products(tmp_path, capsys):
    out, panel = tmp_path / "out", written(tmp_path, PANEL)
    code, printed, _ = call(
        capsys, "evaluate", "--panel", panel, "--out", str(out), "--items", "1", "--only", "oracle", "--products", "2"
    )
    assert code == 0 and "4 on 2 products (bundled sample)" in printed and "episodes per product: 2" in printed
    assert ours(out)["oracle"]["products"] == "2" and ours(out)["oracle"]["item_deal_rate_n"] == "4"


# -- sellers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "seller", "options", "told"),
    [
        (
            "regime: multi_product",
            "prober",
            (),
            "entry 2 (prober): prober does not sell where replies are written in tags, as they are here (regime "
            f"multi_product); allowed: {', '.join(ITEM_SELLERS)}, module:factory",
        ),
        ("protocol: tags", "greedy", (), "entry 2 (greedy): greedy does not sell where replies are written in tags"),
        ("", "screener", (), "written in lines, as they are here (regime in_distribution); allowed: random, satisfi"),
        ("regime: multi_product", "screener", ("--regime", "ood_diverse"), "written in lines, as they are here"),
        ("seed: 0", "prober", ("--regime", "multi_item_heavy"), "written in tags, as they are here (regime multi_item"),
        ("regime: multi_product", "screner", (), f"unknown seller; allowed: {', '.join(ITEM_SELLERS)}, module"),
        ("regime: bilateral", "random", (), "regime bilateral is no market; allowed: in_distribution, ood_diverse, mu"),
        ("n_items: 3", "random", (), "run: regime in_distribution: 3 items and protocol lines; several items need"),
        ("regime: multi_product, n_items: '3'", "random", (), "n_items is '3'; allowed: a whole number"),
        ("regime: multi_product", "random", ("--protocol", "lines"), "several items need tags"),
        ("regime: multi_product, n_items: 9", "random", (), "has 5 products; regime multi_product sells 9"),
        ("regime: multi_product, data: none.csv", "random", (), "clusters none.csv: does not exist"),
    ],
)
def test_what_does_not_fit_the_market_is_one_line_and_nothing_is_played(tmp_path, capsys, run, seller, options, told):
    text = f"run: {{{run}}}\nsellers:\n- {{seller: oracle}}\n- {{seller: {seller}, params: x}}\n"
    out = tmp_path / "out"
    panel = written(tmp_path, text.replace("seller: random,", "seller: random, name: any,"))
    code, printed, err = call(capsys, "evaluate", "--panel", panel, "--out", str(out), *options)
    assert code == 2 and printed == "" and told in one_line(err) and not out.exists()


def test_a_file_may_leave_the_market_to_the_command_line(tmp_path, capsys):
    panel = written(tmp_path, "sellers: [{seller: prober}, {seller: early-closer}, {seller: screener}]")
    args = ("evaluate", "--panel", panel, "--products", "1", "--only")
    assert call(capsys, *args, "early-closer", "--regime", "multi_product", "--out", str(tmp_path / "a"))[0] == 0
    assert [*ours(tmp_path / "a")] == ["early-closer"]
    assert call(capsys, *args, "prober", "--out", str(tmp_path / "b"))[0] == 0
    code, _, err = call(capsys, *args, "screener,prober", "--out", str(tmp_path / "c"))
    assert code == 2 and "entry 3 (screener): screener does not sell where" in one_line(err)


def test_no_entry_has_the_name_of_a_player_of_the_other_market(tmp_path):
    for market, name in (("multi_product", "greedy"), ("in_distribution", "screener")):
        text = f"run: {{regime: {market}}}\nsellers: [{{seller: 'my:own', name: {name}}}]"
        with pytest.raises(NegolabError, match=f"'{name}' is the name of another player"):
            load_panel(written(tmp_path, text))


def test_runs_of_other_markets_in_the_folder_stay_out_of_the_table(tmp_path, capsys):
    out, panel = tmp_path / "out", written(tmp_path, PANEL)
    args = ("evaluate", "--panel", panel, "--out", str(out), "--products", "2", "--only")
    assert call(capsys, *args, "early-closer,screener", "--seed", "1")[0] == 0
    code, printed, err = call(capsys, *args, "oracle", "--regime", "in_distribution")
    assert code == 0 and [*ours(out)] == ["oracle"] and "In pairs" in printed
    assert ours(out)["oracle"]["minus_baseline_reward"] == "n/a"
    for name in ("early-closer", "screener"):
        assert f"note: {name} is left out of the table: {out / name} holds a run of other markets or players" in err
    code, _, err = call(capsys, *args, "random", "--seed", "1")
    assert (
        code == 0 and [*ours(out)] == ["screener", "early-closer", "random"] and "oracle is left out" in one_line(err)
    )


# -- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sample", "kettles"])
def test_a_file_of_clusters_is_not_taken_for_the_bundled_one(tmp_path, capsys, name):
    rows = ["cluster,category,title,list_price,cost"]
    rows += [f"k{c},kitchen,Kettle {c} of make {i},{30 + 7 * i}.00,{15 + i}.50" for c in range(2) for i in range(4)]
    data = tmp_path / f"{name}.csv"
    data.write_text("\n".join(rows) + "\n", encoding="utf-8")
    text = f"run: {{regime: multi_product, split: all, data: '{data}'}}\nsellers: [{{seller: screener}}]"
    out = tmp_path / "out"
    code, printed, _ = call(capsys, "evaluate", "--panel", written(tmp_path, text), "--out", str(out))
    assert code == 0 and f"4 on 2 clusters (file {name})" in printed
    assert ours(out)["screener"]["data"] == f"file {name}" and ours(out)["screener"]["clusters"] == "2"
    assert not theirs(out)  # not the test split of anything


def test_published_products_are_named(tmp_path, capsys, real_data_dir):
    out, panel = tmp_path / "out", written(tmp_path, PANEL)
    args = ("evaluate", "--panel", panel, "--out", str(out), "--only", "oracle", "--products", "2")
    code, printed, _ = call(capsys, *args, "--data", str(real_data_dir))
    assert code == 0 and "4 on 2 clusters (AmazonHistoryPrice)" in printed


# -- models -----------------------------------------------------------------------------------------------------------


def test_the_papers_panel_has_its_known_sellers_and_plays_its_reference_market():
    panel = load_panel("multi_product")
    specs = {entry.name: entry.seller for entry in panel.entries}
    assert multi_item.known().keys() <= specs.keys() and len(specs) == 9  # of ten; the tenth is not known
    assert all(isinstance(spec, OpenAISpec) and spec.temperature == 0.7 for spec in specs.values())
    pairs = {name.rpartition("-")[0] for name in specs if name.endswith(("-thinking", "-nothink"))}
    assert len(pairs) == 3 and all({f"{one}-thinking", f"{one}-nothink"} <= specs.keys() for one in pairs)
    for name, spec in specs.items():
        switched = '"thinking":true' if name.endswith("-thinking") else '"thinking":false'
        wanted = name.endswith(("-thinking", "-nothink"))
        assert (switched in spec.body.replace(" ", "")) == wanted, name
    assert '"reasoning_effort":"high"' in specs["GPT-5.4-high-reasoning"].body.replace(" ", "")
    assert panel.regime == multi_item.REFERENCE.regime and panel.run["split"] == multi_item.REFERENCE.split
    assert panel.baseline == multi_item.UNTRAINED
    panel.check(panel.entries)
    scripted = replace(panel.settings(panel.entries[0]), seller="screener")
    assert len(plan(scripted, "sample").schedule) == 2 * len(plan(scripted, "sample").schedule.units) > 0


def test_the_example_is_the_scripted_sellers(tmp_path, capsys):
    out = tmp_path / "out"
    assert call(capsys, "evaluate", "--panel", "example_items", "--out", str(out), "--products", "1")[0] == 0
    assert sorted(ours(out)) == sorted(ITEM_SELLERS) and theirs(out)


def test_a_model_is_a_row_with_tokens_and_costs(tmp_path, capsys):
    pytest.importorskip("openai")
    from servers import ModelServer, reply

    say = "<Thought>I ask.</Thought>\n<Target>Buyer 1</Target>\n<Talk></Talk>\n<Action>[QUIT]</Action>"
    with ModelServer(answer_with=lambda body: reply(body, content=say)) as server:
        text = f"""
run: {{regime: multi_product, products: 2}}
defaults: {{base_url: "{server.url}", price_input: 1, price_output: 10}}
baseline: screener
sellers: [{{seller: screener}}, {{seller: "openai:fake-1b", name: quitter, params: 1B}}]
"""
        out = tmp_path / "out"
        code, printed, _ = call(capsys, "evaluate", "--panel", written(tmp_path, text), "--out", str(out))
        row = ours(out)["quitter"]
        assert code == 0 and row["source"] == OURS_MODEL and row["params"] == "1B"
        assert [row[name] for name in SIX] == ["0.0", "0.0", "0.0", "0.0", "0.0", "n/a"]
        assert int(row["replies"]) == sum(server.answered.values()) == 4 and float(row["cost_dollars"]) > 0
        assert float(row["minus_baseline_reward"]) == -float(ours(out)["screener"]["reward"])
        assert "cost" in printed.splitlines()[0] and "Tokens and cost:" in texts(out)["table.md"]


# -- grids ------------------------------------------------------------------------------------------------------------


def test_groups_that_are_not_ranked_are_not_marked():
    rows = [{"seller": s, "source": g, "reward": r} for s, g, r in (("a", "x", 0.1), ("b", "x", 0.2), ("c", "y", 0.3))]
    rows.append({"seller": "d", "source": "y", "reward": 0.4, "reward_trust": multi_item.DERIVED})
    leading = {"seller": "Seller"}
    marks = [line[1].place for line in tables.grid(rows, ["reward"], leading).body]
    assert marks == [2, 1, 2, 1]
    made = tables.grid(rows, ["reward"], leading, unranked=("y",))
    assert [line[1].place for line in made.body] == [2, 1, 0, 0]
    assert made.body[3][1].text == f"+0.400 ± n/a {tables.DERIVED_MARK}" and "†" not in made.body[2][1].text
    assert made.body[3][1].text in tables.markdown(made) and r"n/a \textdagger{}" in tables.latex(made)

"""What the notebooks on several items compute, against sums by hand, the golden example and the paper's numbers.

Their hygiene and their parameters are tested with all others in ``test_notebooks``; that they run, by nbmake.
"""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from negolab import notebook, plots
from negolab.catalog import SAMPLE
from negolab.clusters import ClusterCatalog, load_clusters
from negolab.episodes import replay as replays
from negolab.errors import NegolabError
from negolab.metrics import ITEM_METRICS, SIX
from negolab.notebook import examples_items, frames, frames_clusters, frames_items, profiles
from negolab.papers import multi_buyer
from negolab.papers import multi_item as paper
from negolab.parser.tags import parse_item_buyer, parse_item_seller
from negolab.policies.registry import ITEM_SELLERS

GOLDEN = json.loads((Path(__file__).parent / "golden" / "items_appendix_h.json").read_text(encoding="utf-8"))


def study(out: Path, **parameters) -> notebook.Study:
    return notebook.begin("x", "multi_product", **{"data": SAMPLE, "clusters": 6, "out": str(out), **parameters})


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """All scripted sellers on a few markets of the sample."""
    made = study(tmp_path_factory.mktemp("study"), per_cluster=3)
    return made, made.play("multi_product")


# -- the study ------------------------------------------------------------------------------------------------------


def test_a_study_of_several_items_plays_clusters(played):
    made, panel = played
    assert isinstance(made.catalog, ClusterCatalog) and made.sellers == ITEM_SELLERS and made.arxiv == paper.ARXIV
    assert all(made.kind(name) == "scripted" for name in ITEM_SELLERS) and made.kind("prober") == "own"
    assert made.markets == "test split, first 6 clusters, 3 episodes each, seed 0"
    assert made.held_out == "musical-instruments" and "clusters" in made.data
    assert {run.n for runs in panel.values() for run in runs} == {18}
    assert set(frames.sources(panel).values()) == {multi_buyer.OURS}
    title = made.title("Text").splitlines()
    assert title[0] == "Text" and "synthetic" in title[1] and "clusters" in title[2] and len(title) == 3


def test_studies_of_one_item_say_what_they_said(tmp_path):
    made = notebook.begin("x", data=SAMPLE, products=3, out=str(tmp_path))
    assert made.markets == "test split, first 3 products, 1 episode each, seed 0" and made.held_out == ""
    assert made.title("Text") == f"Text\nours: bundled synthetic sample (invented products); {made.markets}"
    assert made.table(pd.DataFrame({"a": [1]}), "A.").arxiv == multi_buyer.ARXIV


def test_train_clusters_are_explained(tmp_path):
    assert "tuned by hand" in study(tmp_path, cluster_split="train+test").markets
    assert "tuned by hand" not in study(tmp_path, cluster_split="held_out").markets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("per_cluster", 0),
        ("per_cluster", "2"),
        ("clusters", -1),
        ("cluster_split", "tets"),
        ("cluster_split", ""),
        ("sellers", "screener, prober"),
        ("baseline", "prober"),
        ("item_panel", "no-such-panel"),
        ("data", "no/such/folder"),
    ],
)
def test_bad_parameter_is_one_clear_line(tmp_path, name, value):
    with pytest.raises(notebook.ParameterError) as caught:
        study(tmp_path / "run", **{name: value})
    assert "\n" not in str(caught.value) and not (tmp_path / "run" / "evaluations").exists()


def own_clusters(path: Path, sizes: dict[str, int], splits: dict[str, str]) -> Path:
    """A user's file of clusters."""
    rows = [
        {
            "name": name,
            "category": f"of-{splits[name]}",
            "kind": "thing",
            "split": splits[name],
            "products": [{"title": f"{name} {k}", "list_price": 20 + k, "cost": 9} for k in range(size)],
        }
        for name, size in sizes.items()
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_what_a_suite_lacks_is_said_before_anything_is_played(tmp_path):
    more = frames_items.markets(paper.SUITES.values())
    assert ("multi_expanded", "held_out") in more and ("multi_expanded", "") in more
    file = own_clusters(tmp_path / "small.json", {"a": 3, "b": 5}, {"a": "test", "b": "held_out"})
    with pytest.raises(notebook.ParameterError, match=r"cluster a has 3 products.*multi_expanded sells 5"):
        notebook.begin("x", "multi_product", more, data=str(file), out=str(tmp_path / "o"))
    file = own_clusters(tmp_path / "none.json", {"a": 5, "b": 5}, {"a": "test", "b": "train"})
    with pytest.raises(notebook.ParameterError, match="held_out"):
        notebook.begin("x", "multi_product", more, data=str(file), out=str(tmp_path / "o"))


def test_a_file_of_clusters_may_be_given_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_clusters(tmp_path / "mine.json", {"a": 5}, {"a": "test"})
    given = {"12": {"data": "mine.json", "cluster_split": "names.json"}}
    profiles.settle_paths(given)
    assert given["12"] == {"data": str(tmp_path / "mine.json"), "cluster_split": str(tmp_path / "names.json")}
    with pytest.raises(NegolabError, match="no folder"):
        profiles.settle_paths({"12": {"data": "absent.json"}})


@pytest.mark.parametrize("path", sorted(notebook.study.notebooks_dir().glob("1[1-4]_*.ipynb")), ids=lambda p: p.stem)
def test_profiles_reach_the_notebooks_on_items(path):
    books = profiles.shipped()
    book = profiles.read_notebook(path)
    for name in ("smoke", "laptop"):
        mine = profiles.assign(profiles.load_profile(name), {}, books, [book])[book.name]
        assert "split" not in mine and "per_product" not in mine and "panel" not in mine
        assert book.name.startswith("11") or {"cluster_split", "per_cluster", "clusters"} <= set(mine)


# -- clusters -------------------------------------------------------------------------------------------------------


def test_the_dataset_beside_the_paper_s():
    rows = frames_clusters.dataset(load_clusters(SAMPLE)).set_index("statistic")
    assert rows.loc["clusters"].tolist() == ["1300", "104"]
    assert rows.loc["median list price, held-out category"].tolist() == ["$165.49", "$165.49"]
    assert rows.loc["median list price, the others", "paper"] == "$44.10"
    assert rows.loc["dearest / cheapest list price, median"].tolist() == ["1.85", "1.86"]
    assert rows.loc["clusters of five brands"].tolist() == ["59 %", "59 %"]
    assert rows.loc["held-out category", "ours"] == "musical-instruments"
    assert [rows.loc[f"{part} clusters", "ours"] for part in ("train", "test", "held-out")] == ["77", "19", "8"]


def test_clusters_without_brands_and_without_splits(tmp_path):
    catalog = load_clusters(own_clusters(tmp_path / "mine.json", {"a": 2, "b": 4}, {"a": "test", "b": "test"}))
    per = frames_clusters.clusters(catalog)
    assert per["brands"].isna().all() and per["spread"].tolist() == [21 / 20, 23 / 20]
    assert per["median list price ($)"].tolist() == [20.5, 21.5]
    rows = frames_clusters.dataset(catalog).set_index("statistic")["ours"]
    assert rows["products per cluster"] == "2 to 4" and rows["held-out category"] == "none"
    assert rows["median list price, held-out category"] == "n/a" and rows["brands per cluster, mean"].startswith("n/a")
    assert frames_clusters.by_split(catalog)["split"].tolist() == ["test"]
    assert isinstance(plots.cluster_prices(frames_clusters.products(catalog), per, 1.85), plots.items.Figure)


def test_correlations_are_what_the_knobs_set():
    drawn = frames_clusters.valuations(load_clusters(SAMPLE), 1000, 5)
    assert drawn.groupby("knob").size().tolist() == [1000] * len(frames_clusters.KNOBS)
    found = frames_clusters.correlations(drawn).set_index("knob")
    for what in ("two buyers, one item", "one buyer, two items"):
        apart = (found[f"{what}: measured"] - found[f"{what}: set"]).abs()
        assert (apart <= 4 * found[f"{what}: standard error"]).all(), what
    wide = found["two buyers, one item: measured"]
    assert wide["item_correlation = 0.8"] > 0.7 and abs(wide["buyer_correlation = 0.8"]) < 0.2


# -- the benchmark --------------------------------------------------------------------------------------------------


def test_table_1_holds_both_errors_and_blanks_what_is_not_known(played):
    made, panel = played
    found = frames.metrics(panel, ITEM_METRICS)
    side = frames_items.table1(found, frames.sources(panel))
    text = frames_items.table1_text(side)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    lines = {row[0]: row for row in cells}
    trained, kimi = lines[paper.TRAINED], lines["Kimi-K2.6-thinking"]
    assert trained[2:] == ["+0.407", "64.7%", "1.3%", "+0.425", "0.844", "0.687"]
    assert kimi[1:] == ["paper", "+0.379", "", "", "", "", ""]
    assert lines[paper.UNTRAINED][5] == "+0.183 †" and "n/a" not in "".join(trained + kimi)
    ours = side[side["source"] == multi_buyer.OURS].set_index("seller")
    theirs = side[side["source"] == multi_buyer.PAPER]
    for metric in SIX:
        pair = ours[[f"{metric}_se", f"{metric}_se_clustered"]]
        assert pair.max(axis=1).equals(ours[f"{metric}_error"].rename(None)), metric
        assert theirs[[f"{metric}_error", f"{metric}_se", f"{metric}_se_clustered"]].isna().all(axis=None)
    assert ours.loc["screener", "item_deal_rate_n"] == 3 * ours.loc["screener", "reward_n"] == 54
    csv = made.table(side, "Both.", text).csv()
    assert "reward_se,reward_se_clustered" in csv and f"arXiv {paper.ARXIV}" in csv and "2607.05863" not in csv
    assert text.count("**") >= 2 and "**+0.407" not in text, "only our rows compete"


def test_reward_bound_and_ordering(played):
    _, panel = played
    bounds = frames_items.bound(frames.metrics(panel, ITEM_METRICS)).set_index("seller")
    assert bounds["reward_bound"].nunique() == 1, "all met the same markets"
    assert (bounds["reward"] <= bounds["reward_bound"]).all()
    assert math.isnan(bounds.loc["random", "share of the bound"]), "a share of less than nothing says nothing"
    claims = frames_items.ordering(panel).set_index("metric")
    pair = {"early-closer": panel["early-closer"], "screener": panel["screener"]}
    direct = frames.differences(pair, "early-closer", list(claims.index), ITEM_METRICS).set_index("metric")
    for metric, row in claims.iterrows():
        assert row["difference"] == direct.loc[metric, "difference"]
        right = row["difference"] <= 0 if metric == "item_deal_rate" else row["difference"] > 0
        assert row["verdict"] == ("held" if right else "not held")
    turned = frames_items.ordering(panel, "early-closer", "screener").set_index("metric")
    assert turned.loc["reward", "difference"] == pytest.approx(-claims.loc["reward", "difference"])
    assert turned.loc["reward", "verdict"] == "not held" and claims.loc["reward", "verdict"] == "held"
    assert frames_items.ordering({"oracle": panel["oracle"]}).empty


def test_ranks_are_shares_of_sold_items(played):
    _, panel = played
    ranks = frames_items.ranks(panel).set_index("seller")
    sold = {s: sum(len(e.outcome.sales) for e in frames.episodes(runs)) for s, runs in panel.items()}
    assert ranks["n"].to_dict() == sold and sold["oracle"] > 0
    assert ranks[["rank1", "rank2", "rank3"]].sum(axis=1).round(9).eq(1).all()
    top = frames.metrics(panel, {"top_buyer_rate": ITEM_METRICS["top_buyer_rate"]}).set_index("seller")["mean"]
    assert ranks["rank1"].round(12).equals(top.round(12).rename("rank1"))


# -- suites ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def suites(tmp_path_factory):
    """Three sellers on two suites that share a regime and differ in the split."""
    chosen = [paper.suite("Expanded"), paper.suite("Expanded Musical")]
    sellers = "satisficer, early-closer, screener"
    made = notebook.begin(
        "x",
        "multi_product",
        frames_items.markets(chosen),
        data=SAMPLE,
        clusters=3,
        sellers=sellers,
        out=str(tmp_path_factory.mktemp("suites")),
    )
    return made, frames_items.play(made, chosen)


def test_suites_are_played_on_their_own_splits(suites):
    made, played = suites
    kinds = {name: {e.scenario.unit for e in frames.episodes(panel["screener"])} for name, panel in played.items()}
    held = {cluster.name for cluster in made.catalog.split("held_out")}
    assert kinds["Expanded Musical"] <= held and not kinds["Expanded"] & held
    assert made.markets == "test split, first 3 clusters; held_out split, first 3 clusters, 1 episode each, seed 0"
    found = frames_items.suite_metrics(played)
    assert set(found["suite"]) == set(played) and set(found["source"]) == {multi_buyer.OURS}
    lines = frames_items.suite_text(found).splitlines()
    assert len(lines) == 2 + 6 and lines[2].startswith("| Expanded | satisficer")
    sizes = frames_items.suite_sizes(paper.SUITES.values(), "train+test").set_index("suite")
    assert sizes.loc["Musical", "split"] == "held_out" and sizes.loc["Item Heavy", "split"] == "train+test"
    assert sizes.loc["Expanded", ["N", "M", "T", "K"]].tolist() == [5, 5, 12, 3]


def test_margins_are_over_the_best_other_baseline(suites):
    _, played = suites
    above = frames_items.margins(played)
    assert list(above["suite"].unique()) == list(played) and set(above["metric"]) == set(frames_items.MARGINS)
    means = frames_items.suite_metrics(played).set_index(["suite", "seller", "metric"])["mean"]
    for row in above.itertuples():
        others = {name: means[row.suite, name, row.metric] for name in ("satisficer", "early-closer")}
        assert row.baseline == max(others, key=others.get)
        if row.metric == "reward":
            assert row.margin == pytest.approx(means[row.suite, "screener", "reward"] - others[row.baseline])
            assert row.pairs == 3
    published = above[above["metric"] == "reward"].set_index("suite")["paper"]
    assert published["Expanded Musical"] == 0.135 and math.isnan(published["Expanded"])
    assert above[above["metric"] != "reward"]["paper"].isna().all()
    alone = frames_items.margins({"Expanded": {"screener": played["Expanded"]["screener"]}})
    assert alone.empty and list(alone.columns) == list(above.columns)


def test_buyer_types_count_buyers_and_their_surplus(suites):
    _, played = suites
    types = frames_items.type_table(played).set_index(["suite", "buyer_type"])
    for name, panel in played.items():
        episodes = [e for seller in panel for e in frames.episodes(panel[seller])]
        for kind, row in types.loc[name].iterrows():
            buyers = [(e, b) for e in episodes for b, t in enumerate(e.scenario.buyer_types, 1) if t == kind]
            sales = [(e, s) for e in episodes for s in e.outcome.sales if e.scenario.buyer_types[s.buyer - 1] == kind]
            assert (row["closing_rate_n"], row["buyer_surplus_n"]) == (len(buyers), len(sales))
            assert row["closing_rate"] == pytest.approx(len(sales) / len(buyers))
            items = [(e.scenario.products[s.item - 1], s.price) for e, s in sales]
            kept = [(p.listing.list_cents - c) / (p.listing.list_cents - p.cost_cents) for p, c in items]
            assert row["buyer_surplus"] == pytest.approx(sum(kept) / len(kept))
            free = [e.scenario.openings is None or e.scenario.openings[b - 1] is None for e, b in buyers]
            assert row["first_offer_ratio_n"] == sum(free), "regulated openings say nothing of the buyer"


# -- the example ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [paper.EXAMPLE_UNTRAINED, paper.EXAMPLE_TRAINED], ids=lambda run: run.name)
def test_the_example_replays_to_the_published_reward(run):
    episode = examples_items.replay(run)
    assert episode.reward == run.reward and f"{episode.reward:.3f}" == f"{run.published_reward:.3f}"
    sales = {(sale.item, sale.buyer, sale.cents) for sale in run.sales}
    assert {(sale.item, sale.buyer, sale.price) for sale in episode.outcome.sales} == sales
    assert replays(episode) == []
    moves = [(turn.seat, turn.verb, turn.offers, turn.buyer if turn.seat == 0 else None) for turn in episode.turns]
    golden = []
    for turn in GOLDEN["episodes"][run.name]:
        read = (parse_item_buyer if turn["seat"] else parse_item_seller)(turn["text"], 3)
        golden.append((turn["seat"], read.verb, read.offers, read.target))
    assert moves == golden
    scenario, lists = examples_items.market(), [round(100 * float(item["list"])) for item in GOLDEN["market"]["items"]]
    assert [p.listing.list_cents for p in scenario.products] == lists
    assert {pair: scenario.valuations[pair[0] - 1][pair[1] - 1] for pair in paper.EXAMPLE_VALUATIONS} == dict(
        paper.EXAMPLE_VALUATIONS
    )


def test_what_is_drawn_and_printed_of_the_example():
    replayed = {run.name: examples_items.replay(run) for run in (paper.EXAMPLE_UNTRAINED, paper.EXAMPLE_TRAINED)}
    best, untrained, trained = examples_items.matchings(replayed).values()
    assert best == {(1, 1): None, (2, 2): None, (3, 3): None}
    assert untrained == {(1, 3): 4566, (2, 1): 10_000} and trained == {(1, 1): 14_000, (2, 2): 24_000, (3, 3): 4399}
    rows = examples_items.example_table(replayed).set_index("run")
    assert rows.loc["trained", ["earned ($)", "margin of all items ($)"]].tolist() == [225.93, 277.91]
    assert rows.loc["untrained", ["earned ($)", "optimal_pair_coverage", "top_buyer_rate"]].tolist() == [47.6, 0, 1]
    assert rows.loc["trained", "top_buyer_rate"] == pytest.approx(1 / 3)
    sales = examples_items.sales_table(replayed)
    assert sales[sales["run"] == "trained"]["margin ($)"].tolist() == [84.01, 140.0, 1.92]


def test_telling_markets_are_the_largest_and_the_median_difference(played):
    _, panel = played
    chosen = examples_items.telling(panel, "early-closer", "screener")
    gaps = {kind: pair["screener"].reward - pair["early-closer"].reward for kind, pair in chosen.items()}
    mine, theirs = (list(frames.episodes(panel[s])) for s in ("screener", "early-closer"))
    every = sorted(a.reward - b.reward for a, b in zip(mine, theirs, strict=True))
    assert gaps == {"largest": every[-1], "median": every[len(every) // 2]}
    for pair in chosen.values():
        assert pair["screener"].scenario == pair["early-closer"].scenario
    assert examples_items.telling({"a": [], "b": []}, "a", "b") == {}

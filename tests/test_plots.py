"""Every figure from rich and from degenerate inputs: files written, nothing shown, nothing left open, no warning."""

import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from negolab import plots
from negolab.errors import NegolabError
from negolab.papers import multi_buyer as mb
from negolab.papers import multi_item as mi

NAN = float("nan")


def results(rows: int, value: float = 0.5, source: str = mb.OURS) -> pd.DataFrame:
    metrics = {m + part: value for m in mb.METRICS for part in ("", "_se")}
    return pd.DataFrame([{"seller": f"s{i}", "source": source, **metrics} for i in range(rows)])


def ranked(rows: int, buyers: int = 3, value: float | None = None) -> pd.DataFrame:
    shares = {f"rank{k}": 1 / buyers if value is None else value for k in range(1, buyers + 1)}
    return pd.DataFrame([{"seller": f"s{i}", "n": 10 * i, **shares} for i in range(rows)])


def products(rows: int, list_cents: float = 3499, cost_cents: float = 1875, categories: int = 1) -> pd.DataFrame:
    kinds = [f"kind-{i % categories}" for i in range(rows)]
    return pd.DataFrame({"category": kinds, "list_cents": list_cents, "cost_cents": cost_cents})


def openings(rows: int, ratio: float = 0.3, budget: float = 0.7) -> pd.DataFrame:
    return pd.DataFrame({"buyer_type": ["iter-50"] * rows, "first_offer_ratio": ratio, "budget_ratio": budget})


def spread(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    types = rng.choice(["iter-50", "iter-60", "NA"], rows)
    return pd.DataFrame(
        {
            "buyer_type": types,
            "first_offer_ratio": rng.uniform(0.2, 0.4, rows),
            "budget_ratio": rng.uniform(0.4, 1.15, rows),
        }
    )


def path(run: mb.ExampleRun) -> Figure:
    return plots.episode_path(run.offers, run.budgets, run.cost_cents, run.list_cents, source="paper")


# Buyer 3 leaves, and the seller then accepts less than its cost from Buyer 1.
ENDED: list[tuple[int, int, str, int | None]] = [
    (1, 1, "bid", 1800),
    (1, 3, "bid", 933),
    (1, 3, "ask", 3499),
    (2, 3, "quit", None),
    (2, 1, "violation", 1800),
]


def known(rows: int, value: float = 0.5) -> pd.DataFrame:
    """A table 1 of so many of our sellers among the paper's."""
    cells = {m + part: value for m in mi.METRICS for part in ("", "_se", "_n")}
    side = mi.side_by_side(
        pd.DataFrame([{"seller": f"s{i}", **cells} for i in range(rows)], columns=["seller", *cells])
    )
    return side.rename(columns={f"{m}_se": f"{m}_error" for m in mi.METRICS})


def of_clusters(rows: int, held: bool = True, list_cents: float = 3499) -> pd.DataFrame:
    """Products of clusters of two, in three categories."""
    at = range(rows)
    data = {"cluster": [f"c{i // 2}" for i in at], "category": [f"kind-{i // 2 % 3}" for i in at]}
    data["split"] = ["held_out" if held and i // 2 % 3 == 0 else "test" for i in at]
    return pd.DataFrame({**data, "list_cents": [list_cents * (1 + i % 2) for i in at]})


def spreads(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"spread": [1.5] * rows})


def drawn(rows: int, knobs: int = 3) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Valuations under so many knobs, and what was measured of them."""
    names = [f"knob {k}" for k in range(knobs)]
    values = pd.DataFrame(
        [{"knob": n, "first": 0.5, "other_buyer": 0.7, "other_item": 0.9} for n in names for _ in range(rows)]
    )
    what = ("two buyers, one item", "one buyer, two items")
    return values, pd.DataFrame(
        [{"knob": n, **{f"{w}: {part}": 0.1 for w in what for part in ("measured", "standard error")}} for n in names]
    )


def of_suites(names: int, reward: float = 0.4, margin: float = 0.1) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rewards of two sellers in so many suites, and the margins between them."""
    suites = [f"suite {k}" for k in range(names)]
    rewards = [
        {"suite": s, "seller": who, "source": mb.OURS, "metric": "reward", "mean": value}
        for s in suites
        for who, value in (("early-closer", -reward), ("screener", reward))
    ]
    margins = [
        {"suite": s, "metric": m, "baseline": "early-closer", "margin": margin, "error": margin / 5, "paper": paper}
        for s in suites
        for m, paper in (("reward", 0.1), ("surplus_ratio", NAN), ("optimal_pair_coverage", NAN))
    ]
    return pd.DataFrame(rewards), pd.DataFrame(margins)


def matched(n: int, m: int, stated: bool = False) -> Figure:
    """A market whose first pairs are matched, once at no price."""
    values = [[1000 * (1 + i) + 100 * j for j in range(m)] for i in range(n)]
    pairs = [(k, k) for k in range(1, min(n, m) + 1)]
    panels = {"best": dict.fromkeys(pairs), "sold": dict.fromkeys(pairs[:1], 1500)}
    return plots.matchings(values, [2000] * m, [1100] * m, panels, "Market", "A note.", pairs[:1] if stated else None)


FIGURES = {
    "items": lambda: plots.item_benchmark(known(5), "Six metrics", bound=0.8),
    "items paper only": lambda: plots.item_benchmark(known(0)),
    "items some nan": lambda: plots.item_benchmark(known(2, NAN)),
    "items zero": lambda: plots.item_benchmark(known(3, 0.0)),
    "items nothing empty": lambda: plots.item_benchmark(known(0)[:0]),
    "clusters": lambda: plots.cluster_prices(of_clusters(60), spreads(30), 1.85, "bundled sample"),
    "clusters none held out": lambda: plots.cluster_prices(of_clusters(4, held=False), spreads(2), 1.85),
    "clusters one price": lambda: plots.cluster_prices(of_clusters(2), spreads(1), 1.85),
    "clusters empty": lambda: plots.cluster_prices(of_clusters(0), spreads(0), 1.85),
    "valuations": lambda: plots.valuation_scatter(*drawn(2000), "bundled sample"),
    "valuations one": lambda: plots.valuation_scatter(*drawn(1, knobs=1)),
    "valuations empty": lambda: plots.valuation_scatter(*drawn(0, knobs=0)),
    "suites": lambda: plots.suites(*of_suites(6), "Suites", note="Held out: electronics."),
    "suites no margins": lambda: plots.suites(of_suites(2)[0], of_suites(0)[1]),
    "suites some nan": lambda: plots.suites(of_suites(2, NAN)[0], of_suites(2)[1].assign(error=NAN)),
    "suites zero": lambda: plots.suites(*of_suites(1, 0.0, 0.0)),
    "suites empty": lambda: plots.suites(*of_suites(0)),
    "matchings": lambda: matched(3, 3, stated=True),
    "matchings wide": lambda: matched(2, 5),
    "matchings tall": lambda: matched(8, 1),
    "matchings empty": lambda: plots.matchings([], [], [], {}),
    "radar paper": lambda: plots.skill_radar(mb.table("figure3")),
    "radar empty": lambda: plots.skill_radar(results(0)),
    "radar no columns": lambda: plots.skill_radar(pd.DataFrame()),
    "radar one": lambda: plots.skill_radar(results(1)),
    "radar nan": lambda: plots.skill_radar(results(2, NAN)),
    "radar some nan": lambda: plots.skill_radar(results(2).assign(top_buyer_rate=[NAN, 0.5])),
    "radar below floor": lambda: plots.skill_radar(results(2, -0.9)),
    "radar twelve": lambda: plots.skill_radar(results(12)),
    "radar inf": lambda: plots.skill_radar(results(1, float("inf"))),
    "ranks paper": lambda: plots.closing_ranks(mb.table("figure10")),
    "ranks empty": lambda: plots.closing_ranks(ranked(0)),
    "ranks no columns": lambda: plots.closing_ranks(pd.DataFrame({"seller": ["a"]})),
    "ranks one": lambda: plots.closing_ranks(ranked(1)),
    "ranks nan": lambda: plots.closing_ranks(ranked(3, value=NAN)),
    "ranks zero": lambda: plots.closing_ranks(ranked(3, value=0.0)),
    "ranks five": lambda: plots.closing_ranks(ranked(4, buyers=5), highlight="s2"),
    "ranks one buyer": lambda: plots.closing_ranks(ranked(2, buyers=1)),
    "ranks fifty buyers": lambda: plots.closing_ranks(ranked(2, buyers=50)),
    "catalog": lambda: plots.catalog_distribution(products(50, categories=12), "bundled sample"),
    "catalog empty": lambda: plots.catalog_distribution(products(0)),
    "catalog no columns": lambda: plots.catalog_distribution(pd.DataFrame()),
    "catalog one": lambda: plots.catalog_distribution(products(1)),
    "catalog nan": lambda: plots.catalog_distribution(products(3, NAN, NAN)),
    "catalog zero list": lambda: plots.catalog_distribution(products(3, 0, 0)),
    "catalog constant": lambda: plots.catalog_distribution(products(9)),
    "bars": lambda: plots.benchmark_bars(mb.side_by_side(results(4), "ood_diverse"), title="OOD"),
    "bars empty": lambda: plots.benchmark_bars(results(0)),
    "bars no columns": lambda: plots.benchmark_bars(pd.DataFrame()),
    "bars no metric": lambda: plots.benchmark_bars(results(2), metrics=[]),
    "bars one": lambda: plots.benchmark_bars(results(1), metrics=["reward"]),
    "bars nan": lambda: plots.benchmark_bars(results(3, NAN)),
    "bars some nan": lambda: plots.benchmark_bars(results(2).assign(reward=[NAN, 0.1])),
    "bars zero": lambda: plots.benchmark_bars(results(3, 0.0)),
    "offers": lambda: plots.first_offers(spread(5000), mb.table("table12")),
    "offers empty": lambda: plots.first_offers(openings(0)),
    "offers no columns": lambda: plots.first_offers(pd.DataFrame()),
    "offers paper only": lambda: plots.first_offers(openings(0), mb.table("table12")),
    "offers one": lambda: plots.first_offers(openings(1)),
    "offers nan": lambda: plots.first_offers(openings(3, NAN)),
    "offers constant": lambda: plots.first_offers(openings(30)),
    "path trained": lambda: path(mb.EXAMPLE_TRAINED),
    "path untrained": lambda: path(mb.EXAMPLE_UNTRAINED),
    "path nobody": lambda: plots.episode_path([], [], 100, 200),
    "path quits": lambda: plots.episode_path(ENDED, [2540, 1813, 4011], 1875, 3499),
    "path aborted": lambda: plots.episode_path([*ENDED[:4], (2, 0, "aborted", None)], [2540, 1813, 4011], 1875, 3499),
    "path seller quits": lambda: plots.episode_path([*ENDED[:4], (2, 0, "quit", None)], [2540, 1813, 4011], 1875, 3499),
    "path silent": lambda: plots.episode_path([], [150, 180], 100, 200),
    "path one offer": lambda: plots.episode_path([(1, 1, "bid", 150)], [150], 150, 150),
    "path fifty buyers": lambda: plots.episode_path(
        [(1, b, "bid", 100 + b) for b in range(1, 51)], [200] * 50, 99, 300
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_written_without_a_warning(name, tmp_path):
    backend = mpl.rcParams._get("backend") if hasattr(mpl.rcParams, "_get") else None
    before = dict(mpl.rcParams.copy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fig = FIGURES[name]()
        assert isinstance(fig, Figure) and plt.get_fignums() == []
        saved = plots.save(fig, tmp_path / "deep" / "er", "figure")
    assert [p.name for p in saved.paths] == ["figure.png", "figure.svg"]
    assert all(p.stat().st_size > 2000 for p in saved.paths)
    assert plt.get_fignums() == []
    after = dict(mpl.rcParams.copy())
    assert {k: v for k, v in after.items() if k != "backend"} == {k: v for k, v in before.items() if k != "backend"}
    if backend is not None:
        assert mpl.rcParams._get("backend") == backend


def texts(fig: Figure) -> str:
    return "\n".join(t.get_text() for t in fig.findobj(Text))


@pytest.mark.parametrize("name", [n for n in FIGURES if n.split()[-1] in ("empty", "nan", "nobody", "columns")])
def test_nothing_to_draw_says_so(name):
    if name in ("radar some nan", "bars some nan", "suites some nan", "items some nan"):
        assert "n/a" in texts(FIGURES[name]())
    elif name != "bars empty" and name != "bars no columns":
        assert "no data" in texts(FIGURES[name]())
    else:
        assert texts(FIGURES[name]()).count("no data") == len(mb.TABLE_METRICS)


@pytest.mark.parametrize("name", ["radar paper", "ranks paper", "bars", "offers", "path trained"])
def test_captions_name_the_source(name):
    shown = texts(FIGURES[name]()).replace("\n", " ")
    assert "Paper: arXiv 2607.05863" in shown
    assert ("this project's runs" in shown) == (name in ("bars", "offers"))


def test_rows_without_a_source_are_claimed_for_nobody():
    for fig in (FIGURES["ranks one"](), plots.skill_radar(results(1).drop(columns="source"))):
        shown = texts(fig).replace("\n", " ")
        assert "source not stated" in shown and "arXiv" not in shown and "this project" not in shown


def test_what_is_left_out_or_clamped_is_said():
    shown = texts(FIGURES["radar below floor"]()).replace("\n", " ")
    assert "reward -0.90, drawn at the centre" in shown
    assert "Not drawn: 4 more" in texts(FIGURES["radar twelve"]())
    assert "38 less active channels not drawn" in texts(FIGURES["path fifty buyers"]()).replace("\n", " ")


def legend(fig: Figure) -> list[str]:
    return [text.get_text() for text in fig.legends[0].get_texts()]


def test_quits_and_violations_are_marked_and_only_what_is_drawn_has_a_key():
    lines = ["list price", "cost", "hidden budget"]
    assert legend(FIGURES["path trained"]()) == ["bid", "ask", "deal", *lines]
    assert legend(FIGURES["path silent"]()) == lines
    fig = FIGURES["path quits"]()
    assert legend(fig) == ["bid", "ask", "quit", "violation", *lines]
    one, two, three = (ax.get_title(loc="left") for ax in fig.axes)
    assert one.endswith("violation at $18.00 on turn 2") and three.endswith("quits on turn 2") and "turn" not in two
    marks = [{str(line.get_marker()): line.get_xydata() for line in ax.lines} for ax in fig.axes]
    assert marks[0]["X"].tolist() == [[2, 18]] and "X" not in marks[1] and "X" not in marks[2]
    assert marks[2]["s"].tolist() == [[2, 9.33]], "a buyer leaves at its last bid"
    fig = FIGURES["path aborted"]()
    assert "No reply on turn 2: no single channel" in texts(fig) and "violation" not in legend(fig)
    fig = FIGURES["path seller quits"]()
    assert "Seller quits on turn 2: no single channel" in texts(fig)
    assert all("s" in [str(line.get_marker()) for line in ax.lines] for ax in fig.axes)


def test_only_a_highlighted_row_has_a_line_below():
    for name, highlight, expected in (("s2", "s2", 1), ("s0", None, 0), ("s0", "nobody", 0)):
        ax = plots.closing_ranks(ranked(4), highlight=highlight).axes[0]
        assert ax.get_yticklabels()[0].get_text() == name
        assert len(ax.lines) == expected


def test_ranks_show_what_the_paper_states():
    shown = texts(FIGURES["ranks paper"]()).replace("\n", " ")
    assert "99.5" in shown and "61.6" in shown and "split not published" in shown
    derived = f"{mb.RADAR_SELLERS[0]} rank 2, 0.5; DeepSeek-V3.1-nothink rank 3, 2.9"
    assert f"Not stated, but what the others leave of 100: {derived}." in shown
    assert "Not stated" not in texts(FIGURES["ranks five"]())
    order = [t.get_text() for t in FIGURES["ranks five"]().axes[0].get_yticklabels()]
    assert order == ["s2", "s0", "s1", "s3"]


def test_dollar_signs_are_never_a_formula():
    run = mb.EXAMPLE_TRAINED
    fig = plots.episode_path(
        run.offers, run.budgets, run.cost_cents, run.list_cents, title="price $34.99 to $18.75", source="paper"
    )
    drawn = [t for t in fig.findobj(Text) if "$" in t.get_text()]
    assert len(drawn) >= 5
    assert not any(t.get_parse_math() for t in drawn if t.get_text().count("$") > 1)


def test_same_data_same_bytes(tmp_path):
    first, second = (plots.save(path(mb.EXAMPLE_TRAINED), tmp_path / d, "f", ("png", "svg", "pdf")) for d in "ab")
    for one, other in zip(first.paths, second.paths, strict=True):
        assert one.read_bytes() == other.read_bytes()
    png, size = first._repr_png_() or (b"", {})
    assert png.startswith(b"\x89PNG") and size["width"] > 300


def test_bad_names_and_folders(tmp_path):
    for name in ("", "a/b", "..", "."):
        with pytest.raises(NegolabError, match="figure name"):
            plots.save(path(mb.EXAMPLE_TRAINED), tmp_path, name)
    (tmp_path / "file").write_text("")
    with pytest.raises(NegolabError, match="cannot write"):
        plots.save(path(mb.EXAMPLE_TRAINED), tmp_path / "file", "f")
    with pytest.raises(NegolabError, match="cannot write"):
        plots.save(path(mb.EXAMPLE_TRAINED), tmp_path, "f", ("nonsense",))
    assert plt.get_fignums() == []


def test_names_the_font_lacks_do_not_warn(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.save(plots.benchmark_bars(results(1).assign(seller="卖家 $5 $6 <b>")), tmp_path, "cjk")


def test_no_display_needed(tmp_path):
    code = (
        "from negolab import plots; from negolab.papers import multi_buyer as mb;"
        f"plots.save(plots.skill_radar(mb.table('figure3')), {str(tmp_path)!r}, 'radar')"
    )
    subprocess.run([sys.executable, "-W", "error::FutureWarning", "-c", code], env={"PATH": "/usr/bin"}, check=True)
    assert (tmp_path / "radar.png").is_file()


def test_plots_never_show_or_choose_a_backend():
    for file in Path(plots.__file__).parent.glob("*.py"):
        source = file.read_text()
        assert "plt.show" not in source and "matplotlib.use" not in source and "mpl.use" not in source


def test_figures_of_several_items_name_their_paper_and_say_what_stand_ins_are():
    for name in ("items", "suites"):
        shown = texts(FIGURES[name]()).replace("\n", " ")
        assert "arXiv 2609.33289" in shown and "2607.05863" not in shown
        assert "no language models" in shown and "[scripted]" in shown
    assert "Held out: electronics." in texts(FIGURES["suites"]()).replace("\n", " ")
    assert "held out" in texts(FIGURES["clusters"]()) and "held" not in texts(FIGURES["clusters none held out"]())
    assert "500 are shown" in texts(FIGURES["valuations"]()) and "shown" not in texts(FIGURES["valuations one"]())


def test_dots_stand_where_the_numbers_are_and_blanks_stay_blank():
    frame = known(1, 0.5)
    for ax, metric in zip(plots.item_benchmark(frame, bound=0.8).axes, mi.METRICS, strict=True):
        marks = [line for line in ax.lines if line.get_marker() in ("o", "s", "D")]
        at = {round(float(line.get_ydata()[0])): float(line.get_xdata()[0]) for line in marks}
        assert at == {y: v for y, v in enumerate(frame[metric]) if not np.isnan(v)}, metric
        dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
        assert [line.get_xdata()[0] for line in dashed] == ([0.8] if metric == "reward" else [])
    derived = {
        m: sum(line.get_marker() == "D" for line in ax.lines)
        for m, ax in zip(mi.METRICS, plots.item_benchmark(frame).axes, strict=True)
    }
    assert derived == {m: 1 if m in ("violation_rate", "surplus_ratio") else 0 for m in mi.METRICS}


def test_matchings_frame_the_pairs_and_print_prices():
    best, sold = FIGURES["matchings"]().axes
    frames = [[p for p in ax.patches if p.get_linewidth() == 2] for ax in (best, sold)]
    assert [len(found) for found in frames] == [3, 1]
    assert {(round(p.get_x() + 0.46), round(p.get_y() + 0.46)) for p in frames[0]} == {(0, 0), (1, 1), (2, 2)}
    assert "at 15.00" not in texts_of(best) and "at 15.00" in texts_of(sold)
    bold = {t.get_text() for t in best.texts if t.get_fontweight() == "bold"}
    assert bold == {"10.00"}, "what is published"
    hatched = [p for p in best.patches if p.get_hatch()]
    assert len(hatched) == 1, "only Buyer 1 values an item below its cost of 11.00"


def texts_of(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]

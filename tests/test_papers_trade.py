"""Published numbers of arXiv 2604.16472: the relations between its tables hold within rounding.

``POINT`` is what printing with one digit of a per cent can shift a number by, ``CENT`` with two. A mean of numbers that
were each rounded can be off by as much again as the printed result: twice that.
"""

import csv
import math
import subprocess
import sys

import pandas as pd
import pytest

from negolab.environment.base import TOOLS
from negolab.errors import NegolabError
from negolab.papers import trade as paper
from negolab.papers.multi_buyer import OURS, PAPER
from negolab.papers.multi_item import DERIVED, STATED
from negolab.papers.trade import AXES, QUINTILES
from negolab.paths import data_dir
from negolab.scenario import TRADE
from negolab.tournament_table import ROLE_METRICS

POINT, CENT, EXACT = 0.0005, 0.00005, 1e-9
ROLES = ("buyer", "seller")
STAGES = ("Base", "SFT", "RL")
OPPONENTS = ("GPT-4.1", "o3-mini")


def five(row: dict) -> list[float]:
    """A row's quintiles."""
    return [row[q] for q in QUINTILES]


def mean(values) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def find(name: str, **wanted) -> dict:
    """The only row of a table with these fields."""
    (row,) = [row for row in paper.rows(name) if all(row[key] == value for key, value in wanted.items())]
    return row


def known(name: str) -> list[dict]:
    """Rows of a table by quintile that were at hand."""
    return [row for row in paper.rows(name) if row["q1"] is not None]


def whole(value: float, count: int, error: float) -> bool:
    """Whether a rate can be a whole number of ``count`` negotiations."""
    return abs(round(value * count) / count - value) <= error + EXACT


def test_module_is_light():
    heavy = "('pandas', 'matplotlib', 'torch', 'scipy')"
    code = "import sys; from negolab.papers import trade as t; t.published(); t.published_profiles()\n"
    code += f"print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- averages and spreads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [19, 20, 21, 36, 37, 38])
def test_spread_is_largest_less_smallest(number):
    """To the digit: spreads are of the printed quintiles."""
    rows = known(f"table{number}")
    assert len(rows) == 10
    for row in rows:
        assert row["spread"] == pytest.approx(max(five(row)) - min(five(row)), abs=EXACT), row


@pytest.mark.parametrize("number", range(22, 32))
def test_average_of_a_pair_is_the_plain_mean_of_its_quintiles(number):
    """One rounding of the mean of printed numbers."""
    rows = known(f"table{number}")
    assert [row["seller"] for row in rows] == ["o3", "GPT-4.1", "Gemini-2.5-Pro", "Gemini-2.5-Flash", "DeepSeek-V3"]
    assert {row["buyer"] for row in rows} == {paper.MODELS[(number - 22) % 5]}
    for row in rows:
        assert abs(mean(five(row)) - row["average"]) <= POINT + EXACT, row


@pytest.mark.parametrize("model", paper.MODELS)
@pytest.mark.parametrize(("tables", "by_quintile"), [(paper.SURPLUS_TABLES, "table19"), (paper.DEAL_TABLES, "table20")])
def test_buyers_quintiles_are_plain_means_over_opponents(model, tables, by_quintile):
    rows, row = paper.rows(tables[model]), find(by_quintile, model=model, role="buyer")
    for q in QUINTILES:
        assert abs(mean(one[q] for one in rows) - row[q]) <= 2 * POINT + EXACT, q


def test_o3s_deal_rates_are_exactly_the_means_of_table_27():
    row = find("table20", model="o3", role="buyer")
    assert five(row) == [round(mean(one[q] for one in paper.rows("table27")) + EXACT, 3) for q in QUINTILES]


def test_shares_are_not_weighted_by_deals():
    """The same means weighted by the pairs' deals are off by more than rounding explains, with every buyer."""
    for model in paper.MODELS:
        shares, deals = paper.rows(paper.SURPLUS_TABLES[model]), paper.rows(paper.DEAL_TABLES[model])
        row, off = find("table19", model=model, role="buyer"), []
        for q in QUINTILES:
            total = math.fsum(d[q] for d in deals)
            weighted = math.fsum(s[q] * d[q] for s, d in zip(shares, deals, strict=True)) / total
            off.append(abs(weighted - row[q]))
        assert max(off) > 2.5 * POINT, model
        if model in ("DeepSeek-V3", "Gemini-2.5-Flash"):
            assert 0.005 < max(off) < 0.006


@pytest.mark.parametrize("model", paper.MODELS)
def test_table_16_is_the_mean_of_a_models_pairs(model):
    """Buyers by rows of tables 22 to 31, sellers by columns; a pair's shares sum to 1 (figure 24)."""
    buyer, seller = (find("table16", model=model, role=role) for role in ROLES)
    shares = {m: paper.rows(paper.SURPLUS_TABLES[m]) for m in paper.MODELS}
    deals = {m: paper.rows(paper.DEAL_TABLES[m]) for m in paper.MODELS}

    def sold(tables):
        return [row["average"] for rows in tables.values() for row in rows if row["seller"] == model]

    assert abs(mean(row["average"] for row in shares[model]) - buyer["surplus_share"]) <= 2 * POINT
    assert abs(mean(row["average"] for row in deals[model]) - buyer["deal_rate_gft"]) <= 2 * POINT
    assert abs(1 - mean(sold(shares)) - seller["surplus_share"]) <= 2 * POINT
    assert abs(mean(sold(deals)) - seller["deal_rate_gft"]) <= 2 * POINT


@pytest.mark.parametrize(("number", "metric"), [(19, "surplus_share"), (20, "deal_rate_gft")])
def test_quintiles_average_to_table_16(number, metric):
    for row in known(f"table{number}"):
        total = find("table16", model=row["model"], role=row["role"])[metric]
        assert abs(mean(five(row)) - total) <= 2 * POINT, row


def test_table_32_repeats_the_column_of_gpt_41():
    rows = paper.rows("table32")
    assert len(rows) == 20 and {row["buyer"] for row in rows} == set(paper.MODELS) - {"GPT-4.1"}
    for row in rows:
        for tables, metric in ((paper.SURPLUS_TABLES, "surplus_share"), (paper.DEAL_TABLES, "deal_rate_gft")):
            assert row[metric] == find(tables[row["buyer"]], seller="GPT-4.1")[row["quintile"]]


def test_averages_across_training_stages():
    """Tables 33 and 34: of two opponents, halves rounded up."""
    checked = 0
    for name in ("table33", "table34"):
        for row in paper.rows(name):
            if row["opponent"] != "average":
                continue
            who = {key: row[key] for key in ("model", "stage", "role")}
            for column in [key for key in row if key.startswith(("self", "opponent_"))]:
                both = [find(name, **who, opponent=opponent)[column] for opponent in OPPONENTS]
                if row[column] is None:
                    assert both == [None, None]
                    continue
                checked += 1
                assert row[column] == pytest.approx(math.floor(mean(both) * 1e4 + 0.5 + EXACT) / 1e4, abs=EXACT)
    assert checked == 20


# -- profiles and violations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "role"), [(17, "buyer"), (18, "seller")])
def test_profiles_follow_from_tables_14_16_and_19(number, role):
    """To the digit: 1 - own violations, 1 - spread, and three columns of table 16."""
    rows = paper.rows(f"table{number}")
    assert [row["model"] for row in rows] == list(paper.MODELS) and {row["role"] for row in rows} == {role}
    compared = 0
    for row in rows:
        who = {"model": row["model"], "role": role}
        violations, outcome, tiers = (find(name, **who) for name in ("table14", "table16", "table19"))
        for axis, column in (("ir_compliance", "self_violation_gft"), ("pressure_resistance", "self_violation_ngft")):
            if violations[column] is not None:
                compared += 1
                assert row[axis] == pytest.approx(1 - violations[column], abs=EXACT)
        assert row["surplus_share"] == outcome["surplus_share"] and row["deal_rate_gft"] == outcome["deal_rate_gft"]
        assert row["anchoring"] == outcome["initial_aggressiveness"]
        assert row["consistency"] == pytest.approx(1 - tiers["spread"], abs=EXACT)
    assert compared == {"buyer": 3 + 4, "seller": 2 + 2}[role]


def test_o3_as_buyer_is_the_mean_of_table_15():
    rows, total = paper.rows("table15"), find("table14", model="o3", role="buyer")
    for column in ("self_violation_ngft", "opponent_violation_ngft"):
        assert mean(row[column] for row in rows) == pytest.approx(total[column], abs=EXACT)


def test_violations_of_either_side_are_those_of_both():
    """Table 21 against table 14: within the rounding of the quintiles (one, 1.51 for 6 of 398, is no multiple)."""
    compared = 0
    for row in known("table21"):
        mine = find("table14", model=row["model"], role=row["role"])
        if mine["self_violation_gft"] is not None:
            compared += 1
            both = mine["self_violation_gft"] + mine["opponent_violation_gft"]
            assert abs(mean(five(row)) - both) <= CENT, row
    assert compared == 5


def test_what_one_role_induces_is_what_the_other_does():
    """Sums over all models, once every cell that follows is filled in. The one with gains from trade is a check: its
    cells come from table 21, one model at a time."""
    cells = paper.violations()

    def total(role, column):
        return math.fsum(cells[model, role][column].value for model in paper.MODELS)

    assert total("buyer", "self_violation_gft") == pytest.approx(total("seller", "opponent_violation_gft"), abs=EXACT)
    assert total("seller", "self_violation_gft") == pytest.approx(total("buyer", "opponent_violation_gft"), abs=EXACT)
    assert total("seller", "self_violation_ngft") == pytest.approx(total("buyer", "opponent_violation_ngft"), abs=EXACT)


def test_derived_violations():
    cells = paper.violations()
    derived = {
        (model, role, column): round(cell.value * 100, 6)
        for (model, role), mine in cells.items()
        for column, cell in mine.items()
        if cell.trust == DERIVED
    }
    own, theirs = ("self_violation_gft", "self_violation_ngft"), "opponent_violation_gft"
    assert derived == {
        ("Gemini-2.5-Pro", "seller", own[0]): 0.0,
        ("Gemini-2.5-Pro", "seller", own[1]): 0.7,
        ("Gemini-2.5-Pro", "seller", theirs): 0.0,
        ("GPT-4.1", "buyer", own[0]): 0.25,
        ("GPT-4.1", "buyer", own[1]): 0.2,
        ("GPT-4.1", "buyer", theirs): 0.15,
        ("GPT-4.1", "buyer", "opponent_violation_ngft"): 0.1,
        ("GPT-4.1", "seller", own[0]): 0.1,
        ("GPT-4.1", "seller", own[1]): 2.3,
        ("GPT-4.1", "seller", theirs): 0.2,
        ("o3", "buyer", own[0]): 0.05,
        ("o3", "buyer", theirs): 0.2,
        ("o3", "seller", own[0]): 0.05,
        ("o3", "seller", own[1]): 0.0,
        ("o3", "seller", theirs): 0.3,
    }
    assert sum(len(mine) for mine in cells.values()) == 40 - 3
    # What stands in the file is never touched, and derived cells stand in no file.
    for row in paper.rows("table14"):
        mine = cells[row["model"], row["role"]]
        for column in paper.VIOLATIONS:
            if row[column] is not None:
                assert mine[column] == (row[column], STATED, "table 14")
            elif column in mine:
                assert mine[column].trust == DERIVED


# -- counts -----------------------------------------------------------------------------------------------------------

OF_79 = {("table27", "DeepSeek-V3", "q3"): 73, ("table29", "Gemini-2.5-Flash", "q3"): 75}
"""The two cells that are no whole count of 80 negotiations: that many of 79."""


def test_rates_of_a_pair_and_quintile_count_80_negotiations():
    """Multiples of 1.25 per cent, printed with one digit."""
    odd = {}
    for name in paper.DEAL_TABLES.values():
        for row in paper.rows(name):
            for q in QUINTILES:
                if not whole(row[q], 80, POINT):
                    odd[name, row["seller"], q] = row[q]
    assert set(odd) == set(OF_79)
    for cell, deals in OF_79.items():
        assert abs(deals / 79 - odd[cell]) <= POINT
    for row in known("table38"):
        assert all(whole(rate, 80, POINT) for rate in five(row)), row
    for row in known("table36"):
        assert all(whole(rate, 80, EXACT) for rate in five(row)), row
    # 123 of 125 fit; of other counts far fewer do, although most rates are near 1, where all are close to each other.
    rates = [r for name in paper.DEAL_TABLES.values() for row in paper.rows(name) for r in five(row)]
    for other in (75, 79, 81, 100):
        assert sum(whole(rate, other, POINT) for rate in rates) < 0.7 * len(rates)


def test_rates_of_a_pair_count_400_and_200():
    pairs = len(paper.MODELS) ** 2
    assert pairs * (paper.GFT_PER_PAIR + paper.NGFT_PER_PAIR) == paper.NEGOTIATIONS
    assert paper.GFT_PER_PAIR == 5 * 80
    for row in paper.rows("table15"):
        assert whole(row["self_violation_ngft"], 200, EXACT) and whole(row["opponent_violation_ngft"], 200, EXACT)
    for row in paper.rows("table14"):
        for column in paper.VIOLATIONS:
            count = 5 * (paper.NGFT_PER_PAIR if column.endswith("_ngft") else paper.GFT_PER_PAIR)
            assert row[column] is None or whole(row[column], count, EXACT)
    odd = [
        (row["model"], row["role"], q, row[q])
        for row in known("table21")
        for q in QUINTILES
        if not whole(row[q], 400, EXACT)
    ]
    assert odd == [("DeepSeek-V3", "seller", "q3", 0.0151)] and abs(6 / 398 - 0.0151) <= CENT
    for name in ("table33", "table34", "table35"):
        for row in paper.rows(name):
            rates = [v for key, v in row.items() if isinstance(v, float) and key != "surplus_share"]
            assert row["opponent"] == "average" or all(whole(rate, 400, EXACT) for rate in rates), row


# -- files ------------------------------------------------------------------------------------------------------------


def test_every_table_has_a_file_and_the_licence_is_named():
    folder = data_dir() / "papers" / paper.ARXIV
    source = (folder / "SOURCE.md").read_text(encoding="utf-8")
    assert {path.stem for path in folder.glob("*.csv")} == set(paper.TABLES)
    assert "CC BY 4.0" in source and "Bergemann" in source and "Changes" in source and "CC BY 4.0" in paper.LICENCE
    assert [paper.TABLES[3], paper.TABLES[-1]] == ["table14", "table38"] and len(paper.TABLES) == 3 + 25


def test_gaps_are_empty_and_counted():
    """How many cells of each table were not at hand; all else is a number."""
    empty = {
        name: sum(value is None for row in paper.rows(name) for value in row.values())
        for name in paper.TABLES
        if name != "tools"
    }
    assert {name: count for name, count in empty.items() if count} == {
        "table14": 4 * 4 + 2,
        "table33": 2 * (3 + 18),
        "table34": 2 * (3 + 18),
        "table35": 2 * (2 + 12),
        "table36": 6 * (12 + 2),
        "table37": 6 * (12 + 2),
        "table38": 6 * (12 + 2),
    }


def test_numbers_are_fractions_where_they_should_be():
    natural = {"initial_aggressiveness", "concession_rate", "patience", "anchoring"}
    for name in paper.TABLES[3:]:
        for row in paper.rows(name):
            for key, value in row.items():
                if isinstance(value, float) and key not in natural:
                    assert 0 <= value <= 1, (name, key)


def test_models_and_tools():
    models = {row["model"]: row for row in paper.rows("models")}
    assert set(models) == set(paper.MODELS) and {row["table"] for row in models.values()} == {6}
    assert models["DeepSeek-V3"]["usd_per_million_out"] == 1.10 and models["o3"]["reasoning"] == 1
    tools = paper.rows("tools")
    assert [row["tool"] for row in tools] == list(TOOLS)
    assert [row["tool"] for row in tools if row["terminal"]] == ["quit_negotiation", "wait_for_response"]


def test_settings():
    small, large = (paper.settings("grpo", model) for model in ("Qwen3-8B", "Qwen3-14B"))
    assert (small["learning_rate"], large["learning_rate"]) == ("3e-6", "2e-6")
    assert (small["parameters"], large["parameters"], large["lora_rank"]) == ("full", "lora", "64")
    assert {**small, **large}["max_steps"] == "200"
    first, second = (paper.settings("sft", model) for model in ("Qwen3-8B", "Qwen3-14B"))
    assert {key for key in first if first[key] != second[key]} == {"learning_rate", "effective_batch_size"}
    with pytest.raises(NegolabError, match=r"no settings .* for dpo of Qwen3-8B; known: sft of Qwen3-8B"):
        paper.settings("dpo", "Qwen3-8B")
    assert TRADE.message_budget == 10  # "a maximum of 10 rounds", figure 29


def test_tables_by_name(tmp_path, monkeypatch):
    frame = paper.table("table36")
    assert frame["q1"].dtype == float and frame["q1"].isna().sum() == 14 and frame["stage"].tolist()[0] == "Base"
    assert paper.table("settings")["value"].tolist()[0] == "2e-5"
    with pytest.raises(NegolabError, match=r"unknown table 'table13'.*models, tools, settings, table14"):
        paper.rows("table13")
    monkeypatch.setattr(paper, "data_dir", lambda: tmp_path)
    with pytest.raises(NegolabError, match="not found"):
        paper.table("table14")


def test_files_are_plain_tables():
    for path in (data_dir() / "papers" / paper.ARXIV).glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        assert len({len(row) for row in rows}) == 1 and all(cell == cell.strip() for row in rows for cell in row), path


# -- beside ours ------------------------------------------------------------------------------------------------------


def test_published_rows_have_the_names_of_a_tournaments():
    rows = paper.published()
    assert {row["metric"] for row in rows} <= set(ROLE_METRICS)
    assert len(rows) == 37 + 10 * 5 and {row["source"] for row in rows} == {PAPER}
    assert sum(row["trust"] == DERIVED for row in rows) == 15
    assert {row["se"] for row in rows} == {row["n"] for row in rows} == {None}


def test_side_by_side():
    ours = [
        {"model": "anchor", "role": "seller", "metric": "surplus_share", "mean": 0.75, "se": 0.01, "n": 9},
        {"model": "nobody", "role": "seller", "metric": "surplus_share", "mean": None, "se": None, "n": 0},
        {"model": "anchor", "role": "seller", "metric": "reward", "mean": 0.9, "se": 0.01, "n": 9},
    ]
    rows = paper.side_by_side(ours)
    shares = [row for row in rows if (row["metric"], row["role"]) == ("surplus_share", "seller")]
    assert [row["model"] for row in shares] == [
        "o3", "anchor", "Gemini-2.5-Pro", "GPT-4.1", "Gemini-2.5-Flash", "DeepSeek-V3", "nobody",
    ]  # fmt: skip
    assert (shares[1]["source"], shares[1]["trust"]) == (OURS, "measured") and shares[0]["source"] == PAPER
    assert "reward" not in {row["metric"] for row in rows}  # the paper has none
    assert {row["source"] for row in paper.side_by_side(ours, "here") if row["trust"] == "measured"} == {"here"}
    assert "source" not in ours[0]
    assert set(pd.DataFrame(rows).columns) == {"model", "role", "metric", "mean", "se", "n", "source", "trust"}


def test_published_profiles_are_scaled_as_figures_11_and_12():
    rows = {(row["role"], row["model"]): row for row in paper.published_profiles()}
    assert len(rows) == 10
    seller = rows["seller", "o3"]
    assert seller["anchoring_scaled"] == seller["surplus_share_scaled"] == 1 and seller["consistency_scaled"] < 1
    assert rows["seller", "GPT-4.1"]["consistency_scaled"] == 1
    flash = rows["buyer", "Gemini-2.5-Flash"]
    assert flash["surplus_share_scaled"] == flash["consistency_scaled"] == flash["deal_rate_gft_scaled"] == 0
    for row in rows.values():
        assert all(0 <= row[f"{axis}_scaled"] <= 1 for axis in AXES)

"""The README's numbers are those of the committed laptop run, and that run is what today's code gives."""

import csv
import math
from pathlib import Path
from statistics import mean, stdev

import pytest

from negolab.evaluate import Settings, evaluate

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "figures" / "laptop" / "tables"
SHOWN = {
    "table9_in_distribution.csv": "in distribution",
    "table10_out_of_distribution.csv": "out of distribution",
}
PAPERS = {
    "Qwen3-30B-A3B-Instruct-2507-trained": "trained 30B",
    "Qwen3-30B-A3B-Instruct-2507-untrained": "untrained 30B",
}
ITEM_COLUMNS = [
    "reward",
    "surplus_ratio",
    "item_deal_rate",
    "optimal_pair_coverage",
    "top_buyer_rate",
    "violation_rate",
]
SMALL = "SmolLM2-135M-Instruct"
TRAINING = ROOT / "figures" / "laptop" / "training"
TRAINED = {
    "seller": ["reward", "deal_rate", "surplus_ratio", "distinct_buyers", "top_buyer_rate", "below_cost_rate"],
    "buyer": ["reward", "deal_rate", "bargained_ratio", "first_offer_ratio", "overshoot_rate"],
}
COLUMNS = ["reward", "surplus_ratio", "deal_rate", "distinct_buyers", "top_buyer_rate", "below_cost_rate"]


def rows(name):
    """The committed table as dictionaries."""
    with (TABLES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def cell(row, column):
    """``0.591 ± 0.011``; a published value without an error stands alone."""
    value, se = row[column], row[f"{column}_se"]
    return f"{float(value):.3f}" + ("" if se == "n/a" else f" ± {float(se):.3f}")


def readme_rows():
    """The lines of the README's table of results."""
    for name, regime in SHOWN.items():
        for row in rows(name):
            if row["seller"] == SMALL or (row["source"] == "paper" and row["seller"] not in PAPERS):
                continue
            kind = "language model, 1M" if row["source"] == "ours (language model)" else "scripted"
            who = f"{row['seller']} ({kind})" if row["source"] != "paper" else f"*paper: {PAPERS[row['seller']]}*"
            n = row["reward_n"]
            yield f"| {regime} | {who} | " + " | ".join(cell(row, c) for c in COLUMNS) + f" | {n} |"


def item_rows():
    """The lines of the README's table of several items: with the larger error; a blank is not published."""
    for row in rows("items_table1.csv"):
        cells = []
        for column in ITEM_COLUMNS:
            value, error, trust = (row[column + part] for part in ("", "_error", "_trust"))
            mark = " †" if trust == "derived" else ""
            shown = f"{float(value):.3f}" if value != "n/a" else ""
            cells.append(shown + (f" ± {float(error):.3f}" if error != "n/a" else "") + mark)
        who = f"*paper: {row['seller']}*" if row["source"] == "paper" else f"{row['seller']} (scripted)"
        yield f"| {who} | {' | '.join(cells)} |"


def test_the_readmes_results_are_the_committed_ones():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [*readme_rows(), *item_rows()]
    assert len(lines) > 20
    for line in lines:
        assert line in text, f"README lacks or differs from: {line}"


def evaluations(folder):
    """The estimates of a training run's held-out evaluations in its first regime, by step and metric."""
    with (folder / "eval.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    by_step = {}
    for row in found:
        if row["regime"] == found[0]["regime"]:
            by_step.setdefault(int(row["step"]), {})[row["metric"]] = row
    return by_step


def training_rows():
    """The README's lines of the committed training runs: the first and the last evaluation of each, and where several
    seeds were run, the means of these with their standard errors over seeds."""
    tasks = {}
    for folder in sorted(TRAINING.iterdir()):
        tasks.setdefault(folder.name.partition("-")[0], {})[folder.name] = evaluations(folder)
    for task, runs in tasks.items():
        for name, found in runs.items():
            for step in (min(found), max(found)):
                cells = [
                    f"{float(found[step][c]['mean']):.3f} ± {float(found[step][c]['se']):.3f}" for c in TRAINED[task]
                ]
                yield f"| {name} | {step} | {' | '.join(cells)} | {found[step]['reward']['n']} |"
        for step in {min(found) for found in runs.values()} | {max(found) for found in runs.values()}:
            if len(runs) > 1:
                values = [[float(found[step][c]["mean"]) for found in runs.values()] for c in TRAINED[task]]
                cells = [f"{mean(v):.3f} ± {stdev(v) / len(v) ** 0.5:.3f}" for v in values]
                yield f"| **{task}, mean of {len(runs)} seeds** | {step} | {' | '.join(cells)} | {len(runs)} seeds |"


def test_the_training_results_are_the_committed_ones():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = list(training_rows())
    assert len(lines) >= 4
    for line in lines:
        assert line in text, f"README lacks or differs from: {line}"


def test_the_language_model_s_row_is_the_committed_one():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    (row,) = [r for r in rows("table9_in_distribution.csv") if r["seller"] == SMALL]
    assert f"{row['seller']} ended" in text
    assert f"{float(row['reward']):.3f} ± {float(row['reward_se']):.3f} (n = {row['reward_n']})" in text
    (kinds,) = [r for r in rows("violation_kinds_in_distribution.csv") if r["seller"] == row["seller"]]
    assert f"{kinds['all']} of {kinds['episodes']} episodes" in text
    assert f"{kinds['truncated']} cut at 160 tokens and {kinds['format']} outside the format" in text


ITEMS = {"regime": "multi_product", "split": "train+test", "per_product": 9}


@pytest.mark.parametrize(
    ("seller", "table", "columns", "settings"),
    [
        ("satisficer", "table9_in_distribution.csv", COLUMNS, {}),
        ("prober", "table9_in_distribution.csv", COLUMNS, {}),
        ("screener", "items_table1.csv", ITEM_COLUMNS, ITEMS),
        ("early-closer", "items_table1.csv", ITEM_COLUMNS, ITEMS),
    ],
)
def test_the_committed_results_are_what_the_code_gives(seller, table, columns, settings, real_data_dir, tmp_path):
    """Pooled over the profile's three seeds: equal means from equal sums."""
    (committed,) = [r for r in rows(table) if r["seller"] == seller]
    runs = [
        evaluate(Settings(seller=seller, seed=s, **settings), tmp_path / str(s), real_data_dir, progress=False)
        for s in range(3)
    ]
    for column in columns:
        parts = [run[column] for run in runs]
        n = sum(part.n for part in parts)
        assert n == int(committed[f"{column}_n"])
        mean = sum(part.mean * part.n for part in parts) / n
        assert math.isclose(mean, float(committed[column]), rel_tol=1e-9, abs_tol=1e-12), column

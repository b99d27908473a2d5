"""What a tournament comes to, as text: the paper's tables 14 to 31 beside ours, matrices of its heat maps, findings.

Numbers are those of ``tournament_table``; everything here is how they are shown. Errors shown are clustered by product,
since all pairs play the same scenarios; the CSV files hold both. The paper's rows are its own, with other traders on
other products: they are no measurement of ours. It publishes no errors.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negolab import tournament_table
from negolab.panel import MODEL, OWN, SCRIPTED
from negolab.panel_table import replace_text
from negolab.papers import tables, trade
from negolab.papers.multi_buyer import OURS, OURS_MODEL, OURS_OWN, PAPER
from negolab.papers.tables import Cell, Grid
from negolab.tournament_findings import Finding, findings
from negolab.tournament_table import HEAT_MAPS, ROLES, Tournament

SOURCES = {SCRIPTED: OURS, MODEL: OURS_MODEL, OWN: OURS_OWN}
"""Kind of an entry -> what the column ``source`` says of its rows."""

VIOLATIONS = ("self_violation_gft", "opponent_violation_gft", "self_violation_ngft", "opponent_violation_ngft")
OUTCOMES = (
    "surplus_share",
    "deal_rate_gft",
    "initial_aggressiveness",
    "concession_rate",
    "patience",
)
TIERS: Mapping[str, str] = {"surplus_share": "table19", "deal_rate_gft": "table20", "any_violation_gft": "table21"}
"""Metric -> the paper's table of it by quintile."""
LABELS: Mapping[str, str] = {
    "self_violation_gft": "own violations, GFT",
    "opponent_violation_gft": "opponents' violations, GFT",
    "any_violation_gft": "violations of either side, GFT",
    "self_violation_ngft": "own violations, NGFT",
    "opponent_violation_ngft": "opponents' violations, NGFT",
    "any_violation_ngft": "violations of either side, NGFT",
    "buyer_violation_ngft": "buyer's violations, NGFT",
    "seller_violation_ngft": "seller's violations, NGFT",
    "surplus_share": "surplus share",
    "buyer_surplus_share": "buyer's surplus share",
    "seller_surplus_share": "seller's surplus share",
    "deal_rate_gft": "deal rate, GFT",
    "buyer_utility_gft": "buyer's utility, all negotiations",
    "buyer_utility_deals_gft": "buyer's utility, deals",
    "seller_utility_gft": "seller's utility, all negotiations",
    "seller_utility_deals_gft": "seller's utility, deals",
    "initial_aggressiveness": "initial aggressiveness",
    "seller_initial_aggressiveness_gft": "seller's first offer / reservation price",
    "buyer_initial_aggressiveness_gft": "buyer's gap closure",
    "buyer_reservation_ratio_gft": "buyer's first offer below its value",
    "concession_rate": "concession rate",
    "buyer_concession_rate": "buyer's concession rate",
    "seller_concession_rate": "seller's concession rate",
    "patience": "rounds",
    "rounds_gft": "rounds, GFT",
    "ir_compliance": "IR compliance",
    "anchoring": "anchoring",
    "consistency": "consistency",
    "pressure_resistance": "pressure resistance",
}
"""Metric or axis -> what it is called in tables and figures."""


@dataclass(frozen=True)
class Shown:
    """A tournament's numbers, aggregated once for all tables and figures."""

    numbers: Tournament
    sources: Mapping[str, str]
    """Trader -> its rows' source, see ``SOURCES``."""
    pairs: Sequence[Mapping[str, Any]]
    roles: Sequence[Mapping[str, Any]]
    profiles: Sequence[Mapping[str, Any]]
    tiers: Mapping[str, Sequence[Mapping[str, Any]]]
    """Metric of ``TIERS`` -> rows by quintile."""
    by_opponent: Mapping[str, Sequence[Mapping[str, Any]]]
    caption: Sequence[str]
    """What a reader must know of the numbers."""
    findings: Sequence[Finding]


def shown(numbers: Tournament, sources: Mapping[str, str], caption: Sequence[str]) -> Shown:
    """Aggregate a tournament. Rows of ours get their ``source``."""

    def ours(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [{**row, "source": sources[row["model"]]} for row in rows]

    roles = ours(tournament_table.by_role(numbers))
    tiers = {metric: ours(tournament_table.quintiles(numbers, metric)) for metric in TIERS}
    return Shown(
        numbers,
        sources,
        tournament_table.pairs(numbers),
        roles,
        ours(tournament_table.profiles(numbers)),
        tiers,
        {m: ours(tournament_table.quintiles_by_opponent(numbers, m)) for m in ("surplus_share", "deal_rate_gft")},
        caption,
        findings(numbers, roles, tiers["surplus_share"]),
    )


def text_of(metric: str, mean: float | None, se: float | None = None, unit: bool = True) -> str:
    """A number as tables show it: rates and shares in per cent, dollars, or plain; ``n/a`` for none."""
    if mean is None or tables.missing(mean):
        return "n/a"
    plain = ("aggressiveness", "concession", "ratio", "anchoring", "patience", "rounds", "reward")
    fine = ("violation", "compliance", "resistance")
    digits, scale, before, after = 1, 100, "", "%"
    if any(part in metric for part in fine):
        digits = 2
    elif "utility" in metric or any(part in metric for part in plain):
        digits, scale, before, after = 2, 1, "$" if "utility" in metric else "", ""
    sign = "-" if round(scale * mean, digits) < 0 else ""
    text = f"{sign}{before if unit else ''}{abs(scale * mean):,.{digits}f}{after if unit else ''}"
    return text if se is None or tables.missing(se) else f"{text} ± {scale * se:,.{digits}f}"


def sentence(text: str) -> str:
    """A label at the beginning of a title."""
    return text[:1].upper() + text[1:]


# -- grids ------------------------------------------------------------------------------------------------------------


def _grid(head: Sequence[str], body: Sequence[Sequence[str]], leading: int) -> Grid:
    groups = [line[:leading][-1] for line in body]
    rules = frozenset(i for i in range(1, len(body)) if groups[i] != groups[i - 1])
    return Grid(head, [[Cell(text) for text in line] for line in body], frozenset(range(leading, len(head))), rules)


def role_grid(view: Shown, role: str, metrics: Sequence[str]) -> Grid:
    """Everybody in one role, ours and the paper's: tables 14 and 16."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in [*view.roles, *trade.published()]:
        if row["role"] == role and row["metric"] in metrics:
            text = text_of(row["metric"], row["mean"], row.get("se_clustered"))
            mark = f" {tables.DERIVED_MARK}" if row.get("trust") == "derived" else ""
            cells.setdefault((row["source"], row["model"]), {})[row["metric"]] = text + mark
    head = ["Trader", "Source", *(LABELS[metric] for metric in metrics)]
    body = [[model, source, *(found.get(m, "n/a") for m in metrics)] for (source, model), found in cells.items()]
    return _grid(head, body, 2)


def induced_grid(view: Shown) -> Grid:
    """Violations without gains from trade, pair by pair: table 15 for every buyer."""
    means = {(row["buyer"], row["seller"], row["metric"]): row for row in view.pairs}
    metrics = ("buyer_violation_ngft", "seller_violation_ngft")
    body = []
    for buyer in view.numbers.models:
        for seller in view.numbers.models:
            found = [means.get((buyer, seller, metric)) for metric in metrics]
            if any(row is not None and row["n"] for row in found):
                texts = ["n/a" if r is None else text_of(r["metric"], r["mean"], r["se_clustered"]) for r in found]
                body.append([buyer, seller, "ours", *texts])
    for row in trade.rows("table15"):
        both = (row["self_violation_ngft"], row["opponent_violation_ngft"])
        body.append([row["buyer"], row["seller"], PAPER, *(text_of(metrics[0], value) for value in both)])
    return _grid(["Buyer", "Seller", "Source", *(LABELS[metric] for metric in metrics)], body, 3)


def profile_grid(view: Shown, role: str) -> Grid:
    """Tables 17 and 18."""
    published = [{**row, "source": PAPER} for row in trade.published_profiles()]
    body = [
        [row["model"], row["source"], *(text_of(axis, row[axis]) for axis in trade.AXES)]
        for row in [*view.profiles, *published]
        if row["role"] == role
    ]
    return _grid(["Trader", "Source", *(LABELS[axis] for axis in trade.AXES)], body, 2)


def tier_grid(view: Shown, metric: str, role: str) -> Grid:
    """Tables 19 to 21: by quintile of the own reservation price, Q1 the lowest."""
    published = [{**row, "source": PAPER} for row in trade.rows(TIERS[metric])]
    body = []
    for row in [*view.tiers[metric], *published]:
        if row["role"] == role:
            cells = [text_of(metric, row[q], row.get(f"{q}_se_clustered")) for q in trade.QUINTILES]
            body.append([row["model"], row["source"], *cells, text_of(metric, row["spread"])])
    return _grid(["Trader", "Source", *(q.upper() for q in trade.QUINTILES), "Spread"], body, 2)


def opponent_grid(view: Shown, metric: str, buyer: str) -> Grid:
    """Tables 22 to 31: one buyer's by quintile of its own value and by seller; the paper's where it has the buyer."""
    published = (trade.SURPLUS_TABLES if metric == "surplus_share" else trade.DEAL_TABLES).get(buyer)
    rows = [r for r in view.by_opponent[metric] if r["role"] == "buyer" and r["model"] == buyer]
    theirs = [{**r, "opponent": r["seller"], "source": PAPER} for r in trade.rows(published)] if published else []
    body = []
    for row in [*rows, *theirs]:
        cells = [text_of(metric, row[q], row.get(f"{q}_se_clustered")) for q in trade.QUINTILES]
        body.append([row["opponent"], row["source"], *cells, text_of(metric, row["average"])])
    return _grid(["Seller", "Source", *(q.upper() for q in trade.QUINTILES), "Average"], body, 2)


def matrix_grid(view: Shown, metric: str) -> Grid:
    """A heat map's numbers: sellers down, buyers across."""
    rows = tournament_table.matrix(view.pairs, metric)
    buyers = list(rows[0]["by_buyer"]) if rows else []
    body = [[r["seller"], *(text_of(metric, r["by_buyer"][buyer]) for buyer in buyers)] for r in rows]
    return Grid(
        ["Seller \\ Buyer", *buyers], [[Cell(t) for t in line] for line in body], frozenset(range(1, len(buyers) + 1))
    )


def sections(view: Shown) -> list[tuple[str, Grid]]:
    """All tables with their titles, in the paper's order."""
    found = []
    for role in ROLES:
        found.append((f"Violations of individual rationality, {role}s (table 14)", role_grid(view, role, VIOLATIONS)))
    found.append(("Violations without gains from trade by pair (table 15)", induced_grid(view)))
    for role in ROLES:
        found.append(
            (f"Outcomes and drivers with gains from trade, {role}s (table 16)", role_grid(view, role, OUTCOMES))
        )
    for role, number in zip(ROLES, (17, 18), strict=True):
        found.append((f"Profiles of {role}s (table {number})", profile_grid(view, role)))
    for metric, name in TIERS.items():
        for role in ROLES:
            title = f"{sentence(LABELS[metric])} by quintile of the {role}'s reservation price"
            found.append((f"{title} (table {name.removeprefix('table')})", tier_grid(view, metric, role)))
    for metric, numbers in (("surplus_share", "22 to 26"), ("deal_rate_gft", "27 to 31")):
        for buyer in view.numbers.models:
            title = f"{buyer} as buyer: {LABELS[metric]} by quintile and seller"
            found.append((f"{title} (as tables {numbers})", opponent_grid(view, metric, buyer)))
    for number, metrics in HEAT_MAPS.items():
        found += [
            (f"{sentence(LABELS[metric])} by pair (figure {number})", matrix_grid(view, metric)) for metric in metrics
        ]
    return found


# -- files ------------------------------------------------------------------------------------------------------------


def markdown(view: Shown) -> str:
    """``report.md``."""
    parts = ["# Tournament\n", *(f"{line}\n" for line in view.caption), "## Findings\n"]
    parts += ["".join(f"- {finding.text}\n" for finding in view.findings)]
    for title, table in sections(view):
        parts += [f"## {title}\n", tables.markdown(table)]
    return "\n".join(parts)


def latex(view: Shown) -> str:
    """``report.tex``: one ``tabular`` after the other, each with its title as a comment."""
    comments = ["Needs \\usepackage{booktabs}.", *view.caption]
    made = []
    for title, table in sections(view):
        made.append(tables.latex(table, [*comments, title]))
        comments = []
    return "\n".join(made)


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows in full precision; ``n/a`` for what does not exist."""
    names = list(columns or (rows[0] if rows else ()))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(names)
    for row in rows:
        line = [row.get(name) for name in names]
        table.writerow(["n/a" if v is None else repr(v) if isinstance(v, float) else v for v in line])
    return text.getvalue()


def files(view: Shown) -> dict[str, str]:
    """Every file's text by name."""
    roles = ("model", "source", "role", "metric", "mean", "se", "se_clustered", "n", "opponents", "trust")
    measured = [{**row, "trust": "measured"} for row in view.roles]
    theirs = [{**row, "source": PAPER} for row in trade.published_profiles()]
    tiers = [row for metric in TIERS for row in view.tiers[metric]]
    for metric, name in TIERS.items():
        tiers += [{**row, "metric": metric, "source": PAPER} for row in trade.rows(name)]
    by_opponent = [row for rows in view.by_opponent.values() for row in rows]
    for metric, names in (("surplus_share", trade.SURPLUS_TABLES), ("deal_rate_gft", trade.DEAL_TABLES)):
        for name in names.values():
            for row in trade.rows(name):
                sides = {"model": row["buyer"], "role": "buyer", "opponent": row["seller"]}
                by_opponent.append({**row, **sides, "metric": metric, "source": PAPER})
    wide = [f"{q}{part}" for q in trade.QUINTILES for part in ("", "_se", "_se_clustered", "_n")]
    profile = ("model", "source", "role", *trade.AXES, *(f"{axis}_scaled" for axis in trade.AXES))
    lead = ("model", "source", "role")
    return {
        "report.md": markdown(view),
        "report.tex": latex(view),
        "roles.csv": csv_text([*measured, *trade.published()], roles),
        "pairs.csv": csv_text(view.pairs, ("seller", "buyer", "metric", "mean", "se", "se_clustered", "n")),
        "profiles.csv": csv_text([*view.profiles, *theirs], profile),
        "quintiles.csv": csv_text(tiers, (*lead, "metric", *wide, "spread")),
        "quintiles_by_opponent.csv": csv_text(by_opponent, (*lead, "opponent", "metric", *wide, "spread", "average")),
        "findings.csv": csv_text([finding._asdict() for finding in view.findings]),
    }


def write(view: Shown, folder: Path) -> list[str]:
    """Write all files, each whole or not at all; returns their names. Raises ``NegolabError`` where that cannot be."""
    made = files(view)
    for name, text in made.items():
        replace_text(folder / name, text)
    return list(made)

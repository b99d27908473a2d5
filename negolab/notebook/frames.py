"""Frames that the notebooks print and plot, each computed from stored episodes (sections 5, 6, 10, 12, 13).

A ``Panel`` holds the runs of several sellers on the same markets, one run per seed. Runs of one seller are pooled; the
clustered error then counts a product once, however many seeds and repetitions it was played under. Columns are those
that ``negolab.plots`` and ``negolab.papers.multi_buyer`` expect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import pandas as pd

from negolab.catalog import Catalog, Product
from negolab.costs import account_of, total
from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.metrics import METRICS, VIOLATIONS, Metric, Summary, buyer_types, closing_ranks, first_offer_match, paired
from negolab.papers import multi_buyer as paper
from negolab.policies.registry import is_scripted
from negolab.policies.spec import ModelSpec
from negolab.statistics import Estimate
from negolab.store import Run

Panel = dict[str, list[Run]]
"""Runs by seller, one per seed."""

_Z95 = 1.96


def episodes(runs: Iterable[Run]) -> Iterator[Episode]:
    """All episodes of several runs, read from their folders one at a time."""
    return chain.from_iterable(run.episodes(complete=True) for run in runs)


# -- tables ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A frame with its caption; as a cell's last value it shows as Markdown."""

    frame: pd.DataFrame
    caption: str
    data: str
    """Which products the project's own rows were measured on; a column of the CSV file."""
    markdown: str = ""
    """The body, where it is not the plain rendering of ``frame``."""
    arxiv: str = paper.ARXIV
    """The paper whose rows are marked as such."""

    def csv(self) -> str:
        """Full precision, ``n/a`` for what does not exist."""
        frame = self.frame.copy()
        ours = frame["source"] != paper.PAPER if "source" in frame.columns else pd.Series(True, index=frame.index)
        frame["data"] = [self.data if mine else f"arXiv {self.arxiv}" for mine in ours]
        for count in [c for c in frame.columns if c == "n" or str(c).endswith("_n")]:
            frame[count] = frame[count].astype("Int64")  # a missing count must not make the others decimals
        return frame.to_csv(index=False, na_rep="n/a", lineterminator="\n")

    def text(self) -> str:
        """Markdown: the table, then its caption."""
        return f"{self.markdown or to_markdown(self.frame)}\n{self.caption}\n"

    def __repr__(self) -> str:  # a notebook keeps it beside the Markdown
        return f"Table({len(self.frame)} rows: {self.caption})"

    def _repr_markdown_(self) -> str:
        return self.text()


def to_markdown(frame: pd.DataFrame) -> str:
    """A frame as Markdown: counts whole, dollars in cents, other numbers to three decimals, ``n/a`` for what does not
    exist."""
    head = [str(column).replace("_", " ") for column in frame.columns]
    align = ["---:" if pd.api.types.is_numeric_dtype(frame[c]) else "---" for c in frame.columns]
    columns = [[_cell(value, str(name)) for value in frame[name].tolist()] for name in frame.columns]
    body = zip(*columns, strict=True)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, align, *body]) + "\n"


def _cell(value: Any, column: str) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return "n/a"
    if isinstance(value, float):
        if column == "n" or column.endswith("_n"):
            return f"{value:.0f}"
        return f"{value:z,.2f}" if "$" in column else f"{value:z.3f}"
    return str(value).replace("|", "\\|")


def compact(frame: pd.DataFrame, leading: Sequence[str], names: Mapping[str, str]) -> str:
    """A wide frame as Markdown with one cell per metric, ``mean ± se [clustered se] (n)``; what is not known is left
    out. ``names`` maps metrics to the headings of their columns."""
    rows = []
    for record in frame.to_dict("records"):
        row = {str(c).replace("_", " "): record[c] for c in leading}
        for name, heading in names.items():
            mean, se, clustered, n = (record[name + part] for part in ("", "_se", "_se_clustered", "_n"))
            text = "n/a" if pd.isna(mean) else f"{mean:.3f} ± " + ("n/a" if pd.isna(se) else f"{se:.3f}")
            text += "" if pd.isna(clustered) else f" [{clustered:.3f}]"
            row[heading] = text + ("" if pd.isna(n) else f" ({n:.0f})")
        rows.append(row)
    return to_markdown(pd.DataFrame(rows))


def _parts(name: str, found: Estimate) -> dict[str, Any]:
    return {name: found.mean, f"{name}_se": found.se, f"{name}_se_clustered": found.se_clustered, f"{name}_n": found.n}


def numeric(records: Sequence[Mapping[Any, Any]], columns: list[str] | None = None) -> pd.DataFrame:
    """Records as a frame whose None become NaN: an error that does not exist stays one, and columns stay numbers."""
    frame = pd.DataFrame(records, columns=columns)
    for column in frame.columns:
        if all(value is None or type(value) in (int, float) for value in frame[column].tolist()):
            frame[column] = pd.to_numeric(frame[column])
    return frame


# -- the catalogue --------------------------------------------------------------------------------------------------


def products(catalog: Catalog) -> pd.DataFrame:
    """One row per product: codename, category, split, prices in cents, and which field its text came from."""
    part = {name: split for split, names in catalog.splits.items() for name in names}
    return pd.DataFrame(
        {
            "codename": p.listing.codename,
            "category": p.listing.category,
            "split": part.get(p.listing.codename, "none"),
            "list_cents": p.listing.list_cents,
            "cost_cents": p.cost_cents,
            "text_source": p.text_source,
        }
        for p in catalog.products
    )


def price_quantiles(frame: pd.DataFrame) -> pd.DataFrame:
    """List price, cost and margin (dollars) and cost / list price: quantiles, mean and standard deviation as rows."""
    listed, cost = frame["list_cents"] / 100, frame["cost_cents"] / 100
    columns = {
        "list price ($)": listed,
        "cost ($)": cost,
        "margin ($)": listed - cost,
        "cost / list price": cost / listed,
    }
    points = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
    rows: list[dict[Any, Any]]
    rows = [{"statistic": f"{100 * q:.0f} % quantile"} | {n: v.quantile(q) for n, v in columns.items()} for q in points]
    rows.append({"statistic": "mean"} | {name: values.mean() for name, values in columns.items()})
    rows.append({"statistic": "standard deviation"} | {name: values.std() for name, values in columns.items()})
    return numeric(rows)


def shared_texts(catalog: Catalog) -> list[list[Product]]:
    """Groups of two or more products that share their text or the first forty characters of their title: the same
    thing in other colours or sizes, which a split must not tear apart. Groups that share a product are one."""
    group: dict[int, list[Product]] = {}
    first: dict[tuple[str, str], int] = {}
    for index, product in enumerate(catalog.products):
        group[index] = [product]
        for key in (("title", product.listing.title[:40]), ("text", product.listing.description)):
            other = first.setdefault(key, index) if key[1] else index
            if group[other] is not group[index]:
                one, two = group[other], group[index]
                merged = one + two
                for at in [i for i, members in group.items() if members is one or members is two]:
                    group[at] = merged
    found = {id(members): members for members in group.values() if len(members) > 1}
    return list(found.values())


# -- results by seller ----------------------------------------------------------------------------------------------


def metrics(panel: Panel, chosen: Mapping[str, Metric] = METRICS) -> pd.DataFrame:
    """``seller, metric, mean, se, se_clustered, n``: what ``side_by_side`` reads; ``chosen``: the game's metrics."""
    rows = []
    for seller, runs in panel.items():
        summary = Summary(chosen)
        for episode in episodes(runs):
            summary.add(episode)
        rows += [{"seller": seller, "metric": name, **e._asdict()} for name, e in summary.estimates().items()]
    return numeric(rows, ["seller", "metric", "mean", "se", "se_clustered", "n"])


def sources(panel: Panel) -> dict[str, str]:
    """How each seller's rows are marked, by what its runs say of it."""
    return {seller: _source(runs) for seller, runs in panel.items()}


def _source(runs: Sequence[Run]) -> str:
    played, market = runs[0].manifest["players"]["seller"], runs[0].manifest["settings"]["regime"]
    if "engine" in played:
        return paper.OURS_MODEL
    scripted = is_scripted("seller", played["name"], "market", market.get("protocol", "lines"))
    return paper.OURS if scripted else paper.OURS_OWN


def both_errors(found: pd.DataFrame, names: Sequence[str] = paper.TABLE_METRICS) -> pd.DataFrame:
    """The named metrics with both standard errors, and their ratio: how much repeated products cost in precision."""
    frame = found[found["metric"].isin(names)].copy()
    frame["ratio"] = frame["se_clustered"] / frame["se"].where(frame["se"] > 0)
    return frame.reset_index(drop=True)


def violations(panel: Panel, kinds: Sequence[str] = VIOLATIONS) -> pd.DataFrame:
    """How many episodes each seller ended by breaking a rule, by kind, and the share of all its episodes; ``aborted``
    ones, in which a seat could not speak, are not among them. ``kinds``: those that the game knows."""
    rows = []
    for seller, runs in panel.items():
        counts, n, aborted = dict.fromkeys(kinds, 0), 0, 0
        for episode in episodes(runs):
            n += 1
            aborted += episode.outcome.kind == "aborted"
            if episode.outcome.kind == "violation" and episode.outcome.seat == SELLER:
                counts[episode.outcome.reason] += 1
        total = sum(counts.values())
        row = {"seller": seller, **counts, "all": total, "share": total / n if n else None}
        rows.append({**row, "aborted": aborted, "episodes": n})
    return numeric(rows)


def violation_rates(found: pd.DataFrame, which: paper.Which, source: Mapping[str, str]) -> pd.DataFrame:
    """Below-cost and total violation rates, the paper's beside ours (``source`` by seller), largest first.

    The paper prints only the first kind; its total follows from reward = deal rate x surplus ratio - violation rate.
    ``tolerance`` is what rounding in print can shift it by.
    """
    theirs = paper.implied_violations(which).assign(source=paper.PAPER)
    wide = found.pivot(index="seller", columns="metric", values="mean")[["below_cost_rate", "violation_rate"]]
    ours = wide.reset_index().assign(source=lambda rows: rows["seller"].map(source), tolerance=0.0)
    columns = ["seller", "source", "below_cost_rate", "violation_rate", "tolerance"]
    both = pd.concat([theirs[columns], ours[columns]], ignore_index=True)
    return both.sort_values("violation_rate", ascending=False, kind="stable", ignore_index=True)


def usage(panel: Panel, models: Mapping[str, ModelSpec]) -> pd.DataFrame:
    """What each language model among the sellers used, over its runs: replies, tokens (``cached`` ones are part of the
    prompts'), seconds of replies added up, and dollars where prices are known."""
    rows = []
    for seller, spec in models.items():
        used = [account_of(run.folder, {seller: spec}) for run in panel.get(seller, ())]
        whole = total(account.used for account in used)
        spent = [account.dollars for account in used]
        row = {"seller": seller, "replies": whole.replies, "prompt tokens": whole.prompt_tokens}
        row |= {"cached tokens": whole.cached_tokens, "sampled tokens": whole.completion_tokens}
        row["seconds (summed over replies)"] = whole.seconds
        rows.append(row | {"cost ($)": None if None in spent else sum(filter(None, spent))})
    return numeric(rows)


def differences(
    panel: Panel, baseline: str, names: Sequence[str] = paper.TABLE_METRICS, known: Mapping[str, Metric] = METRICS
) -> pd.DataFrame:
    """Every other seller minus the baseline, in pairs on the same markets, with an approximate 95 % interval (1.96
    times the larger of the two errors); ``known``: the game's metrics. Raises ``NegolabError`` when the baseline was
    not played."""
    if baseline not in panel:
        raise NegolabError(f"the baseline {baseline!r} is not among the sellers played: {', '.join(panel)}")
    chosen, rows = {name: known[name] for name in names}, []
    for seller, runs in panel.items():
        if seller == baseline:
            continue
        found, _ = paired(episodes(panel[baseline]), episodes(runs), chosen)
        for name, e in found.items():
            error = max((x for x in (e.se, e.se_clustered) if x is not None), default=None)
            both = e.mean is not None and error is not None
            low, high = (e.mean - _Z95 * error, e.mean + _Z95 * error) if both else (None, None)  # type: ignore[operator]
            row = {"seller": seller, "minus": baseline, "metric": name, "difference": e.mean, "se": e.se}
            rows.append(row | {"se_clustered": e.se_clustered, "low": low, "high": high, "pairs": e.n})
    columns = ["seller", "minus", "metric", "difference", "se", "se_clustered", "low", "high", "pairs"]
    return numeric(rows, columns)


def ranks(panel: Panel) -> pd.DataFrame:
    """Shares of deals by the buyer's budget rank, one row per seller (figure 10)."""
    rows = []
    for seller, runs in panel.items():
        found = closing_ranks(episodes(runs))
        row = {"seller": seller, "source": _source(runs), "n": max((e.n for e in found.values()), default=0)}
        rows.append(row | {f"rank{rank}": e.mean for rank, e in found.items()})
    return numeric(rows)


# -- buyers ---------------------------------------------------------------------------------------------------------


def first_offers(runs: Iterable[Run]) -> pd.DataFrame:
    """One row per buyer that opened with a price: type, opening and hidden budget, both over the list price.

    Give one seller's runs: scripted buyers open before anybody has spoken, so every seller meets the same openings.
    """
    rows = []
    for episode in episodes(runs):
        scenario, list_cents = episode.scenario, episode.scenario.product.listing.list_cents
        for turn in episode.turns[: scenario.n_buyers]:
            if turn.price is not None and not turn.fallback:
                ratio = {"first_offer_ratio": turn.price / list_cents}
                budget = {"budget_ratio": scenario.budgets[turn.seat - 1] / list_cents}
                rows.append({"buyer_type": scenario.buyer_types[turn.seat - 1], **ratio, **budget})
    return pd.DataFrame(rows, columns=["buyer_type", "first_offer_ratio", "budget_ratio"])


def opening_match(panels: Mapping[str, Panel]) -> pd.DataFrame:
    """Table 11 by regime: how often openings give the budget ranking away, the paper's rows and ours."""
    rows: list[dict[Any, Any]] = [row | {"source": paper.PAPER} for row in paper.table("table11").to_dict("records")]
    for name, panel in panels.items():
        found = first_offer_match(episodes(next(iter(panel.values()))))
        chance = next(row for row in rows if row["regime"] == name)
        row = {"regime": name, "buyers": chance["buyers"], "source": paper.OURS}
        row |= _parts("full_rank_match", found["full_rank_match"]) | _parts("top1_match", found["top1_match"])
        rows.append(row | {key: chance[key] for key in ("full_rank_chance", "top1_chance")})
    columns = ["regime", "source", "buyers"]
    for name in ("full_rank_match", "top1_match"):
        columns += [name, f"{name}_se", f"{name}_se_clustered", f"{name}_n"]
    columns += ["full_rank_chance", "top1_chance"]
    return numeric(rows, columns).sort_values("regime", kind="stable", ignore_index=True)


POOLED = ("satisficer", "greedy", "prober")
"""The scripted sellers that stand for the paper's. ``random`` and ``oracle`` resemble none of its models."""


def type_table(panel: Panel) -> pd.DataFrame:
    """Table 12 by buyer type: the paper's rows, ours pooled over those of ``POOLED`` that were played (two at least),
    and ours seller by seller."""
    rows: list[dict[Any, Any]] = [row | {"source": paper.PAPER} for row in paper.table("table12").to_dict("records")]
    for row in rows:
        row |= {"seller": "all 13", "closing_rate": row["deal_rate"], "closing_rate_se": row["deal_rate_se"]}
    pooled = [seller for seller in POOLED if seller in panel]
    groups = {" + ".join(pooled): [run for seller in pooled for run in panel[seller]]} if len(pooled) > 1 else {}
    for seller, runs in (groups | panel).items():
        for kind, found in buyer_types(episodes(runs)).items():
            row = {"buyer_type": kind, "source": _source(runs), "seller": seller}
            for name, e in found.items():
                row |= _parts(name, e)
            rows.append(row)
    columns = ["source", "seller", "buyer_type"]
    for name in ("first_offer_ratio", "buyer_surplus", "closing_rate"):
        columns += [name, f"{name}_se", f"{name}_se_clustered", f"{name}_n"]
    return numeric(rows, columns)


def surplus_differences(types: pd.DataFrame) -> str:
    """By how much the buyer types' surplus differs in a ``type_table``, in words for its caption: the paper's rows and
    the first of ours (the pooled ones), type against type."""
    parts = []
    for source in types["source"].unique():
        rows = types[types["source"] == source]
        seller = rows["seller"].iloc[0]
        known = [
            (row["buyer_type"], row["buyer_surplus"], max(row["buyer_surplus_se"], row["buyer_surplus_se_clustered"]))
            for row in rows[rows["seller"] == seller].fillna({"buyer_surplus_se_clustered": 0.0}).to_dict("records")
        ]
        pairs = [f"{b} minus {a} {_apart(y - x, math.hypot(e, f))}" for (a, x, e), (b, y, f) in combinations(known, 2)]
        parts.append(f"{source}, {seller}: {', '.join(pairs)}")
    how = "± the root of the two types' summed squared errors, of each the larger one"
    return f"Buyer surplus, type against type ({how}): {'; '.join(parts)}."


def _apart(difference: float, error: float) -> str:
    mean = "n/a" if math.isnan(difference) else f"{difference:+.3f}"
    return f"{mean} ± " + ("n/a" if math.isnan(error) else f"{error:.3f}")

"""What a panel comes to: its runs read back, and tables of them beside the paper's rows.

Every number is computed again from the stored episodes. A row says what it was measured on, so that a few markets of
the bundled sample cannot be taken for the paper's 256 episodes; rows that were not played are in the table, with their
reason. The paper's rows are shown where the markets are drawn as in the paper; its buyers were other models, which is
said below the table. Columns and paper are those of the panel's market, see ``panel_columns``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from negolab import costs, report
from negolab.catalog import AUTO, SAMPLE
from negolab.clusters import OWN_RULE
from negolab.errors import DamagedRun, NegolabError
from negolab.evaluate import summarise_run
from negolab.metrics import paired
from negolab.panel import MODEL, OWN, SCRIPTED, Entry, Panel
from negolab.panel_columns import Columns, changes, columns_of
from negolab.papers import multi_buyer, multi_item, tables
from negolab.papers.multi_buyer import OURS, OURS_MODEL, OURS_OWN, PAPER
from negolab.papers.tables import Cell, Grid
from negolab.policies.spec import ModelSpec
from negolab.scenario import REGIMES
from negolab.statistics import Estimate
from negolab.store import MANIFEST, Run

NOT_PLAYED = "not played"
FILES = ("table.md", "table.csv", "table.tex")

_DATA = {SAMPLE: "bundled sample", "amazon_history_price": "AmazonHistoryPrice"}
_SOURCES = {MODEL: OURS_MODEL, OWN: OURS_OWN, SCRIPTED: OURS}
_ORDER = (*_SOURCES.values(), PAPER)


@dataclass(slots=True)
class Result:
    """One row of a panel's table: ours or the paper's."""

    seller: str
    source: str
    """Whose row it is: ``multi_buyer.PAPER``, or one of its names for ours."""
    params: str = ""
    reason: str = ""
    """Why it was not played; empty for a row that was."""
    episodes: int = 0
    units: int = 0
    """Products or clusters, as ``unit`` says."""
    data: str = ""
    found: Mapping[str, Estimate] = field(default_factory=dict)
    """Metrics of a finished run."""
    versus: Mapping[str, Estimate] = field(default_factory=dict)
    """Differences to the baseline on the same markets."""
    account: costs.Account = field(default_factory=lambda: costs.Account({}, None))
    unit: str = "product"
    derived: frozenset[str] = frozenset()
    """Published metrics that are not stated, but follow from others."""

    @property
    def markets(self) -> str:
        """What it was measured on."""
        if not self.units:
            return NOT_PLAYED
        units = f"{self.units} {self.unit}{'s' * (self.units != 1)} ({self.data})"
        return f"{self.episodes} on {units}" if self.episodes else units

    def record(self) -> dict[str, Any]:
        """The row as ``papers.tables`` reads it."""
        cells: dict[str, Any] = {"seller": self.seller, "source": self.source, "params": self.params or "n/a"}
        cells["markets"] = self.markets
        for name, e in self.found.items():
            cells |= {name: e.mean, f"{name}_se": e.se, f"{name}_n": e.n or None}
        return cells | {f"{name}_trust": multi_item.DERIVED for name in self.derived}


def models_of(panel: Panel, entry: Entry) -> dict[str, ModelSpec]:
    """The language models of an entry's run by the names they play under. Two that differ in price under one name are
    left out: nobody can say whose tokens are whose."""
    found: dict[str, ModelSpec] = {}
    differ = set()
    for spec in (entry.seller, *panel.run.get("buyers", {}).values()):
        if isinstance(spec, ModelSpec):
            other = found.setdefault(spec.label, spec)
            prices = ("price_input", "price_cached", "price_output")
            if any(getattr(other, name) != getattr(spec, name) for name in prices):
                differ.add(spec.label)
    return {name: spec for name, spec in found.items() if name not in differ}


def results(panel: Panel, out: Path, entries: Iterable[Entry], reasons: Mapping[str, str]) -> list[Result]:
    """The rows of ``entries``, in their order; ``reasons`` by name for those that could not be played."""
    runs: dict[str, Run] = {}
    columns = columns_of(panel.regime)
    rows = []
    for entry in entries:
        used = account(panel, out, entry)
        row = Result(entry.name, _SOURCES[entry.kind], entry.params, account=used, unit=columns.unit)
        rows.append(row)
        row.reason = reasons.get(entry.name, "")
        if row.reason:
            continue
        try:
            run = Run(out / entry.folder)
            row.found = summarise_run(run)
        except NegolabError as error:
            row.reason = str(error)
            continue
        runs[entry.name] = run
        row.episodes, row.units, row.data = run.n, int(run.manifest["settings"]["products"]), _data(panel, run)
    base = runs.get(panel.baseline or "")
    if base is not None:
        for row in rows:
            if row.seller in runs and row.seller != panel.baseline:
                metrics = {name: columns.metrics[name] for name in columns.compared}
                row.versus, _ = paired(base.episodes(complete=True), runs[row.seller].episodes(complete=True), metrics)
    return rows


def _data(panel: Panel, run: Run) -> str:
    """Which data a run was played on. A file of clusters may have any name, the bundled one's too."""
    data = run.manifest["data"]
    if data["codenames"] == OWN_RULE and panel.data not in (SAMPLE, AUTO):
        return f"file {data['name']}"
    return _DATA.get(str(data["name"]), f"catalogue {data['name']}")


def account(panel: Panel, out: Path, entry: Entry) -> costs.Account:
    """What the entry's run has used so far."""
    return costs.account_of(out / entry.folder, models_of(panel, entry))


def finished(folder: Path) -> bool:
    """Whether the folder holds all episodes of its run, none of them damaged."""
    if not (folder / MANIFEST).exists():
        return False
    try:
        return all(True for _ in Run(folder).episodes(complete=True))
    except DamagedRun:
        return False


def published_rows(panel: Panel) -> list[Result]:
    """The paper's rows, where the panel's markets are drawn as the paper's; else none. With several items they are of
    the test split alone: for the held-out category the paper has another table, of which no cell is known."""
    name, drawn = panel.run["regime"], panel.regime
    columns, table1 = columns_of(drawn), multi_item.REFERENCE
    if drawn == table1.regime and panel.run.get("split", "test") == table1.split:
        return [_published_items(record, columns) for record in multi_item.published()]
    if drawn.protocol != "lines" or drawn != REGIMES[name]:
        return []
    rows = []
    for record in multi_buyer.published(name):
        found = {metric: _estimate(record, metric) for metric in columns.compared}
        n = multi_buyer.EPISODES
        rows.append(Result(record["seller"], PAPER, record["params"], "", n, n // 2, "AmazonHistoryPrice", found))
    return rows


def _published_items(record: Mapping[str, Any], columns: Columns) -> Result:
    """A row of 2609.33289's table 1. How many episodes are behind it is not stated."""
    known = [metric for metric in columns.main if not tables.missing(record[metric])]
    row = Result(record["seller"], PAPER, record["params"], unit=columns.unit, units=multi_item.TEST_CLUSTERS)
    row.data = "the paper's"
    row.found = {metric: _estimate(record, metric) for metric in known}
    row.derived = frozenset(metric for metric in known if record[f"{metric}_trust"] == multi_item.DERIVED)
    return row


def _estimate(record: Mapping[str, float], metric: str) -> Estimate:
    """A published mean. An n that the paper does not print is 0."""
    mean, se, n = (record[metric + part] for part in ("", "_se", "_n"))
    return Estimate(mean, None if tables.missing(se) else se, None, 0 if tables.missing(n) else int(n))


def in_order(rows: Iterable[Result]) -> list[Result]:
    """By source, ours first, and by reward within; rows that were not played at the end of theirs."""
    return sorted(rows, key=lambda r: (_ORDER.index(r.source), bool(r.reason), -_reward(r)))


def _reward(row: Result) -> float:
    found = row.found.get("reward")
    return -9.0 if found is None or found.mean is None else found.mean


# -- as text ----------------------------------------------------------------------------------------------------------


def main_grid(panel: Panel, rows: Sequence[Result]) -> Grid:
    """The paper's columns, violations of all kinds, and the difference in reward to the baseline."""
    leading = {"seller": "Seller", "source": "Source", "params": "Params", "markets": "Episodes"}
    columns, baseline = columns_of(panel.regime), panel.baseline
    # Who is the paper's best at something nobody can say where half of its sellers' numbers are not known.
    unranked = (PAPER,) if any(row.source == PAPER and not row.episodes for row in rows) else ()
    made = tables.grid([row.record() for row in rows], columns.main, leading, unranked=unranked)
    if baseline is None or not any(row.versus for row in rows):
        return made
    body = []
    for row, line in zip(rows, made.body, strict=True):
        e = row.versus.get("reward")
        text = "baseline" if row.seller == baseline and row.source != PAPER else "n/a"
        body.append([*line, Cell(text if e is None else tables.format_cell("reward", *e[:2], e.n))])
    head = [*made.head, f"Reward minus {baseline}'s, in pairs"]
    return Grid(head, body, made.numeric | {len(made.head)}, made.rules)


def _rates(panel: Panel, rows: Sequence[Result]) -> Grid:
    """Violations of our sellers by kind."""
    names = (*columns_of(panel.regime).kinds, "aborted_rate")
    head = ["Seller", *(name.removesuffix("_rate").removeprefix("violation_").replace("_", " ") for name in names)]
    body = []
    for row in rows:
        found = [row.found.get(name) for name in names]
        body.append([Cell(row.seller), *(Cell("n/a" if e is None else tables.format_cell("", *e[:2])) for e in found)])
    return Grid(head, body, frozenset(range(1, len(head))))


def _spent(rows: Sequence[Result]) -> Grid:
    """Tokens and cost of our sellers' runs, and in all."""
    head = ["Seller", "Replies", "Prompt tokens", "cached", "Sampled tokens", "Seconds of replies", "Cost"]
    head += ["Episodes per dollar"]
    body = []
    for row in rows:
        used, paid = row.account.used, row.account.dollars
        per = f"{row.episodes / paid:,.1f}" if paid and row.episodes else "n/a"
        body.append(_spent_line(row.seller, used, costs.dollars(paid), per))
    paid_rows = [row.account.dollars for row in rows]
    known = [value for value in paid_rows if value is not None]
    sum_text = costs.dollars(sum(known)) if len(known) == len(rows) else "n/a"
    body.append(_spent_line("all", costs.total(row.account.used for row in rows), sum_text, "n/a"))
    return Grid(head, body, frozenset(range(1, len(head))))


def _spent_line(name: str, used: costs.Usage, paid: str, per: str) -> list[Cell]:
    counts = [used.prompt_tokens, used.cached_tokens, used.completion_tokens]
    shown = [f"{count:,}" if used.counted else "n/a" for count in counts]
    return [Cell(text) for text in (name, f"{used.replies:,}", *shown, f"{used.seconds:,.1f}", paid, per)]


def caption(panel: Panel, rows: Sequence[Result], best: str = "in bold", second: str = "underlined") -> list[str]:
    """What a reader of the table must know; ``best`` and ``second`` say how those are marked."""
    run = panel.run
    buyers = ", ".join(dict.fromkeys(spec.label for spec in run.get("buyers", {}).values()))
    unit = columns_of(panel.regime).unit
    lines = [
        f"Panel {panel.name}: {_regime(panel)}, split {run.get('split', 'test')}, seed {run.get('seed', 0)}, "
        f"episodes per {unit}: {run.get('per_product', 2)}; buyers: {buyers or 'scripted'}. The same markets for "
        "every seller of ours.",
        f"Cells: mean ± standard error (n); n/a: does not exist or is not published. Best of a source {best}, second "
        f"{second}. Standard errors clustered by {unit} are in table.csv.",
    ]
    if panel.regime.protocol == "tags":
        lines.append(
            "n is the number of episodes (of the surplus ratio: without a violation); of the item deal rate that of "
            "items, of the coverage that of pairs in the best matchings, of the top buyer rate that of sold items."
        )
    lines += _about_the_paper(rows)
    if panel.baseline is not None:
        lines.append(f"In pairs: the difference to {panel.baseline} on the same markets, with its own standard error.")
    for row in rows:
        aborted = row.found.get("aborted_rate")
        if aborted is not None and aborted.mean:
            lines.append(
                f"{row.seller}: {round(aborted.mean * aborted.n)} of {aborted.n} episodes were aborted: a player could "
                "not speak (context full, or no reply in time). They count as no deal."
            )
    lines += [f"Not played: {row.seller}: {' '.join(row.reason.split())}" for row in rows if row.reason]
    return lines


def _regime(panel: Panel) -> str:
    """The regime's name, and what of it was changed."""
    name, drawn = str(panel.run["regime"]), panel.regime
    changed = "" if drawn.protocol == "lines" else changes(name, drawn)
    return f"{name} with {changed}" if changed else name


def _about_the_paper(rows: Sequence[Result]) -> list[str]:
    """What must be known of the paper's rows, where there are any."""
    theirs = [row for row in rows if row.source == PAPER]
    if not theirs:
        return []
    if theirs[0].episodes:
        return [
            "Rows with source paper are arXiv 2607.05863's own, on its own buyers, which are language models that are "
            "not published: they are no measurement of ours, and our rows are none of theirs."
        ]
    lines = [
        "Rows with source paper are arXiv 2609.33289's own (table 1), on its own clusters and buyers, which are not "
        "published: they are no measurement of ours, and our rows are none of theirs. They are those of its ten "
        "sellers of which a number is known; errors and n are not stated, and none is marked as best."
    ]
    return [*lines, *(f"{tables.DERIVED_MARK} {note}" for note in multi_item.notes())]


def markdown(panel: Panel, rows: Sequence[Result]) -> str:
    """``table.md``."""
    ours = [row for row in rows if row.source != PAPER]
    parts = [tables.markdown(main_grid(panel, rows)), *(f"{line}\n" for line in caption(panel, rows))]
    parts += ["Episodes that a seller ended by breaking a rule, by kind, and those that were aborted:\n"]
    parts += [tables.markdown(_rates(panel, ours))]
    asked = [row for row in ours if row.account.by_player]
    if asked:
        parts += ["Tokens and cost:\n", tables.markdown(_spent(asked))]
    return "\n".join(parts)


def latex(panel: Panel, rows: Sequence[Result]) -> str:
    """``table.tex``."""
    notes = ["Needs \\usepackage{booktabs}.", *caption(panel, rows)]
    return tables.latex(main_grid(panel, rows), notes)


def csv_text(panel: Panel, rows: Sequence[Result]) -> str:
    """``table.csv``: one line per row, full precision, ``n/a`` for what does not exist."""
    parts = ("", "_se", "_se_clustered", "_n")
    usage = ("replies", "prompt_tokens", "cached_tokens", "completion_tokens", "seconds")
    columns = columns_of(panel.regime)
    derived = columns.unit == "cluster"
    head = ["seller", "source", "params", "status", "reason", "data", "episodes", f"{columns.unit}s"]
    head += ["derived"] * derived
    head += [name + part for name in columns.measured for part in parts]
    head += [f"minus_baseline_{name}{part}" for name in columns.compared for part in parts]
    head += [*usage, "cost_dollars", "episodes_per_dollar"]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(head)
    for row in rows:
        status = "published" if row.source == PAPER else NOT_PLAYED if row.reason else "played"
        line: list[Any] = [row.seller, row.source, row.params or None, status, row.reason or None, row.data or None]
        line += [row.episodes or None, row.units or None]
        line += [" ".join(name for name in columns.main if name in row.derived) or None] * derived
        for found, names in ((row.found, columns.measured), (row.versus, columns.compared)):
            for name in names:
                e = found.get(name, Estimate(None, None, None, 0))
                line += [*e[:3], e.n if row.source != PAPER or e.n else None] if name in found else [None] * 4
        used, paid = row.account.used, row.account.dollars
        known = bool(row.account.by_player) and used.counted
        line += [getattr(used, name) if known or (name == "replies" and used.replies) else None for name in usage]
        line += [paid, row.episodes / paid if paid and row.episodes else None]
        table.writerow(["n/a" if v is None else repr(v) if isinstance(v, float) else v for v in line])
    return text.getvalue()


def plain(panel: Panel, rows: Sequence[Result]) -> str:
    """For the terminal: short heads, the best of a source marked by ¹ and the second by ²."""
    made = main_grid(panel, rows)
    heads = ["seller", "source", "params", "episodes", *columns_of(panel.regime).short]
    heads += ["reward - baseline"] * (len(made.head) - len(heads))
    ours = any(row.account.by_player for row in rows)
    lines = [[*heads, "cost"] if ours else heads]
    for row, body in zip(rows, made.body, strict=True):
        cells = [cell.text for cell in body[:4]]
        # n is in the column of episodes, and differs only for metrics of deals, or of items and pairs.
        marks = any(cell.place for line in made.body for cell in line)
        cells += [cell.text.partition(" (")[0] + (" ", "¹", "²")[cell.place] * marks for cell in body[4:]]
        lines.append([*cells, costs.dollars(row.account.dollars)] if ours else cells)
    return report.columns(lines)


def write(panel: Panel, rows: Sequence[Result], out: Path) -> None:
    """The three files, each whole or not at all. Raises ``NegolabError`` where they cannot be written."""
    makers: tuple[Callable[[Panel, Sequence[Result]], str], ...] = (markdown, csv_text, latex)
    for name, make in zip(FILES, makers, strict=True):
        replace_text(out / name, make(panel, rows))


def replace_text(path: Path, text: str) -> None:
    """Write a file in one step. Raises ``NegolabError`` where that is not possible."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    except OSError as error:
        raise NegolabError(f"cannot write to {path}: {error.strerror or error}") from error

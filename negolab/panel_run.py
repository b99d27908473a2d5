"""Playing a panel: every entry on the same markets, one run folder per entry below the panel's own.

Everything that can be checked is checked for all entries before the first is played. What is wrong with the panel or
its folder ends it there; an entry that alone cannot be played (no key, no server, a package that is not installed) is
left out, told at once and again at the end, and the others are played. A finished entry is never played again, and not
even its model is needed any more. The panel can be stopped anywhere and started again with the same command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from negolab import costs, panel_table
from negolab.catalog import Catalog
from negolab.clusters import ClusterCatalog
from negolab.errors import NegolabError
from negolab.evaluate import Watcher, evaluate
from negolab.panel import OWN, Entry, Panel
from negolab.panel_table import Result
from negolab.plan import Plan, catalog_for, plan
from negolab.policies.spec import ModelSpec
from negolab.store import MANIFEST, read_manifest
from negolab.writer import RunWriter

MARK = "panel.json"
"""Says that a folder is a panel's, and which entry each folder in it belongs to."""

Say = Callable[[str], object]


class PanelRun:
    """A panel on its way: ``prepare``, ``play`` and ``finish``, in this order. A context manager, which closes what
    the players hold."""

    def __init__(
        self, panel: Panel, out: str | Path, *, only: Sequence[str] = (), max_cost: float | None = None
    ) -> None:
        """Raises ``NegolabError`` for a name in ``only`` that no entry has, a scripted seller of another market, a
        folder that is no place for a panel, and models without prices where ``max_cost`` (dollars, over all chosen
        entries) is given."""
        self.panel, self.out = panel, Path(out)
        self.entries = panel.only(only)
        panel.check(self.entries)
        self.reasons: dict[str, str] = {}
        """Why entries could not be played, by name."""
        self.warnings: list[str] = []
        """What a user should know before trusting the numbers."""
        self._max_cost = max_cost
        self._plans: dict[str, Plan] = {}
        self._finished: set[str] = set()
        self._others: list[str] = []
        """Entries that were not chosen, but whose finished runs belong to the table."""
        if not str(out) or "\0" in str(out):
            raise NegolabError(f"--out is {str(out)!r}; give a new folder, or a panel's folder to resume")
        self._check_folder()
        if max_cost is not None:
            models = {k: v for entry in self.entries for k, v in panel_table.models_of(panel, entry).items()}
            costs.check_priced(models, max_cost)

    def __enter__(self) -> PanelRun:
        return self

    def __exit__(self, *_: object) -> None:
        for made in self._plans.values():
            made.cast().close()

    # -- before anything is played --------------------------------------------------------------------------------

    def _check_folder(self) -> None:
        if not self.out.exists():
            return
        if not self.out.is_dir():
            raise NegolabError(f"--out {self.out} is a file; give a new folder, or a panel's folder to resume")
        if (self.out / MANIFEST).exists():
            raise NegolabError(f"--out {self.out} is the run folder of a single seller; give a new folder")
        if not (self.out / MARK).exists() and any(entry.name != MARK + ".tmp" for entry in self.out.iterdir()):
            raise NegolabError(f"--out {self.out} is not empty and not a panel's folder; give a new folder")

    def prepare(self, say: Say) -> None:
        """Check every chosen entry; ``say`` gets what their users should know.

        Raises ``NegolabError`` for what no entry can be played with: markets, data, buyers, or a folder that holds
        another run.
        """
        catalog = catalog_for(self.panel.regime, self.panel.data)
        # The markets and the buyers, with a seller that is always there.
        common = plan(replace(self.panel.settings(self.entries[0]), seller="random"), catalog)
        self.warnings = common.warnings
        try:
            common.cast().check(common.schedule)
            for entry in self.entries:
                self._prepare(entry, catalog, common, say)
            for entry in self.panel.entries:
                folder = self.out / entry.folder
                if entry in self.entries or not panel_table.finished(folder):
                    continue
                if _alike(folder, entry, common):
                    self._others.append(entry.name)
                else:
                    say(f"{entry.name} is left out of the table: {folder} holds a run of other markets or players")
        finally:
            common.cast().close()
        for entry in self.entries:
            if entry.name in self.reasons:
                say(f"{entry.name} cannot be played: {self.reasons[entry.name]}")

    def _prepare(self, entry: Entry, catalog: Catalog | ClusterCatalog, common: Plan, say: Say) -> None:
        folder = self.out / entry.folder
        done = panel_table.finished(folder)
        try:
            made = plan(self.panel.settings(entry), catalog)
            self._plans[entry.name] = made
            manifest = made.manifest()
        except Exception as error:  # a player of the user's own may fail in any way
            if not isinstance(error, NegolabError) and entry.kind != OWN:
                raise
            if done and _alike(folder, entry, common):
                self._finished.add(entry.name)
            else:
                self.reasons[entry.name] = _one_line(error)
            return
        RunWriter(folder, manifest, made.schedule.units).check_place()
        if done:
            self._finished.add(entry.name)
            return
        try:
            for line in made.cast().check(made.schedule):
                say(line)
        except NegolabError as error:
            self.reasons[entry.name] = str(error)

    # -- playing ----------------------------------------------------------------------------------------------------

    def play(self, watchers: dict[str, Watcher], *, workers: int | None = 1, ray: str | None = None, say: Say) -> None:
        """Play what is owed, entry by entry. Whatever ends one entry, the next is played; an interrupt ends all."""
        self._write_mark()
        for entry in self.entries:
            if entry.name in self.reasons or entry.name in self._finished:
                continue
            limit = self._limit(entry)
            if limit is not None and limit <= 0:
                self.reasons[entry.name] = self._stopped()
                continue
            made = self._plans[entry.name]
            try:
                evaluate(
                    made,
                    self.out / entry.folder,
                    workers=workers,
                    ray=ray,
                    say=say,
                    watch=watchers[entry.name],
                    max_cost=limit,
                )
            except Exception as error:  # of a player of the user's own, or of a worker that has one
                if not isinstance(error, NegolabError) and entry.kind != OWN:
                    raise
                spent = panel_table.account(self.panel, self.out, entry).dollars
                stopped = limit is not None and spent is not None and spent >= limit
                self.reasons[entry.name] = self._stopped() if stopped else _one_line(error)
            finally:
                made.cast().close()  # the next model needs the memory
                del self._plans[entry.name]

    def _limit(self, entry: Entry) -> float | None:
        """Dollars that the entry's run may use in all; None: no limit."""
        if self._max_cost is None or not panel_table.models_of(self.panel, entry):
            return None
        others = [other for other in self.entries if other.name != entry.name]
        return self._max_cost - sum(panel_table.account(self.panel, self.out, other).dollars or 0 for other in others)

    def _stopped(self) -> str:
        used = sum(panel_table.account(self.panel, self.out, entry).dollars or 0 for entry in self.entries)
        return (
            f"stopped at --max-cost {self._max_cost:g}: {costs.dollars(used)} used in all; the same command with a "
            "larger sum goes on"
        )

    def _write_mark(self) -> None:
        entries = {entry.name: entry.folder for entry in self.panel.entries}
        text = json.dumps({"panel": self.panel.name, "folders": entries}, indent=2, ensure_ascii=False)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NegolabError(f"cannot write to {self.out}: {error.strerror or error}") from error
        panel_table.replace_text(self.out / MARK, text + "\n")

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> list[Result]:
        """Write the table and return its rows, the paper's among them.

        Entries that were not chosen are in it where their runs are finished, and on the same markets.
        """
        shown = [entry for entry in self.panel.entries if entry in self.entries or entry.name in self._others]
        ours = panel_table.results(self.panel, self.out, shown, self.reasons)
        rows = panel_table.in_order([*ours, *panel_table.published_rows(self.panel)])
        panel_table.write(self.panel, rows, self.out)
        return rows


def _alike(folder: Path, entry: Entry, common: Plan) -> bool:
    """Whether the finished run in the folder is the entry's, as far as can be told without making its player."""
    there, here = read_manifest(folder), common.manifest()
    seller = entry.seller
    here["settings"]["seller"] = f"{seller.engine}:{seller.label}" if isinstance(seller, ModelSpec) else seller
    same = ("settings", "data", "products_sha256", "episodes")
    return all(there[key] == here[key] for key in same) and there["players"]["buyers"] == here["players"]["buyers"]


def _one_line(error: Exception) -> str:
    """What went wrong, in the last line: a worker's error holds its traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    last = " ".join(lines[-1].split()) if lines else ""
    if isinstance(error, NegolabError | RuntimeError) and last:
        return last
    return f"{type(error).__name__}: {last}".removesuffix(": ")

"""Playing a tournament: every run in a folder of its own, all in one folder, stopped and resumed at any moment.

Runs of scripted traders are played together: one pool of processes (or one Ray cluster) serves all of them, since
starting one for each would take longer than playing. Only this process writes, and a run is open from its first owed
negotiation to its last, so that few are open at once. Runs with a language model or a player of the user's own go
through ``evaluate`` one after the other, with its journals, limits and retries.

A finished run is not played again; it is checked again (checksums, numbers, manifest), not replayed: ``negolab verify``
does that for each. What cannot be played is left out and said; the others are played.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from negolab import costs
from negolab.catalog import Catalog, Product, load_catalog
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.evaluate import evaluate
from negolab.panel import MODEL, OWN, SCRIPTED, Entry
from negolab.panel_table import finished, replace_text
from negolab.papers.trade import ARXIV, LICENCE
from negolab.plan import Plan
from negolab.policies.spec import ModelSpec
from negolab.store import MANIFEST, METRICS_CSV, Run, read_manifest
from negolab.tournament import Match, TournamentSettings, choose_products
from negolab.tournament_pool import Bar, play_together
from negolab.tournament_table import Pair, Tournament, collect
from negolab.writer import RunWriter

MARK = "tournament.json"
"""Says that a folder is a tournament's, and which folders in it are whose."""
PRODUCTS = "products.json"
"""Codenames of the products that are played, as ``--split`` of ``negolab evaluate`` takes them."""

Say = Callable[[str], object]


class TournamentRun:
    """A tournament on its way: ``prepare``, ``play`` and ``collect``, in this order."""

    def __init__(
        self, settings: TournamentSettings, out: str | Path, *, only: Sequence[str] = (), max_cost: float | None = None
    ) -> None:
        """Raises ``NegolabError`` for a name in ``only`` that does not exist, a folder that is no place for a
        tournament, and models without prices where ``max_cost`` (dollars, over all chosen runs) is given."""
        if not str(out) or "\0" in str(out):
            raise NegolabError(f"--out is {str(out)!r}; give a new folder, or a tournament's folder to resume")
        self.settings, self.out = settings, Path(out)
        self.matches = settings.matches(only)
        """Those that are to be played."""
        self.absent: dict[str, str] = {}
        """Why traders could not play, by name."""
        self.failed: dict[Match, str] = {}
        """Why runs could not be finished."""
        self.notes: list[str] = []
        """What a user should know before trusting the numbers."""
        self.data = ""
        """Name of the catalogue."""
        self._max_cost = max_cost
        self._done: set[Match] = set()
        self.products: list[Product] = []
        """What is played; known once ``prepare`` was called."""
        self._catalog: Catalog
        self._check_folder()
        if max_cost is not None:
            costs.check_priced({e.name: e.seller for e in self._entries() if isinstance(e.seller, ModelSpec)}, max_cost)

    def _entries(self) -> list[Entry]:
        """Who plays in the chosen runs, in the file's order."""
        names = {side.name for match in self.matches for side in match.sides}
        return [entry for entry in self.settings.entries if entry.name in names]

    @property
    def owed(self) -> list[Match]:
        """Chosen runs that are not finished and may be played."""
        return [
            match
            for match in self.matches
            if match not in self._done and match not in self.failed and not self._why_not(match)
        ]

    @property
    def negotiations(self) -> int:
        """How many the chosen runs have in all."""
        return sum(len(self.products) * self.settings.per_product(match.kind) for match in self.matches)

    def _why_not(self, match: Match) -> str:
        names = [side.name for side in match.sides if side.name in self.absent]
        return f"{names[0]} cannot play: {self.absent[names[0]]}" if names else ""

    # -- before anything is played --------------------------------------------------------------------------------

    def _check_folder(self) -> None:
        if not self.out.exists():
            return
        if not self.out.is_dir():
            raise NegolabError(f"--out {self.out} is a file; give a new folder, or a tournament's folder to resume")
        if not (self.out / MARK).exists() and any(path.name != MARK + ".tmp" for path in self.out.iterdir()):
            raise NegolabError(f"--out {self.out} is not empty and not a tournament's folder; give a new folder")

    def prepare(self, say: Say) -> None:
        """Draw the scenarios, and check every trader and every run's folder; ``say`` gets what users should know.

        Raises ``NegolabError`` for what no run can be played with: data, scenarios, or a folder that holds other runs.
        """
        self._catalog = load_catalog(self.settings.data)
        self.data = self._catalog.name
        self.products, choice = choose_products(self._catalog, self.settings.split, self.settings.products)
        left_out = [f"left out: {problem}" for problem in self._catalog.problems]
        self.notes = [choice, *self._catalog.notes, *left_out]
        for match in self.settings.matches():
            self._prepare(match)
        for entry in self._entries():
            if entry.kind != SCRIPTED and any(entry in match.sides for match in self.owed):
                self._check_trader(entry, say)
        for name, reason in self.absent.items():
            say(f"{name} cannot play: {reason}")

    def _prepare(self, match: Match) -> None:
        """Hold a run's folder against the run, and see whether it is finished."""
        folder, chosen = self.out / match.folder, match in self.matches
        if not chosen and not (folder / MANIFEST).exists():
            return
        done = finished(folder) and (folder / METRICS_CSV).is_file()
        made: Plan | None = None
        try:
            if any(side.name in self.absent for side in match.sides):
                raise NegolabError(self._why_not(match))
            made = self._plan(match)
            manifest = made.manifest()
        except Exception as error:  # a player of the user's own may fail in any way
            if not isinstance(error, NegolabError) and OWN not in [side.kind for side in match.sides]:
                raise
            if done and self._alike(folder, match):
                self._done.add(match)
            elif chosen:
                self._blame(match, error)
            return
        finally:
            if made is not None:
                made.cast().close()
        if chosen:
            RunWriter(folder, manifest, made.schedule.units).check_place()
        elif done and read_manifest(folder) != manifest:
            self.notes.append(f"left out of the tables: {match.label}, played on other scenarios or by other players")
            return
        if done:
            self._done.add(match)

    def _plan(self, match: Match) -> Plan:
        return self.settings.plan(match, self._catalog, self.products)

    def _alike(self, folder: Path, match: Match) -> bool:
        """Whether a finished run is this one, as far as can be told without making its players."""
        anybody = Entry("anchor", "anchor", "", SCRIPTED)
        there, here = read_manifest(folder), self._plan(Match(anybody, anybody, match.kind)).manifest()
        seller, buyer = match.seller.seller, match.buyer.seller
        here["settings"]["seller"] = f"{seller.engine}:{seller.label}" if isinstance(seller, ModelSpec) else seller
        same = all(there[key] == here[key] for key in ("settings", "data", "products_sha256", "episodes"))
        name = there["players"]["buyers"]["trader"]["name"]
        return same and (not isinstance(buyer, ModelSpec) or name == buyer.label)

    def _blame(self, match: Match, error: Exception) -> None:
        """Say of whom, or of which run, this was. A trader that fails beside scripted ones, or itself, fails always."""
        reason = _one_line(error)
        suspects = {side.name: side for side in match.sides if side.kind != SCRIPTED}
        if len(suspects) == 1:
            self.absent.setdefault(next(iter(suspects)), reason)
        elif not self._why_not(match):
            self.failed[match] = reason

    def _check_trader(self, entry: Entry, say: Say) -> None:
        """Ask a model's server, or look at its files, before anything is played."""
        made: Plan | None = None
        try:
            made = self._plan(Match(entry, entry, self.settings.kinds[0]))
            for line in made.cast().check(made.schedule):
                say(line)
        except Exception as error:
            if not isinstance(error, NegolabError) and entry.kind != OWN:
                raise
            self.absent[entry.name] = _one_line(error)
        finally:
            if made is not None:
                made.cast().close()

    # -- playing ----------------------------------------------------------------------------------------------------

    def play(self, bar: Bar, *, workers: int | None = 1, ray: str | None = None, say: Say) -> None:
        """Play what is owed. Whatever ends one run of models, the next is played; an interrupt ends all.

        Raises ``NegolabError`` where the scripted runs cannot be played: workers that are lost, a full disk.
        """
        self._write_marks()
        chosen = set(self.matches)
        bar.were_there(sum(Run(self.out / match.folder).n for match in self._done if match in chosen))
        together = [match for match in self.owed if {side.kind for side in match.sides} == {SCRIPTED}]
        self._play_together(together, bar, workers, ray, say)
        for match in [match for match in self.owed if match not in together]:
            if match in self.owed:  # still: its trader may have failed meanwhile
                self._play_one(match, bar, workers, ray, say)

    def _play_together(
        self, matches: Sequence[Match], bar: Bar, workers: int | None, ray: str | None, say: Say
    ) -> None:
        if not matches:
            return
        plans = [self._plan(match) for match in matches]
        play_together([self.out / match.folder for match in matches], plans, bar, workers, ray, say)
        self._done.update(matches)

    def _play_one(self, match: Match, bar: Bar, workers: int | None, ray: str | None, say: Say) -> None:
        """One run in which a model or a player of the user's own takes part."""
        limit = self._limit(match)
        if limit is not None and limit <= 0:
            self.failed[match] = self._stopped()
            return
        made: Plan | None = None
        try:
            made = self._plan(match)
            folder = self.out / match.folder
            evaluate(made, folder, workers=workers, ray=ray, say=say, watch=bar, max_cost=limit)
            self._done.add(match)
        except Exception as error:  # of a player of the user's own, or of a worker that has one
            if not isinstance(error, NegolabError) and OWN not in [side.kind for side in match.sides]:
                raise
            spent = self._spent(match)
            if limit is not None and spent is not None and spent >= limit:
                self.failed[match] = self._stopped()
            else:
                self._blame(match, error)
                say(f"{match.label}: {_one_line(error)}")
        finally:
            if made is not None:
                made.cast().close()  # the next model needs the memory

    def _spent(self, match: Match) -> float | None:
        return self.account(match).dollars

    def account(self, match: Match) -> costs.Account:
        """What a run has used so far."""
        return costs.account_of(
            self.out / match.folder, {e.seller.label: e.seller for e in match.sides if isinstance(e.seller, ModelSpec)}
        )

    def _limit(self, match: Match) -> float | None:
        """Dollars that the run may use in all; None: no limit."""
        if self._max_cost is None or all(side.kind != MODEL for side in match.sides):
            return None
        return self._max_cost - sum(self._spent(other) or 0 for other in self.matches if other != match)

    def _stopped(self) -> str:
        used = sum(self._spent(match) or 0 for match in self.matches)
        return (
            f"stopped at --max-cost {self._max_cost:g}: {costs.dollars(used)} used in all; the same command with a "
            "larger sum goes on"
        )

    def _write_marks(self) -> None:
        folders = {entry.name: entry.folder for entry in self.settings.entries}
        mark = json.dumps({"tournament": self.settings.name, "folders": folders}, indent=2, ensure_ascii=False)
        names = json.dumps([p.listing.codename for p in self.products], indent=1)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NegolabError(f"cannot write to {self.out}: {error.strerror or error}") from error
        replace_text(self.out / MARK, mark + "\n")
        replace_text(self.out / PRODUCTS, names + "\n")

    # -- the end ----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> list[Match]:
        """Runs with all their negotiations, those of earlier starts among them, in the file's order."""
        return [match for match in self.settings.matches() if match in self._done]

    @property
    def unfinished(self) -> dict[Match, str]:
        """Chosen runs that could not be finished, and why."""
        return {m: self.failed.get(m) or self._why_not(m) for m in self.matches if m not in self._done}

    def collect(self) -> Tournament:
        """The finished runs' numbers, read back from the stored negotiations. Raises ``DamagedRun`` where one cannot
        be trusted."""

        def played() -> Iterator[tuple[Pair, Episode]]:
            for match in self.finished:
                pair = Pair(match.seller.name, match.buyer.name)
                for episode in Run(self.out / match.folder).episodes(complete=True):
                    yield pair, episode

        return collect(played(), [entry.name for entry in self.settings.entries])


def caption(going: TournamentRun) -> list[str]:
    """What a reader of the tables and figures must know: what was played, by whom, and what the paper's rows are."""
    made, data = going.settings, {"sample": "the bundled sample", "amazon_history_price": "AmazonHistoryPrice"}
    counts = " and ".join(
        f"{len(going.products) * made.per_product(kind)} {'with' if kind == 'gft' else 'without'} gains from trade"
        f" ({kind.upper()})"
        for kind in made.kinds
    )
    kinds = {SCRIPTED: "scripted", MODEL: "language model", OWN: "your own"}
    who = ", ".join(f"{entry.name} ({kinds[entry.kind]})" for entry in made.entries)
    lines = [
        f"Tournament {made.name}: {who}. {len(going.products)} products of {data.get(going.data, going.data)}; each "
        f"ordered pair plays {counts}, the same for all, seed {made.seed}, at most {made.rounds} rounds. "
        f"Runs finished: {len(going.finished)} of {len(made.matches())}.",
        "Numbers are means over opponents, itself among them, each opponent weighing the same; ± one standard error, "
        "clustered by product; n/a: no observation, or not published. Shares and concessions: deals that lose neither "
        "side anything. Quintiles: of the side's own reservation price.",
        f"Rows with source paper are arXiv {ARXIV}'s own, of its language models on its own products: they are no "
        f"measurement of ours. {LICENCE[0].upper()}{LICENCE[1:]}. † not stated, but follows from its other tables.",
    ]
    return lines


def _one_line(error: Exception) -> str:
    """What went wrong, in the last line: a worker's error holds its traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    last = " ".join(lines[-1].split()) if lines else ""
    if isinstance(error, NegolabError | RuntimeError) and last:
        return last
    return f"{type(error).__name__}: {last}".removesuffix(": ")

"""``negolab tournament``: every pair of traders on the same scenarios of the trade game, with tables and figures."""

import argparse
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from negolab.commands.arguments import whole
from negolab.scenario import MAX_SEED, TRADE_DRAWS

if TYPE_CHECKING:
    from negolab.tournament import TournamentSettings
    from negolab.tournament_report import Shown
    from negolab.tournament_run import TournamentRun


def add_parser(commands: Any) -> None:
    """Register the command."""
    from negolab.commands.evaluate import amount

    parser = commands.add_parser(
        "tournament",
        help="play every pair of traders of the trade game and write the paper's tables and figures",
        description="Every trader of a tournament file sells to every other, and to itself, on the same scenarios "
        "(2604.16472). Run the same command again to resume or to reprint. The options go over the file's.",
    )
    parser.add_argument("tournament", metavar="FILE", help="a YAML file, or a packaged one by name: scripted, frontier")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder: new, or this tournament's own to resume it"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME,...",
        help="play only the pairs among these traders, or the pair SELLER/BUYER",
    )
    parser.add_argument("--data", metavar="DIR", help="catalogue folder, sample, or auto, as in `negolab evaluate`")
    parser.add_argument(
        "--split", help="where products are drawn from: all, train, test, or a JSON file with codenames"
    )
    parser.add_argument("--products", type=whole(1), metavar="N", help="products that are played (the paper: 200)")
    parser.add_argument(
        "--gft-per-product",
        type=whole(0, 1_000_000),
        metavar="N",
        help="negotiations with gains from trade for each product and pair (the paper: 2)",
    )
    parser.add_argument(
        "--ngft-per-product", type=whole(0, 1_000_000), metavar="N", help="the same without gains (the paper: 1)"
    )
    parser.add_argument("--seed", type=whole(0, MAX_SEED), help="seed of all scenarios")
    parser.add_argument("--trade-draw", choices=TRADE_DRAWS, help="how a buyer's value of the wanted kind is found")
    parser.add_argument("--rounds", type=whole(1, 1000), metavar="N", help="rounds, each one side's turn")
    parser.add_argument(
        "--workers", type=whole(1, 256), metavar="N", help="processes; same results for any N (default: 1)"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="play on a Ray cluster: of this machine, or the one at HOST:PORT, or auto for the one it belongs to",
    )
    parser.add_argument(
        "--max-cost",
        type=amount,
        metavar="DOLLARS",
        help="begin no further negotiation once the models have used so much in all (needs their prices)",
    )
    parser.add_argument("--no-figures", action="store_true", help="write the tables only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Say what is unusual, play, write tables and figures, print the findings."""
    from negolab.ray_start import connected
    from negolab.report import note
    from negolab.tournament_pool import Bar
    from negolab.tournament_run import TournamentRun

    settings = _settings(args)
    only = [name.strip() for text in args.only for name in text.split(",") if name.strip()]
    going = TournamentRun(settings, args.out, only=only, max_cost=args.max_cost)
    said: set[str] = set()

    def say(line: str) -> None:
        if line not in said:
            said.add(line)
            note(f"note: {line}")

    going.prepare(say)
    for line in going.notes:
        say(line)
    workers = args.workers or (1 if args.ray is None else None)
    # One cluster for all runs: starting one takes seconds.
    with nullcontext() if args.ray is None else connected(args.ray, args.workers), Bar(going.negotiations) as bar:
        going.play(bar, workers=workers, ray=args.ray, say=say)
    if going.finished:
        _report(going, args)
    for line in _missing(going):
        note(line)
    return 2 if going.unfinished else 0


def _settings(args: argparse.Namespace) -> "TournamentSettings":
    from negolab.tournament import load_tournament

    names = ("data", "split", "products", "gft_per_product", "ngft_per_product", "seed", "trade_draw", "rounds")
    return load_tournament(args.tournament).changed(**{name: getattr(args, name) for name in names})


def _report(going: "TournamentRun", args: argparse.Namespace) -> None:
    from negolab.report import columns
    from negolab.tournament_report import OUTCOMES, SOURCES, role_grid, shown, write
    from negolab.tournament_run import caption

    sources = {entry.name: SOURCES[entry.kind] for entry in going.settings.entries}
    view = shown(going.collect(), sources, caption(going))
    written = write(view, going.out)
    for role in ("seller", "buyer"):
        table = role_grid(view, role, OUTCOMES)
        print(columns([[role, *table.head[1:]], *([cell.text for cell in line] for line in table.body)]), end="\n\n")
    for finding in view.findings:
        print(f"- {finding.text}")
    print()
    for line in view.caption:
        print(line)
    for line in _spent(going):
        print(line)
    drawn = "" if args.no_figures else f", and {_draw(view, going)} figures in figures/"
    print(f"written to {going.out}: {', '.join(written)}{drawn}; one run folder per pair and kind below runs/")


def _draw(view: "Shown", going: "TournamentRun") -> int:
    """All figures; how many."""
    from negolab.plots import save, tournament_figures

    made = tournament_figures(view)
    for name, figure in made.items():
        save(figure, going.out / "figures", name)
    return len(made)


def _spent(going: "TournamentRun") -> list[str]:
    """What language models used in all chosen and finished runs, by model."""
    from negolab import costs

    by_model: dict[str, costs.Usage] = {}
    paid: list[float | None] = []
    for match in dict.fromkeys([*going.finished, *going.matches]):
        account = going.account(match)
        for name, used in account.by_player.items():
            by_model[name] = by_model.get(name, costs.Usage()).plus(used)
        if account.by_player:
            paid.append(account.dollars)
    if not by_model:
        return []
    lines = [
        f"{name}: {used.replies:,} replies, {used.prompt_tokens:,} prompt tokens ({used.cached_tokens:,} cached), "
        f"{used.completion_tokens:,} sampled"
        for name, used in sorted(by_model.items())
    ]
    known = [value for value in paid if value is not None]
    return [*lines, f"cost in all: {costs.dollars(sum(known) if len(known) == len(paid) else None)}"]


def _missing(going: "TournamentRun") -> list[str]:
    """Runs that could not be finished, those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for match, reason in going.unfinished.items():
        by_reason.setdefault(reason, []).append(match.label)
    lines = []
    for reason, labels in by_reason.items():
        more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
        lines.append(f"not finished: {', '.join(labels[:3])}{more}: {reason}")
    return lines

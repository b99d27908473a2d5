"""``negolab play``: a person plays the seller against scripted buyers, or one buyer against a scripted seller."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from negolab.commands.arguments import add_data, add_market, market_knobs, whole
from negolab.commands.show import check_page_path, wants_colour, write_page
from negolab.scenario import MAX_SEED

if TYPE_CHECKING:
    from negolab.catalog import Product
    from negolab.episodes import Episode
    from negolab.scenario import Scenario, Schedule

_HUMAN = "human"


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "play",
        help="play a seat yourself against scripted players",
        description="You play the seller against scripted buyers, or one buyer against a scripted seller, and see what "
        "that seat may see. Type `help` in the game.",
    )
    parser.add_argument("--seat", choices=("seller", "buyer"), default="seller", help="your seat (default: seller)")
    parser.add_argument("--seller", metavar="NAME", help="with --seat buyer: the seller you face (default: prober)")
    parser.add_argument("--slot", type=whole(1, 1000), metavar="K", help="with --seat buyer: which buyer you are (1)")
    parser.add_argument("--codename", metavar="X", help="the product; default: one that the seed picks")
    parser.add_argument("--split", default="all", help="train, test, all, or a JSON file with codenames (default: all)")
    parser.add_argument("--seed", type=whole(0, MAX_SEED), help="seed of the market; default: a new one, which is told")
    parser.add_argument("--script", metavar="FILE", help="take your entries from FILE, one a line (# starts a comment)")
    parser.add_argument("--out", metavar="FILE", help="write the transcript as an HTML page at the end")
    add_data(parser)
    add_market(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play one episode; 130 when the person leaves before its end."""
    from negolab.errors import NegolabError
    from negolab.report import note
    from negolab.transcripts import to_html

    if args.script is None and not (sys.stdin is not None and sys.stdin.isatty()):
        raise NegolabError("play needs a terminal to type into; without one, give the entries with --script FILE")
    if args.seat == "seller" and (args.seller is not None or args.slot is not None):
        raise NegolabError("--seller and --slot go with --seat buyer; as the seller you face all buyers")
    if args.out is not None:
        check_page_path(args.out)
    console = _Script(args.script) if args.script is not None else _Terminal()
    schedule = _schedule(args)
    try:
        episode, kinds = _play(args, schedule, console)
    except (KeyboardInterrupt, EOFError) as stop:
        print(flush=True)
        note("negolab: the episode was abandoned before its end; nothing was written")
        # The command line turns SIGTERM into a kind of KeyboardInterrupt.
        return 130 if type(stop) in (KeyboardInterrupt, EOFError) else 143
    _reveal(args, schedule, episode, console)
    if args.out is not None:
        page = to_html(episode, kinds=kinds, source=f"negolab play, seed {schedule.seed}")
        print(f"written: {write_page(args.out, page)}")
    return 0


def _schedule(args: argparse.Namespace) -> "Schedule":
    """The one market to be played."""
    import secrets

    from negolab.catalog import load_catalog
    from negolab.errors import NegolabError
    from negolab.report import note
    from negolab.scenario import Schedule, regime

    chosen = regime(args.regime, **market_knobs(args))
    if chosen.game != "market":
        raise NegolabError(f"people play the market; {chosen.name} is another game, see `negolab evaluate --game`")
    if chosen.protocol != "lines":
        raise NegolabError(f"people play the market of one item, in lines; {chosen.name} is written with tags")
    if args.seat == "buyer" and (args.slot or 1) > chosen.n_buyers:
        raise NegolabError(f"--slot {args.slot}: this market has buyers 1 to {chosen.n_buyers}")
    catalog = load_catalog(args.data)
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    products = catalog.split(args.split)
    schedule = Schedule(chosen, [_product(products, args, seed)], seed=seed)
    for warning in (*catalog.notes, *chosen.warnings):
        note(f"note: {warning}")
    again = f"--seed {seed} --codename {schedule[0].unit}"
    print(f"{catalog.name}, {chosen.name}; {again} plays this market again\n", flush=True)
    return schedule


def _product(products: list["Product"], args: argparse.Namespace, seed: int) -> "Product":
    from difflib import get_close_matches

    from negolab.errors import NegolabError
    from negolab.seeds import mix

    if not products:
        raise NegolabError(f"split {args.split} of {args.data} holds no product")
    if args.codename is None:
        return products[mix(seed) % len(products)]
    named = {product.listing.codename: product for product in products}
    if args.codename not in named:
        near = get_close_matches(args.codename, named, n=3) or list(named)[:3]
        raise NegolabError(
            f"no product {args.codename!r} in split {args.split}; there is, for example, {', '.join(near)}"
        )
    return named[args.codename]


def _play(args: argparse.Namespace, schedule: "Schedule", console: "_Console") -> tuple["Episode", dict[str, str]]:
    """The finished episode, and what each of its players is."""
    from negolab.policies.human import Human
    from negolab.policies.registry import make_buyers, make_seller
    from negolab.rollout import play

    human = Human(console)
    scenario: Scenario = schedule[0]
    buyers = make_buyers(schedule.regime.buyer_types)
    seller: Any = human
    if args.seat == "buyer":
        seller = make_seller(args.seller or "prober", schedule)
        slot = args.slot or 1
        types = [*scenario.buyer_types[: slot - 1], _HUMAN, *scenario.buyer_types[slot:]]
        scenario = scenario._replace(buyer_types=tuple(types))  # the market stays: types are no part of its draws
        buyers[_HUMAN] = human
    described = [player.describe() for player in (seller, *buyers.values())]
    (episode,) = play([scenario], seller, buyers)
    return episode, {str(d["name"]): str(d["kind"]) for d in described}


def _reveal(args: argparse.Namespace, schedule: "Schedule", episode: "Episode", console: "_Console") -> None:
    """The outcome, everything that was hidden, and what a seller that knows the budgets would have got."""
    from negolab.money import dollars
    from negolab.policies.registry import make_buyers, make_seller
    from negolab.report import columns
    from negolab.rollout import play
    from negolab.transcripts import HIDDEN_COLUMNS, engaged_text, hidden_rows, outcome_text, reward_text

    say, outcome, product = console.say, episode.outcome, episode.scenario.product
    say("\n--- The end ---\n")
    say(outcome_text(episode))
    say(f"Seller's {reward_text(episode)}")
    if args.seat == "buyer":
        mine, budget = args.slot or 1, episode.scenario.budgets[(args.slot or 1) - 1]
        if outcome.kind == "deal" and outcome.buyer == mine and outcome.price is not None:
            list_cents = product.listing.list_cents
            share = (list_cents - outcome.price) / (list_cents - product.cost_cents)
            paid = f"You paid {dollars(outcome.price)} of a budget of {dollars(budget)}"
            say(f"{paid}; your share of the room: {share:.3f}")
        else:
            reached = any(turn.seat == 0 and turn.buyer == mine for turn in episode.turns)
            say("You bought nothing." if reached else "You bought nothing: the seller never wrote to you.")
    say(f"\nWhat was hidden (the seller's cost was {dollars(product.cost_cents)}):")
    say(columns([HIDDEN_COLUMNS, *hidden_rows(episode)]))
    say(engaged_text(episode))
    (best,) = play([schedule[0]], make_seller("oracle", schedule), make_buyers(schedule.regime.buyer_types))
    against = "the same buyers" if args.seat == "seller" else "scripted buyers, also in your seat"
    say(f"\nThe oracle, a seller that knows every budget, against {against}:")
    say(f"{outcome_text(best)} Its {reward_text(best)}")


class _Console:
    """Prints what the person may see, with everything harmful to a terminal spelled out."""

    def __init__(self) -> None:
        self._colour = wants_colour()

    def say(self, text: str = "", buyer: int | None = None) -> None:
        """Print lines, a buyer's own words in its colour."""
        from negolab.transcripts import WIDTH, buyer_colour, wrap

        lines = text.split("\n")
        shown = "\n".join(wrap(line, WIDTH, hang=(len(line) - len(line.lstrip())) or 4) for line in lines)
        if self._colour and buyer is not None:
            shown = f"\x1b[{buyer_colour(buyer)}m{shown}\x1b[0m"
        print(shown, flush=True)

    def ask(self, prompt: str) -> str:
        """One entry."""
        raise NotImplementedError


class _Terminal(_Console):
    """A person at a terminal."""

    def ask(self, prompt: str) -> str:
        """Read a line, with line editing where the platform has it."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - importing it is what switches line editing on
        lead, _, line = prompt.rpartition("\n")
        if lead or prompt.startswith("\n"):
            self.say(lead)
        while True:
            try:
                return input(line)
            except UnicodeDecodeError:
                self.say("that line holds bytes which are no text in this terminal's encoding; type it again")


class _Script(_Console):
    """Entries from a file, echoed after their prompts so that the output reads like a game."""

    def __init__(self, path: str) -> None:
        super().__init__()
        from pathlib import Path

        from negolab.errors import NegolabError

        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise NegolabError(f"--script {path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise NegolabError(f"--script {path}: not UTF-8 ({error.reason})") from None
        self._entries: Iterator[str] = iter([line for line in lines if not line.startswith("#")])

    def ask(self, prompt: str) -> str:
        """The next line of the file."""
        entry = next(self._entries, None)
        if entry is None:
            raise EOFError
        self.say(f"{prompt}{entry}")
        return entry

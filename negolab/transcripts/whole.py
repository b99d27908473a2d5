"""What is said of an episode with one item as a whole: the market's constants, what was hidden, how it ended and what
it paid. ``whole_items`` says the same where there are several."""

from collections.abc import Mapping, Sequence

from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.money import dollars
from negolab.scenario import Scenario
from negolab.transcripts.tables import Table

_NAMED = 8  # buyers in a sentence


def buyer_name(episode: Episode, buyer: int) -> str:
    """``Buyer 2 (rank 1, hidden budget $38.37)``."""
    scenario = episode.scenario
    return f"Buyer {buyer} (rank {scenario.rank(buyer)}, hidden budget {dollars(scenario.budgets[buyer - 1])})"


def name_of(episode: Episode) -> str:
    """The item's codename."""
    return episode.scenario.product.listing.codename


def headline_of(episode: Episode) -> str:
    """The item's title."""
    return episode.scenario.product.listing.title


def listings_of(episode: Episode) -> list[tuple[str, str]]:
    """The item's title and description; empty where it has no description."""
    listing = episode.scenario.product.listing
    return [(listing.title, listing.description)] if listing.description else []


def facts(episode: Episode, kinds: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """The market's constants as (name, value). ``kinds`` says of a player's name what it is."""
    s, listing, cost = episode.scenario, episode.scenario.product.listing, episode.scenario.product.cost_cents
    money = [
        ("List price", f"{dollars(listing.list_cents)} (public)"),
        ("Cost", f"{dollars(cost)} (private to the seller)"),
    ]
    if s.game == "bilateral":
        room = s.budgets[0] - cost
        why = "gains from trade" if room > 0 else "no gains from trade: no deal is rational"
        return [
            *money,
            ("Room", f"{dollars(room)} (budget - cost: {why})"),
            ("Limits", f"{s.message_budget} turns, [REJECT] {'allowed' if s.reject else 'not allowed'}"),
            ("Game", f"{s.regime}, repetition {s.rep}"),
            ("Buyer", player(episode.players[1], kinds)),
            ("Seller", f"{player(episode.players[SELLER], kinds)}, persona {s.persona}"),
        ]
    return [
        *money,
        ("Room", f"{dollars(listing.list_cents - cost)} (list price - cost)"),
        ("Limits", limits_text(s)),
        ("Market", f"{s.regime}, repetition {s.rep}"),
        ("First offers", openings_text(s)),
        ("Seller", player(episode.players[SELLER], kinds)),
        ("Buyers", buyers_text(episode, kinds)),
    ]


def limits_text(s: Scenario) -> str:
    """N, M where there are several items, K and T, and whether T is short."""
    items = f" M = {s.n_items} items," if s.n_items > 1 else ""
    tight = "T < N x K" if s.message_budget < s.n_buyers * s.per_buyer_cap else "T >= N x K"
    return f"N = {s.n_buyers} buyers,{items} K = {s.per_buyer_cap} per buyer, T = {s.message_budget} in all ({tight})"


def openings_text(s: Scenario) -> str:
    """Whose first offer the market fixed."""
    fixed = [] if s.openings is None else [f"Buyer {k}" for k, row in enumerate(s.openings, 1) if row is not None]
    if not fixed:
        return "free"
    if len(fixed) == s.n_buyers:
        return "regulated (fixed by the market)"
    return f"regulated (fixed by the market) for {some(fixed, _NAMED)}; free for all others"


def buyers_text(episode: Episode, kinds: Mapping[str, str] | None) -> str:
    """Who plays the buyers."""
    return ", ".join(player(name, kinds) for name in sorted(set(episode.players[1:])))


def some(names: Sequence[str], most: int) -> str:
    """The first ``most`` of several names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def player(name: str, kinds: Mapping[str, str] | None) -> str:
    """A player's name, and what it is if ``kinds`` knows."""
    kind = (kinds or {}).get(name, "")
    return f"{name} ({kind})" if kind else name


def hidden_rows(episode: Episode) -> list[tuple[str, str, str, str, str, str]]:
    """Per buyer: name, type, hidden budget, budget over list price, rank, first offer."""
    s, list_cents = episode.scenario, episode.scenario.product.listing.list_cents
    firsts: dict[int, str] = {}
    for turn in episode.turns:
        if turn.seat != SELLER and turn.violation is None:
            firsts.setdefault(turn.seat, f"[{turn.verb}]" if turn.price is None else dollars(turn.price))
    return [
        (f"Buyer {k}", kind, dollars(budget), f"{budget / list_cents:.2f}", str(s.rank(k)), firsts.get(k, "-"))
        for k, (kind, budget) in enumerate(zip(s.buyer_types, s.budgets, strict=True), 1)
    ]


HIDDEN_COLUMNS = ("buyer", "type", "hidden budget", "of list price", "rank", "first offer")


def tables(episode: Episode) -> list[Table]:
    """What was hidden, by buyer."""
    return [
        Table(
            "Hidden from the seller",
            "a buyer knows only its own budget",
            HIDDEN_COLUMNS,
            hidden_rows(episode),
            note="A buyer knows its own budget and nothing of the others. The seller sees first offers, never budgets, "
            "types or ranks.",
        )
    ]


NO_DEAL = {
    "seller_quit": ("the seller quit", "the seller quits"),
    "all_inactive": ("every buyer has quit or is capped", "nobody is left"),
    "messages_exhausted": ("the seller's {} messages are used up", "no messages left"),
    "buyer_quit": ("the buyer quit", "the buyer quits"),
    "turns_exhausted": ("the {} turns are over", "no turns left"),
}
"""How an episode ends without a deal: in the outcome's sentence, and in the last turn's title."""
ABORTED = {"context_limit": "the conversation does not fit into its context", "timeout": "no reply came in time"}


def outcome_text(episode: Episode) -> str:
    """How it ended, in one sentence."""
    o, s = episode.outcome, episode.scenario
    if o.kind == "deal" and o.price is not None and o.buyer is not None:
        how = "the seller accepted its bid" if o.seat == SELLER else "the buyer accepted the seller's ask"
        return f"Deal at {dollars(o.price)} with {buyer_name(episode, o.buyer)}: {how}."
    who = "the seller" if o.seat == SELLER else f"Buyer {o.seat}"
    if o.kind == "aborted":
        return f"Aborted: {who} could not speak: {ABORTED.get(o.reason, o.reason)}. No rule was broken."
    if o.kind == "violation":
        detail = f": {episode.turns[-1].detail}" if episode.turns and episode.turns[-1].detail else ""
        return f"Violation by {who} ({o.reason}){detail}."
    why = NO_DEAL[o.reason][0].format(s.message_budget) if o.reason in NO_DEAL else o.reason
    return f"No deal: {why}."


def engaged_text(episode: Episode) -> str:
    """Whom the seller spoke to, and where the richest buyer was; in the bilateral game, how the buyer began."""
    s = episode.scenario
    if s.game == "bilateral":
        first = episode.turns[0].price
        share = "no price" if first is None else f"{dollars(first)}, {first / s.budgets[0]:.2f} of its budget"
        return f"The buyer began with {share}."
    reached = {t.buyer for t in episode.turns if t.seat == SELLER and t.violation is None and t.verb != "QUIT"}
    missed = [k for k in range(1, s.n_buyers + 1) if k not in reached]
    richest = max(range(1, s.n_buyers + 1), key=lambda k: s.budgets[k - 1])
    never = f"; never engaged: {', '.join(f'Buyer {k}' for k in missed)}" if missed else ""
    budget = dollars(s.budgets[richest - 1])
    return f"The seller engaged {len(reached)} of {s.n_buyers} buyers{never}. Rank 1: Buyer {richest} ({budget})."


def reward_text(episode: Episode) -> str:
    """The reward's formula with this episode's numbers: equation (1), or the bilateral buyer's."""
    if episode.scenario.game == "bilateral":
        return checked(*_buyer_reward(episode), episode)
    o, list_cents = episode.outcome, episode.scenario.product.listing.list_cents
    cost = episode.scenario.product.cost_cents
    if o.kind == "violation" and o.seat == SELLER:
        value, text = -1.0, "reward = -1 (the seller broke a rule)"
    elif o.kind == "violation":
        value, text = 0.0, "reward = 0 (a buyer broke a rule; the seller did not)"
    elif o.kind == "deal" and o.price is not None:
        ratio = (o.price - cost) / (list_cents - cost)
        value = min(1.0, ratio)
        share = f"({dollars(o.price)} - {dollars(cost)}) / ({dollars(list_cents)} - {dollars(cost)})"
        text = f"reward = {share} = {ratio:.3f}"
        if ratio > 1.0:
            text = f"reward = min(1, {share}) = min(1, {ratio:.3f}) = 1"
    else:
        value, text = 0.0, f"reward = 0 ({'aborted, counts as no deal' if o.kind == 'aborted' else 'no deal'})"
    return checked(value, text, episode)


def _buyer_reward(episode: Episode) -> tuple[float, str]:
    o, budget, cost = episode.outcome, episode.scenario.budgets[0], episode.scenario.product.cost_cents
    if o.kind == "violation":
        return (-1.0, "reward = -1 (the buyer broke a rule)") if o.seat else (0.0, "reward = 0 (the seller's fault)")
    if o.kind != "deal" or o.price is None:
        return 0.0, f"reward = 0 ({'aborted, counts as no deal' if o.kind == 'aborted' else 'no deal'})"
    share = f"({dollars(budget)} - {dollars(o.price)}) / |{dollars(budget)} - {dollars(cost)}|"
    if budget == cost:
        return 0.0, f"reward = {share}, read as 0"
    ratio = (budget - o.price) / abs(budget - cost)
    value = max(-1.0, min(1.0, ratio))
    return value, f"reward = {share} = {ratio:.3f}" + ("" if value == ratio else f", at most {value:.0f}")


def checked(value: float, text: str, episode: Episode) -> str:
    """``text``, and a word about it where the record holds another reward than ``value``."""
    if value != episode.reward:
        text += f"; but the record says {episode.reward!r}: run `negolab verify`"
    return text


def closing_title(episode: Episode) -> str:
    """What the last turn's title says of the end."""
    o = episode.outcome
    if o.reason in NO_DEAL:
        return NO_DEAL[o.reason][1]
    if o.kind == "deal":
        return f"the deal closes at {dollars(o.price or 0)}"
    return "no reply" if o.kind == "aborted" else "a rule is broken"

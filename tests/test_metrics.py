"""Every metric on small episodes worked by hand: what counts, for whom, and out of how many."""

import math

import pytest

from markets import CADDY, CODE, market, openings_of, text_of
from negolab.catalog import Listing, Product
from negolab.environment import Outcome, Sale
from negolab.episodes import Episode
from negolab.metrics import METRICS, VIOLATIONS, buyer_types, closing_ranks, first_offer_match, paired, summarise
from negolab.policies.base import Reply
from negolab.rollout import play

# The caddy lists at 34.99 and costs 18.75: a range of 1624 cents.
RANGE = 1624
OPENINGS = (2000, 2100, 2200)
RICH = (3000, 4000, 3500)


class Scripted:
    """Speaks fixed texts: ``texts[seat][number of own replies]``, the last one again and again."""

    name = "fixed"

    def __init__(self, texts):
        self.texts = texts

    def describe(self):
        """Nothing but a name."""
        return {"name": self.name}

    def reply(self, requests):
        """The next text of each seat."""
        return [Reply(self.texts[r.seat][min(len(r.view.own), len(self.texts[r.seat]) - 1)]) for r in requests]


def played(scenario, *script) -> Episode:
    """The episode of a script: (seat, verb, cents, target), or (seat, text). Regulated openings need not be told."""
    texts: dict[int, list[str]] = {}
    for seat, cents in enumerate(openings_of(scenario) if scenario.openings else (), 1):
        texts[seat] = [text_of(seat, "BUY", cents, None)]
    for seat, *move in script:
        texts.setdefault(seat, []).append(move[0] if len(move) == 1 else text_of(seat, *move))
    player = Scripted(texts)
    (episode,) = play([scenario], player, dict.fromkeys(scenario.buyer_types, player))
    return episode


def caddy(**changes):
    """A market on the caddy in which openings are above cost and every budget above the openings."""
    return market(**{"budgets": RICH, "openings": OPENINGS, **changes})


def values(episode: Episode) -> dict[str, float | None]:
    """All metrics of an episode."""
    return {name: metric(episode) for name, metric in METRICS.items()}


QUIT = (0, "QUIT", None, None)
BAD = (0, "no format at all")


# -- one episode ------------------------------------------------------------------------------------------------------


def test_a_deal_by_hand():
    episode = played(
        caddy(), (0, "SELL", 3499, 3), (3, "BUY", 2600, None), (0, "SELL", 2700, 1), (1, "DEAL", 2700, None)
    )
    found = values(episode)
    assert episode.outcome == Outcome("deal", "buyer_deal", 1, (Sale(1, 1, 2700, 1),))
    assert found["reward"] == found["surplus_ratio"] == 825 / RANGE
    assert found["deal_rate"] == 1 and found["violation_rate"] == 0 and found["below_cost_rate"] == 0
    assert found["top_buyer_rate"] == 0 and found["distinct_buyers"] == 2 and found["seller_messages"] == 2
    assert found["sell_above_cost_accuracy"] == 1 and found["turns"] == 7
    assert found["refused_replies"] == found["fallbacks"] == 0
    assert all(found[f"{who}_{what}_tokens"] is None for who in ("seller", "buyer") for what in ("prompt", "sampled"))


def test_no_deal_is_in_no_deals_denominator():
    found = values(played(caddy(), (0, "SELL", 3499, 3), (3, "BUY", 2600, None), QUIT))
    assert found["surplus_ratio"] is None and found["top_buyer_rate"] is None
    assert found["reward"] == found["deal_rate"] == found["violation_rate"] == 0.0


@pytest.mark.parametrize("kind", VIOLATIONS)
def test_a_violation_counts_once_under_its_own_kind(kind):
    base = played(caddy(), (0, "SELL", 3499, 3), (3, "BUY", 2600, None), BAD)
    assert base.outcome == Outcome("violation", "format", seat=0) and base.reward == -1
    outcome = Outcome("violation", kind, seat=0)
    found = values(Episode(base.scenario, base.players, base.turns, base.notes, outcome, -1.0))
    assert found["reward"] == -1 and found["violation_rate"] == 1 and found["deal_rate"] == 0
    assert found["surplus_ratio"] is None and found["top_buyer_rate"] is None
    named = {k: found["below_cost_rate" if k == "below_cost" else f"violation_{k}"] for k in VIOLATIONS}
    assert named == {k: float(k == kind) for k in VIOLATIONS}
    assert found["sell_above_cost_accuracy"] == float(kind != "below_cost")


def test_a_buyers_violation_is_not_the_sellers():
    base = played(caddy(), QUIT)
    for kind in VIOLATIONS:
        outcome = Outcome("violation", kind, seat=2)
        found = values(Episode(base.scenario, base.players, base.turns, base.notes, outcome, 0.0))
        assert found["violation_rate"] == found["below_cost_rate"] == 0 and found["sell_above_cost_accuracy"] == 1
        assert not any(found[f"violation_{k}"] for k in VIOLATIONS if k != "below_cost")


@pytest.mark.parametrize(
    ("script", "distinct", "messages", "turns"),
    [
        ([QUIT], 0, 0, 4),
        ([BAD], 0, 0, 4),
        ([(0, "SELL", 3499, 2), (2, "BUY", 2300, None), QUIT], 1, 1, 6),
        ([(0, "SELL", 3499, 2), (2, "BUY", 2300, None), BAD], 1, 1, 6),
        ([(0, "SELL", 3499, 2), (2, "BUY", 2300, None), (0, "SELL", 1874, 1)], 1, 1, 6),
        ([(0, "SELL", 3499, 2), (2, "BUY", 2300, None), (0, "DEAL", 2200, 2)], 1, 1, 6),
        ([(0, "DEAL", 2200, 3)], 1, 1, 4),
        ([(0, "SELL", 3499, 2), (2, "BUY", 2300, None), (0, "DEAL", 2300, 2)], 1, 2, 6),
        ([(0, "SELL", 3499, 2), (2, "BUY", 2300, None), (0, "DEAL", 2200, 3)], 2, 2, 6),
        ([(0, "SELL", 3499, 2), (2, "QUIT", None, None), QUIT], 1, 1, 6),
        ([(0, "SELL", 3499, 2), (2, "BUY", 2300, None), (0, "SELL", 3400, 2), (2, "DEAL", 3400, None)], 1, 2, 7),
    ],
    ids=str,
)
def test_who_was_reached_by_what(script, distinct, messages, turns):
    """A [SELL] and the accepting [DEAL] reach a buyer and cost a message; [QUIT] and a violating message do neither."""
    found = values(played(caddy(), *script))
    assert (found["distinct_buyers"], found["seller_messages"], found["turns"]) == (distinct, messages, turns)


@pytest.mark.parametrize(
    ("budgets", "buyer", "top", "rank"),
    [
        ((3000, 3000, 2500), 1, 1, 1),
        ((3000, 3000, 2500), 2, 1, 1),
        ((3000, 3000, 2500), 3, 0, 3),
        ((2500, 3000, 2500), 3, 0, 2),
        ((3000, 3000, 3000), 3, 1, 1),
    ],
)
def test_buyers_tied_at_the_top_are_all_at_the_top(budgets, buyer, top, rank):
    episode = played(caddy(budgets=budgets), (0, "DEAL", OPENINGS[buyer - 1], buyer))
    assert values(episode)["top_buyer_rate"] == top
    assert {r: e.mean for r, e in closing_ranks([episode]).items()} == {r: float(r == rank) for r in (1, 2, 3)}


# -- tables -----------------------------------------------------------------------------------------------------------


def test_denominators_of_a_run_by_hand():
    """A deal at 22.00 with the second, one at 21.00 with the top buyer, a walk away, a violation below cost."""
    episodes = [
        played(caddy(), (0, "DEAL", 2200, 3)),
        played(caddy(), (0, "DEAL", 2100, 2)),
        played(caddy(), QUIT),
        played(caddy(), (0, "SELL", 1000, 1)),
    ]
    found = summarise(iter(episodes))
    assert list(found) == list(METRICS)
    deals = {name for name, e in found.items() if e.n == 2}
    assert deals == {"surplus_ratio", "top_buyer_rate"}
    assert {e.n for name, e in found.items() if name not in deals} == {4, 0}
    assert {name for name, e in found.items() if e.n == 0} == {name for name in METRICS if "tokens" in name}
    assert found["reward"].mean == pytest.approx((325 / RANGE + 225 / RANGE + 0 - 1) / 4)
    assert found["surplus_ratio"].mean == pytest.approx((325 + 225) / 2 / RANGE)
    assert found["deal_rate"].mean == 0.5 and found["top_buyer_rate"].mean == 0.5
    assert found["violation_rate"].mean == found["below_cost_rate"].mean == 0.25
    assert found["sell_above_cost_accuracy"].mean == 0.75 and found["distinct_buyers"].mean == 0.5
    deal_rate, ratio = found["deal_rate"].mean, found["surplus_ratio"].mean
    assert found["reward"].mean == pytest.approx(deal_rate * ratio - found["violation_rate"].mean)
    # 0.2001, 0.1385, 0, -1 about their mean: naive error from the textbook formula, no cluster but one.
    rewards = [325 / RANGE, 225 / RANGE, 0.0, -1.0]
    mean = sum(rewards) / 4
    assert found["reward"].se == pytest.approx(math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3 / 4))
    assert found["reward"].se_clustered is None


def other(codename: str) -> Product:
    """The caddy under another name."""
    listing = CADDY.listing
    return Product(Listing(codename, listing.title, listing.description, listing.category, listing.list_cents), 1875)


def renamed(episode: Episode, codename: str) -> Episode:
    """The same episode about another product."""
    return changed(episode, unit=codename, products=(other(codename),))


def changed(one: Episode, **fields) -> Episode:
    """The same episode in another market."""
    return Episode(one.scenario._replace(**fields), one.players, one.turns, one.notes, one.outcome, one.reward)


def four() -> list[Episode]:
    """Deals 1, 1, 0 of product A and 0 of product B."""
    deal, none = played(caddy(), (0, "DEAL", 2200, 3)), played(caddy(), QUIT)
    return [deal, deal, none, renamed(none, "b_1")]


def test_errors_are_clustered_by_product():
    """Deal rates 1, 1, 0 | 0: mean 1/2, cluster sums of deviations 1/2 and -1/2, so sqrt(2 * (1/4 + 1/4)) / 4."""
    found = summarise(four())["deal_rate"]
    assert found.mean == 0.5 and found.n == 4
    assert found.se == pytest.approx(math.sqrt(4 * 0.25 / 3 / 4))
    assert found.se_clustered == pytest.approx(math.sqrt(2 * 0.5) / 4) == pytest.approx(0.25)


def test_closing_ranks_by_hand():
    """Rank 2 closes twice, rank 1 once (of another product), one walks away; a fourth buyer raises the ranks to 4."""
    episodes = [
        played(caddy(), (0, "DEAL", 2200, 3)),
        renamed(played(caddy(), (0, "DEAL", 2100, 2)), "b_1"),
        played(caddy(), (0, "DEAL", 2200, 3)),
        played(caddy(budgets=(*RICH, 2500), openings=(*OPENINGS, 2300)), QUIT),
    ]
    found = closing_ranks(iter(episodes))
    assert list(found) == [1, 2, 3, 4] and {e.n for e in found.values()} == {3}
    assert [found[r].mean for r in found] == pytest.approx([1 / 3, 2 / 3, 0, 0])
    # Rank 2: deviations 1/3, 1/3 of the caddy and -2/3 of the other: cluster sums 2/3 and -2/3.
    assert found[2].se_clustered == pytest.approx(math.sqrt(2 * 8 / 9) / 3)
    assert closing_ranks([]) == {} and closing_ranks([episodes[3]])[1].n == 0


@pytest.mark.parametrize(
    ("budgets", "openings", "full", "top"),
    [
        ((4000, 3500, 3000, 2500), (2400, 2300, 2200, 2100), 1, 1),
        ((4000, 3500, 3000, 2500), (2400, 2300, 2100, 2200), 0, 1),  # only the last two are swapped
        ((4000, 3500, 3000, 2500), (2400, 2200, 2300, 2100), 0, 1),
        ((4000, 3500, 3000, 2500), (2300, 2400, 2200, 2100), 0, 0),
        ((2500, 3000, 3500, 4000), (2100, 2200, 2300, 2400), 1, 1),
        ((4000, 3500, 3000, 2500), (2300, 2300, 2200, 2100), 1, 1),  # equal openings: in the order of the slots
        ((3500, 4000, 3000, 2500), (2300, 2300, 2200, 2100), 0, 0),
        ((3000, 3000, 2500, 2500), (2200, 2300, 2100, 2100), 0, 0),  # equal budgets as well
        ((3000, 3000, 2500, 2500), (2300, 2300, 2100, 2100), 1, 1),
    ],
)
def test_openings_against_budgets(budgets, openings, full, top):
    episode = played(caddy(budgets=budgets, openings=openings), QUIT)
    found = first_offer_match([episode])
    assert (found["full_rank_match"].mean, found["top1_match"].mean) == (full, top)
    assert found["full_rank_match"].n == found["top1_match"].n == 1


def test_an_opening_that_the_guard_made_says_nothing_of_its_buyer():
    """Regulated or free: neither the ranking nor the opening's ratio counts a fallback, nor a later bid."""
    texts = [(1, "nothing"), (2, "BUY", 2100, None), (3, "BUY", 2200, None)]
    regulated = caddy()
    guarded = Scripted({0: [text_of(*QUIT)], **{s: [m[0] if len(m) == 1 else text_of(s, *m)] for s, *m in texts}})
    (episode,) = play([regulated], guarded, {"iter-60": guarded})
    assert [(t.price, t.fallback) for t in episode.turns[:3]] == [(2000, True), (2100, False), (2200, False)]
    free = played(caddy(openings=None), *texts, (0, "SELL", 3499, 2), (2, "BUY", 2500, None), QUIT)
    assert [(t.verb, t.fallback) for t in free.turns[:3]] == [("QUIT", True), ("BUY", False), ("BUY", False)]
    for one in (episode, free):
        found = first_offer_match([one])
        assert found["full_rank_match"].n == found["top1_match"].n == 0
        row = buyer_types([one])["iter-60"]
        assert row["first_offer_ratio"].n == 2
        assert row["first_offer_ratio"].mean == pytest.approx((2100 + 2200) / 2 / 3499)
        assert row["closing_rate"].n == 3
    assert values(episode)["fallbacks"] == 1 and values(episode)["refused_replies"] == 6
    whole = played(regulated, QUIT)
    assert first_offer_match([episode, whole, free])["top1_match"].n == 1


def test_buyer_types_by_hand():
    """Two of type a and one of b: b closes at 22.00, nobody closes, a closes at 21.00 (of another product)."""
    mixed = caddy(types=("a", "b", "a"))
    episodes = [
        played(mixed, (0, "DEAL", 2100, 2)),
        played(mixed, QUIT),
        played(mixed, BAD),
        renamed(played(mixed, (0, "DEAL", 2200, 3)), "b_1"),
    ]
    found = buyer_types(iter(episodes))
    assert list(found) == ["a", "b"]
    a, b = found["a"], found["b"]
    # Out of all buyers of the type in all episodes, whether anybody closed or not.
    assert (a["closing_rate"].mean, a["closing_rate"].n) == (1 / 8, 8)
    assert (b["closing_rate"].mean, b["closing_rate"].n) == (1 / 4, 4)
    assert (a["buyer_surplus"].mean, a["buyer_surplus"].n) == (pytest.approx(1299 / RANGE), 1)
    assert (b["buyer_surplus"].mean, b["buyer_surplus"].n) == (pytest.approx(1399 / RANGE), 1)
    assert a["first_offer_ratio"].n == 8 and a["first_offer_ratio"].mean == pytest.approx((2000 + 2200) / 2 / 3499)
    assert b["first_offer_ratio"].n == 4 and b["first_offer_ratio"].mean == pytest.approx(2100 / 3499)
    # Type a: six zeros of the caddy, 0 and 1 of the other; deviations sum to -6/8 and 6/8.
    assert a["closing_rate"].se_clustered == pytest.approx(math.sqrt(2 * 2 * 0.75**2) / 8)


@pytest.mark.parametrize(("price", "share"), [(1875, 1.0), (3499, 0.0), (3500, -1 / RANGE), (4000, -501 / RANGE)])
def test_a_buyer_that_pays_more_than_the_list_price_has_a_negative_share(price, share):
    episode = played(caddy(), (0, "SELL", price, 2), (2, "DEAL", price, None))
    found = buyer_types([episode])["iter-60"]["buyer_surplus"]
    assert (found.mean, found.n) == (pytest.approx(share), 1)
    assert episode.reward == pytest.approx(min(1, 1 - share))


# -- pairs ------------------------------------------------------------------------------------------------------------


def test_pairs_by_hand():
    """Second minus first; a deal-only metric's pairs are those that both closed."""
    low, high, none = (0, "DEAL", 2000, 1), (0, "DEAL", 2200, 3), QUIT
    first = [changed(played(caddy(), s), rep=rep) for rep, s in enumerate((low, low, none, none, high))]
    second = [changed(played(caddy(), s), rep=rep) for rep, s in enumerate((high, none, high, none))]
    found, common = paired(first, second)
    assert common == 4 and found["reward"].n == 4 and found["surplus_ratio"].n == 1
    assert found["reward"].mean == pytest.approx((200 - 125 + 325 + 0) / 4 / RANGE)
    assert found["surplus_ratio"].mean == pytest.approx(200 / RANGE)
    assert found["deal_rate"].mean == 0 and found["top_buyer_rate"].n == 1
    back, _ = paired(second, first)
    assert back["reward"].mean == pytest.approx(-found["reward"].mean) and back["reward"].n == 4
    assert set(found) == set(METRICS) and found["seller_prompt_tokens"].n == 0


def test_differences_are_clustered_by_product():
    """Differences of deals 1, 1 | 0, of products A and B: mean 2/3, cluster sums 2/3 and -2/3."""
    deal, none = played(caddy(), (0, "DEAL", 2200, 3)), played(caddy(), QUIT)
    first = [changed(none, rep=0), changed(none, rep=1), renamed(none, "b_1")]
    second = [changed(deal, rep=0), changed(deal, rep=1), renamed(none, "b_1")]
    found, common = paired(first, second)
    assert common == 3 and found["deal_rate"].mean == pytest.approx(2 / 3)
    assert found["deal_rate"].se == pytest.approx(math.sqrt((1 / 9 + 1 / 9 + 4 / 9) / 2 / 3))
    assert found["deal_rate"].se_clustered == pytest.approx(math.sqrt(2 * 8 / 9) / 3)


BASE = caddy()


@pytest.mark.parametrize(
    "fields",
    [
        {"rep": 1},
        {"keys": (*BASE.keys[:-1], BASE.keys[-1] + 7)},
        {"keys": (BASE.keys[0] + 7, *BASE.keys[1:])},
        {"valuations": ((3000,), (4000,), (3501,))},
        {"openings": ((2000,), (2100,), (2201,))},
        {"openings": None},
        {"buyer_types": ("iter-60", "iter-60", "iter-70")},
        {"per_buyer_cap": 4},
        {"message_budget": 6},
        {"unit": "baby-products_18", "products": (other("baby-products_18"),)},
        {"products": (Product(CADDY.listing, 1874),)},
        {"products": (Product(Listing(CODE, "Stroller caddy", "Holds two bottles.", "baby-products", 3500), 1875),)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_markets_that_differ_in_anything_are_no_pair(fields):
    one = played(BASE, QUIT)
    found, common = paired([one], [changed(one, **fields)])
    assert common == 0 and found["reward"].n == 0


def test_the_place_in_the_run_does_not_part_a_pair():
    one = played(BASE, QUIT)
    assert paired([one], [changed(one, episode=9)])[1] == 1


# -- the guard --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bids", "repeated"), [((2500, 3000), 3000), ((3000, 2500), 2500), ((2500,), 2500), ((), 2100), ((2050,), 2050)]
)
def test_the_guard_repeats_the_previous_bid_not_the_largest(bids, repeated):
    scenario = caddy(k=4, t=9)
    asks = [(0, "SELL", 3499, 2)] * (len(bids) + 1)
    said = [(2, "BUY", cents, None) for cents in bids]
    episode = played(scenario, *asks, *said, (2, "and now nothing"), QUIT)
    last = episode.turns[-2]
    assert (last.seat, last.verb, last.price, last.fallback) == (2, "BUY", repeated, True)
    assert [t.fallback for t in episode.turns].count(True) == 1
    assert len(episode.notes[len(episode.turns) - 2]["refused"]) == 6
    assert values(episode)["fallbacks"] == 1 and values(episode)["refused_replies"] == 6

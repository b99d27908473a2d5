"""Tables of a tournament, from negotiations whose prices are given: who counts for what, and how much."""

import random
import statistics

import pytest

from negolab.environment import BUYER, SELLER, Outcome, Sale
from negolab.environment.base import Turn
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.papers.trade import AXES, QUINTILES, scaled
from negolab.statistics import estimate
from negolab.tournament_table import (
    HEAT_MAPS,
    ROLE_METRICS,
    Pair,
    by_role,
    collect,
    matrix,
    mean_of_means,
    pairs,
    profiles,
    quintiles,
    quintiles_by_opponent,
)
from test_trade_metrics import trade

SHARES = {"hard": 0.75, "even": 0.5, "soft": 0.25}
"""What each takes as a seller from a buyer that is even."""


def episode(unit: str, reserve: int, value: int, price: int | None, rep: int = 0, ask: int = 0) -> Episode:
    """An offer that is taken, or is not. Cents."""
    ask = price if price is not None else ask or 2 * reserve
    scenario = trade(reserve, value, rep=rep)._replace(unit=unit)
    turns = [Turn(1, SELLER, BUYER, "offer", ((1, ask),), "")]
    if price is None:
        turns.append(Turn(2, BUYER, BUYER, "quit", (), ""))
        return Episode(scenario, ("a", "b"), turns, {}, Outcome("no_deal", "buyer_quit", BUYER), 0.0)
    turns.append(Turn(2, BUYER, BUYER, "accept", (), ""))
    outcome = Outcome("deal", "buyer_deal", BUYER, (Sale(1, BUYER, price, BUYER),))
    return Episode(scenario, ("a", "b"), turns, {}, outcome, 0.0)


def scenarios(gft: int = 40, ngft: int = 20) -> list[tuple[str, int, int]]:
    """Product, reserve and value, drawn once: no two prices alike."""
    rng = random.Random(7)
    found = []
    for at in range(gft):
        reserve = rng.randrange(5_000, 50_000)
        found.append((f"item_{at % 10}", reserve, reserve + rng.randrange(1_000, 30_000)))
    for at in range(ngft):
        reserve = rng.randrange(5_000, 50_000)
        found.append((f"item_{at % 10}", reserve, reserve - rng.randrange(100, 4_000)))
    return found


def agreed(seller: str, buyer: str, reserve: int, value: int, at: int) -> int | None:
    """Every third deal of soft buyers fails; without gains from trade only soft sellers sell, to others than soft."""
    if value < reserve:
        return value if seller == "soft" and buyer != "soft" else None
    if buyer == "soft" and at % 3 == 0:
        return None
    share = (SHARES[seller] + 1 - SHARES[buyer]) / 2
    return reserve + round(share * (value - reserve))


def games(gft: int = 40, ngft: int = 20) -> list[tuple[Pair, Episode]]:
    """Every ordered pair on the same scenarios."""
    return [
        (Pair(seller, buyer), episode(unit, s, b, agreed(seller, buyer, s, b, at), rep=at))
        for seller in SHARES
        for buyer in SHARES
        for at, (unit, s, b) in enumerate(scenarios(gft, ngft))
    ]


def found(rows, **wanted):
    """The only row with these fields."""
    (row,) = [row for row in rows if all(row[k] == v for k, v in wanted.items())]
    return row


# -- means of means ---------------------------------------------------------------------------------------------------


def test_one_group_is_a_plain_estimate():
    values, clusters = [1.0, 0.0, 3.0, 2.0, 2.0], ["a", "a", "b", "b", "c"]
    alone, plain = mean_of_means([list(zip(values, clusters, strict=True))]), estimate(values, clusters)
    assert alone.n == plain.n == 5
    assert alone[:3] == pytest.approx(plain[:3])


def test_groups_count_alike_whatever_their_size():
    small, large = [(1.0, "a"), (0.0, "b")], [(0.0, "a"), (0.0, "b"), (1.0, "c"), (0.0, "d"), (0.0, "d"), (0.0, "d")]
    both = mean_of_means([small, large])
    assert both.mean == pytest.approx((1 / 2 + 1 / 6) / 2) and both.n == 8
    errors = [statistics.stdev([v for v, _ in g]) / len(g) ** 0.5 for g in (small, large)]
    assert both.se == pytest.approx((errors[0] ** 2 + errors[1] ** 2) ** 0.5 / 2)
    # By hand: each observation's distance from its group's mean, weighted 1 / (2 n), summed within clusters.
    scores = {"a": 0.5 / 4 - 1 / 6 / 12, "b": -0.5 / 4 - 1 / 6 / 12, "c": 5 / 6 / 12, "d": -3 / 6 / 12}
    assert sum(scores.values()) == pytest.approx(0)
    assert both.se_clustered == pytest.approx((4 / 3 * sum(v * v for v in scores.values())) ** 0.5)


def test_errors_that_do_not_exist():
    assert mean_of_means([]) == (None, None, None, 0)
    assert mean_of_means([[(1.0, "a")], [(0.0, "a"), (1.0, "a")]]) == (0.75, None, None, 3)


def test_common_products_make_errors_larger_than_independent_pairs_would():
    # Two opponents, the very same results by product: nothing is learnt from the second.
    group = [(float(at % 2), f"item_{at}") for at in range(40)]
    twice, once = mean_of_means([group, group]), mean_of_means([group])
    assert twice.se_clustered == pytest.approx(once.se_clustered)
    assert twice.se == pytest.approx(once.se / 2**0.5)


# -- tables -----------------------------------------------------------------------------------------------------------


def test_models_are_averaged_over_opponents_not_over_deals():
    tournament = collect(games())
    assert len(tournament) == 9 * 60 and tournament.models == ("even", "hard", "soft")
    rows = by_role(tournament)
    row = found(rows, model="hard", role="seller", metric="surplus_share")
    shares = [(0.75 + 1 - SHARES[buyer]) / 2 for buyer in SHARES]
    assert row["mean"] == pytest.approx(sum(shares) / 3, abs=1e-3) and row["opponents"] == 3
    kept = sum(at % 3 != 0 for at in range(40))
    assert row["n"] == 40 + 40 + kept
    pooled = (40 * shares[0] + 40 * shares[1] + kept * shares[2]) / row["n"]
    assert abs(row["mean"] - pooled) > 0.005  # the deals of soft buyers are fewer and count as much
    deals = found(rows, model="hard", role="seller", metric="deal_rate_gft")
    assert deals["mean"] == pytest.approx((1 + 1 + kept / 40) / 3) and deals["n"] == 120


def test_every_pair_is_one_cell_and_shares_sum_to_one():
    tournament = collect(games())
    rows = pairs(tournament)
    shares = {who: matrix(rows, f"{who}_surplus_share") for who in ("seller", "buyer")}
    for mine, theirs in zip(shares["seller"], shares["buyer"], strict=True):
        for buyer, share in mine["by_buyer"].items():
            assert share + theirs["by_buyer"][buyer] == pytest.approx(1)
            expected = (SHARES[mine["seller"]] + 1 - SHARES[buyer]) / 2
            assert share == pytest.approx(expected, abs=1e-3)
    # A row of a model's table is the mean of its row, or column, of the heat map.
    deals = {row["seller"]: row["by_buyer"] for row in matrix(rows, "deal_rate_gft")}
    models = by_role(tournament, ["deal_rate_gft"])
    for model in SHARES:
        as_seller = found(models, model=model, role="seller")["mean"]
        as_buyer = found(models, model=model, role="buyer")["mean"]
        assert as_seller == pytest.approx(sum(deals[model].values()) / 3)
        assert as_buyer == pytest.approx(sum(deals[seller][model] for seller in SHARES) / 3)


def test_opponents_violation_is_the_other_sides_own():
    rows = by_role(collect(games()))
    # Without gains from trade soft sellers sell at the buyer's value to the others: their loss, the buyer's gain of 0.
    own = {m: found(rows, model=m, role="seller", metric="self_violation_ngft")["mean"] for m in SHARES}
    assert own == {"hard": 0, "even": 0, "soft": pytest.approx(2 / 3)}
    induced = {m: found(rows, model=m, role="buyer", metric="opponent_violation_ngft")["mean"] for m in SHARES}
    assert induced == {"hard": pytest.approx(1 / 3), "even": pytest.approx(1 / 3), "soft": 0}
    for kind in ("gft", "ngft"):
        for self_, other in (("buyer", "seller"), ("seller", "buyer")):
            mine = sum(found(rows, model=m, role=self_, metric=f"self_violation_{kind}")["mean"] for m in SHARES)
            theirs = sum(found(rows, model=m, role=other, metric=f"opponent_violation_{kind}")["mean"] for m in SHARES)
            assert mine == pytest.approx(theirs)


def test_quintiles_have_equal_counts_and_are_the_same_for_every_pair():
    played = games()
    tournament = collect(played)
    gft = [(unit, s, b) for unit, s, b in scenarios() if b >= s]
    lowest = {role: sorted(row[at] for row in gft)[:8] for role, at in (("seller", 1), ("buyer", 2))}
    for role in ("seller", "buyer"):
        for row in quintiles_by_opponent(tournament, "deal_rate_gft"):
            assert [row[f"{q}_n"] for q in QUINTILES] == [8] * 5
            if row["role"] != role:
                continue
            pair = Pair(row["model"], row["opponent"]) if role == "seller" else Pair(row["opponent"], row["model"])
            mine = [
                float(e.outcome.kind == "deal")
                for one, e in played
                if one == pair
                and e.scenario.valuations[0][0] >= e.scenario.reserve
                and (e.scenario.reserve if role == "seller" else e.scenario.valuations[0][0]) in lowest[role]
            ]
            assert row["q1"] == sum(mine) / 8


@pytest.mark.parametrize(("role", "at"), [("seller", 1), ("buyer", 2)])
def test_quintiles_go_by_the_sides_own_price(role, at):
    """Only where the price is among the tournament's eight lowest there is a deal: all of Q1, nothing beyond."""
    gft = scenarios(ngft=0)
    lowest = sorted(row[at] for row in gft)[:8]
    played = [
        (Pair("a", "b"), episode(row[0], *row[1:], row[1] if row[at] in lowest else None, rep=rep))
        for rep, row in enumerate(gft)
    ]
    rows = {row["role"]: row for row in quintiles(collect(played), "deal_rate_gft")}
    other = rows["buyer" if role == "seller" else "seller"]
    assert [rows[role][q] for q in QUINTILES] == [1, 0, 0, 0, 0]
    assert 0 < other["q1"] < 1 and sum(other[q] for q in QUINTILES) == pytest.approx(1)


def test_quintiles_of_a_model_are_means_of_its_pairs_columns():
    tournament = collect(games())
    for metric in ("surplus_share", "deal_rate_gft", "self_violation_ngft"):
        each = quintiles_by_opponent(tournament, metric)
        for row in quintiles(tournament, metric):
            mine = [one for one in each if (one["model"], one["role"]) == (row["model"], row["role"])]
            assert len(mine) == 3
            for q in QUINTILES:
                assert row[q] == pytest.approx(sum(one[q] for one in mine) / 3)
                assert row[f"{q}_n"] == sum(one[f"{q}_n"] for one in mine)
            assert row["spread"] == max(row[q] for q in QUINTILES) - min(row[q] for q in QUINTILES)
        for one in each:
            assert one["average"] == pytest.approx(sum(one[q] for q in QUINTILES) / 5)
    soft = found(quintiles(tournament, "self_violation_ngft"), model="soft", role="seller")
    assert [soft[f"{q}_n"] for q in QUINTILES] == [3 * 4] * 5  # of the scenarios without gains from trade


def test_quintiles_with_equal_prices_stay_equal_in_count():
    same = [(Pair("a", "b"), episode(f"item_{at}", 10_000, 20_000, 15_000, rep=at)) for at in range(10)]
    (buyer, seller) = quintiles_by_opponent(collect(same), "deal_rate_gft")
    assert [seller[f"{q}_n"] for q in QUINTILES] == [buyer[f"{q}_n"] for q in QUINTILES] == [2] * 5


def test_spread_wants_all_quintiles():
    few = [(Pair("a", "b"), episode(f"item_{at}", 10_000 + at, 20_000, 15_000)) for at in range(3)]
    for row in quintiles(collect(few)):
        assert row["spread"] is None and sum(row[q] is not None for q in QUINTILES) == 3


def test_profiles():
    tournament = collect(games())
    rows = profiles(tournament)
    assert [(row["role"], row["model"]) for row in rows] == [
        (r, m) for r in ("buyer", "seller") for m in sorted(SHARES)
    ]
    means, tiers = by_role(tournament), quintiles(tournament)
    for row in rows:
        who = {"model": row["model"], "role": row["role"]}
        assert row["ir_compliance"] == 1
        assert row["pressure_resistance"] == 1 - found(means, **who, metric="self_violation_ngft")["mean"]
        assert row["consistency"] == 1 - found(tiers, **who)["spread"]
        assert row["anchoring"] == found(means, **who, metric="initial_aggressiveness")["mean"]
        assert row["ir_compliance_scaled"] == 1  # all are equal: nobody is behind
        assert all(0 <= row[f"{axis}_scaled"] <= 1 for axis in AXES if row[axis] is not None)
    hard, even, soft = (found(rows, model=m, role="seller") for m in SHARES)
    assert (hard["surplus_share_scaled"], soft["surplus_share_scaled"]) == (1, 0)
    assert even["surplus_share_scaled"] == pytest.approx(0.5, abs=0.01)
    assert (hard["pressure_resistance_scaled"], soft["pressure_resistance_scaled"]) == (1, 0)
    # These buyers never make an offer: there is no anchoring to speak of.
    assert found(rows, model="hard", role="buyer")["anchoring"] is None
    assert found(rows, model="hard", role="buyer")["anchoring_scaled"] is None


def test_without_one_kind_of_scenario_its_axis_is_empty():
    rows = profiles(collect(games(ngft=0)))
    assert {row["pressure_resistance"] for row in rows} == {row["pressure_resistance_scaled"] for row in rows} == {None}
    assert all(row["ir_compliance"] == 1 for row in rows)


def test_scaled_by_role():
    rows = [{"model": m, "role": r, "x": x} for m, r, x in (("a", "buyer", 1), ("b", "buyer", 3), ("a", "seller", 9))]
    assert [row["x_scaled"] for row in scaled(rows, ["x"])] == [0, 1, 1]


def test_order_of_episodes_changes_nothing():
    played = games()
    shuffled = played[:]
    random.Random(3).shuffle(shuffled)
    one, two = collect(played), collect(shuffled)
    for table in (by_role, pairs, quintiles, quintiles_by_opponent, profiles):
        assert table(one) == table(two)


def test_models_order_rows_and_strangers_are_refused():
    played = games(gft=5, ngft=0)
    order = ["soft", "hard", "even", "nobody"]
    tournament = collect(iter(played), order)
    assert tournament.models == ("soft", "hard", "even")
    assert [row["seller"] for row in matrix(pairs(tournament), "deal_rate_gft")] == ["soft", "hard", "even"]
    with pytest.raises(NegolabError, match=r"soft played, but is none of.*hard, even"):
        collect(played, ["hard", "even"])


def test_pairs_that_are_missing():
    tournament = collect([(pair, e) for pair, e in games() if pair != Pair("hard", "soft")])
    rows = {row["seller"]: row["by_buyer"] for row in matrix(pairs(tournament, ["rounds_gft"]), "rounds_gft")}
    assert rows["hard"]["soft"] is None and rows["soft"]["hard"] == 2
    assert found(by_role(tournament, ["patience"]), model="hard", role="seller")["opponents"] == 2
    one_sided = collect([(pair, e) for pair, e in games() if pair.seller == "hard" and pair.buyer != "hard"])
    assert {(row["model"], row["role"]) for row in profiles(one_sided)} == {
        ("even", "buyer"),
        ("soft", "buyer"),
        ("hard", "seller"),
    }
    assert found(by_role(one_sided, ["reward"]), model="hard", role="buyer")["n"] == 0


def test_a_pair_without_a_deal_has_no_share_and_does_not_count():
    played = [
        (Pair("a", "b"), episode("item_1", 10_000, 20_000, 12_000)),
        (Pair("a", "a"), episode("item_1", 1, 2, None)),
    ]
    row = found(by_role(collect(played), ["surplus_share"]), model="a", role="seller")
    assert (row["mean"], row["n"], row["opponents"]) == (0.2, 1, 1)


def test_names():
    assert set(ROLE_METRICS["reservation_ratio"]) == {"buyer"}
    assert list(HEAT_MAPS) == list(range(21, 30))
    tournament = collect(games(gft=5, ngft=5))
    cells = {row["metric"] for row in pairs(tournament)}
    assert {name for names in HEAT_MAPS.values() for name in names} <= cells
    for table in (quintiles, quintiles_by_opponent):
        with pytest.raises(NegolabError, match=r"unknown metric 'profit'.*surplus_share"):
            table(tournament, "profit")
    for table in (by_role, pairs):
        with pytest.raises(NegolabError, match="unknown metric 'profit'"):
            table(tournament, ["profit"])


def test_nothing_played_gives_empty_tables():
    empty = collect([])
    assert [table(empty) for table in (by_role, pairs, quintiles, quintiles_by_opponent, profiles)] == [[]] * 5

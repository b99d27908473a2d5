"""How close the scripted players come to the published numbers of 2607.05863: one table per regime.

    python tests/benchmarks/calibrate_players.py --data data/AmazonHistoryPrice --seeds 5

Plays every scripted seller on the 128 test products, twice each, once per seed, and prints the mean with its standard
error over episodes above the paper's value. The paper's rows are of its trained and untrained models; the others have
none. Below stand the buyers' statistics of tables 11 and 12 over three of the sellers.
"""

import argparse
from collections import defaultdict
from math import sqrt
from statistics import fmean, stdev

from negolab.catalog import load_catalog
from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.policies.registry import BUYERS, SELLERS, make_buyers, make_seller
from negolab.rollout import play
from negolab.scenario import REGIMES, Schedule

COLUMNS = ("reward", "deal", "surplus", "distinct", "top buyer", "below cost", "violations")
PAPER = {
    ("in_distribution", "satisficer"): (-0.151, 0.355, 0.048, 2.39, 0.571, 0.148, 0.168),
    ("in_distribution", "prober"): (0.580, 0.828, 0.700, 2.47, 0.995, 0.0, 0.0),
    ("ood_diverse", "satisficer"): (0.059, 0.737, 0.186, 1.98, 0.564, 0.075, 0.078),
    ("ood_diverse", "prober"): (0.540, 0.707, 0.770, 2.39, 0.707, 0.0, 0.004),
}
"""Tables 1 and 2; all violations follow from reward = deal rate x surplus ratio - violation rate."""
PANEL = ("satisficer", "greedy", "prober")
"""Whose episodes the buyers' statistics cover: sellers as the paper's panel has them, without the two extremes."""
MATCHES = {"in_distribution": (0.317, 0.180), "ood_diverse": (0.637, 0.249)}
"""Table 11: the highest first offer is the top buyer's; the whole ranking matches."""
TYPES = {"iter-50": (0.368, 0.636, 0.223), "iter-60": (0.310, 0.683, 0.112), "iter-70": (0.353, 0.706, 0.140)}
"""Table 12: first offer over list price, buyer surplus on deals, deal rate per buyer."""


def columns(episode: Episode) -> tuple[float | None, ...]:
    """One episode's value in each column; None where it is not counted."""
    outcome, deal = episode.outcome, episode.outcome.kind == "deal"
    engaged = {t.buyer for t in episode.turns if t.seat == SELLER and t.verb in ("SELL", "DEAL")}
    return (
        episode.reward,
        float(deal),
        episode.reward if deal else None,
        float(len(engaged)),
        float(episode.scenario.rank(outcome.buyer) == 1) if outcome.buyer else None,
        float(outcome.reason == "below_cost"),
        float(outcome.kind == "violation"),
    )


def cell(values: list[float]) -> str:
    """Mean and standard error."""
    if len(values) < 2:
        return "n/a"
    return f"{fmean(values):6.3f} ±{stdev(values) / sqrt(len(values)):.3f}"


def buyer_statistics(name: str, episodes: list[Episode]) -> None:
    """Print tables 11 and 12 of these episodes."""
    top, full = [], []
    first, surplus, closes = defaultdict(list), defaultdict(list), defaultdict(list)
    for episode in episodes:
        scenario, outcome = episode.scenario, episode.outcome
        listing, cost = scenario.product.listing.list_cents, scenario.product.cost_cents
        offers = [turn.price or 0 for turn in episode.turns[: scenario.n_buyers]]
        by_offer = sorted(range(len(offers)), key=offers.__getitem__)
        by_budget = sorted(range(len(offers)), key=scenario.budgets.__getitem__)
        top.append(float(by_offer[-1] == by_budget[-1]))
        full.append(float(by_offer == by_budget))
        for buyer, (kind, offer) in enumerate(zip(scenario.buyer_types, offers, strict=True), 1):
            first[kind].append(offer / listing)
            closes[kind].append(float(outcome.buyer == buyer))
            if outcome.buyer == buyer and outcome.price is not None:
                surplus[kind].append((listing - outcome.price) / (listing - cost))
    print(f"  first offers: top-1 match {cell(top)} (paper {MATCHES[name][0]}), ", end="")
    print(f"full-rank match {cell(full)} (paper {MATCHES[name][1]})")
    for kind in (kind for kind in BUYERS if first[kind] and name == "ood_diverse"):
        found = (first[kind], surplus[kind], closes[kind])
        labels = ("first offer", "buyer surplus", "closes")
        told = [f"{a} {cell(b)} (paper {c})" for a, b, c in zip(labels, found, TYPES[kind], strict=True)]
        print(f"  {kind}: {', '.join(told)}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Scripted players beside the published numbers of 2607.05863.")
    parser.add_argument("--data", required=True, help="folder of the AmazonHistoryPrice files")
    parser.add_argument("--seeds", type=int, default=5, help="run seeds 0 to SEEDS - 1 (default 5)")
    options = parser.parse_args()
    products = load_catalog(options.data).split("test")
    for name, regime in REGIMES.items():
        if regime.n_items > 1:  # another paper's
            continue
        print(f"{name}\n  {'':12}" + "".join(f"{column:>15}" for column in COLUMNS))
        everything: list[Episode] = []
        for seller in SELLERS:
            episodes: list[Episode] = []
            for seed in range(options.seeds):
                schedule = Schedule(regime, products, seed=seed, per_product=2)
                episodes += play(schedule, make_seller(seller, schedule), make_buyers(regime.buyer_types))
            counted = [
                [value for value in column if value is not None] for column in zip(*map(columns, episodes), strict=True)
            ]
            print(f"  {seller:12}" + "".join(f"{cell(values):>15}" for values in counted))
            if (name, seller) in PAPER:
                print(f"  {'  paper':12}" + "".join(f"{value:>8.3f}{'':7}" for value in PAPER[name, seller]))
            if seller in PANEL:
                everything += episodes
        buyer_statistics(name, everything)


if __name__ == "__main__":
    main()

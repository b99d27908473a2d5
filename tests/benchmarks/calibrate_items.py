"""How close the scripted players of several items come to what is known of 2609.33289's table: one table per regime.

    python tests/benchmarks/calibrate_items.py --data sample --episodes 240 --seeds 5

Plays every scripted seller on ``--episodes`` markets of the test clusters, once per seed, and prints each metric's mean
with its standard error, clustered by cluster of products, above the paper's value where there is one. The paper's rows
are of its trained and untrained models and of GPT-5.4-high; the others have none. Prints, asserts nothing.
"""

import argparse

from negolab.clusters import load_clusters
from negolab.episodes import Episode
from negolab.metrics import ITEM_METRICS, Summary
from negolab.policies.registry import ITEM_SELLERS, make_buyers, make_seller
from negolab.report import columns, number
from negolab.rollout import play
from negolab.scenario import REGIMES, Schedule

SHOWN = (
    "reward",
    "surplus_ratio",
    "item_deal_rate",
    "violation_rate",
    "optimal_pair_coverage",
    "top_buyer_rate",
    "distinct_buyers",
    "seller_messages",
    "refused_replies",
    "reward_bound",
)
PAPER = {
    "satisficer": ("untrained", {"reward": -0.329, "violation_rate": 0.433}),
    "early-closer": ("GPT-5.4-high", {"reward": 0.309, "surplus_ratio": 0.315, "item_deal_rate": 0.781}),
    "screener": (
        "trained",
        {
            "reward": 0.407,
            "surplus_ratio": 0.425,
            "item_deal_rate": 0.647,
            "violation_rate": 0.013,
            "optimal_pair_coverage": 0.844,
            "top_buyer_rate": 0.687,
        },
    ),
}
"""The known cells of its test clusters at N = M = 3, T = 7, K = 3: our regime ``multi_product``."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Scripted players beside the known numbers of 2609.33289.")
    parser.add_argument("--data", default="sample", help="clusters, as for negolab evaluate (default sample)")
    parser.add_argument("--episodes", type=int, default=240, help="about how many per seed (default 240)")
    parser.add_argument("--seeds", type=int, default=5, help="run seeds 0 to SEEDS - 1 (default 5)")
    parser.add_argument("--regime", default="", help="only this one")
    parser.add_argument("--split", default="test", help="clusters to play on (default test)")
    options = parser.parse_args()
    clusters = load_clusters(options.data).split(options.split)
    per_cluster = max(1, round(options.episodes / len(clusters)))
    for name, regime in REGIMES.items():
        if regime.protocol != "tags" or options.regime not in ("", name):
            continue
        rows = [["seller", *SHOWN]]
        for seller in ITEM_SELLERS:
            summary = Summary({metric: ITEM_METRICS[metric] for metric in SHOWN})
            for seed in range(options.seeds):
                schedule = Schedule(regime, clusters, seed=seed, per_product=per_cluster)
                episodes: list[Episode] = list(
                    play(schedule, make_seller(seller, schedule), make_buyers(regime.buyer_types, regime.protocol))
                )
                for episode in episodes:
                    summary.add(episode)
            found = summary.estimates()
            rows.append([seller, *[f"{number(e.mean, 3)} ±{number(e.se, 3)}" for e in found.values()]])
            if name == "multi_product" and seller in PAPER:
                label, known = PAPER[seller]
                rows.append([f"  paper: {label}", *[number(known.get(metric), 3) for metric in SHOWN]])
        print(f"{name}, {len(clusters)} clusters of {options.data}, {options.seeds * len(schedule)} episodes a row")
        print(columns(rows))
        print()


if __name__ == "__main__":
    main()

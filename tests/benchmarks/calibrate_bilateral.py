"""What the scripted players of the bilateral game lead to, beside what is known of the paper's numbers (2604.09855).

Run from the repository: ``python tests/benchmarks/calibrate_bilateral.py [DATA]``. Prints, asserts nothing.
"""

import sys
from dataclasses import replace

from negolab.bilateral import play_bilateral
from negolab.catalog import Catalog, load_catalog
from negolab.metrics import BILATERAL_METRICS, FOUR_PHASES, summarise
from negolab.policies.scripted_bilateral import BUYER_STYLES, BilateralBuyer
from negolab.report import columns, number
from negolab.scenario import PERSONAS

SHOWN = (*FOUR_PHASES, "deal_rate_mi", "deal_rate_ci", "turns")


def row(name: str, buyer: BilateralBuyer, persona: str, catalog: Catalog) -> list[str]:
    episodes = play_bilateral(len(catalog.products), buyer, persona, data=catalog, seed=7)
    found = summarise(episodes, {metric: BILATERAL_METRICS[metric] for metric in SHOWN})
    return [name, *[number(found[metric].mean, 3) for metric in SHOWN]]


def main() -> None:
    catalog = load_catalog(sys.argv[1] if len(sys.argv) > 1 else "auto")
    rows = [["buyer, seller", *SHOWN]]
    rows.append(["paper: trained, neutral", "0.766", "0.920", "0.839", "n/a", "0.001", "n/a", "n/a", "n/a"])
    for persona in PERSONAS:
        for name in BUYER_STYLES:
            rows.append(row(f"{name}, {persona}", BilateralBuyer(name), persona, catalog))
    print(f"{catalog.name}, {len(catalog.products)} episodes a row")
    print(columns(rows))
    rows = [["opening / B, reasons given", *SHOWN]]
    for opening in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        for reasons in (False, True):
            style = replace(BUYER_STYLES["patient"], opening=(opening, opening), reasons=reasons)
            rows.append(row(f"{opening}, {'yes' if reasons else 'no'}", BilateralBuyer(style), "neutral", catalog))
    print("\nwhat an opening is worth, the rest as the patient buyer does it, neutral seller")
    print(columns(rows))


if __name__ == "__main__":
    main()

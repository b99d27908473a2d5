"""``negolab data``: fetch the published catalogue, and say what a catalogue and its clusters hold."""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from negolab.catalog import SAMPLE, Catalog, Product, load_catalog, price_field
from negolab.cluster_files import SPLITS
from negolab.clusters import Cluster, ClusterCatalog, load_clusters
from negolab.errors import NegolabError
from negolab.money import dollars

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
"""Percent points of the summary's price lines."""
SHOWN_PROBLEMS = 20
"""The text summary prints so many left-out records; ``--json`` all."""


def add_parser(subparsers: "Subparsers") -> None:
    """Register ``negolab data`` with its sub-commands; each sets ``args.run``."""
    data = subparsers.add_parser("data", help="fetch the product catalogue, or summarise one and its clusters")
    commands = data.add_subparsers(dest="data_command", metavar="COMMAND", required=True)
    fetch = commands.add_parser(
        "fetch",
        help="fetch the published AmazonHistoryPrice files",
        description="Fetch the 18 files of the published catalogue at a pinned commit and check each one's sha256. "
        "Run again to go on after an interruption.",
    )
    fetch.add_argument(
        "--to",
        metavar="DIR",
        default="data/AmazonHistoryPrice",
        help="folder to put the files into (default: %(default)s below the current folder)",
    )
    source = fetch.add_mutually_exclusive_group()
    source.add_argument("--from", dest="source", metavar="DIR", help="copy from this folder instead of the network")
    source.add_argument("--base-url", metavar="URL", help="fetch from here instead of the public source (a mirror)")
    fetch.set_defaults(run=run_fetch)
    summary = commands.add_parser("summary", help="print what a catalogue holds")
    summary.add_argument(
        "--data", metavar="DIR", default=SAMPLE, help="catalogue folder, sample, or auto (default: %(default)s)"
    )
    summary.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    summary.set_defaults(run=run_summary)
    clusters = commands.add_parser(
        "clusters",
        help="print which clusters of substitutable products there are",
        description="Print the clusters of substitutable products that markets of several items are drawn from.",
    )
    clusters.add_argument(
        "--data",
        metavar="SOURCE",
        default=SAMPLE,
        help="sample, auto, the published catalogue's folder, or your own .csv or .json file (default: %(default)s)",
    )
    clusters.add_argument(
        "--split",
        metavar="NAME",
        default="all",
        help="train, test, held_out, all, or a JSON file with a list of cluster names (default: %(default)s)",
    )
    shown = clusters.add_mutually_exclusive_group()
    shown.add_argument("--list", action="store_true", help="print one line for each cluster")
    shown.add_argument("--show", metavar="CLUSTER", help="print one cluster and its products")
    clusters.set_defaults(run=run_clusters)


def run_fetch(args: argparse.Namespace) -> int:
    """``negolab data fetch``: 0 once all files are in place."""
    from negolab.fetch import fetch_catalog

    source = args.source or args.base_url or "their public source"
    print(f"getting the published files from {source} into {args.to}", flush=True)
    done = fetch_catalog(args.to, args.base_url, args.source)
    print(f"folder: {done.folder}")
    print(f"files fetched: {len(done.fetched)}")
    print(f"files already there: {len(done.kept)}")
    print(f"next: negolab data summary --data {done.folder}")
    return 0


def run_summary(args: argparse.Namespace) -> int:
    """``negolab data summary``: 0 for every readable catalogue; left-out records are listed, not an error."""
    catalog = load_catalog(args.data)
    found = summarise(catalog)
    if args.json:
        print(json.dumps(found, indent=1, ensure_ascii=True))
    else:
        print("\n".join(_lines(found)))
    return 0


def run_clusters(args: argparse.Namespace) -> int:
    """``negolab data clusters``: 0 for every readable source. Raises ``NegolabError`` for an unknown cluster."""
    catalog = load_clusters(args.data)
    clusters = catalog.split(args.split)
    if args.show is not None:
        cluster = next((cluster for cluster in clusters if cluster.name == args.show), None)
        if cluster is None:
            raise NegolabError(
                f"cluster {args.show!r} is not in split {args.split!r} of clusters {catalog.name!r}; "
                "`negolab data clusters --list` with the same --data and --split lists what is there"
            )
        print("\n".join(_shown_cluster(cluster, catalog)))
    elif args.list:
        for cluster in clusters:
            kind = _on_one_line(cluster.kind)
            print(f"{cluster.name}: {len(cluster.products)} products, {kind} ({cluster.category})")
    else:
        parts = {name: part for part, names in catalog.splits.items() for name in names}
        print("\n".join([f"clusters of: {catalog.name}", *cluster_lines(clusters, parts, catalog.brands)]))
        print(f"rule: {catalog.rule}\nfingerprint: {catalog.fingerprint}\ndata sha256: {catalog.data_sha256}")
        print("".join(f"note: {note}\n" for note in catalog.notes), end="")
    return 0


def cluster_lines(clusters: Sequence[Cluster], parts: Mapping[str, str], brands: Mapping[str, str]) -> list[str]:
    """What clusters are like, line by line, beside the paper's own (2609.33289, section 4).

    ``parts``: split by cluster name; ``brands``: brand by codename. Brands are counted where all products of a cluster
    have one, list prices are those of all products.
    """
    products = [product for cluster in clusters for product in cluster.products]
    lines = [f"clusters: {len(clusters)}", f"products: {len(products)}"]
    for part in (*SPLITS, ""):
        own = [cluster for cluster in clusters if parts.get(cluster.name, "") == part]
        if own:
            counts = Counter(cluster.category for cluster in own)
            named = ", ".join(f"{category} {count}" for category, count in counts.items())
            lines.append(f"{part or 'without a split'}: {len(own)} ({named})")
    spreads = sorted(list_spread(cluster) for cluster in clusters)
    distinct = [len(set(found)) for cluster in clusters if all(found := brands_in(cluster, brands))]
    full = sum(count == 5 for count in distinct)
    held = [p for cluster in clusters if parts.get(cluster.name) == "held_out" for p in cluster.products]
    rest = [p for cluster in clusters if parts.get(cluster.name) != "held_out" for p in cluster.products]
    if spreads:
        lines.append(
            f"dearest / cheapest list price of a cluster: median {quantile(spreads, 50):.2f}, "
            f"from {spreads[0]:.2f} to {spreads[-1]:.2f} (paper: median 1.85)"
        )
    if distinct:
        lines.append(
            f"brands of a cluster, in the {len(distinct)} where all products have one: mean "
            f"{statistics.fmean(distinct):.2f}, {100 * full / len(distinct):.0f} % have five (paper: 4.4, 59 %)"
        )
    if rest:
        lines.append(f"median list price: {_median_dollars(rest)} (paper: $44.10)")
    if held:
        lines.append(f"median list price, held-out category: {_median_dollars(held)} (paper: $165.49)")
    return lines


def list_spread(cluster: Cluster) -> float:
    """The cluster's dearest list price over its cheapest."""
    prices = [product.listing.list_cents for product in cluster.products]
    return max(prices) / min(prices)


def brands_in(cluster: Cluster, brands: Mapping[str, str]) -> list[str]:
    """The brand of each product of a cluster, "" where none is known."""
    return [brands.get(product.listing.codename, "") for product in cluster.products]


def _median_dollars(products: Sequence[Product]) -> str:
    return f"${statistics.median(product.listing.list_cents for product in products) / 100:.2f}"


def _shown_cluster(cluster: Cluster, catalog: ClusterCatalog) -> list[str]:
    parts = [part for part, names in catalog.splits.items() if cluster.name in names]
    lines = [
        f"cluster: {cluster.name}",
        f"category: {cluster.category}",
        f"kind: {_on_one_line(cluster.kind)}",
        f"split: {', '.join(parts) or 'none'}",
        f"dearest / cheapest list price: {list_spread(cluster):.2f}",
    ]
    for product, brand in zip(cluster.products, brands_in(cluster, catalog.brands), strict=True):
        listing = product.listing
        prices = f"list {dollars(listing.list_cents)}, cost {dollars(product.cost_cents)}"
        named = f", {_on_one_line(brand)}" if brand else ""
        lines += [f"{listing.codename}: {prices}{named}", f"  {_on_one_line(listing.title)}"]
    return lines


def _on_one_line(text: str) -> str:
    """A text of the source's own, which may hold anything, as it can be shown in a line."""
    from negolab.transcripts import printable

    return printable(" ".join(text.split()))


def summarise(catalog: Catalog) -> dict[str, Any]:
    """The numbers of ``negolab data summary`` as JSON-ready values; prices in cents, quantiles linear like numpy's."""
    products = catalog.products
    sources = Counter(product.text_source for product in products)
    lists = [product.listing.list_cents for product in products]
    costs = [product.cost_cents for product in products]
    mutual = mutual_count(products, 8, 10)
    return {
        "catalogue": catalog.name,
        "products": len(products),
        "files": len(catalog.files),
        "problems": [str(problem) for problem in catalog.problems],
        "notes": list(catalog.notes),
        "splits": {part: len(catalog.split(part)) for part in catalog.splits},
        "mutual_at_0.8": mutual,
        "conflicting_at_0.8": len(products) - mutual,
        "list_against_highest": dict(zip(("below", "above", "equal"), list_against_highest(products), strict=True)),
        "text_from_features": sources["features"],
        "without_text": sources["none"],
        "list_cents": _spread(lists),
        "cost_cents": _spread(costs),
        "cost_to_list": _spread([cost / price for cost, price in zip(costs, lists, strict=True)]),
        "categories": dict(Counter(product.listing.category for product in products)),
        "rule": catalog.rule,
        "fingerprint": catalog.fingerprint,
        "data_sha256": catalog.data_sha256,
    }


def mutual_count(products: Sequence[Product], numerator: int, denominator: int) -> int:
    """Products where a budget of numerator/denominator of the list price is above the cost.

    2604.09855 calls these mutual interest and the others conflicting. The exact budget is compared, in integers:
    rounding it to cents first would move six of the published products, whose costs lie within half a cent of 0.8 of
    the list price.
    """
    return sum(numerator * product.listing.list_cents > denominator * product.cost_cents for product in products)


def list_against_highest(products: Sequence[Product]) -> tuple[int, int, int]:
    """How often the record's list_price is below, above and equal to its highest_price."""
    pairs = [
        (price_field(product.raw, "list_price"), price_field(product.raw, "highest_price")) for product in products
    ]
    below, above = sum(one < other for one, other in pairs), sum(one > other for one, other in pairs)
    return below, above, len(pairs) - below - above


def quantile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest of the sorted values (numpy's default)."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Quantiles by percent point, mean, and standard deviation (n - 1; None for fewer than two values)."""
    ordered = sorted(values)
    if not ordered:
        return {"quantiles": {}, "mean": None, "sd": None}
    return {
        "quantiles": {str(percent): quantile(ordered, percent) for percent in QUANTILES},
        "mean": statistics.fmean(ordered),
        "sd": statistics.stdev(ordered) if len(ordered) > 1 else None,
    }


def _lines(found: dict[str, Any]) -> list[str]:
    against = found["list_against_highest"]
    splits = " / ".join(f"{count} {part}" for part, count in found["splits"].items())
    lines = [
        f"catalogue: {found['catalogue']}",
        f"products: {found['products']}",
        f"files: {found['files']}",
        f"problems: {len(found['problems'])}",
        f"split: {splits or 'none for this numbering of products'}",
        f"mutual / conflicting at 0.8: {found['mutual_at_0.8']} / {found['conflicting_at_0.8']}",
        f"list price below / above / equal to highest: {against['below']} / {against['above']} / {against['equal']}",
        f"text from features: {found['text_from_features']}",
        f"without text: {found['without_text']}",
        f"percent points: {' '.join(str(percent) for percent in QUANTILES)}",
        f"list price in dollars: {_spread_line(found['list_cents'], 100, 2)}",
        f"cost in dollars: {_spread_line(found['cost_cents'], 100, 2)}",
        f"cost / list price: {_spread_line(found['cost_to_list'], 1, 4)}",
        f"rule: {found['rule']}",
        f"fingerprint: {found['fingerprint']}",
        f"data sha256: {found['data_sha256']}",
    ]
    lines += [f"problem: {problem}" for problem in found["problems"][:SHOWN_PROBLEMS]]
    if len(found["problems"]) > SHOWN_PROBLEMS:
        lines.append(f"problem: and {len(found['problems']) - SHOWN_PROBLEMS} more (--json lists all)")
    return lines + [f"note: {note}" for note in found["notes"]]


def _spread_line(spread: dict[str, Any], unit: int, places: int) -> str:
    def written(value: float | None) -> str:
        return "n/a" if value is None else f"{value / unit:.{places}f}"

    points = " ".join(written(value) for value in spread["quantiles"].values())
    return f"{points or 'n/a'} (mean {written(spread['mean'])}, sd {written(spread['sd'])})"

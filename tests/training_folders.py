"""Training runs on paper: folders as ``negolab train`` writes them, with curves that the test makes up."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from negolab.evaluate import Settings, evaluate
from negolab.metrics import BILATERAL_METRICS, METRICS
from negolab.trainer import evaluation, records

Curve = Callable[[float], float | None]
"""A metric's value by the share of training that is done."""
_STATISTICS = ("rows", "rows_per_episode", "fork_fraction", "trained_tokens", "row_tokens", "nll", "loss")
_PARTS = ("rollout", "rows", "loss", "optimiser", "evaluation", "save", "whole")


def line(*points: tuple[float, float]) -> Curve:
    """Straight lines between (share, value) points, level outside them."""

    def at(share: float) -> float:
        before = [p for p in points if p[0] <= share] or [points[0]]
        after = [p for p in points if p[0] >= share] or [points[-1]]
        (x, y), (u, v) = before[-1], after[0]
        return y if u == x else y + (v - y) * (share - x) / (u - x)

    return at


SELLER: Mapping[str, Curve] = {
    "reward": line((0, -0.27), (1 / 6, 0.0), (5 / 12, 0.07), (1, 0.55)),
    "below_cost_rate": line((0, 0.25), (1 / 6, 0.005)),
    "deal_rate": line((0, 0.40), (1 / 6, 0.46), (5 / 12, 0.62), (1, 0.81)),
    "surplus_ratio": line((0, 0.05), (5 / 12, 0.15), (1, 0.68)),
    "distinct_buyers": line((0, 2.2), (1 / 6, 2.3), (5 / 12, 2.05), (1, 2.55)),
    "top_buyer_rate": line((0, 0.5), (5 / 12, 0.56), (5 / 6, 0.97)),
    "violation_rate": line((0, 0.4), (1 / 6, 0.02), (1, 0.0)),
    "sell_above_cost_accuracy": line((0, 0.75), (1 / 6, 0.995)),
}
"""A seller that learns as the paper's text says, with straight lines between its marks."""
BUYER: Mapping[str, Curve] = {
    "reward": line((0, 0.1), (0.2, 0.05), (0.33, 0.1), (0.67, 0.4), (1, 0.77)),
    "deal_rate": line((0, 0.6), (0.2, 0.2), (0.33, 0.2), (0.6, 0.85), (1, 0.9)),
    "bargained_ratio": line((0, 0.3), (1, 0.84)),
    "first_offer_ratio": line((0, 0.8), (0.2, 0.35), (0.33, 0.35), (0.67, 0.6), (1, 0.4)),
    "overshoot_rate": line((0, 0.1), (0.3, 0.0)),
    "violation_rate": line((0, 0.2), (0.3, 0.01)),
    **{f"{m}_mi": line((0, 0.1), (1, 0.8)) for m in ("reward", "deal_rate")},
    "overshoot_rate_mi": line((0, 0.1), (1, 0.0)),
}
"""A buyer that goes through four phases."""


def write_run(
    folder: Path, task: str = "seller", curves: Mapping[str, Curve] | None = None, *, steps: int = 72, done: int = -1,
    seed: int = 0, episodes: int = 512, every: int = 12, regimes: tuple[str, ...] = (), **settings: Any,
) -> Path:  # fmt: skip
    """A run's manifest and tables; ``done``: it stopped after so many steps."""
    folder.mkdir(parents=True)
    done = steps if done < 0 else done
    chosen = curves or (SELLER if task == "seller" else BUYER)
    names = METRICS if task == "seller" else BILATERAL_METRICS
    regimes = regimes or (("in_distribution",) if task == "seller" else ("bilateral", "bilateral_begging"))
    values = {"groups": episodes // 8, "group_size": 8, "steps": steps, "seed": seed, **settings}
    tier = [0.8, 0.8]
    manifest = {
        "format": "negolab-training-1", "code_sha256": "0" * 64, "trainer_sha256": "0" * 64, "dtype": "float32",
        "settings": values, "adapter": {}, "base": {"model": "pocket-base", "sha256": "0" * 64},
        "trained_parameters": 1_000_000, "manifest_sha256": f"{seed:064d}",
        "task": {"name": task, "data": {"name": "sample"}, "regimes": [{"budget_tiers": [tier]}]},
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    metrics = records.Table(folder / records.METRICS, ("step", "episodes", "reward_se", *names, *_STATISTICS))
    timings = records.Table(folder / records.TIMINGS, ("step", *_PARTS, "sampled_tokens"))
    tests = records.Table(folder / records.EVALUATIONS, evaluation.COLUMNS)
    for table in (metrics, timings, tests):
        table.cut(0)
    wave = 0.01 * math.sin(1 + seed)
    for step in range(done):
        at = {name: chosen[name](step / steps) if name in chosen else 0.0 for name in names}
        at["reward"] = float(at["reward"] or 0.0) + wave
        row = {"step": step, "episodes": episodes, "reward_se": 0.02, **at, **dict.fromkeys(_STATISTICS, 1)}
        metrics.append([row])
        timings.append([{"step": step, **dict.fromkeys(_PARTS, 1.5), "sampled_tokens": 10}])
    for step in sorted({*range(0, done + 1, every), done}):
        for regime in regimes:
            tests.append([_test(step, regime, name, chosen, steps, wave) for name in names])
    return folder


def _test(step: int, regime: str, name: str, curves: Mapping[str, Curve], steps: int, wave: float) -> dict[str, Any]:
    mean = curves[name](step / steps) if name in curves else None if name.endswith("_ci") else 0.0
    if mean is not None and name == "reward":
        mean += wave
    known = (0.03, 0.04, 64) if mean is not None else (None, None, 0)
    row = dict(zip(("se", "se_clustered", "n"), known, strict=True))
    return {"step": step, "regime": regime, "metric": name, "mean": mean, **row}


def keep_episodes(folder: Path, step: int, seller: str, products: int = 3) -> None:
    """Play the held-out markets of an evaluation with a scripted seller, where the run keeps its episodes."""
    place = folder / "evals" / f"step-{step:06d}" / "in_distribution"
    evaluate(Settings(seller, "in_distribution", products=products, per_product=2), place, progress=False)

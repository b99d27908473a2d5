"""Speed without a model. Run as README.md beside this file says; nothing here asserts a time."""

import subprocess
import sys
import time

import pytest

from negolab.bilateral import play_bilateral
from negolab.catalog import load_catalog
from negolab.clusters import Cluster, load_clusters
from negolab.episodes import Episode
from negolab.evaluate import Settings, evaluate
from negolab.policies.registry import make_buyers, make_seller
from negolab.rollout import play
from negolab.scenario import PERSONAS, Schedule, regime
from negolab.store import Run
from negolab.verify import verify

ROUNDS = 5


def run_once(schedule, seller, buyers) -> tuple[int, int, int]:
    """Episodes, turns and bytes of one pass: text written, parsed, judged, recorded, serialised."""
    episodes = turns = size = 0
    for episode in play((schedule[i] for i in range(len(schedule))), seller, buyers):
        episodes += 1
        turns += len(episode.turns)
        size += len(episode.to_line())
    return episodes, turns, size


@pytest.mark.parametrize("seller", ["random", "satisficer", "greedy", "prober"])
@pytest.mark.parametrize("name", ["in_distribution", "ood_diverse"])
def test_scripted_episodes(benchmark, record, name, seller):
    drawn = regime(name)
    schedule = Schedule(drawn, load_catalog("sample").products, seed=0, per_product=10)
    player, buyers = make_seller(seller, schedule), make_buyers(drawn.buyer_types)
    episodes, turns, _ = benchmark.pedantic(run_once, (schedule, player, buyers), rounds=ROUNDS, warmup_rounds=1)
    best = benchmark.stats.stats.min
    record("negolab", f"{name}, {seller}, {turns / episodes:.1f} turns an episode", episodes / best, turns / best)


@pytest.mark.parametrize("seller", ["satisficer", "early-closer", "screener", "oracle"])
def test_item_episodes(benchmark, record, seller):
    """Three items, three buyers, replies with tags."""
    drawn = regime("multi_product")
    schedule = Schedule(drawn, load_clusters("sample").clusters, seed=0, per_product=5)
    player, buyers = make_seller(seller, schedule), make_buyers(drawn.buyer_types, drawn.protocol)
    episodes, turns, _ = benchmark.pedantic(run_once, (schedule, player, buyers), rounds=ROUNDS, warmup_rounds=1)
    best = benchmark.stats.stats.min
    record(
        "negolab", f"multi_product, {seller}, {turns / episodes:.1f} turns an episode", episodes / best, turns / best
    )


@pytest.mark.parametrize("seller", ["early-closer", "screener", "oracle"])
def test_twenty_items_twenty_buyers(benchmark, record, seller):
    """T = 60; the table has it among the others, as turns per second; one episode's milliseconds are printed."""
    drawn = regime("multi_product", n_buyers=20, n_items=20, message_budget=60)
    products = load_clusters("sample").products
    units = [Cluster(f"twenty_{at}", "things", "thing", products[at : at + 20]) for at in range(0, 400, 20)]
    schedule = Schedule(drawn, units, seed=0)
    player, buyers = make_seller(seller, schedule), make_buyers(drawn.buyer_types, drawn.protocol)
    episodes, turns, _ = benchmark.pedantic(run_once, (schedule, player, buyers), rounds=ROUNDS, warmup_rounds=1)
    best = benchmark.stats.stats.min
    print(f"\n20 x 20, T = 60, {seller}: {1000 * best / episodes:.1f} ms an episode")
    record("negolab", f"20 x 20, {seller}, {turns / episodes:.1f} turns an episode", episodes / best, turns / best)


@pytest.mark.parametrize("buyer", ["naive", "patient"])
def test_bilateral_episodes(benchmark, record, buyer):
    catalog = load_catalog("sample")

    def games() -> tuple[int, int]:
        episodes = turns = 0
        for episode in play_bilateral(1200, buyer, "persona", data=catalog, personas=PERSONAS):
            episodes += 1
            turns += len(episode.turns)
            episode.to_line()
        return episodes, turns

    episodes, turns = benchmark.pedantic(games, rounds=ROUNDS, warmup_rounds=1)
    best = benchmark.stats.stats.min
    record("negolab", f"bilateral, {buyer}, {turns / episodes:.1f} messages an episode", episodes / best, turns / best)


def test_textarena(benchmark, record):
    textarena = pytest.importorskip("textarena")
    env = textarena.make("SimpleNegotiation-v0-raw")

    def games() -> tuple[int, int]:
        turns = 0
        for seed in range(300):
            env.reset(num_players=2, seed=seed)
            done, step = False, 0
            while not done:
                env.get_observation()
                text = "[Accept]" if step == 9 else f"How about this? [Offer: {1 + step % 3} Wheat -> 1 Sheep]"
                done, _ = env.step(action=text)
                step += 1
                turns += 1
        return 300, turns

    episodes, turns = benchmark.pedantic(games, rounds=ROUNDS, warmup_rounds=1)
    best = benchmark.stats.stats.min
    record("TextArena", "SimpleNegotiation-v0-raw, scripted", episodes / best, turns / best)


def test_negmas(benchmark, record):
    pytest.importorskip("negmas")
    from negmas.outcomes import make_issue, make_os
    from negmas.preferences import LinearAdditiveUtilityFunction
    from negmas.preferences.value_fun import AffineFun
    from negmas.sao import BoulwareTBNegotiator, ConcederTBNegotiator, SAOMechanism

    space = make_os([make_issue(101, "price")])
    sell = LinearAdditiveUtilityFunction({"price": AffineFun(0.01, 0)}, outcome_space=space, reserved_value=0.2)
    buy = LinearAdditiveUtilityFunction({"price": AffineFun(-0.01, 1)}, outcome_space=space, reserved_value=0.2)

    def games() -> tuple[int, int]:
        steps = 0
        for _ in range(60):
            mechanism = SAOMechanism(outcome_space=space, n_steps=10)
            mechanism.add(BoulwareTBNegotiator(ufun=sell))
            mechanism.add(ConcederTBNegotiator(ufun=buy))
            steps += 2 * mechanism.run().step
        return 60, steps

    episodes, turns = benchmark.pedantic(games, rounds=ROUNDS, warmup_rounds=1)
    best = benchmark.stats.stats.min
    record("NegMAS", "SAO, price 0..100, 10 steps, no text", episodes / best, turns / best)


def test_a_thousand_episodes_written_and_verified(benchmark, tmp_path):
    catalog = load_catalog("sample")
    number = iter(range(100))

    def both() -> None:
        folder = tmp_path / f"run{next(number)}"
        evaluate(Settings(seller="prober", split="all", per_product=9), folder, catalog, progress=False)
        assert verify(folder).ok
        assert Run(folder).n >= 1000

    benchmark.pedantic(both, rounds=3)


def test_import():
    """Wall time of a fresh interpreter that imports negolab or answers --help, above one that imports nothing."""

    def fresh(*arguments: str) -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - start)
        return min(times)

    empty = fresh("-c", "pass")
    print(f"\nimport negolab: {fresh('-c', 'import negolab') - empty:.3f} s above an empty interpreter ({empty:.3f} s)")
    print(f"negolab --help: {fresh('-m', 'negolab.cli', '--help') - empty:.3f} s above an empty interpreter")


@pytest.mark.parametrize("per_product", [5, 50])
def test_memory(record, per_product):
    """Peak memory that Python holds while 600 and 6,000 episodes are played one after the other."""
    import tracemalloc

    drawn = regime("in_distribution")
    schedule = Schedule(drawn, load_catalog("sample").products, seed=0, per_product=per_product)
    tracemalloc.start()
    last: Episode | None = None
    for last in play(
        (schedule[i] for i in range(len(schedule))), make_seller("prober", schedule), make_buyers(drawn.buyer_types)
    ):
        last.to_line()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert last is not None
    print(f"\npeak memory of {len(schedule):,} episodes: {peak / 1e6:.1f} MB")

"""Run folders of markets of several items: clusters among the products, records with sales, and resuming."""

import orjson
import pytest

from item_markets import Wild, cluster
from negolab.clusters import load_clusters
from negolab.environment import SELLER
from negolab.episodes import Episode, replay
from negolab.errors import DamagedRun, NegolabError
from negolab.rollout import play
from negolab.scenario import Scenario, Schedule, regime
from negolab.store import DAMAGED, EPISODES, MANIFEST, PRODUCTS, Run, new_manifest, products_bytes, products_of
from negolab.writer import RunWriter
from runs import reseal

REGIME = regime("multi_varied")
UNITS = [cluster("lamps"), cluster("desks", size=3), cluster("one-more", size=4)]


def schedule_of(units=UNITS, rules=REGIME, per_product=3) -> Schedule:
    return Schedule(rules, units, seed=11, per_product=per_product)


def manifest_of(schedule: Schedule) -> dict:
    settings = {"regime": schedule.regime.to_json(), "seed": schedule.seed, "per_product": schedule.per_product}
    return new_manifest(settings, {"seller": {"name": "wild"}}, {"name": "ours"}, schedule.units, len(schedule))


def writer_of(folder, schedule=None) -> RunWriter:
    """A writer that believes a record only after it was played again on the market it says."""
    schedule = schedule or schedule_of()

    def check(line: bytes, episode: Episode) -> list[str]:
        if episode.scenario != schedule[episode.scenario.episode]:
            return ["another market"]
        return replay(episode)

    return RunWriter(folder, manifest_of(schedule), schedule.units, check)


def lines_of(schedule: Schedule, numbers=None) -> dict[int, bytes]:
    """The stored lines of these episodes, in the order in which they ended."""
    players = Wild(mischief=0.03)
    chosen = [schedule[at] for at in (range(len(schedule)) if numbers is None else numbers)]
    buyers = dict.fromkeys(schedule.regime.buyer_types, players)
    return {episode.scenario.episode: episode.to_line() for episode in play(chosen, players, buyers)}


def write(folder, schedule=None, numbers=None) -> RunWriter:
    """Play what is owed, or only ``numbers`` of it; finish the run where nothing is left."""
    schedule = schedule or schedule_of()
    with writer_of(folder, schedule) as writer:
        lines = lines_of(schedule, list(writer.owed()) if numbers is None else numbers)
        writer.append(lines, lines.values())
        if not writer.n_owed:
            writer.finish()
    return writer


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run of nine episodes; not to be changed."""
    folder = tmp_path_factory.mktemp("items") / "whole"
    write(folder)
    return folder


# -- what a run repeats -----------------------------------------------------------------------------------------------

LAMP, DESK = cluster("lamps").products[0], cluster("desks").products[0]


@pytest.mark.parametrize(
    "units",
    [
        UNITS,
        UNITS[::-1],
        [cluster("single", size=1), cluster("another", size=1)],
        [LAMP, DESK],
        [LAMP, cluster("desks"), *cluster("things").products[:2], cluster("pins", size=2)],
    ],
    ids=["clusters", "reversed", "of-one", "products", "mixed"],
)
def test_what_is_repeated_comes_back_from_the_folder(units, tmp_path):
    rules = regime("in_distribution", protocol="tags")
    write(tmp_path / "run", schedule_of(units, rules, 1))
    run = Run(tmp_path / "run")
    assert run.units == units and run.n == len(units)
    assert products_bytes(run.units) == (tmp_path / "run" / PRODUCTS).read_bytes()
    assert list(run.products.values()) == products_of(units)
    assert run.game == ("market", "tags")
    assert [episode.scenario.unit for episode in run.episodes(complete=True)] == [
        getattr(unit, "name", None) or unit.listing.codename for unit in units
    ]


def test_texts_of_all_letters_come_back_in_clusters(tmp_path):
    named = cluster('Läm\u2028ps "5", naïve\n')
    write(tmp_path / "run", schedule_of([named]))
    assert Run(tmp_path / "run").units == [named]


def test_clusters_of_real_products_come_back(real_data_dir, tmp_path):
    chosen = list(load_clusters(real_data_dir).clusters)
    with RunWriter(tmp_path / "run", manifest_of(schedule_of(chosen)), chosen):
        pass
    run = Run(tmp_path / "run")
    assert len(chosen) > 20
    assert [(c.name, c.category, c.kind) for c in run.units] == [(c.name, c.category, c.kind) for c in chosen]
    assert products_bytes(run.units) == products_bytes(chosen)
    # What was drawn from the catalogue is what is drawn from the folder.
    again = schedule_of(run.units, per_product=1)
    assert [s.to_json() for s in schedule_of(chosen, per_product=1)] == [s.to_json() for s in again]
    for scenario in again:
        assert (
            Scenario.from_json(scenario.episode, orjson.loads(orjson.dumps(scenario.to_json())), run.products)
            == scenario
        )


def test_products_of_a_cluster_are_stored_with_it(whole):
    rows = [orjson.loads(line) for line in (whole / PRODUCTS).read_bytes().splitlines()]
    assert [row["cluster"] for row in rows] == ["lamps"] * 5 + ["desks"] * 3 + ["one-more"] * 4
    assert {row["kind"] for row in rows} == {"lamp"}


@pytest.mark.parametrize("spoiled", ["price", "group", "kind", "cut"])
def test_a_changed_file_of_products_is_noticed(spoiled, whole, tmp_path):
    folder = tmp_path / "run"
    write(folder)
    rows = [orjson.loads(line) for line in (folder / PRODUCTS).read_bytes().splitlines()]
    if spoiled == "price":
        rows[3]["list_cents"] += 1
    elif spoiled == "group":
        rows[5]["cluster"] = "lamps"
    elif spoiled == "kind":
        del rows[0]["kind"]
    else:
        rows.pop()
    (folder / PRODUCTS).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    with pytest.raises(DamagedRun, match=r"products\.jsonl was changed after it was written"):
        Run(folder)
    write(folder)
    assert Run(folder).units == UNITS
    assert (folder / EPISODES).read_bytes() == (whole / EPISODES).read_bytes()


def test_the_same_products_in_other_clusters_are_another_run(tmp_path):
    write(tmp_path / "run", schedule_of([cluster("lamps")]))
    regrouped = [*cluster("lamps").products]
    other = schedule_of(regrouped, regime("in_distribution", protocol="tags"), 1)
    manifest = {**manifest_of(other), "episodes": 3}
    with pytest.raises(NegolabError, match="it plays other products"), RunWriter(tmp_path / "run", manifest, regrouped):
        pass
    told = "settings.regime.n_items: 3 there, 4 now"
    with (
        pytest.raises(NegolabError, match=told),
        writer_of(tmp_path / "run", schedule_of([cluster("lamps")], REGIME.override(n_items=4))),
    ):
        pass


# -- records and resuming ---------------------------------------------------------------------------------------------


def test_the_records_come_back_as_they_were_played(whole):
    schedule = schedule_of()
    episodes = list(Run(whole).episodes(complete=True))
    assert [episode.scenario for episode in episodes] == list(schedule)
    assert [episode.to_line() for episode in episodes] == list(dict(sorted(lines_of(schedule).items())).values())
    assert all(replay(episode) == [] for episode in episodes)
    assert sum(len(episode.outcome.sales) for episode in episodes) >= 5
    assert any(len(turn.offers) > 1 for episode in episodes for turn in episode.turns if turn.seat == SELLER)


@pytest.mark.parametrize("first", [[], [0], [8, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_a_run_in_two_sittings_is_the_run_in_one(first, whole, tmp_path):
    folder = tmp_path / "run"
    if first:
        write(folder, numbers=first)
        with pytest.raises(DamagedRun, match=f"is not finished: {9 - len(first)} of 9 episodes are missing"):
            list(Run(folder).episodes(complete=True))
        assert sorted(e.scenario.episode for e in Run(folder).episodes()) == sorted(first)
    write(folder)
    for name in (EPISODES, MANIFEST, PRODUCTS):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_a_record_cut_anywhere_is_set_aside_and_played_again(whole, tmp_path):
    stored = (whole / EPISODES).read_bytes()
    last = stored.rindex(b"\n", 0, len(stored) - 1) + 1
    for at, cut in enumerate(range(last + 1, len(stored), 97)):
        folder = tmp_path / str(at)
        write(folder, numbers=range(8))
        with (folder / EPISODES).open("ab") as file:
            file.write(stored[last:cut])
        writer = write(folder)
        assert writer.set_aside == ["line 9: the last line is torn: the writer was stopped while writing it"]
        assert (folder / EPISODES).read_bytes() == stored
        assert (folder / DAMAGED).read_bytes() == stored[last:cut] + b"\n"


def resold(data):
    data["outcome"]["sales"][0][2] += 1


def rebought(data):
    data["outcome"]["sales"].append(data["outcome"]["sales"][0])


def unsold(data):
    data["outcome"]["sales"].pop()


def short_sale(data):
    data["outcome"]["sales"][0].pop()


def other_offer(data):
    data["turns"][0][4][0][1] += 1


def torn_offer(data):
    data["turns"][0][4][0].pop()


def other_value(data):
    data["scenario"]["valuations"][0][0] += 1


def other_item(data):
    data["scenario"]["items"].reverse()


def unknown_item(data):
    data["scenario"]["items"][0][0] = "nothing_1"


def better(data):
    data["reward"] += 0.01


@pytest.mark.parametrize(
    "change",
    [resold, rebought, unsold, short_sale, other_offer, torn_offer, other_value, other_item, unknown_item, better],
    ids=lambda change: change.__name__,
)
def test_a_forged_record_with_a_good_checksum_is_set_aside_and_played_again(change, whole, tmp_path):
    folder = tmp_path / "run"
    write(folder)
    lines = (folder / EPISODES).read_bytes().splitlines(keepends=True)
    sold = next(at for at, line in enumerate(lines) if orjson.loads(line)["outcome"]["sales"])
    lines[sold] = reseal(lines[sold], change)
    (folder / EPISODES).write_bytes(b"".join(lines))
    writer = write(folder)
    assert len(writer.set_aside) == 1 and writer.set_aside[0].startswith(f"line {sold + 1}: ")
    assert (folder / EPISODES).read_bytes() == (whole / EPISODES).read_bytes()
    assert (folder / DAMAGED).read_bytes() == lines[sold]


@pytest.mark.parametrize("change", [short_sale, torn_offer, unknown_item], ids=lambda change: change.__name__)
def test_reading_stops_at_a_record_that_is_none(change, whole, tmp_path):
    folder = tmp_path / "run"
    write(folder)
    lines = (folder / EPISODES).read_bytes().splitlines(keepends=True)
    sold = next(at for at, line in enumerate(lines) if orjson.loads(line)["outcome"]["sales"])
    lines[sold] = reseal(lines[sold], change)
    (folder / EPISODES).write_bytes(b"".join(lines))
    with pytest.raises(DamagedRun, match=f"line {sold + 1}: not an episode record"):
        list(Run(folder).episodes())

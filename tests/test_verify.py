"""``verify`` finds what was changed in a run, also where every checksum was made to fit; ``evaluate`` mends it."""

import shutil
from pathlib import Path

import orjson
import pytest

from negolab.cli import main
from negolab.store import EPISODES, MANIFEST, seal
from negolab.verify import verify
from runs import contents, evaluate_args, make_run, reseal

SMALL = ("--products", "4", "--per-product", "3", "--regime", "ood_diverse")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of twelve episodes; not to be changed."""
    return make_run(tmp_path_factory.mktemp("verify") / "reference", *SMALL)


@pytest.fixture
def run(reference: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


@pytest.mark.parametrize(
    "change",
    [
        {"episodes": 9},
        {"settings": None},
        {"settings": []},
        {"settings": {}},
        {"players": {}},
        {"players": None},
        {"players": {"seller": {"name": "prober"}, "buyers": {}}},
        {"settings.seed": 1},
        {"settings.seed": "0"},
        {"settings.seed": -1},
        {"settings.per_product": 4},
        {"settings.per_product": None},
        {"settings.seller": "greedy"},
        {"settings.regime": {}},
        {"settings.regime.n_buyers": 4},
        {"settings.regime.n_buyers": "5"},
        {"settings.regime.budget_tiers": 3},
        {"settings.regime.message_budget": 8},
        {"settings.regime.buyer_types": ["iter-70"]},
        {"settings.regime.buyer_types": ["iter-99"]},
        {"players.seller.name": "greedy"},
        {"players.seller.version": 99},
        {"players.buyers.iter-50.name": "iter-60"},
    ],
    ids=str,
)
def test_an_edited_manifest_with_a_new_seal_does_not_fit_its_episodes(run, change, capsys):
    manifest = orjson.loads((run / MANIFEST).read_bytes())
    for path, value in change.items():
        *parents, name = path.split(".")
        place = manifest
        for parent in parents:
            place = place[parent]
        place[name] = value
    (run / MANIFEST).write_bytes(orjson.dumps(seal(manifest)))
    assert main(["verify", str(run)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("problem: ") and "Traceback" not in err


def edit(path: str, value):
    """A change of one value; the path's parts are keys and positions."""

    def change(data):
        *parents, name = [int(part) if part.lstrip("-").isdigit() else part for part in path.split(".")]
        for parent in parents:
            data = data[parent]
        assert data[name] != value or type(data[name]) is not type(value)
        data[name] = value(data[name]) if callable(value) else value

    return change


def rise_by_a_cent(data) -> None:
    """A legal bid of another price, consistent in text and columns: only the player knows that it was not made."""
    turn = data["turns"][0]
    old, turn[4] = turn[4], turn[4] - 1
    turn[5] = turn[5].replace(f"${old // 100}.{old % 100:02d}", f"${turn[4] // 100}.{turn[4] % 100:02d}")


FORGED = {
    "reward": edit("reward", 0.99),
    "reward sign": edit("reward", lambda old: -old - 0.1),
    "price": edit("turns.5.4", lambda old: old + 1),
    "price as a float": edit("turns.0.4", float),
    "price in the text": edit("turns.5.5", lambda old: old.replace("$", "$9")),
    "thought": edit("turns.5.5", lambda old: old.replace("Thought: ", "Thought: Hm. ")),
    "talk": edit("turns.0.5", lambda old: old.replace("Talk: ", "Talk: Hm. ")),
    "text emptied": edit("turns.5.5", ""),
    "text gone": edit("turns.5.5", None),
    "legal bid": rise_by_a_cent,
    "verb": edit("turns.5.3", "DEAL"),
    "seat": edit("turns.5.1", 1),
    "turn number": edit("turns.5.0", 9),
    "violation": lambda data: data["turns"][5].append({"violation": "format", "detail": "x"}),
    "fallback": lambda data: data["turns"][5].append({"fallback": True}),
    "refused": lambda data: data["turns"][0].append({"refused": [{"kind": "budget", "detail": "", "text": "hello"}]}),
    "note": lambda data: data["turns"][0].append({"tokens": [10**9, 10**9]}),
    "last turn gone": lambda data: data["turns"].pop(),
    "all turns gone": edit("turns", []),
    "turn after the end": lambda data: data["turns"].append(data["turns"][-1]),
    "outcome kind": edit("outcome.kind", "violation"),
    "outcome price": edit("outcome.price", 1),
    "outcome gone": edit("outcome", None),
    "budget": edit("scenario.budgets.0", lambda old: old + 1),
    "cost": edit("scenario.cost_cents", lambda old: old - 1),
    "list price": edit("scenario.list_cents", 1),
    "key": edit("scenario.keys.0", 1),
    "rep": edit("scenario.rep", 2),
    "opening": edit("scenario.openings", [1, 1, 1, 1, 1]),
    "buyer type": edit("scenario.buyer_types.0", "iter-99"),
    "message budget": edit("scenario.message_budget", 10),
    "cap": edit("scenario.per_buyer_cap", "3"),
    "regime": edit("scenario.regime", "in_distribution"),
    "codename": edit("scenario.codename", "audio-gear_7"),
    "unknown codename": edit("scenario.codename", "nothing_1"),
    "seller": edit("players.0", "greedy"),
    "buyer": edit("players.1", "someone"),
    "players gone": edit("players", []),
    "another episode's place": edit("episode", 1),
    "scenario gone": edit("scenario", None),
    "more than an episode": lambda data: data.update(extra=1),
    "turns of another kind": edit("turns", {"a": 1}),
    "reward as text": edit("reward", "much"),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_record_is_found_by_verify_and_replaced_by_evaluate(forgery, reference, run, capsys):
    lines = (run / EPISODES).read_bytes().splitlines(keepends=True)
    lines[0] = reseal(lines[0], FORGED[forgery])
    (run / EPISODES).write_bytes(b"".join(lines))
    assert main(["verify", str(run)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("problem: line 1") and "Traceback" not in err
    assert main(evaluate_args(run, *SMALL)) == 0
    assert contents(run) == contents(reference)


NO_RULE_BROKEN = ("thought", "talk", "legal bid", "note", "price as a float")  # and no number of the results changed


def disguise(folder: Path) -> None:
    """Make a run look as if other code had made it, so that its players cannot be asked again."""
    manifest = orjson.loads((folder / MANIFEST).read_bytes())
    manifest["code_sha256"] = "0" * 64
    (folder / MANIFEST).write_bytes(orjson.dumps(seal(manifest)))


@pytest.mark.parametrize("forgery", [name for name in FORGED if name not in NO_RULE_BROKEN])
def test_a_forged_record_is_found_without_asking_its_players(forgery, run, capsys):
    lines = (run / EPISODES).read_bytes().splitlines(keepends=True)
    lines[0] = reseal(lines[0], FORGED[forgery])
    (run / EPISODES).write_bytes(b"".join(lines))
    disguise(run)
    assert main(["verify", str(run)]) == 1
    assert capsys.readouterr().err.startswith("problem: line 1")


def test_two_records_that_changed_places_are_found(run):
    lines = (run / EPISODES).read_bytes().splitlines(keepends=True)
    first, second = orjson.loads(lines[0]), orjson.loads(lines[1])
    lines[0] = reseal(
        lines[0], lambda data: data.update({k: v for k, v in second.items() if k not in ("episode", "crc")})
    )
    lines[1] = reseal(
        lines[1], lambda data: data.update({k: v for k, v in first.items() if k not in ("episode", "crc")})
    )
    (run / EPISODES).write_bytes(b"".join(lines))
    report = verify(run)
    assert len(report.problems) == 2 and all("not the one that the run's seed draws" in p for p in report.problems)


def test_a_run_of_other_code_is_verified_by_its_records_alone(run):
    disguise(run)
    report = verify(run)
    assert report.ok and report.notes == [
        "the run was made by another version of the code than the one that verifies it"
    ]


def test_moved_lines_are_found(tmp_path):
    folder = make_run(tmp_path / "run")
    path = folder / EPISODES
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    report = verify(folder)
    assert not report.ok and report.verified == report.owed and "not in order" in report.problems[0]

"""``verify`` finds what was changed in a run, also where every checksum was made to fit; ``evaluate`` mends it."""

import re
import shutil
from pathlib import Path

import orjson
import pytest

import negolab.policies.registry
from engines import FakeEngine
from negolab.cli import main
from negolab.environment.base import ABORTS
from negolab.evaluate import Settings, evaluate
from negolab.policies.engine import Completion
from negolab.policies.spec import spec_of
from negolab.store import EPISODES, MANIFEST, seal
from negolab.verify import verify
from runs import contents, evaluate_args, make_run, reseal, run_command

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
        {"settings.seller": "own:player"},
        {"settings.seller": "screener"},
        {"settings.seller": None},
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
    ((item, old),) = turn[4]
    new = old - 1
    turn[4] = [[item, new]]
    turn[5] = turn[5].replace(f"${old // 100}.{old % 100:02d}", f"${new // 100}.{new % 100:02d}")


FORGED = {
    "reward": edit("reward", 0.99),
    "reward sign": edit("reward", lambda old: -old - 0.1),
    "price": edit("turns.5.4.0.1", lambda old: old + 1),
    "price as a float": edit("turns.0.4.0.1", float),
    "item": edit("turns.5.4.0.0", 2),
    "offers gone": edit("turns.5.4", []),
    "another offer": lambda data: data["turns"][5][4].append([2, 1]),
    "offers as a number": edit("turns.5.4", lambda old: old[0][1]),
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
    "outcome sale": edit("outcome.sales", lambda old: [*old, [1, 1, 1, 0]]),
    "outcome sales gone": lambda data: data["outcome"].pop("sales"),
    "outcome seat": edit("outcome.seat", 2),
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
    "codename": edit("scenario.unit", "audio-gear_7"),
    "unknown codename": edit("scenario.unit", "nothing_1"),
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


# -- language models --------------------------------------------------------------------------------------------------

MODEL = spec_of("openai:fake", {"base_url": "http://localhost:1/v1"})
MODEL_RUN = {"regime": "ood_diverse", "products": 2, "per_product": 2}


def speak(prompt):
    """A seller that asks the first active buyer for the list price; a buyer that breaks a rule and then stays low."""
    system, last = prompt.messages[0]["content"], prompt.messages[-1]["content"]
    drawn = {"ids": [prompt.seed % 100, 2], "logprobs": [-0.5, -0.25]}
    if prompt.conversation[1] == 0:
        code = re.search(r"Codename: (\S+),", system)[1]
        price = re.search(r"List price: (\$[0-9.,]+)\.", last)[1]
        buyer = re.search(r"- Buyer (\d+): active", last)[1]
        text = f"Thought: x\nTarget: Buyer {buyer}\nTalk: The price.\nAction: [SELL] {price} (1x {code})"
    elif prompt.seed % 3 == 0:
        text = "nonsense"
    else:
        code = re.search(r"Codename: (\S+)", prompt.messages[1]["content"])[1]
        text = f"Thought: x\nTalk: Hm.\nAction: [BUY] $1.00 (1x {code})"
    return Completion(text, "stop", 100, 2, 90, **drawn)


def model_run(out: Path, say=speak, buyers=(), **settings) -> Path:
    """A finished run whose seller is a language model that speaks with ``say``, and whose ``buyers`` are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(negolab.policies.registry, "make_engine", lambda specs: FakeEngine(say))
        chosen = Settings(MODEL, **{**MODEL_RUN, **settings}, buyers=dict.fromkeys(buyers, MODEL))
        evaluate(chosen, out, progress=False)
    return out


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a language model against scripted buyers and, of one type, itself; not to be changed."""
    return model_run(tmp_path_factory.mktemp("verify") / "modelled", buyers=["iter-60"])


@pytest.fixture
def model(modelled: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    return Path(shutil.copytree(modelled, tmp_path / "run"))


def forge(folder: Path, change, number: int = 0) -> list[str]:
    """What ``verify`` says of the run once one of its records was changed."""
    lines = (folder / EPISODES).read_bytes().splitlines(keepends=True)
    lines[number] = reseal(lines[number], change)
    (folder / EPISODES).write_bytes(b"".join(lines))
    report = verify(folder)
    assert report.ok == (not report.problems)
    return [problem for problem in report.problems if "episode" in problem]


def rows(data, seat=None, has="prompt_sha256", refused=False):
    """Places of the turns of a seat (None: any buyer) whose extra has a key."""
    found = [
        at
        for at, row in enumerate(data["turns"])
        if len(row) > 6 and has in row[6] and (row[1] == seat if seat is not None else row[1] > 0)
    ]
    assert found, "the run was to have such turns"
    return found


def test_a_run_of_language_models_verifies_without_any_of_them(modelled):
    lines = [orjson.loads(line) for line in (modelled / EPISODES).read_bytes().splitlines()]
    assert any(len(row) > 6 and row[6].get("refused") for data in lines for row in data["turns"])
    done = run_command(["verify", str(modelled)])
    assert done.returncode == 0 and "4 of 4 episodes replay to their stored numbers; problems: 0" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("seat", [0, None])
def test_a_forged_prompt_hash_is_found(seat, model):
    where = []

    def change(data):
        where.append(rows(data, seat)[-1])
        data["turns"][where[0]][6]["prompt_sha256"] = "0" * 64

    number = 0 if seat == 0 else with_buyer(model)
    (problem,) = forge(model, change, number)
    assert problem.endswith(f"turn {where[0]}: the stored prompt hash is not that of the prompt this seat had")


def with_buyer(folder: Path, key: str = "prompt_sha256") -> int:
    """A line of the run in which a model buys, its turns marked with a key."""
    for number, line in enumerate((folder / EPISODES).read_bytes().splitlines()):
        if any(len(row) > 6 and row[1] > 0 and key in row[6] for row in orjson.loads(line)["turns"]):
            return number
    raise AssertionError("no model bought anything")


def test_a_forged_prompt_hash_of_a_refused_reply_is_found(model):
    def change(data):
        data["turns"][rows(data, has="refused")[0]][6]["refused"][0]["prompt_sha256"] = "0" * 64

    (problem,) = forge(model, change, with_buyer(model, "refused"))
    assert "the stored prompt hash is not that of the prompt this seat had" in problem


def test_two_prompt_hashes_that_changed_places_are_found(model):
    def change(data):
        first, second = [data["turns"][at][6] for at in rows(data, 0)[:2]]
        first["prompt_sha256"], second["prompt_sha256"] = second["prompt_sha256"], first["prompt_sha256"]

    assert len(forge(model, change)) == 2


def test_what_another_said_changes_the_prompts_after_it(model):
    """The seller's Thought is its own words: no rule and no scripted player could tell, only its later prompts."""

    def change(data):
        turn = data["turns"][rows(data, 0)[0]]
        turn[5] = turn[5].replace("Thought: x", "Thought: y")

    problems = forge(model, change)
    assert problems and all("the stored prompt hash" in problem for problem in problems)


def test_a_prompt_hash_that_was_taken_out_is_missed(model):
    (problem,) = forge(model, lambda data: data["turns"][rows(data, 0)[0]][6].pop("prompt_sha256"))
    assert "a language model's reply without the hash of its prompt" in problem


def test_scripted_seats_beside_a_model_are_asked_again(model):
    def change(data):
        turn = next(row for row in data["turns"] if row[1] and len(row) == 6)
        turn[5] = turn[5].replace("Talk: ", "Talk: Hm. ")

    problems = forge(model, change)
    assert any("the scripted players, asked again, do not say what is stored" in problem for problem in problems)


def test_other_code_may_render_other_prompts(model):
    def change(data):
        for at in rows(data, 0):
            data["turns"][at][6]["prompt_sha256"] = "0" * 64

    changed = []
    disguise(model)
    assert forge(model, lambda data: (change(data), changed.append(len(rows(data, 0))))) == []
    assert verify(model).notes[-1] == f"{changed[0]} prompts are rendered otherwise by this version of the code"


def test_log_probabilities_go_with_tokens(model):
    (problem,) = forge(model, lambda data: data["turns"][rows(data, 0)[0]][6]["logprobs"].append(-1.0))
    assert problem.endswith("3 log-probabilities of 2 tokens")


def test_a_finish_reason_is_one_of_ours(model):
    (problem,) = forge(model, lambda data: data["turns"][rows(data, 0)[0]][6].update(finish="tool_calls"))
    assert "the reply's finish reason is 'tool_calls'; known: stop, length, content_filter, context_limit" in problem


@pytest.mark.parametrize("kind", ABORTS)
@pytest.mark.parametrize("seat", [0, 2, 5])
def test_aborted_episodes_verify_also_in_the_opening(kind, seat, tmp_path):
    def say(prompt):
        return Completion(None, kind) if prompt.conversation == (1, seat) else speak(prompt)

    folder = model_run(tmp_path / "run", say, buyers=["*"])
    kinds = [orjson.loads(line)["outcome"]["kind"] for line in (folder / EPISODES).read_bytes().splitlines()]
    assert kinds.count("aborted") == 1
    report = verify(folder)
    assert report.ok and not report.notes, report


@pytest.mark.parametrize("kind", ABORTS)
def test_a_lost_episode_cannot_be_called_aborted(kind, model):
    """A seller that asks only for list prices ends without a deal: -0.1 or worse, where an abort would give 0."""

    def outcome_only(data):
        data["outcome"], data["reward"] = {**data["outcome"], "kind": "aborted", "reason": kind, "seat": 0}, 0.0

    assert any("outcome: kind replays as" in problem for problem in forge(model, outcome_only))


def test_an_abort_with_its_turn_forged_leaves_what_was_said(model):
    def change(data):
        at = rows(data, 0)[0]
        del data["turns"][at + 1 :]
        row = data["turns"][at]
        row[2:5] = [None, None, []]
        row[6] = {**row[6], "finish": "timeout", "violation": "timeout", "detail": "no reply came in time"}
        data["outcome"] = {"kind": "aborted", "reason": "timeout", "seat": 0, "sales": []}
        data["reward"] = 0.0

    (problem,) = forge(model, change)
    assert problem.endswith("a reply that is stored never came (timeout)")


def test_an_abort_is_not_undone_by_its_outcome(tmp_path):
    folder = model_run(
        tmp_path / "run", lambda p: Completion(None, "timeout") if p.conversation == (0, 0) else speak(p)
    )
    assert verify(folder).ok

    def change(data):
        assert data["outcome"]["kind"] == "aborted"
        data["outcome"] = {**data["outcome"], "kind": "no_deal", "reason": "seller_quit"}

    assert any("outcome: kind replays as 'aborted'" in problem for problem in forge(folder, change))


def test_a_forged_model_record_is_set_aside_when_the_run_is_taken_up(model, modelled, capsys):
    lines = (model / EPISODES).read_bytes().splitlines(keepends=True)
    lines[1] = reseal(lines[1], lambda data: data["turns"][rows(data, 0)[0]][6].update(prompt_sha256="0" * 64))
    (model / EPISODES).write_bytes(b"".join(lines))
    model_run(model, buyers=["iter-60"])
    assert contents(model) == contents(modelled)
    assert "set aside" in verify(model).notes[0] or "found damaged" in verify(model).notes[0]


OWN = """
from negolab.policies.base import Reply
from negolab.policies.scripted_sellers import ProberSeller


class Hashing(ProberSeller):
    name = "hashing"

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        return [reply._replace(prompt_sha256="1" * 64) for reply in super().reply(requests)]
"""


def test_prompts_of_a_user_s_own_player_are_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("hashing_seller.py").write_text(OWN, encoding="utf-8")
    make_run(tmp_path / "run", "--products", "2", seller="hashing_seller:Hashing")
    report = verify(tmp_path / "run")
    assert report.ok and len(report.notes) == 1
    assert report.notes[0].endswith("prompts are of a player's own making: their hashes could not be checked")

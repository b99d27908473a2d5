"""The trade game as stored runs: evaluate, kill and resume, verify, compare; language models and own players in it."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import orjson
import pytest

from engines import FakeEngine
from negolab.catalog import load_catalog
from negolab.cli import main
from negolab.environment import BUYER, SELLER
from negolab.errors import NegolabError
from negolab.evaluate import Settings, evaluate, plan
from negolab.metrics import TRADE_MAIN, TRADE_METRICS, summarise
from negolab.policies import registry
from negolab.policies.cast import make_cast
from negolab.policies.engine import Completion
from negolab.policies.model import LanguageModel
from negolab.policies.registry import is_scripted, make_side
from negolab.policies.scripted_traders import TRADERS
from negolab.policies.spec import spec_of
from negolab.scenario import Schedule, regime
from negolab.store import EPISODES, METRICS_CSV, Run, seal
from negolab.verify import verify
from runs import call, command, contents, default_interrupt, environment, one_line, reseal

SMALL = ("--products", "12")


def args(out, *more, seller="anchor", buyer="taper"):
    return ["evaluate", "--game", "trade", "--seller", seller, "--buyer", buyer, "--out", str(out), *more]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of 24 negotiations with gains from trade."""
    folder = tmp_path_factory.mktemp("trade") / "run"
    assert main(args(folder, *SMALL, "--gains", "gft")) == 0
    return folder


def copied(run, folder):
    """A run folder to spoil."""
    folder.mkdir(exist_ok=True)
    for name, data in contents(run).items():
        (folder / name).write_bytes(data)
    return folder


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_says_who_played_and_verifies(run, tmp_path, capsys):
    code, out, err = call(capsys, *args(tmp_path / "run", *SMALL, "--gains", "gft"))
    assert code == 0 and err == ""
    assert out.startswith("anchor (scripted) sells to taper (scripted) on sample, split test, trade, seed 0\n")
    assert contents(tmp_path / "run") == contents(run)
    code, out, _ = call(capsys, "verify", str(run))
    assert code == 0 and "24 of 24 episodes replay" in out
    assert [line.split(",")[0] for line in (run / METRICS_CSV).read_text().splitlines()[1:]] == list(TRADE_METRICS)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["settings"]["regime"]["gains"] == "gft" and manifest["settings"]["seller"] == "anchor"
    assert manifest["players"]["buyers"]["trader"]["name"] == "taper"


@pytest.mark.parametrize(("gains", "kinds"), [("gft", {True}), ("ngft", {False}), (None, {True, False})])
def test_gains_rounds_and_the_draw_are_knobs(gains, kinds, tmp_path):
    wanted = ["--gains", gains] if gains else []
    more = ("--per-product", "3", "--rounds", "4")
    for draw in ("redraw", "conditional"):
        folder = tmp_path / draw
        assert main(args(folder, *SMALL, *more, *wanted, "--trade-draw", draw, seller="walk-away", buyer="hasty")) == 0
        episodes = list(Run(folder).episodes())
        assert {e.scenario.valuations[0][0] > e.scenario.reserve for e in episodes} == kinds
        assert all(e.scenario.message_budget == 4 and e.turns[-1].turn <= 4 for e in episodes)
        assert verify(folder).ok
    one, other = (
        [e.scenario.valuations for e in Run(tmp_path / name).episodes()] for name in ("redraw", "conditional")
    )
    assert (one != other) == (gains is not None)


def test_workers_and_an_interruption_do_not_change_a_byte(run, tmp_path):
    """Half of the episodes are lost and one line is torn: what is owed is played again, in two processes."""
    folder = tmp_path / "again"
    options = (*SMALL, "--gains", "gft", "--workers", "2")
    assert main(args(folder, *options)) == 0
    assert contents(folder) == contents(run)
    lines = (folder / EPISODES).read_bytes().splitlines(keepends=True)
    (folder / EPISODES).write_bytes(b"".join(lines[:11]) + lines[11][:40])
    (folder / METRICS_CSV).unlink()
    assert main(args(folder, *options)) == 0
    assert contents(folder) == contents(run)


@pytest.mark.skipif(sys.platform == "win32", reason="kills a group of processes")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_in_the_middle_and_resumed_it_is_the_same_to_the_byte(workers, tmp_path):
    long = ("--split", "all", "--per-product", "15", "--gains", "gft")
    assert main(args(tmp_path / "whole", *long)) == 0
    size, folder = (tmp_path / "whole" / EPISODES).stat().st_size, tmp_path / "killed"
    process = subprocess.Popen(
        command(args(folder, *long, "--workers", workers)),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=default_interrupt,
    )
    path, deadline = folder / EPISODES, time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and path.stat().st_size > size // 10:
            break
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert size // 10 < path.stat().st_size < size and not (folder / METRICS_CSV).exists()
    assert not verify(folder).ok
    assert main(args(folder, *long, "--workers", workers)) == 0
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(reward=0.99), "reward replays as"),
        (lambda d: d["scenario"].update(reserve=1), "reserve differ"),
        (lambda d: d["scenario"].update(budgets=[10**6]), "valuations differ"),
        (lambda d: d["scenario"].update(message_budget=9), "message_budget differ"),
        (lambda d: d["scenario"].update(protocol="lines"), "protocol differ"),
        (lambda d: d["turns"][1].__setitem__(4, [[1, 1]]), "offers replays as"),
        (lambda d: d["turns"][1].__setitem__(3, "quit"), "verb replays as"),
        (lambda d: d["players"].__setitem__(1, "hasty"), "players are"),
        (lambda d: d["players"].reverse(), "players are"),
    ],
)
def test_verify_finds_a_changed_record(run, tmp_path, change, says):
    path = copied(run, tmp_path) / EPISODES
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(reseal(lines[0], change) + b"".join(lines[1:]))
    problems = verify(tmp_path).problems
    assert any(says in problem for problem in problems), problems


def test_verify_asks_scripted_traders_again(run, tmp_path):
    """Another Thought replays to the same numbers; only asking again finds it. On a resume it is played anew."""
    path = copied(run, tmp_path) / EPISODES
    lines = path.read_bytes().splitlines(keepends=True)
    lines[0] = reseal(
        lines[0], lambda d: d["turns"][0].__setitem__(5, d["turns"][0][5].replace("Thought: ", "Thought: Eh. "))
    )
    path.write_bytes(b"".join(lines))
    assert any("asked again" in problem for problem in verify(tmp_path).problems)
    assert main(args(tmp_path, *SMALL, "--gains", "gft")) == 0 and contents(tmp_path) == contents(run)


def test_verify_does_not_take_other_players_for_those_of_the_manifest(run, tmp_path):
    folder = copied(run, tmp_path)
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    manifest["players"]["seller"]["parameters"]["final"] = 0.99
    (folder / "manifest.json").write_bytes(orjson.dumps(seal(manifest)))
    assert any("not the scripted players" in problem for problem in verify(folder).problems)


# -- compare ----------------------------------------------------------------------------------------------------------


def test_runs_are_compared_in_pairs(run, tmp_path, capsys):
    call(capsys, *args(tmp_path / "soft", *SMALL, "--gains", "gft", seller="accommodating"))
    code, out, err = call(capsys, "compare", str(tmp_path / "soft"), str(run))
    assert code == 0 and err == "" and out.startswith("anchor selling to taper (")
    assert " minus accommodating selling to taper (" in out and "24 common markets" in out
    assert [line.split()[0] for line in out.splitlines()[2:-2]] == list(TRADE_MAIN)
    difference = float(re.search(r"^reward +(\S+)", out, re.MULTILINE)[1])
    means = [summarise(Run(f).episodes(), TRADE_METRICS)["reward"].mean for f in (tmp_path / "soft", run)]
    assert difference == pytest.approx(means[1] - means[0], abs=1e-4)
    code, out, _ = call(capsys, "compare", str(tmp_path / "soft"), str(run), "--all-metrics")
    assert code == 0 and "seller_concession_rate" in out and "buyer_no_pending_offer" in out
    call(capsys, *args(tmp_path / "other", *SMALL, "--gains", "gft", seller="hasty", buyer="hasty"))
    code, out, err = call(capsys, "compare", str(run), str(tmp_path / "other"))
    assert code == 0 and "differ in both sides" in one_line(err)
    call(capsys, "evaluate", "--seller", "prober", "--products", "2", "--out", str(tmp_path / "market"))
    code, _, err = call(capsys, "compare", str(tmp_path / "market"), str(run))
    assert code == 2 and "different games" in one_line(err)


# -- mistakes ---------------------------------------------------------------------------------------------------------

PAIR = ["--seller", "anchor", "--buyer", "taper"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--seller", "anchor"], "--game trade needs --buyer, since both sides are evaluated"),
        (["--buyer", "anchor"], "one of --seller and --panel is required"),
        (
            ["--seller", "prober", "--buyer", "taper"],
            "unknown seller 'prober' of the trade game; allowed: anchor, taper",
        ),
        (["--seller", "anchor", "--buyer", "patient"], "unknown buyer 'patient' of the trade game; allowed: anchor"),
        (["--seller", "anchor", "--buyer", "no_such:Thing"], "buyer no_such:Thing cannot be made"),
        ([*PAIR, "--buyer-option", "top_k=1"], "goes with a language model"),
        ([*PAIR, "--personas", "begging"], "--personas goes with --game bilateral"),
        ([*PAIR, "--reject"], "--reject goes with --game bilateral"),
        ([*PAIR, "--turns", "4"], "--turns goes with --game bilateral"),
        ([*PAIR, "--budgets", "0.5"], "--budgets: in the trade game both limits follow"),
        ([*PAIR, "--cap", "3"], "--cap is an option of the market; the trade game has --buyer, --gains"),
        ([*PAIR, "--messages", "3"], "--messages is an option of the market"),
        ([*PAIR, "--buyers", "3"], "--buyers is an option of the market"),
        ([*PAIR, "--first-offer", "free"], "--first-offer is an option of the market"),
        ([*PAIR, "--buyer-types", "a"], "--buyer-types is an option of the market"),
        ([*PAIR, "--regime", "ood_diverse"], "--regime is an option of the market"),
        ([*PAIR, "--buyer-model", "vllm:a"], "--buyer-model is an option of the market"),
        ([*PAIR, "--protocol", "tags"], "--protocol is an option of the market"),
        ([*PAIR, "--items", "2"], "--items is an option of the market"),
        ([*PAIR, "--item-correlation", "0.5"], "--item-correlation is an option of the market"),
        (["--panel", "example"], "a panel compares sellers"),
    ],
)
def test_mistakes_are_told_in_one_line_before_a_folder_appears(given, says, tmp_path, capsys):
    code, out, err = call(capsys, "evaluate", "--game", "trade", *given, "--out", str(tmp_path / "run"))
    assert code == 2 and out == "" and says in one_line(err) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("game", ["market", "bilateral"])
@pytest.mark.parametrize("option", [["--gains", "gft"], ["--trade-draw", "redraw"], ["--rounds", "3"]])
def test_no_other_game_knows_the_trade_games_options(game, option, tmp_path, capsys):
    players = {"market": ["--seller", "prober"], "bilateral": ["--seller", "persona", "--buyer", "patient"]}[game]
    code, _, err = call(capsys, "evaluate", "--game", game, *players, *option, "--out", str(tmp_path / "run"))
    assert code == 2 and f"{option[0]} goes with --game trade" in one_line(err) and not (tmp_path / "run").exists()


def test_the_market_has_no_named_buyer_and_the_game_is_not_a_regime(tmp_path, capsys):
    out = ("--out", str(tmp_path / "run"))
    code, _, err = call(capsys, "evaluate", "--seller", "prober", "--buyer", "taper", *out)
    assert code == 2 and "--buyer goes with --game bilateral or --game trade" in one_line(err)
    code, _, err = call(capsys, "evaluate", "--regime", "trade", "--seller", "anchor", *out)
    assert code == 2 and "--game trade --buyer NAME" in one_line(err)
    code, _, err = call(capsys, *args(tmp_path / "run", "--gains", "much"))
    assert code == 2 and "invalid choice: 'much'" in err


def test_players_by_name():
    for side in ("seller", "buyer"):
        for name in TRADERS:
            assert make_side("trade", side, name).name == name and is_scripted(side, name, "trade", "tools")
        for name in ("persona", "patient", "prober", "iter-60", "a:b", MODEL):
            assert not is_scripted(side, name, "trade", "tools")
    for game in ("market", "bilateral"):
        assert not any(is_scripted(side, name, game) for side in ("seller", "buyer") for name in TRADERS)
    schedule = Schedule(regime("trade"), load_catalog("sample").products, seed=0)
    with pytest.raises(NegolabError, match="no buyer of type 'learner' in this game; allowed: trader"):
        make_cast("anchor", {"learner": "taper"}, schedule)


# -- language models and own players ----------------------------------------------------------------------------------

MODEL = spec_of("openai:fake", {"name": "fake", "base_url": "http://localhost:1/v1"})


def speak(prompt):
    """Asks three times its limit, then less, bids a third, then more, answers now and then, and is often wrong."""
    system = prompt.messages[0]["content"]
    limit = float(re.search(r"Your bottom line is \$([0-9.,]+)", system)[1].replace(",", ""))
    n = sum(m["role"] == "assistant" for m in prompt.messages)
    price = limit * (3 - 0.5 * n if "You negotiate for the seller" in system else 0.33 + 0.15 * n)
    code = {0: "search_price()", 1: f"make_offer(price={price:.2f})", 2: "respond_to_offer(response=True)"}
    words = code.get(prompt.seed % 4, f"send_message('t{n}')\nmake_offer({price:.2f})\nhaggle()")
    return Completion(f"Thought: t{n}\nCode:\n```python\n{words}\n```", "stop", 5, 5)


@pytest.fixture
def fake_models(monkeypatch):
    engines = []

    def make(specs):
        engines.append(FakeEngine(speak))
        return engines[-1]

    monkeypatch.setattr(registry, "make_engine", make)
    return engines


@pytest.mark.parametrize("sides", ["buyer", "seller", "both"])
def test_models_in_either_seat_are_stored_with_prompt_hashes_and_verify(sides, fake_models, tmp_path):
    buyer = MODEL if sides != "seller" else "taper"
    seller = MODEL if sides != "buyer" else "anchor"
    settings = Settings(seller=seller, buyers={"*": buyer}, regime="trade", products=8)
    found = evaluate(settings, tmp_path / "run", progress=False)
    report = verify(tmp_path / "run")
    assert report.ok and not report.notes, report.problems
    assert len(fake_models) >= 1 and all(engine.closed for engine in fake_models if engine.asked)
    for episode in Run(tmp_path / "run").episodes():
        for position, turn in enumerate(episode.turns):
            model = sides == "both" or (turn.seat == BUYER) == (sides == "buyer")
            note = episode.notes.get(position, {})
            assert ("prompt_sha256" in note) == model and "refused" not in note and not turn.fallback
    for side in ("seller", "buyer"):
        wrong = found[f"{side}_unknown_tool"].mean + found[f"{side}_no_pending_offer"].mean
        assert (wrong > 0) == (sides in (side, "both")), side
    kinds = {
        "buyer": "anchor (scripted) sells to fake (language model)",
        "seller": "fake (language model) sells to taper (scripted)",
        "both": "fake (language model) sells to fake (language model)",
    }
    assert plan(settings).who == kinds[sides] and not plan(settings).scripted


def test_the_scripted_side_of_a_models_run_is_asked_again(fake_models, tmp_path):
    settings = Settings(seller="anchor", buyers={"*": MODEL}, regime="trade", products=2)
    evaluate(settings, tmp_path / "run", progress=False)
    path = tmp_path / "run" / EPISODES
    lines = path.read_bytes().splitlines(keepends=True)

    def forge(seat):
        def change(data):
            turn = next(turn for turn in data["turns"] if turn[1] == seat)
            turn[5] = turn[5].replace("Thought: ", "Thought: Eh. ")

        return reseal(lines[0], change) + b"".join(lines[1:])

    path.write_bytes(forge(SELLER))
    assert any("asked again" in problem for problem in verify(tmp_path / "run").problems)
    path.write_bytes(forge(BUYER))  # its later prompts held its words, and so do their hashes
    problems = verify(tmp_path / "run").problems
    assert problems and all("prompt hash" in problem for problem in problems)


def test_a_forged_prompt_hash_is_found(fake_models, tmp_path):
    evaluate(Settings(seller=MODEL, buyers={"*": "taper"}, regime="trade", products=2), tmp_path / "r", progress=False)
    path = tmp_path / "r" / EPISODES
    lines = path.read_bytes().splitlines(keepends=True)

    def forge(data):
        extra = next(turn[6] for turn in data["turns"] if len(turn) > 6 and "prompt_sha256" in turn[6])
        extra["prompt_sha256"] = "0" * 64

    path.write_bytes(reseal(lines[0], forge) + b"".join(lines[1:]))
    assert any("prompt hash" in problem for problem in verify(tmp_path / "r").problems)


def test_a_model_named_like_a_scripted_trader_is_not_taken_for_it(fake_models, tmp_path):
    named = spec_of("openai:fake", {"name": "taper", "base_url": "http://localhost:1/v1"})
    settings = Settings(seller="anchor", buyers={"*": named}, regime="trade", products=2)
    evaluate(settings, tmp_path / "r", progress=False)
    assert verify(tmp_path / "r").ok


def test_models_are_checked_against_both_sides_first_prompts(fake_models):
    products = load_catalog("sample").products
    schedule = Schedule(regime("trade"), products, seed=0)
    cast = make_cast(MODEL, {"*": MODEL}, schedule)
    asked = []
    cast.models[0].engine.check = lambda conversations, most: asked.extend(conversations) or ["told"]
    assert cast.check(schedule) == ["fake: told"] and len(asked) == 8
    assert isinstance(cast.seller, LanguageModel) and cast.seller.engine is cast.buyers["trader"].engine
    roles = [re.search("You negotiate for the (seller|buyer)", messages[0]["content"])[1] for messages in asked]
    assert roles == ["seller", "buyer"] * 4
    longest = sorted(products, key=lambda p: -len(p.listing.title) - len(p.listing.description))[:4]
    for product in longest:
        assert sum(product.listing.title in messages[1]["content"] for messages in asked) == 2
    assert make_cast("anchor", {"*": "taper"}, schedule).check(schedule) == []


OWN = """
from negolab.environment import Call
from negolab.parser import render_tools
from negolab.policies.base import Reply


class Half:
    name = "half"

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        made = []
        for request in requests:
            view = request.view
            call = Call("make_offer", price=view.limit // 2 + len(view.own))
            if view.pending is not None and view.pending <= view.limit:
                call = Call("respond_to_offer", answer=True)
            made.append(Reply(render_tools((call,))))
        return made
"""


def test_a_buyer_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")

    def own(*given):
        return subprocess.run(
            command(given), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
        )

    done = own(*args("run", "--products", "4", "--workers", "2", buyer="mine:Half"))
    assert done.returncode == 0, done.stderr
    assert "anchor (scripted) sells to half (your own)" in done.stdout
    assert own("verify", "run").returncode == 0
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["players"]["buyers"] == {"trader": {"name": "half"}}
    (tmp_path / "mine.py").write_text(OWN.replace('"half"', '"irrational"'), encoding="utf-8")
    done = own(*args("other", buyer="mine:Half"))
    assert done.returncode == 2 and "scripted player's name" in one_line(done.stderr)


# -- speed ------------------------------------------------------------------------------------------------------------


def test_fifteen_thousand_negotiations_would_take_a_minute_or_two(tmp_path):
    """The issue's tournament in small, whole way to the disk: 480 negotiations of the pair that talks longest."""
    began = time.process_time()
    settings = Settings(
        seller="anchor", buyers={"*": "anchor"}, regime="trade", split="all", per_product=4, knobs={"gains": "gft"}
    )
    evaluate(settings, tmp_path / "run", progress=False)
    # A few times what it takes on a slow core, a tenth of what would be too slow for two of them.
    assert (time.process_time() - began) * 15_000 / 480 < 240

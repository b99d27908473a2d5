"""Models behind an OpenAI-compatible server, asked by one thread with an event loop of its own.

``submit`` only hands prompts over. At most ``concurrency`` requests are under way; each episode goes on as soon as its
own reply is there. The caller's thread never runs a loop, so a notebook's own loop is no obstacle.

How a request can end, all tries counted:

* a reply; or the server's word that the conversation no longer fits (tried again with a shorter limit where the server
  says how much fits): ``context_limit``;
* every try ran out of time: ``timeout``, which ends the episode. It is believed only once the server has answered
  something afterwards, a reply or a probe of one token; else a server that died would end every open episode;
* every try failed, not all by time: ``Failed``, the episode stays owed;
* what no second try can mend (key, model, a field that the server refuses): an error that stops the run.

``max_failures`` requests in a row without a reply stop the run too. What is under way then, and time-outs that nothing
has confirmed, stay owed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from negolab.errors import NegolabError
from negolab.policies import chat_completions as wire
from negolab.policies.base import Failed
from negolab.policies.engine import Completion, Done, Prompt, Sampling
from negolab.policies.openai_server import TIMEOUT, Again, Refused, Server, TooLong, some
from negolab.policies.retry import Backoff, Circuit
from negolab.policies.spec import OpenAISpec
from negolab.prompts.multi_buyer import Message

_CLOSE = 2.0  # seconds that closing may take
_SHRINKS = 12  # times that a reply's limit is lowered for one prompt: 1024 halves to 1 in ten
_COUNTS = (
    "requests",
    "tries",
    "answered",
    "failed",
    "timed_out",
    "probes",
    "most_under_way",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "shortened",
    "thinking_cut",
    "reasoning_given",
    "without_text",
    "waits_cut",
)
_log = logging.getLogger("negolab")

Outcome = Completion | Failed | BaseException


def make_engine(specs: Sequence[OpenAISpec], backoff: Backoff | None = None) -> OpenAIEngine:
    """The engine for models that differ in what each request brings along only; connects to nothing yet.

    Raises ``NegolabError`` where the ``openai`` package, the key or a usable address is missing.
    """
    if importlib.util.find_spec("openai") is None:
        raise NegolabError(f"openai:{specs[0].model} needs the openai package: pip install 'negolab[serve]'")
    return OpenAIEngine(specs[0], backoff or Backoff())


class OpenAIEngine:
    """See ``policies.engine.TextEngine``."""

    def __init__(self, spec: OpenAISpec, backoff: Backoff) -> None:
        """``backoff``: how long to wait between tries. Raises ``NegolabError`` for options that cannot be used."""
        self._spec = spec
        self._backoff = backoff
        self._server = Server(spec)
        # Somewhat more than are under way, so that one waits whenever another ends.
        self.window = spec.concurrency + spec.concurrency // 4 + 1
        self._chance = random.Random()  # of waits only: decides no reply
        self._counts: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._others: Counter[str] = Counter()  # other models than the one asked for, by the server's names
        self._seconds = {"answering": 0.0, "waiting_for_limits": 0.0}
        self._lock = threading.Lock()  # of starting and closing
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- what players and runs see --------------------------------------------------------------------------------

    def submit(self, prompts: Sequence[Prompt], done: Done) -> None:
        """Ask for replies; returns at once. ``done`` is called in the engine's thread."""
        self._started().call_soon_threadsafe(self._accept, list(prompts), done)

    def run(self) -> None:
        """Nothing: the work is done in the engine's own thread."""

    def forget(self, conversation: tuple[int, int]) -> None:
        """Nothing is kept by conversation here; the server keeps what it likes."""

    def describe(self) -> dict[str, Any]:
        """The model, and whose server it is on: a public one by its host's name, all others alike."""
        return {"model": self._spec.model, "server": "local" if self._server.private else self._server.host}

    def check(self, conversations: Sequence[Sequence[Message]], max_tokens: int) -> list[str]:
        """One look at the server's list of models; where it does not name this one, one token asked of it.

        Raises ``NegolabError`` where the server cannot be reached, refuses the key or does not have the model.
        """
        longest = max(map(wire.characters, conversations), default=0)
        try:
            return asyncio.run_coroutine_threadsafe(self._look(longest, max_tokens), self._started()).result()
        except BaseException:
            self.close()
            raise

    def report(self) -> dict[str, Any]:
        """Counters since the engine was made. ``answered``: tries that came back with status 200, to be paid whether
        they could be used or not; ``seconds``: summed over requests; tokens: as the server counts them."""
        return {
            **{name: self._counts[name] for name in _COUNTS},
            "retries": dict(sorted(self._retries.items())),
            "other_models": dict(self._others),
            "seconds": {name: round(value, 3) for name, value in self._seconds.items()},
        }

    def close(self) -> None:
        """Drop what is under way and end the thread. A closed engine that is asked again starts anew."""
        with self._lock:
            thread, loop = self._thread, self._loop
            self._thread = self._loop = None
            if thread is None or loop is None:
                return
            self._closing = True
        with suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(self._stop.set)
        if thread is not threading.current_thread():
            thread.join(_CLOSE)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                ready = threading.Event()
                # asyncio.run is this thread's own affair: the caller's thread may have a loop of its own.
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._live(ready)), name=self._server.who, daemon=True
                )
                self._thread.start()
                ready.wait()
            assert self._loop is not None
            return self._loop

    async def _live(self, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        self._slots = asyncio.Semaphore(self._spec.concurrency)
        self._circuit = Circuit(self._spec.max_failures)
        self._broken: BaseException | None = None  # why nothing is asked any more
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = 0  # prompts accepted and not yet judged
        self._under_way = 0
        self._held: list[tuple[Prompt, Done, Completion]] = []  # time-outs that nothing has confirmed
        self._quiet_until = 0.0  # on the loop's clock: the server asked for it
        self._loop = asyncio.get_running_loop()
        try:
            self._server.open()
        except Exception as error:  # a package that does not fit
            self._broken = NegolabError(f"{self._server.who}: {wire.one_line(f'{type(error).__name__}: {error}')}")
        ready.set()
        try:
            await self._stop.wait()
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self._tasks.discard)

    # -- one prompt -----------------------------------------------------------------------------------------------

    def _accept(self, prompts: Sequence[Prompt], done: Done) -> None:
        self._open += len(prompts)
        for prompt in prompts:
            self._spawn(self._serve(prompt, done))

    async def _serve(self, prompt: Prompt, done: Done) -> None:
        outcome: Outcome
        try:
            async with self._slots:
                outcome = self._broken if self._broken is not None else await self._answer(prompt)
        except asyncio.CancelledError:
            if self._broken is None:
                raise
            outcome = self._broken
        except Exception as error:  # not a NegolabError: a bug, of ours or of the package, that must be seen
            outcome = error
        self._open -= 1
        self._judge(prompt, done, outcome)

    async def _answer(self, prompt: Prompt) -> Completion | Failed:
        """One request with all its tries. Raises ``NegolabError`` for what no further try can mend."""
        self._counts["requests"] += 1
        self._under_way += 1
        self._counts["most_under_way"] = max(self._counts["most_under_way"], self._under_way)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            found, tries = await self._tried(prompt)
        finally:
            self._under_way -= 1
            self._seconds["answering"] += loop.time() - began
        if isinstance(found, Failed):
            return found
        return found._replace(seconds=round(loop.time() - began, 3), tries=tries)

    async def _tried(self, prompt: Prompt) -> tuple[Completion | Failed, int]:
        body = wire.request_of(prompt, self._spec.model, self._spec.seeded, self._server.extra)
        tries = shrinks = 0
        failed: list[str] = []
        while True:
            tries += 1
            try:
                found = await self._try(body, prompt.sampling)
            except TooLong as refused:
                limit = wire.limit_of(body)
                fits = None if limit is None or shrinks == _SHRINKS else wire.shorter(refused.error, limit[1])
                if limit is None or fits is None:
                    return Completion(None, "context_limit"), tries
                body[limit[0]] = fits
                shrinks += 1
                self._counts["shortened"] += shrinks == 1
            except Again as problem:
                failed.append(problem.reason)
                if len(failed) > self._spec.retries:
                    if set(failed) == {TIMEOUT}:
                        return Completion(None, "timeout"), tries
                    return Failed(f"{problem.reason} (try {len(failed)} of {self._spec.retries + 1})"), tries
                self._retries[problem.reason] += 1
                await self._wait(len(failed), problem)
            else:
                if shrinks and found.finish_reason == "length":  # it was the context that cut it, not our limit
                    found = found._replace(finish_reason="context_limit")
                return found, tries

    async def _try(self, body: Mapping[str, Any], sampling: Sampling) -> Completion:
        loop = asyncio.get_running_loop()
        while (left := self._quiet_until - loop.time()) > 0:
            await asyncio.sleep(left)
        self._counts["tries"] += 1
        content = await self._server.send(body, self._spec.timeout)
        self._counts["answered"] += 1
        try:
            answer = wire.read_reply(content, sampling.thinking)
        except wire.Unreadable as problem:
            raise Again(self._server.redacted(str(problem))) from None
        found = answer.completion
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            self._counts[name] += getattr(found, name) or 0
        self._counts["thinking_cut"] += answer.cut
        self._counts["reasoning_given"] += found.reasoning is not None and not answer.cut
        self._counts["without_text"] += not found.text
        if not wire.same_model(self._spec.model, answer.model):
            self._note_other(self._server.redacted(wire.one_line(answer.model, 100)))
        return found._replace(
            text=None if found.text is None else self._server.redacted(found.text),
            reasoning=None if found.reasoning is None else self._server.redacted(found.reasoning),
        )

    async def _wait(self, failed: int, problem: Again) -> None:
        """Before the next try. A wait that the server asks for is kept by all requests."""
        loop, chance = asyncio.get_running_loop(), self._chance.random()
        began = loop.time()
        if problem.after is None:
            await asyncio.sleep(self._backoff.seconds(failed, problem.limited, chance))
        else:
            told = min(problem.after, self._backoff.told)
            self._counts["waits_cut"] += told < problem.after
            self._quiet_until = max(self._quiet_until, began + told)
            # Not all at once when the time is over.
            await asyncio.sleep(told + chance * self._backoff.seconds(failed, False, 1.0))
        if problem.limited:
            self._seconds["waiting_for_limits"] += loop.time() - began

    def _note_other(self, model: str) -> None:
        if not self._others:
            _log.warning("%s: the server says that the replies are from %s", self._server.who, model)
        self._others[model] += 1

    # -- what has come of it --------------------------------------------------------------------------------------

    def _judge(self, prompt: Prompt, done: Done, outcome: Outcome) -> None:
        """Deliver an outcome, or hold it back until the server has shown that it lives."""
        if isinstance(outcome, BaseException):
            self._deliver(prompt, done, outcome)
            self._break(outcome)
            return
        if isinstance(outcome, Failed):
            self._counts["failed"] += 1
            stop = self._lost(outcome.reason)
            self._deliver(prompt, done, stop or outcome)
        elif outcome.finish_reason == "timeout" and outcome.text is None:
            self._counts["timed_out"] += 1
            stop = self._lost(TIMEOUT)
            if stop is None:
                self._held.append((prompt, done, outcome))
            else:
                self._deliver(prompt, done, stop)
        else:
            stop = None
            self._circuit.good()
            self._release()
            self._deliver(prompt, done, outcome)
        if stop is not None:
            self._break(stop)
        elif self._held and self._open == 0:  # nobody is left who could show it
            self._open = 1
            self._spawn(self._probe())

    async def _probe(self) -> None:
        """Ask the server for one token until it answers, or has failed so often that the run must stop."""
        body, failed = self._small_request(), 0
        while self._held and self._broken is None:
            self._counts["probes"] += 1
            try:
                await self._server.send(body, self._spec.timeout)
            except Again as problem:
                failed += 1
                stop = self._lost(problem.reason)
                if stop is None:
                    await self._wait(failed, problem)
                else:
                    prompt, done, _ = self._held.pop()
                    self._deliver(prompt, done, stop)
                    self._break(stop)
            except Refused as refused:
                if refused.status in (401, 403, 404, 429):
                    prompt, done, _ = self._held.pop()
                    self._deliver(prompt, done, refused)
                    self._break(refused)
                else:  # it does not like so small a request, but it lives
                    self._release()
            except TooLong:
                self._release()
            else:
                self._release()
        self._open -= 1

    def _small_request(self) -> dict[str, Any]:
        spec = self._spec
        sampling = Sampling(spec.temperature, spec.top_p, spec.top_k, 1, spec.thinking)
        prompt = Prompt((0, 0), [{"role": "user", "content": "Say OK."}], 0, sampling, "")
        body = wire.request_of(prompt, spec.model, spec.seeded, self._server.extra)
        limit = wire.limit_of(body)
        return body if limit is None else {**body, limit[0]: 1}

    def _lost(self, reason: str) -> NegolabError | None:
        """A request ended without a reply: the error that stops the run, when it is time to."""
        if not self._circuit.bad():
            return None
        n = self._circuit.row
        row = "a request" if n == 1 else f"{n} requests in a row"
        return NegolabError(
            f"{self._server.who}: {row} had no reply (the last: {reason}); what was answered is kept, run the same "
            "command again to go on"
        )

    def _break(self, error: BaseException) -> None:
        """Stop: nothing is asked any more, and everybody who waits is told."""
        if self._broken is not None:
            return
        self._broken = error
        held, self._held = self._held, []
        for prompt, done, _ in held:
            self._deliver(prompt, done, Failed(f"{TIMEOUT}, and the server has not answered since"))
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def _release(self) -> None:
        """The server lives: who ran out of time really did."""
        held, self._held = self._held, []
        for prompt, done, completion in held:
            self._deliver(prompt, done, completion)

    def _deliver(self, prompt: Prompt, done: Done, outcome: Outcome) -> None:
        if self._closing:
            return
        try:
            done(prompt, outcome)
        except Exception as error:  # it was not taken, and nobody must wait for it for ever
            with suppress(Exception):
                done(prompt, error)

    # -- before a run ---------------------------------------------------------------------------------------------

    async def _look(self, longest: int, max_tokens: int) -> list[str]:
        """``longest``: characters of the longest conversation that a run begins with."""
        if self._broken is not None:
            raise self._broken
        names, content = await self._server.check()
        told = self._server.warnings()
        model = self._spec.model
        if names and model not in names:
            told.append(f"the server does not list this model; it offers: {some(names)}")
            try:
                await self._server.send(self._small_request(), self._spec.timeout)
            except (Again, TooLong):
                pass
            except Refused as refused:
                if refused.status in (401, 403, 404):
                    raise
        tokens = longest // 4  # English, roughly
        for context in wire.context_lengths(content, model):
            if tokens + max_tokens > context:
                told.append(
                    f"the server's context is {context} tokens; the longest conversation begins with about {tokens}, "
                    f"and a reply may take {max_tokens}: episodes may end as context_limit"
                )
        return told

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
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from negolab.errors import NegolabError
from negolab.policies import chat_completions as wire
from negolab.policies.base import Failed
from negolab.policies.engine import Completion, Done, Prompt
from negolab.policies.openai_requests import Requests
from negolab.policies.openai_server import TIMEOUT, Again, Refused, Server, TooLong
from negolab.policies.retry import Backoff, Circuit
from negolab.policies.spec import OpenAISpec
from negolab.prompts.multi_buyer import Message

_CLOSE = 2.0  # seconds that closing may take

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
        self._server = Server(spec)
        self._requests = Requests(spec, self._server, backoff)
        # Somewhat more than are under way, so that one waits whenever another ends.
        self.window = spec.concurrency + spec.concurrency // 4 + 1
        self._lock = threading.Lock()  # of starting and closing
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- what players and runs see --------------------------------------------------------------------------------

    def submit(self, prompts: Sequence[Prompt], done: Done) -> None:
        """Ask for replies; returns at once. ``done`` is called in the engine's thread."""
        self._started().call_soon_threadsafe(self._accept, list(prompts), done)

    def run(self) -> None:
        """Nothing: the work is done in the engine's own thread."""

    def recall(self, prompt: Prompt, text: str | None, ids: Sequence[int] | None) -> None:
        """See ``TextEngine``: the server keeps no conversation."""

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
        """Counters since the engine was made; see ``Requests.report``."""
        return self._requests.report()

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
        self._held: list[tuple[Prompt, Done, Completion]] = []  # time-outs that nothing has confirmed
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

    async def _look(self, longest: int, max_tokens: int) -> list[str]:
        if self._broken is not None:
            raise self._broken
        return await self._requests.look(longest, max_tokens)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
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
                outcome = self._broken if self._broken is not None else await self._requests.answer(prompt)
        except asyncio.CancelledError:
            if self._broken is None:
                raise
            outcome = self._broken
        except Exception as error:  # not a NegolabError: a bug, of ours or of the package, that must be seen
            outcome = error
        self._open -= 1
        self._judge(prompt, done, outcome)

    # -- what has come of it --------------------------------------------------------------------------------------

    def _judge(self, prompt: Prompt, done: Done, outcome: Outcome) -> None:
        """Deliver an outcome, or hold it back until the server has shown that it lives."""
        if isinstance(outcome, BaseException):
            self._deliver(prompt, done, outcome)
            self._break(outcome)
            return
        if isinstance(outcome, Failed):
            self._requests.counts["failed"] += 1
            stop = self._lost(outcome.reason)
            self._deliver(prompt, done, stop or outcome)
        elif outcome.finish_reason == "timeout" and outcome.text is None:
            self._requests.counts["timed_out"] += 1
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
        body, failed = self._requests.small(), 0
        while self._held and self._broken is None:
            self._requests.counts["probes"] += 1
            try:
                await self._server.send(body, self._spec.timeout)
            except Again as problem:
                failed += 1
                stop = self._lost(problem.reason)
                if stop is None:
                    await self._requests.wait(failed, problem)
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

"""Starting and joining Ray, quietly.

A cluster of this machine is started without dashboard and usage statistics, and ends with the process that started it,
however that ends.
"""

import importlib
import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError

LOCAL, AUTO = "local", "auto"
"""A cluster of this machine's own, started for the run; the cluster that this machine already belongs to."""

_OBJECT_STORE = 100 * 2**20  # results are some kilobytes; Ray's own default is a third of the memory
_QUICK = Path(__file__).parent  # for the module beside this one, which says why


def check_address(address: str) -> None:
    """Raises ``NegolabError`` where Ray is not installed, the address is none, or nobody answers there."""
    if importlib.util.find_spec("ray") is None:
        raise NegolabError("--ray needs Ray; install it with: pip install 'negolab[ray]'")
    if address in (LOCAL, AUTO):
        return
    found = re.fullmatch(r"([^\s:/]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})", address)
    if found is None or not 0 < int(found[2]) < 65536:
        hint = "; start negolab on a machine of the cluster instead" if address.startswith("ray://") else ""
        raise NegolabError(
            f"--ray is {address!r}; allowed: nothing for a cluster of this machine, auto, or HOST:PORT of a cluster's "
            f"head{hint}"
        )
    try:  # Ray itself would try for a minute, with many words
        socket.create_connection((found[1].strip("[]"), int(found[2])), timeout=5).close()
    except OSError as error:
        raise NegolabError(f"no Ray cluster answers at {address}: {error.strerror or error}") from error


@contextmanager
def connected(address: str, workers: int | None) -> Iterator[Any]:
    """Ray's module, connected: to a new cluster of this machine with room for ``workers``, or to the one at
    ``address``. Left alone or ended afterwards; where there is a connection already, it is used and kept.

    Raises ``NegolabError`` for what cannot be started or reached.
    """
    check_address(address)
    # Read by Ray when it is imported, or by what it starts: no statistics sent home; no lines of its own on the
    # terminal about workers that were lost (ours say it); no warning about actors that were asked no GPU for.
    for name, value in (
        ("RAY_USAGE_STATS_ENABLED", "0"),
        ("RAY_DEDUP_LOGS_SKIP_REGEX", "."),
        ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
    ):
        os.environ.setdefault(name, value)
    ray = importlib.import_module("ray")
    mine, guard = not ray.is_initialized(), None
    try:
        if mine:
            guard = _connect(ray, address, workers)
        yield ray
    finally:
        if mine:
            ray.shutdown()
        if guard is not None:
            guard.communicate()


def _connect(ray: Any, address: str, workers: int | None) -> subprocess.Popen[bytes] | None:
    """Connect; for a cluster of this machine returns what guards it."""
    options: dict[str, Any] = {"address": address}
    if address == LOCAL:
        here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        options |= {"num_cpus": max(here, workers or 1)}
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    before, python_path = _children(), os.environ.get("PYTHONPATH")
    try:
        if address == LOCAL:
            os.environ["PYTHONPATH"] = os.pathsep.join([str(_QUICK), python_path] if python_path else [str(_QUICK)])
        try:
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except Exception:
            if address != LOCAL:
                raise
            # On a busy machine its parts give each other up within seconds; a second try finds their files in memory.
            ray.shutdown()
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises bare ones, too
        ray.shutdown()
        what = "cannot be started" if address == LOCAL else f"at {address} cannot be used"
        raise NegolabError(f"a Ray cluster {what} ({short(str(error))})") from error
    finally:
        if python_path is not None:
            os.environ["PYTHONPATH"] = python_path
        elif address == LOCAL:
            os.environ.pop("PYTHONPATH", None)
        if handler is not None:  # Ray puts its own in its place, which leaves without a word
            signal.signal(signal.SIGTERM, handler)
    return _guard(_children() - before) if address == LOCAL else None


def _children() -> set[int]:
    import psutil

    return {child.pid for child in psutil.Process().children(recursive=True)}


_GUARD = """
import sys, psutil
family = []
for pid in sys.argv[1:]:
    try: family.append(psutil.Process(int(pid)))
    except psutil.Error: pass
sys.stdin.read()
for process in family:
    try: process.kill()
    except psutil.Error: pass
"""


def _guard(family: Iterable[int]) -> subprocess.Popen[bytes]:
    """A process that sees its input close when this one is gone, however it went, and then ends ``family``.

    Ray's own processes follow a driver that was killed, but two of them take a minute to notice.
    """
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-c", _GUARD, *map(str, family)],
        stdin=subprocess.PIPE,
        stdout=nowhere,
        stderr=nowhere,
        start_new_session=True,
    )


def short(text: str, longest: int = 200) -> str:
    """What Ray says of a loss, in one line: it says the cause after many numbers."""
    line = " ".join(text.split())
    cause = re.search(r"(?:is dead because|died because|because) (.*)", line)
    line = (cause[1] if cause else line).split(" Worker exit detail")[0]
    return line if len(line) <= longest else line[: longest - 4] + " ..."

"""Run notebooks through papermill, and tell truthfully whether they ran.

Papermill calls every cell completed when a kernel dies. So a notebook has run only when papermill returned, no cell
holds an error, and the last cell printed its final line. Which parameters a notebook takes is checked before
(``negolab.notebook.profiles``): papermill only warns about a misspelt one and passes on whatever type it was given.

Each notebook runs in a child process that the terminal's signals do not reach, one after the other; its kernel is the
child's child. Whatever ends the parent (a timeout, Ctrl-C, a kill), the child notices and takes the kernel with it.
What had been finished stays in the executed copy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import negolab
from negolab.catalog import AUTO, DATA_VARIABLE, find_data
from negolab.errors import NegolabError
from negolab.notebook.profiles import Notebook, Parameters, read_cells
from negolab.notebook.study import FINISHED

KERNEL = "python3"
TIMEOUT = 1800.0
"""Seconds that one notebook may take in all, unless told otherwise."""
_GRACE = 4.0
"""Seconds that an interrupted child has to save its copy and end its kernel before both are killed."""
_NEEDED = ("papermill", "nbclient", "ipykernel")


@dataclass(frozen=True, slots=True)
class Result:
    """How one notebook ended."""

    name: str
    ok: bool
    seconds: float
    copy: str
    """The executed copy, partial where the notebook failed."""
    error: str = ""
    """One line: which cell, and what was wrong."""


# -- running --------------------------------------------------------------------------------------------------------


def run(
    notebooks: Sequence[Notebook],
    given: Mapping[str, Parameters],
    out: Path,
    timeout: float = TIMEOUT,
    progress: Callable[[str, float], None] = lambda name, seconds: None,
) -> list[Result]:
    """Run the notebooks one after the other into ``out``; a failed one does not stop the next.

    ``out`` gets ``notebooks/NAME.ipynb`` (executed copies), ``notebooks/results.json``, and what the notebooks write.
    ``progress`` is called several times a second with the notebook's name and the seconds so far.
    Raises ``NegolabError`` when nothing can run at all: a missing kernel, or a folder that cannot be written.
    """
    for module in _NEEDED:
        if importlib.util.find_spec(module) is None:
            raise NegolabError(f"cannot run notebooks: the module {module} is missing; install negolab again")
    out = out.absolute()
    copies = out / "notebooks"
    try:
        copies.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NegolabError(f"cannot write to {out}: {error.strerror}") from None
    results = []
    with _only_writer(out), tempfile.TemporaryDirectory(prefix="negolab-notebooks-") as scratch:
        env = environment(Path(scratch))
        for notebook in notebooks:
            mine = {**given[notebook.name], **({"out": str(out)} if "out" in notebook.parameters else {})}
            results.append(_run_one(notebook, mine, out, timeout, env, Path(scratch), progress))
            text = json.dumps([asdict(result) for result in results], indent=1) + "\n"
            (copies / "results.json").write_text(text, encoding="utf-8")
    return results


@contextlib.contextmanager
def _only_writer(out: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        with FileLock(out / "notebooks" / ".lock", timeout=0):
            yield
    except Timeout:
        raise NegolabError(f"notebooks are already running into {out}; wait for them or give another folder") from None
    except PermissionError:
        raise NegolabError(f"cannot write to {out}: Permission denied") from None


def environment(scratch: Path) -> dict[str, str]:
    """The child's environment: this very package and Python, nobody's IPython start-up files, and folders that exist
    also where there is no home."""
    env = dict(os.environ)
    env.pop("MPLBACKEND", None)  # a window system's backend would fail in a kernel; IPython sets its own
    folders = {"IPYTHONDIR": "ipython", "JUPYTER_RUNTIME_DIR": "runtime"}
    home = env.get("HOME") or env.get("USERPROFILE", "")
    if not home or not os.access(home, os.W_OK):
        folders |= {"HOME": "home", "MPLCONFIGDIR": "matplotlib", "JUPYTER_CONFIG_DIR": "config"}
        folders |= {"JUPYTER_DATA_DIR": "data", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "settings"}
    for variable, name in folders.items():
        (scratch / name).mkdir(exist_ok=True)
        env[variable] = str(scratch / name)
    env["JUPYTER_PREFER_ENV_PATH"] = "1"
    env["PYTHONUTF8"] = "1"
    root = str(Path(negolab.__file__).resolve().parent.parent)
    if "site-packages" not in root:  # a working copy, which need not be installed
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH", "")]))
    found = find_data(AUTO)
    if Path(found).is_dir():
        env[DATA_VARIABLE] = str(Path(found).absolute())
    return env


def _run_one(
    notebook: Notebook,
    parameters: Parameters,
    out: Path,
    timeout: float,
    env: dict[str, str],
    scratch: Path,
    progress: Callable[[str, float], None],
) -> Result:
    copy, verdict = out / "notebooks" / f"{notebook.name}.ipynb", scratch / "verdict.txt"
    for stale in (copy, verdict):
        stale.unlink(missing_ok=True)
    job = {"notebook": str(notebook.path.absolute()), "copy": str(copy), "parameters": parameters, "cwd": str(out)}
    start, stopped = time.monotonic(), ""
    with (scratch / "log.txt").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "negolab.notebooks_runner"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps({**job, "verdict": str(verdict)}).encode() + b"\n")
                child.stdin.flush()
            while child.poll() is None and not stopped:
                progress(notebook.name, time.monotonic() - start)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.2)
                if time.monotonic() - start > timeout:
                    stopped = f"stopped after {timeout:g} s (--timeout)"
        finally:
            _end(child)
    seconds = time.monotonic() - start
    said = verdict.read_text(encoding="utf-8") if verdict.exists() else ""
    if child.returncode and not said and not stopped:
        lines = (scratch / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = lines[-1] if lines else f"its process ended with {child.returncode}"
    error = problem(copy, stopped or (said or "failed" if child.returncode else ""))
    return Result(notebook.name, not error, round(seconds, 3), str(copy), error)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave nothing behind: first ask the child to save and stop its kernel, then kill whatever is left."""
    import psutil

    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(child.pid).children(recursive=True)
    if child.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()
    child.kill()
    child.wait()
    assert child.stdin is not None
    with contextlib.suppress(OSError):
        child.stdin.close()


# -- judging --------------------------------------------------------------------------------------------------------


def problem(copy: Path, said: str) -> str:
    """What is wrong with an executed copy, in one line; empty when the notebook ran to its end.

    ``said`` is what stopped the run, where that is known. Papermill's own statuses are not asked: after a kernel's
    death they call every cell completed.
    """
    try:
        cells = read_cells(copy)
    except (OSError, ValueError, TypeError) as error:  # missing, torn, not a notebook
        return _line(said or f"no executed copy: {error}")
    own = {"injected-parameters", "papermill-error-cell-tag"}
    code = [c for c in cells if c["cell_type"] == "code" and not own & set(c["metadata"].get("tags", ()))]
    for number, cell in enumerate(code, 1):
        for output in cell["outputs"]:
            # A stopped run's kernel was interrupted by us: why it was stopped is the news.
            if output["output_type"] == "error" and not (said and output["ename"] == "KeyboardInterrupt"):
                return _line(f"{_name(number, cell)}: {output['ename']}: {output['evalue']}")
    started = [(n, c) for n, c in enumerate(code, 1) if c["metadata"].get("papermill", {}).get("start_time")]
    if said:
        where = f"{_name(*started[-1])}: " if started else "before the first cell: "
        return _line(where + said)
    streams = [o for o in code[-1]["outputs"] if o["output_type"] == "stream"] if code else []
    printed = "".join("".join(o["text"]) for o in streams)
    if not printed.strip().split("\n")[-1].startswith(FINISHED):
        return _line(f"the last cell did not print its final line, {FINISHED!r}: the notebook did not run to its end")
    return ""


def _name(number: int, cell: Mapping[str, Any]) -> str:
    lines = [line for line in cell["source"].split("\n") if line.strip() and not line.startswith("#")]
    return f"code cell {number}" + (f" ({lines[-1].strip()[:60]})" if lines else "")


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 400 else line[:397] + "..."


# -- the child ------------------------------------------------------------------------------------------------------


def _child() -> int:
    """Execute one notebook as told on standard input; the open pipe is the parent's sign of life."""
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    import papermill

    try:
        papermill.execute_notebook(
            # Braces in a path would be read as placeholders.
            *(job[path].replace("{", "{{").replace("}", "}}") for path in ("notebook", "copy")),
            parameters=job["parameters"],
            kernel_name=KERNEL,
            cwd=job["cwd"],
            progress_bar=False,
        )
    except BaseException as error:
        Path(job["verdict"]).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        return 1
    return 0


def _leave_with_parent() -> None:
    # The bare descriptor: a thread inside Python's own buffered reader would stop the interpreter from ending.
    while os.read(0, 1024):
        pass
    import psutil

    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_GRACE)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(_child())

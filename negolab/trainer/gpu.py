"""GPUs as an estimate needs them: how many, how large, how fast. Needs neither torch nor a driver's library."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from negolab.errors import NegolabError
from negolab.policies.memory import GIB


class Box(NamedTuple):
    """The GPUs of one machine, all alike."""

    name: str
    gpus: int
    memory: int
    """Bytes of one GPU that programs can have."""
    bandwidth: float
    """Bytes per second of one GPU's memory."""
    flops: float
    """Dense bfloat16 operations per second of one GPU."""
    assumed: bool = False
    """Nobody looked: there is no GPU here, or none that is known."""
    absent: bool = False
    """There is no GPU here, and nobody named one."""

    def line(self) -> str:
        """For people."""
        of = "" if not self.assumed else " (assumed; name another with --gpu and --gpus)"
        return (
            f"{self.gpus} x {self.name}: {self.memory / GIB:.0f} GiB, {self.bandwidth / 1e12:.1f} TB/s, "
            f"{self.flops / 1e12:,.0f} TFLOP/s each{of}."
        )


_KNOWN: Mapping[str, tuple[float, float, float]] = {
    # GiB that programs can have, TB/s and dense bfloat16 TFLOP/s as the maker states them.
    "a100-40gb": (39.4, 1.55, 312),
    "a100-80gb": (79.1, 2.0, 312),
    "l40s": (44.4, 0.86, 362),
    "h100-80gb": (79.1, 3.35, 989),
    "h200": (139.8, 4.8, 989),
    "b200": (178.3, 8.0, 2250),
}
KINDS = tuple(_KNOWN)
"""Names that ``box`` takes."""
ASSUMED = "h200"


def box(kind: str, gpus: int) -> Box:
    """So many GPUs of a kind. Raises ``NegolabError`` for a kind that is not known or a number below 1."""
    if kind not in _KNOWN:
        raise NegolabError(f"no GPU {kind!r} is known; allowed: {', '.join(KINDS)}")
    if type(gpus) is not int or not 1 <= gpus <= 1024:
        raise NegolabError(f"the number of GPUs is {gpus!r}; allowed: 1 to 1024")
    gibibytes, bandwidth, flops = _KNOWN[kind]
    return Box(kind, gpus, int(gibibytes * GIB), bandwidth * 1e12, flops * 1e12)


def box_here() -> Box:
    """The GPUs of this machine as the driver's own tool lists them; one ``ASSUMED`` where there is none."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        rows = [line.rsplit(",", 1) for line in done.stdout.splitlines() if "," in line] if done.returncode == 0 else []
        found = [(name.strip(), int(memory)) for name, memory in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        found = []
    if not found:
        return box(ASSUMED, 1)._replace(assumed=True, absent=True)
    name, mebibytes = min(found, key=lambda one: one[1])  # the smallest decides what fits
    like = kind_of(name, mebibytes)
    known = box(like or ASSUMED, len(found))
    return known._replace(name=name, memory=mebibytes << 20, assumed=not like)


def kind_of(name: str, mebibytes: int) -> str:
    """The kind that a driver's name stands for, by name and size; empty for one that is not known."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for kind, (gibibytes, _, _) in _KNOWN.items():
        if kind.split("-")[0] in plain and abs(mebibytes / 1024 - gibibytes) < 0.15 * gibibytes:
            return kind
    return ""

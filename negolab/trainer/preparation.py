"""What comes before the first step of any training: packages, settings that go together, and the model in memory.

What needs no weights is checked before they are read, and what needs no torch before it is loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from negolab.catalog import Catalog, find_data, load_catalog
from negolab.clusters import ClusterCatalog
from negolab.errors import NegolabError
from negolab.plan import catalog_for
from negolab.policies.chat_template import first_line
from negolab.policies.fingerprint import fingerprint
from negolab.policies.spec import located
from negolab.trainer.learning import LearningSettings
from negolab.trainer.lora import serving_problem
from negolab.trainer.markets import unit_of
from negolab.trainer.settings import TrainSettings
from negolab.trainer.task import SellerTask, Task, Weighted

if TYPE_CHECKING:
    from negolab.trainer.sampler import Sampler

Say = Callable[[str], object]
"""Takes a line for the user."""
_PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets")


def _packages(settings: LearningSettings) -> list[str]:
    return [*_PACKAGES, *(["peft"] if settings.lora is not None else [])]


L = TypeVar("L", bound=LearningSettings)


def settled(settings: L) -> L:
    """Settings whose model is where it lies. Needs no package.

    Raises ``NegolabError`` where it is not there, and for a revision of a folder, which has none.
    """
    place = located(settings.model)
    if settings.revision and Path(place).exists():
        raise NegolabError(
            f"revision is {settings.revision!r}, but {settings.model} is on this machine: none is fetched"
        )
    return replace(settings, model=place)


def check_packages(settings: LearningSettings) -> None:
    """Raise ``NegolabError`` for a package that a run with these settings needs and that is not installed."""
    for name in _packages(settings):
        if importlib.util.find_spec(name) is None:
            raise NegolabError(f"training needs the package {name}: pip install 'negolab[train]'")
    if isinstance(settings, TrainSettings) and settings.sampler == "vllm" and importlib.util.find_spec("vllm") is None:
        raise NegolabError(
            "sampler is vllm, which needs the package vllm: pip install 'negolab[vllm]'; or let transformers make the "
            "replies (sampler: transformers)"
        )


def check_sampler(settings: TrainSettings) -> None:
    """Raise ``NegolabError`` for settings that the learner cannot play with. Needs neither torch nor vLLM."""
    module = "vllm_sampler" if settings.sampler == "vllm" else "sampler"
    importlib.import_module(f"negolab.trainer.{module}").learner_spec(settings)
    if settings.lora is not None:
        problem = serving_problem(settings.lora, settings.sampler)
        if problem:
            raise NegolabError(problem)


def catalog_of(settings: TrainSettings) -> Catalog | ClusterCatalog:
    """What a run learns from: products, or clusters where its regimes sell several items.

    Raises ``NegolabError`` for regimes that have no common catalogue, and for a source that cannot be used.
    """
    source = find_data(settings.data)
    if settings.task != "seller":
        return load_catalog(source)
    regimes = [chosen for chosen, _ in settings.weighted_regimes()]
    unit_of(regimes)
    return catalog_for(regimes[0], source)


def make_task(settings: TrainSettings) -> Task:
    """What is learnt, with the data it needs. Raises ``NegolabError`` for the first thing that is wrong."""
    catalog = catalog_of(settings)
    if settings.task == "buyer":
        made: Task = importlib.import_module("negolab.trainer.buyer_task").make_buyer_task(settings, catalog)
        return made
    if settings.task == "trade":
        made = importlib.import_module("negolab.trainer.trade_task").make_trade_task(settings, catalog)
        return made
    if settings.task_options:
        raise NegolabError(f"task_options: the task seller knows none, not {', '.join(settings.task_options)}")
    return SellerTask(
        catalog,
        [Weighted(chosen, weight) for chosen, weight in settings.weighted_regimes()],
        seed=settings.seed,
        groups=settings.groups,
        group_size=settings.group_size,
        buyers=settings.opponents(),
        train_split=settings.train_split,
        eval_split=settings.eval_split,
        eval_products=settings.eval_products,
        eval_per_product=settings.eval_per_product,
    )


def _check_trackers(names: Sequence[str]) -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise NegolabError(f"report_to names {name!r}; allowed: {', '.join(sorted(INTEGRATION_TO_CALLBACK))}")
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (ImportError, RuntimeError) as error:  # what it needs is not installed
            raise NegolabError(f"report_to names {name!r}, which cannot be used: {first_line(error)}") from None


def load_model(settings: LearningSettings, say: Say) -> tuple[Any, Any, dict[str, Any]]:
    """The model to train, on its device, its tokenizer, and what its adapter is made of, if it has one.

    Raises ``NegolabError`` where they cannot be read.
    """
    import torch

    from negolab.policies.chat_template import load_tokenizer
    from negolab.policies.hf_model import load_config, read_weights
    from negolab.policies.spec import TransformersSpec

    _check_trackers(settings.report_to)
    gpu = torch.cuda.is_available()
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "bfloat16" if gpu and settings.lora is not None else "float32"
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if gpu else "cpu"
    spec = TransformersSpec(model=settings.model, revision=settings.revision, dtype=dtype, device=device)
    tokenizer = load_tokenizer(settings.model, settings.revision)
    model = read_weights(spec, load_config(spec))
    if settings.lora is None:
        return model, tokenizer, {}
    from negolab.trainer.lora import attach

    model, trained = attach(model, settings.lora, settings.seed % 2**32)
    for line in trained.lines():
        say(line)
    return model, tokenizer, trained.manifest()


def make_sampler(settings: TrainSettings, model: Any, tokenizer: Any, task: Task, say: Say) -> Sampler:
    """Who speaks for the learner, and for those of the opponents that its engine can play."""
    if settings.sampler == "vllm":
        made = importlib.import_module("negolab.trainer.vllm_sampler").VllmSampler(model, tokenizer, settings)
        for name in made.adopt(task.opponents):
            say(f"{name} is played by the learner's engine")
        found: Sampler = made
        return found
    from negolab.trainer.sampler import LiveSampler

    return LiveSampler(model, tokenizer, settings)


def described(settings: LearningSettings, model: Any, adapter: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says of the model that is trained: where it comes from, how much of it is trained, by what.

    ``adapter``: as ``load_model`` gives it.
    """
    return {
        "base": fingerprint(settings.model, str(getattr(model.config, "_commit_hash", None) or "")),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "adapter": adapter,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "versions": {name: importlib.metadata.version(name) for name in _packages(settings)},
    }

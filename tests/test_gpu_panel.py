"""The panel for a box with GPUs, as far as it can be seen without one."""

import pytest

from negolab.panel import load_panel
from negolab.plan import Settings
from negolab.policies.memory import GIB, estimate
from test_memory import QWEN3_30B


@pytest.fixture(scope="module")
def panel():
    return load_panel("gpu_qwen3_30b")


@pytest.fixture(scope="module")
def models(panel):
    """The selling model and the buying one."""
    (buyer,) = panel.run["buyers"].values()
    return panel.entries[0].seller, buyer


def test_seller_and_buyers_share_one_engine(models):
    seller, buyer = models
    assert seller.engine == "vllm" and seller.engine_key() == buyer.engine_key()
    assert seller.temperature == buyer.temperature == 0.7


def test_it_plays_two_episodes_on_each_test_product(panel):
    settings: Settings = panel.settings(panel.entries[0])
    assert (settings.split, settings.per_product, settings.regime) == ("test", 2, "in_distribution")
    assert panel.baseline == "prober"


@pytest.mark.parametrize(("gibibytes", "least"), [(79, 5), (139, 40)])
def test_the_model_fits_on_one_gpu(models, gibibytes, least):
    spec = models[0]
    options = {"dtype": spec.dtype, "tensor_parallel": spec.tensor_parallel, "batch": spec.batch}
    found = estimate(QWEN3_30B, length=spec.max_model_len, **options)
    assert found.fits(gibibytes * GIB, spec.gpu_memory) >= least


def test_the_context_holds_the_longest_listing_and_all_messages(models):
    seller, buyer = models
    messages = 7  # the budget of table 6: the seller's replies, and what is said to it between them
    assert 4_700 + messages * (seller.max_tokens + 300) <= seller.max_model_len
    assert 4_700 + messages * (buyer.max_tokens + 300) <= buyer.max_model_len

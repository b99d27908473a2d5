"""Fixtures that several test files use."""

import os
from pathlib import Path

import pytest

from negolab.catalog import SAMPLE, Catalog, load_catalog

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def real_data_dir() -> Path:
    """The published catalogue's folder: $NEGOLAB_DATA, else data/AmazonHistoryPrice; skips where it is absent."""
    named = os.environ.get("NEGOLAB_DATA")
    folder = Path(named) if named else REPOSITORY / "data" / "AmazonHistoryPrice"
    if not (folder / "baby-products.json").is_file():
        pytest.skip("the AmazonHistoryPrice files are not here: run `negolab data fetch`, or set NEGOLAB_DATA")
    return folder


@pytest.fixture(scope="session")
def sample_catalog() -> Catalog:
    """The bundled, invented products."""
    return load_catalog(SAMPLE)

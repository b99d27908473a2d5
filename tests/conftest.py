"""Fixtures that several test files use."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from negolab.catalog import SAMPLE, Catalog, load_catalog
from runs import SMALL, make_run

REPOSITORY = Path(__file__).resolve().parent.parent


_runs: list[str] = []


def pytest_configure() -> None:
    """Runs of the executed notebooks go to a folder that goes with the session, unless somebody names another."""
    if "NEGOLAB_RUNS" not in os.environ:
        _runs.append(tempfile.mkdtemp(prefix="negolab-tests-"))
        os.environ["NEGOLAB_RUNS"] = _runs[0]


def pytest_unconfigure() -> None:
    """Take that folder away again."""
    for folder in _runs:
        shutil.rmtree(folder, ignore_errors=True)


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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four episodes; not to be changed."""
    return make_run(tmp_path_factory.mktemp("finished") / "run", *SMALL)

"""Where the files that travel with the package lie: inside the wheel, or beside the package in a working copy."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _bundled(inside: str, beside: str) -> Path:
    packaged = _PACKAGE / inside
    return packaged if packaged.is_dir() else _PACKAGE.parent / beside


def data_dir() -> Path:
    """Folder of the bundled sample, the splits and the checksums (``negolab/_data`` in a wheel, else ``data``)."""
    return _bundled("_data", "data")


def notebooks_dir() -> Path:
    """The folder with the notebooks and their profiles (``negolab/_notebooks`` in a wheel, else ``notebooks``)."""
    return _bundled("_notebooks", "notebooks")

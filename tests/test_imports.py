"""Imports point one way, and the light things load light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from runs import ROOT, environment

PACKAGE = ROOT / "negolab"
HEAVY = (
    "torch",
    "transformers",
    "trl",
    "datasets",
    "accelerate",
    "peft",
    "vllm",
    "openai",
    "ray",
    "pandas",
    "matplotlib",
    "seaborn",
    "scipy",
    "papermill",
    "rich",
)

# What each of the inner rooms may know, in the order of the data flow. Rooms that are not named here (players, tables,
# notebooks, commands) may know all of these; see the other tests for what they may not know.
CORE = (
    ("errors", "money", "paths", "seeds", "statistics"),
    ("catalog", "oracle"),
    ("cluster_files",),
    ("clusters",),
    ("scenario",),
    ("environment",),
    ("parser", "reward"),
    ("prompts",),
    ("games",),
    ("episodes",),
    ("metrics", "store"),
)
FORBIDDEN = {
    "statistics": (*[room for level in CORE for room in level if room != "statistics"],),
    "oracle": (*[room for level in CORE for room in level if room not in ("oracle", "money")],),
    "clusters": ("scenario", "environment", "parser", "prompts", "policies", "episodes", "store"),
    "environment": ("parser", "prompts", "policies", "episodes", "store", "rollout", "metrics", "reward"),
    "parser": ("scenario", "prompts", "policies", "episodes", "store", "environment.market"),
    "prompts": ("parser", "policies", "episodes", "store", "scenario"),
    "reward": ("parser", "prompts", "policies", "episodes", "scenario"),
    "episodes": ("prompts", "policies", "rollout", "store", "metrics"),
    "policies": ("episodes", "rollout", "store", "evaluate", "metrics", "verify", "reward"),
    "rollout": ("store", "evaluate", "metrics", "policies.registry", "prompts"),
    "store": ("policies", "rollout", "metrics", "evaluate", "scenario"),
    "metrics": ("policies", "rollout", "store", "evaluate", "scenario", "parser", "prompts"),
    "plots": ("policies", "rollout", "store", "evaluate", "episodes"),
    "papers": ("policies", "rollout", "store", "evaluate", "episodes", "environment"),
}


@cache
def imports() -> dict[str, frozenset[str]]:
    """Which modules of the package each module imports, also inside functions; names without ``negolab.``."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if "_data" not in path.parts:
            name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
            found[name] = frozenset(_imported(ast.parse(path.read_text(encoding="utf-8"))))
    return found


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which way they point"
            if node.module == "negolab":
                yield from (alias.name for alias in node.names)
            elif (node.module or "").startswith("negolab."):
                yield str(node.module).removeprefix("negolab.")
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("negolab.") for alias in node.names if alias.name.startswith("negolab.")
            )


def within(module: str, room: str) -> bool:
    """Whether the module is the room or in it."""
    return module == room or module.startswith(room + ".")


def test_the_core_imports_only_what_comes_before_it():
    level = {room: at for at, rooms in enumerate(CORE) for room in rooms}
    for module, known in imports().items():
        room = module.split(".")[0]
        if room not in level:
            continue
        for other in known - {"__version__"}:
            head = other.split(".")[0]
            assert head == room or head in level, f"{module} imports {other}"
            assert head == room or level[head] < level[room], f"{module} imports {other}, which comes after it"


@pytest.mark.parametrize("room", FORBIDDEN)
def test_what_a_room_must_not_know(room):
    assert any(within(module, room) for module in imports())
    for module, known in imports().items():
        if within(module, room):
            wrong = {other for other in known for banned in FORBIDDEN[room] if within(other, banned)}
            assert not wrong, f"{module} imports {sorted(wrong)}"


def test_metrics_know_only_episodes_statistics_and_the_shapes():
    known = set().union(*[others for module, others in imports().items() if within(module, "metrics")])
    assert {other for other in known if not within(other, "metrics")} <= {
        "episodes",
        "statistics",
        "environment.base",
        "oracle",
        "reward",
    }


def test_nothing_imports_the_command_line_and_only_it_imports_commands():
    for module, known in imports().items():
        assert not any(within(other, "cli") for other in known), f"{module} imports the command line"
        if not within(module, "commands"):
            assert not any(within(other, "commands") for other in known), f"{module} imports a command"


def test_no_module_imports_itself_in_a_circle():
    graph = {module: {other for other in known if other in imports()} for module, known in imports().items()}
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in graph[module]:
                if other != module.split(".")[0] or other in path:  # a package's own __init__ gathers its parts
                    walk(other, (*path, module))
            done.add(module)

    for module in graph:
        walk(module, ())


def loaded(code: str, *flags: str) -> set[str]:
    """Top-level modules in ``sys.modules`` after ``code`` in a fresh process."""
    code += "\nimport sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, *flags, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_else():
    bare, ours = loaded(""), loaded("import negolab")
    assert ours - bare <= {"negolab"}


def test_every_help_is_answered_without_anything_heavy():
    code = """
import contextlib, io
from negolab.cli import build_parser, main
def walk(parser, path):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*path, "--help"]) == 0
    assert out.getvalue().startswith("usage: negolab"), path
    for action in parser._actions:
        if hasattr(action, "_name_parser_map"):
            for name, sub in action.choices.items():
                walk(sub, [*path, name])
walk(build_parser(), [])
"""
    assert not loaded(code) & {*HEAVY, "orjson", "tqdm", "filelock"}


def test_playing_and_verifying_loads_nothing_heavy(tmp_path):
    code = f"""
from negolab.cli import main
assert main(["evaluate", "--seller", "prober", "--products", "1", "--out", {str(tmp_path / "run")!r}]) == 0
assert main(["verify", {str(tmp_path / "run")!r}]) == 0
assert main(["compare", {str(tmp_path / "run")!r}, {str(tmp_path / "run")!r}]) == 0
"""
    assert not loaded(code) & {*HEAVY}
    assert Path(tmp_path / "run").is_dir()


def test_no_module_needs_a_vendor_to_be_imported():
    """Vendors' modules are imported inside functions, except where tables and figures are made, and in the modules
    that derive from a vendor's class, which are themselves only imported inside functions."""
    deriving = ("grpo", "sft_trainer", "trl_common")
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] in ("plots", "notebook", "_data", "_notebooks") or path.stem in deriving:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {*HEAVY}, path
            assert not {f"negolab.trainer.{name}" for name in deriving} & {*names}, path

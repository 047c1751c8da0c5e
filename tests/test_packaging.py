"""The package as a whole: import direction, dependencies, version, data, what is shipped."""

from __future__ import annotations

import ast
import graphlib
import hashlib
import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

import pymc_dpvi

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pymc_dpvi"
DATA = ROOT / "benchmarks" / "data"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# The rooms, from top to bottom: sub-packages, and the modules beside them. A module imports from its own room
# and from those in later lines, never from a room in its own line or above. Within a room no imports go in a
# circle. A new room takes its place here; a new module needs no entry.
ROOMS = (
    ("__init__",),
    ("auditing",),
    ("inference",),
    ("runs",),
    ("cautions",),
    ("keywords", "planning", "settings"),
    ("posterior",),
    ("plots",),
    ("engine", "release"),
    ("mechanism",),
    ("accounting", "graph"),
    ("guide", "sampling"),
    ("randomness",),
    ("compat", "one_at_a_time", "optimizers", "pages", "progress", "redaction"),
    ("arguments", "lowering", "numba_cache", "process_wide"),
    ("errors",),
)
DEPTH = {name: depth for depth, layer in enumerate(ROOMS) for name in layer}
# The same within `accounting`.
ACCOUNTING_ROOMS = (
    ("__init__",),
    ("budget", "curves"),
    ("calibration",),
    ("evaluation", "gdp_limit"),
    ("events",),
    ("accountants",),
    ("papers", "pld"),
    ("contract", "gaussian", "search"),
    ("relations",),
)

# Parts that must stay usable, and readable, without PyMC.
ACCOUNTING_MAY_IMPORT = {"dp_accounting", "numpy", "scipy", "arguments", "errors", "pages", "sampling"}
RELEASE_MAY_IMPORT = {"arviz", "numpy", "xarray", "accounting", "arguments", "errors", "pages"}


def imported(source: str, package: tuple[str, ...]) -> set[str]:
    """Dotted names of all modules that `source` imports, at any depth of nesting.

    `package` is the package that holds the source, which relative imports count from. The names in
    ``from x import a`` are given as ``x.a``: `a` may be a module.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *filter(None, [node.module])])
            names.update(f"{stem}.{alias.name}" for alias in node.names)
    return names


def unit(path: Path) -> str:
    """The module or folder directly in the package that `path` belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def own_imports(names: set[str]) -> set[str]:
    """The units of this package among dotted names; the package itself counts as ``__init__``."""
    units = set()
    for name in names:
        first, *rest = name.split(".")
        if first == "pymc_dpvi":
            units.add(rest[0] if rest and rest[0] in DEPTH else "__init__")
    return units


def upward(importer: str, source: str, package: tuple[str, ...] = ("pymc_dpvi",)) -> set[str]:
    """The units that `importer` imports although they do not stand below it."""
    units = own_imports(imported(source, package)) - {importer}
    return {name for name in units if DEPTH[name] <= DEPTH[importer]}


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    assert unit(path) in DEPTH, f"give {path.name} its place in ROOMS"
    package = ("pymc_dpvi", *path.relative_to(PACKAGE).parts[:-1])
    assert upward(unit(path), path.read_text(encoding="utf-8"), package) == set()


def modules_in(room: Path) -> dict[str, set[str]]:
    """Of each module below `room`, the modules below it that it imports; dotted names from the package on."""
    imports = {}
    for path in sorted(room.rglob("*.py")):
        parts = ("pymc_dpvi", *path.relative_to(PACKAGE).with_suffix("").parts)
        imports[".".join(parts)] = imported(path.read_text(encoding="utf-8"), parts[:-1])
    return {
        name: {m for m in imports if m != name and any(n == m or n.startswith(f"{m}.") for n in names)}
        for name, names in imports.items()
    }


def circle(graph: dict[str, set[str]]) -> tuple[str, ...]:
    """Return the names of a circle of imports, if there is one."""
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        return tuple(error.args[1])
    return ()


ROOM_FOLDERS = [path for path in sorted(PACKAGE.iterdir()) if (path / "__init__.py").exists()]


@pytest.mark.parametrize("room", ROOM_FOLDERS, ids=lambda path: path.name)
def test_no_imports_go_in_a_circle(room: Path) -> None:
    assert circle(modules_in(room)) == ()


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ()


def test_imports_within_accounting_point_down() -> None:
    depth = {name: k for k, layer in enumerate(ACCOUNTING_ROOMS) for name in layer}
    prefix = "pymc_dpvi.accounting."
    for name, targets in modules_in(PACKAGE / "accounting").items():
        own = name.removeprefix(prefix).split(".")[0]
        for target in targets:
            below = target.removeprefix(prefix).split(".")[0]
            assert below == own or depth[below] > depth[own], (name, target)


@pytest.mark.parametrize(
    "source",
    [
        "import pymc_dpvi.mechanism",
        "from pymc_dpvi import mechanism",
        "from pymc_dpvi.mechanism import Mechanism",
        "from .mechanism import Mechanism",
        "from . import mechanism",
        "from pymc_dpvi import DPADVI",
        "def f():\n    from pymc_dpvi.mechanism import Mechanism",
        "if TYPE_CHECKING:\n    from pymc_dpvi.mechanism import Mechanism",
    ],
)
def test_an_upward_import_is_found(source: str) -> None:
    assert upward("sampling", source) in ({"mechanism"}, {"__init__"})


@pytest.mark.parametrize(
    "source",
    ["from pymc_dpvi.errors import ArgumentError", "from . import errors", "import numpy as np"],
)
def test_a_downward_import_is_allowed(source: str) -> None:
    assert upward("sampling", source) == set()


def test_a_relative_import_counts_from_its_folder() -> None:
    package = ("pymc_dpvi", "accounting")
    assert upward("accounting", "from ..mechanism import Mechanism", package) == {"mechanism"}
    assert upward("accounting", "from ..errors import ArgumentError", package) == set()


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("accounting", ACCOUNTING_MAY_IMPORT),
        ("release", RELEASE_MAY_IMPORT),
    ],
)
def test_what_needs_no_model_stands_alone(name: str, allowed: set[str]) -> None:
    paths = [path for path in SOURCES if unit(path) == name]
    assert paths
    for path in paths:
        names = imported(path.read_text("utf-8"), ("pymc_dpvi", *path.relative_to(PACKAGE).parts[:-1]))
        foreign = {first for full in names if (first := full.split(".")[0]) != "pymc_dpvi"}
        used = (foreign - set(sys.stdlib_module_names)) | (own_imports(names) - {name})
        assert used <= allowed, f"{path.name} imports {sorted(used - allowed)}"


@pytest.mark.parametrize("name", ["accounting", "release"])
def test_nothing_behind_it_needs_a_model_either(name: str) -> None:
    todo, seen = [name], {name}
    for own in todo:
        for path in (p for p in SOURCES if unit(p) == own):
            names = imported(path.read_text("utf-8"), ("pymc_dpvi", *path.relative_to(PACKAGE).parts[:-1]))
            assert not {full.split(".")[0] for full in names} & {"pymc", "pytensor"}, path
            todo += sorted(own_imports(names) - seen)
            seen |= own_imports(names)
    assert "numba_cache" in seen


def names_of(requirements: list[str]) -> set[str]:
    """Import names of requirements."""
    return {
        re.match(r"[\w-]+", requirement)[0].replace("-", "_").lower()  # type: ignore[index]
        for requirement in requirements
    }


def test_every_import_is_a_declared_dependency() -> None:
    declared = names_of(PYPROJECT["project"]["dependencies"])
    # Come with every ArviZ and PyMC, and with every numba, in the version that these need.
    declared |= {"xarray", "llvmlite"}
    extra = names_of(PYPROJECT["project"]["optional-dependencies"]["plots"])
    used = set()
    for path in SOURCES:
        names = imported(path.read_text(encoding="utf-8"), ("pymc_dpvi",))
        used |= {
            first for name in names if (first := name.split(".")[0]) not in extra or unit(path) != "plots"
        }
    assert used - set(sys.stdlib_module_names) - {"pymc_dpvi"} <= declared


def test_plots_import_matplotlib_only_when_they_are_made() -> None:
    paths = [path for path in SOURCES if unit(path) == "plots"]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    at_import = [n for tree in trees for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert "matplotlib" not in " ".join(ast.unparse(node) for node in at_import)
    assert "matplotlib" in " ".join(ast.unparse(tree) for tree in trees)


def test_one_version() -> None:
    version = PYPROJECT["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert pymc_dpvi.__version__ == version
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == version  # type: ignore[index]
    assert re.search(r"^## \[(.+?)\]", changelog, re.MULTILINE)[1] == version  # type: ignore[index]


def test_the_installed_version_is_this_one() -> None:
    try:
        installed = importlib.metadata.version("pymc_dpvi")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed, only on the path")
    assert installed == pymc_dpvi.__version__


def test_the_package_that_is_imported_says_that_it_is_typed() -> None:
    assert Path(pymc_dpvi.__file__).with_name("py.typed").is_file()


def test_public_names_exist() -> None:
    assert {"DPADVI", "DPFullRankADVI", "PrivacyReport", "fit_dpadvi"} <= set(pymc_dpvi.__all__)
    assert [name for name in pymc_dpvi.__all__ if not hasattr(pymc_dpvi, name)] == []


def test_data_are_the_published_files() -> None:
    listed = dict(line.split()[::-1] for line in (DATA / "SHA256SUMS").read_text().splitlines())
    assert set(listed) == {path.name for path in DATA.glob("*.csv.gz")}
    for name, digest in listed.items():
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest
        assert name in (DATA / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def datasets():
    """`benchmarks/datasets.py`, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("benchmark_datasets", ROOT / "benchmarks" / "datasets.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks for itself
    spec.loader.exec_module(module)
    return module


def test_a_changed_data_file_is_refused(datasets, tmp_path, monkeypatch) -> None:
    content = bytearray((DATA / "abalone.csv.gz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "abalone.csv.gz").write_bytes(content)
    (tmp_path / "SHA256SUMS").write_bytes((DATA / "SHA256SUMS").read_bytes())
    monkeypatch.setattr(datasets, "DATA", tmp_path)
    with pytest.raises(ValueError, match="not the published file"):
        datasets.load_abalone()
    with pytest.raises(ValueError, match="not in"):
        datasets.read_table("iris.csv.gz")


@pytest.mark.parametrize(
    ("name", "train", "test", "features", "positive"),
    # Labels as counted in the files with awk: Abalone has 2081 rows with ten rings or more, Adult's
    # training rows 7841 with more than 50K.
    [("abalone", 3341, 836, 8, 2081), ("adult", 26048, 6513, 14, 7841)],
)
def test_data_are_prepared_as_in_the_papers(datasets, name, train, test, features, positive) -> None:
    import numpy as np

    data = datasets.LOADERS[name]()
    assert data.x_train.shape == (train, features)
    assert data.x_test.shape == (test, features)
    assert len(data.features) == features
    assert data.y_train.sum() + data.y_test.sum() == positive
    x = np.concatenate([data.x_train, data.x_test])
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-10)
    # Codes keep their order: the first row's sex is M (Abalone) and Male (Adult), the largest code.
    sex = x[:, data.features.index("sex")]
    assert sex[0] == sex.max()

"""The notebooks: stored with all their outputs, quick values that exist, and one of them run."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"


def runner() -> ModuleType:
    """`notebooks/run.py`, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("notebooks_run", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUN = runner()
NAMES = RUN.names()

#: Written, and run with their quick values, but not yet stored with the outputs of a whole run:
#: `python notebooks/run.py --write NAME` does that. An entry that is out of date fails.
WITHOUT_OUTPUTS = {
    "01_quickstart",
    "02_choosing_epsilon",
    "03_your_own_model",
    "05_several_analyses_one_budget",
    "06_audit_and_trust",
    "07_the_papers",
}


def code_cells(name: str) -> list[dict[str, Any]]:
    return [cell for cell in RUN.load(name)["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert "01_quickstart" in NAMES


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xfail(strict=True)] * (name in WITHOUT_OUTPUTS))
        for name in NAMES
    ],
)
def test_stored_as_run_from_top_to_bottom(name: str) -> None:
    cells = code_cells(name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "error" not in kinds
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])


@pytest.mark.parametrize("name", NAMES)
def test_outputs_show_no_place_on_a_machine_and_no_warning(name: str) -> None:
    for cell in code_cells(name):
        for output in cell["outputs"]:
            shown = [output.get("text", ""), *output.get("data", {}).values()]
            for text in ("".join(part) for part in shown):
                assert not re.search(r"site-packages|/home/|/root/|/work/|/tmp/|Warning", text)


@pytest.mark.parametrize("name", NAMES)
def test_begins_with_a_title_and_a_question(name: str) -> None:
    first = RUN.load(name)["cells"][0]
    assert first["cell_type"] == "markdown"
    text = RUN.source(first)
    assert text.startswith("# ")
    assert re.search(r"^\*[^*]+\?[^*]*\*$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_quick_values_are_values_of_parameters(name: str) -> None:
    document = RUN.load(name)
    tagged = [cell for cell in code_cells(name) if "parameters" in cell["metadata"].get("tags", ())]
    assert len(tagged) == 1
    assigned = {
        target.id
        for statement in ast.parse(RUN.source(tagged[0])).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    quick = RUN.parameters(document)
    assert quick and set(quick) <= assigned
    # They take effect after that cell, and without quick nothing is added.
    sources = RUN.sources(document, quick=True)
    after = sources[sources.index(RUN.source(tagged[0])) + 1]
    namespace: dict[str, Any] = {}
    exec(after, namespace)
    assert {key: namespace[key] for key in quick} == quick
    assert len(RUN.sources(document, quick=False)) == len(sources) - 1


@pytest.mark.slow
def test_the_quickstart_runs(monkeypatch: pytest.MonkeyPatch, without_compiling: None) -> None:
    """With its quick values, in Python; `tox run -e notebooks` runs all of them as a user does."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import pytensor

    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        with pytensor.config.change_flags(mode="FAST_COMPILE"):
            for number, source in enumerate(RUN.sources(RUN.load("01_quickstart"), quick=True)):
                exec(compile(source, f"01_quickstart, code cell {number}", "exec"), namespace)
    finally:
        plt.close("all")
        if "datasets" not in before:
            sys.modules.pop("datasets", None)
    assert namespace["loaded"].posterior.attrs["privacy_epsilon"] <= 1.0
    assert namespace["private"].privacy.releasable

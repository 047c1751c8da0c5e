"""The notebooks: stored as they were run, with quick values that exist; `tox run -e notebooks` runs them."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pymc_dpvi import inference
from pymc_dpvi.compat import compile_mode
from pymc_dpvi.engine.backends import Backend, backends

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

#: Not yet stored with the outputs of a whole run, which `python notebooks/run.py --write NAME` does.
#: An entry that is out of date fails.
WITHOUT_OUTPUTS: set[str] = set()


def code_cells(name: str) -> list[dict[str, Any]]:
    return [cell for cell in RUN.load(name)["cells"] if cell["cell_type"] == "code"]


def test_they_are_numbered_without_a_gap() -> None:
    assert len(NAMES) >= 7
    assert [int(name[:2]) for name in NAMES] == list(range(1, len(NAMES) + 1))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xfail(strict=True)] * (name in WITHOUT_OUTPUTS))
        for name in NAMES
    ],
)
def test_stored_as_run_from_top_to_bottom(name: str) -> None:
    """The outputs are those of the code that stands there; `notebooks/run.py --write NAME` stores both."""
    document, cells = RUN.load(name), code_cells(name)
    assert document["metadata"]["pymc_dpvi"]["code_run"] == RUN.code_hash(document)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "error" not in kinds
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])


def test_a_change_of_the_code_is_seen() -> None:
    document = RUN.load(NAMES[0])
    before = RUN.code_hash(document)
    (first, *_) = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    first["outputs"], first["execution_count"] = [], None
    assert RUN.code_hash(document) == before
    first["source"] = RUN.source(first) + "\n"
    assert RUN.code_hash(document) != before


@pytest.mark.parametrize("name", NAMES)
def test_outputs_show_no_place_on_a_machine_and_no_warning(name: str) -> None:
    assert RUN.unwanted(RUN.load(name)) == []


@pytest.mark.parametrize(
    "output",
    [
        {"output_type": "stream", "name": "stdout", "text": ["saved in\n", "/tmp/a.nc"]},
        {"output_type": "stream", "name": "stderr", "text": "Sampling ..."},
        {"output_type": "execute_result", "data": {"text/plain": "PrivacyWarning: the noise"}},
        {"output_type": "error", "traceback": ["/home/me/x.py", "ValueError"]},
    ],
)
def test_what_should_not_be_shown_is_found(output: dict[str, Any]) -> None:
    harmless = {
        "output_type": "display_data",
        "data": {"image/png": "iVBOR/tmp/w0KGgo", "text/plain": "<Figure>"},
    }
    cells = [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": [harmless]}]
    assert RUN.unwanted({"cells": cells}) == []
    cells[1]["outputs"] = [harmless, output]
    assert RUN.unwanted({"cells": cells})


def test_prints_are_joined_and_text_beside_html_is_left_out() -> None:
    def printed(text: str, name: str = "stdout") -> dict[str, str]:
        return {"output_type": "stream", "name": name, "text": text}

    def shown(**data: str) -> dict[str, Any]:
        return {"output_type": "display_data", "data": {f"text/{kind}": text for kind, text in data.items()}}

    pieces = [printed("a"), printed("b"), printed("c", "stderr"), shown(plain="x"), printed("d")]
    assert RUN.kept(pieces) == [printed("ab"), printed("c", "stderr"), shown(plain="x"), printed("d")]
    assert RUN.kept([shown(plain="x", html="<p>x")]) == [shown(html="<p>x")]


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


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every fit run in Python, also one that names a backend, which must be one that there is."""

    def found(backend: str | None, compile_kwargs: Mapping[str, Any] | None) -> list[Backend]:
        assert backends(backend, compile_kwargs)
        return [Backend("python", compile_mode(None, {**(compile_kwargs or {}), "mode": "PYTHON"}))]

    monkeypatch.setattr(inference, "backends", found)


@pytest.mark.turns
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str, monkeypatch: pytest.MonkeyPatch, in_python: None) -> None:
    """With its quick values, in Python; `tox run -e notebooks` runs them in a kernel, as a user does."""
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
            for number, source in enumerate(RUN.sources(RUN.load(name), quick=True)):
                exec(compile(source, f"{name}, code cell {number}", "exec"), namespace)
        assert plt.get_fignums()
    finally:
        plt.close("all")
        for module in set(sys.modules) - before:
            if str(FOLDER.parent / "benchmarks") in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]

"""The documentation: links lead somewhere, public names have an entry, and the code on the pages runs."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest

from pymc_dpvi import inference
from pymc_dpvi.auditing import run as auditing_run

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    if "_build" not in path.parts
)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))

# A link or a picture; not what stands in a block of code.
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
FENCED = re.compile(r"^(`{3,}|:{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def text_of(path: Path) -> str:
    """A page, or the words of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
        return "\n\n".join("".join(cell["source"]) for cell in cells)
    return text


def anchors(path: Path) -> set[str]:
    """The names by which headings can be linked, as GitHub and MyST make them."""
    text = text_of(path)
    if included := re.match(r"```\{include\} (\S+)", text):
        return anchors(path.parent / included[1])
    headings = re.findall(r"^#+\s+(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken(path: Path, text: str) -> Iterator[str]:
    """The relative links of a page that lead nowhere."""
    for target in LINK.findall(FENCED.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = path.parent / name if name else path
        if not found.exists() and found.parent == DOCS / "notebooks":
            found = ROOT / "notebooks" / found.name  # where conf.py copies them from
        if not found.exists() or (
            anchor and found.suffix in (".md", ".ipynb") and anchor not in anchors(found)
        ):
            yield target


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert list(broken(path, text_of(path))) == []


def test_a_broken_link_is_found() -> None:
    text = (
        "See [a](guarantee.md), [b](nowhere.md), [c](guarantee.md#no-such-heading), [d](#here).\n\n# Here\n"
    )
    assert list(broken(DOCS / "index.md", text)) == ["nowhere.md", "guarantee.md#no-such-heading", "#here"]


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set()
    for path in DOCS.rglob("*.md"):
        for entries in TOCTREE.findall(path.read_text(encoding="utf-8")):
            listed |= {entry for entry in entries.split() if not entry.startswith(":")}
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in PAGES if DOCS in path.parents}
    assert pages - listed == {"index"}
    assert "notebooks/*" in listed


def reference() -> dict[str, set[str]]:
    """The names that the API reference lists, by module."""
    found: dict[str, set[str]] = {}
    module = ""
    for line in (DOCS / "api" / "index.md").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = match[1]
        elif match := re.match(r"(?:   |\.\. autodata:: )([\w.]+)$", line):
            found.setdefault(module, set()).add(match[1])
    return found


def test_every_public_name_is_in_the_reference() -> None:
    listed = reference()
    assert set(listed) == {
        "pymc_dpvi",
        "pymc_dpvi.accounting",
        "pymc_dpvi.errors",
        "pymc_dpvi.plots",
    }
    everywhere = set().union(*listed.values())
    for name, names in listed.items():
        module = importlib.import_module(name)
        public = set(module.__all__)
        # What a public name takes or returns may stand in a module of its own, and is listed with that.
        others = {entry.rpartition(".")[::2] for entry in names if "." in entry}
        assert {entry for entry in names if "." not in entry} <= public
        for inner, entry in others:
            assert entry in importlib.import_module(f"{name}.{inner}").__all__
        assert public <= everywhere, f"docs/api/index.md lacks {sorted(public - everywhere)} of {name}"


TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in [path.stem, *re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)]
}
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted((ROOT / "pymc_dpvi").rglob("*.py"))
}


def test_the_mathematics_of_every_module_is_on_the_page() -> None:
    text = (DOCS / "mathematics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert [f"`{name}`" for name in listed] == re.findall(r"^### (\S+)$", text, re.MULTILINE)
    texts = {name: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for name, path in SOURCES.items()}
    assert all((texts[name] or "").strip() for name in listed)
    with_formulas = {
        name for name, found in texts.items() if found and re.search(r":math:|\.\. math::", found)
    }
    assert len(with_formulas) > 20
    assert with_formulas <= set(listed)


def test_every_room_has_its_place_in_the_architecture() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("## Architecture") : text.index("### Where things are decided")]
    rooms = {name.split(".")[1] for name in SOURCES if name.count(".")} - {"__init__"}
    assert (
        set(re.findall(r"`([a-z_]+)`", re.sub(r"\|[^|]*\|[^|]*\|$", "", table, flags=re.MULTILINE))) == rooms
    )


def test_where_things_are_decided_is_true() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("### Where things are decided") : text.index("What has to stay true")]
    package = ROOT / "pymc_dpvi"
    for row in re.findall(r"^\|.*\|$", table, re.MULTILINE):
        for file, names in re.findall(r"`([\w/]+\.py)`(?:: ((?:`[\w.]+`(?:, )?)+))?", row):
            where = ROOT / file if file.startswith("tests/") else package / file
            source = where.read_text(encoding="utf-8")
            for name in re.findall(r"[\w]+", names):
                assert re.search(rf"\b(class|def) {name}\b|^{name}\b", source, re.MULTILINE), (file, name)


def test_the_commands_of_the_documentation_exist() -> None:
    environments = set(
        re.findall(r"^\[testenv:([\w-]+)\]$", (ROOT / "setup.cfg").read_text("utf-8"), re.MULTILINE)
    )
    for path in [*PAGES, *NOTEBOOKS]:
        text = text_of(path)
        for name in re.findall(r"tox (?:run )?-e ([\w-]+)", text):
            assert name in environments or re.fullmatch(r"py(3\d+)?", name), f"{path.name}: tox -e {name}"
        for name in re.findall(r"\b(?:tests|benchmarks|notebooks)/[\w/]+\.py\b", text):
            assert (ROOT / name).exists(), f"{path.name}: {name}"
        for test in re.findall(r"`(?:tests/test_\w+\.py::)?(test_\w+)`", text):
            assert test in TESTS, f"{path.name}: {test}"


def blocks(path: Path) -> list[str]:
    """The blocks of Python on a page."""
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.turns
@pytest.mark.parametrize("page", ["getting_started", pytest.param("user_guide", marks=pytest.mark.slow)])
def test_the_code_on_the_pages_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_compiling: None
) -> None:
    """From top to bottom, in one namespace; fits are cut to a few steps."""
    fit = pm.fit

    def short(n: int, *args: Any, **kwargs: Any) -> Any:
        return fit(min(n, 20), *args, **{"progressbar": False, **kwargs})

    monkeypatch.setattr(pm, "fit", short)
    monkeypatch.setattr(auditing_run, "backends", inference.backends)
    monkeypatch.chdir(tmp_path)
    found = blocks(DOCS / f"{page}.md")
    assert len(found) >= 4
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(found):
        exec(compile(block, f"{page}.md, block {number}", "exec"), namespace)
    assert namespace["approx"].privacy.releasable
    assert np.isfinite(namespace["meaning"].advantage)

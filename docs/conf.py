"""The documentation site: ``tox run -e docs`` builds it, with warnings as errors.

The sources are this folder, the notebooks of ``../notebooks`` with their stored outputs, and the docstrings
of the package. No notebook is executed here: ``tox run -e notebooks`` does that.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pymc_dpvi

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

project = "pymc_dpvi"
author = "The pymc_dpvi developers"
project_copyright = author
version = release = pymc_dpvi.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
nitpicky = True
# `name` in a docstring is a name in the code, as in the terminal.
default_role = "code"

html_theme = "pydata_sphinx_theme"
html_title = "pymc_dpvi"
html_show_sourcelink = False
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
templates_path = ["_templates"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
nb_execution_mode = "off"
nb_merge_streams = True
copybutton_exclude = ".linenos, .gp, .go"

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# Classes of other packages that the signatures and base classes name, and that are not linked: the site is
# built without looking anything up on the network.
nitpick_ignore_regex = [
    (r"py:.*", r"(abc|arviz|dp_accounting|matplotlib|numpy|pymc|pytensor|rich|xarray)\..*"),
    # What the public accountants have in common is no part of the interface.
    (r"py:class", r"pymc_dpvi\.accounting\.contract\.CountingAccountant"),
    (r"py:class", r"pymc_dpvi\.posterior\.expressions\.CheckedExpressions"),
    (r"py:class", r"pymc_dpvi\.accounting\.papers\.concentrated\._FullBatchAccountant"),
    (r"py:.*", r"(Exception|RuntimeError|UserWarning|ValueError|TypeError|tuple|NamedTuple|object)"),
]

# Links into the network are checked by `tox run -e docs-links`, which needs it.
linkcheck_timeout = 30
linkcheck_retries = 2
linkcheck_anchors = False

# Files that stand outside of this folder, where GitHub looks for them, and their pages here.
PAGES = {
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../SECURITY.md": "security.md",
    "docs/how_it_works.md": "how_it_works.md",
    "docs/limitations.md": "limitations.md",
    "docs/noise.md": "noise.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def copy_notebooks() -> None:
    """Put the notebooks where Sphinx finds them; the folder is not under version control."""
    target = HERE / "notebooks"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        shutil.copyfile(path, target / path.name)


def redirect(text: str) -> str:
    """Let links to files outside of this folder lead to their pages."""
    for path, page in PAGES.items():
        text = text.replace(f"]({path})", f"]({page})").replace(f"]({path}#", f"]({page}#")
    return text


def on_source(_app: Any, docname: str, source: list[str]) -> None:
    """Redirect links in a page of this folder."""
    if not docname.startswith("notebooks/"):
        source[0] = redirect(source[0])


def on_include(_app: Any, _path: Path, _docname: str, content: list[str]) -> None:
    """Redirect links in a file of the folder above."""
    content[0] = redirect(content[0])


def on_missing(_app: Any, _env: Any, node: Any, contnode: Any) -> Any:
    """Show what a module's text on the page of mathematics refers to as code: inner names have no page."""
    return contnode if node.get("refdoc") == "mathematics" and node.get("refdomain") == "py" else None


copy_notebooks()
sys.dont_write_bytecode = True


def setup(app: Any) -> None:
    """Connect to Sphinx."""
    app.connect("source-read", on_source)
    app.connect("include-read", on_include)
    app.connect("missing-reference", on_missing)

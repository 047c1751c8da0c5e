"""Run the notebooks, and keep what they show.

    python notebooks/run.py [--quick] [--write] [01_quickstart ...]

Without ``--write`` a notebook is only run, and nothing is changed: that is what ``tox run -e notebooks``
does, so that none can rot. With ``--write`` the new outputs are stored in the file, with a hash of the code
that made them; `tests/test_notebooks.py` compares it with the code that stands there. Outputs that show a
warning, or where this machine keeps its files, are not stored.

``--quick`` makes the runs short. A notebook says itself how: its metadata hold, under ``pymc_dpvi`` and
``quick``, values for the names that its cell tagged ``parameters`` assigns. They take effect after that cell.

Privacy: the notebooks use public data. Their private fits draw their noise from the operating system, as
in real use, so the numbers differ a little from run to run and no text in a notebook quotes one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LANGUAGE = {"name": "python"}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
#: What no reader of a notebook should see: places on the machine that ran it, and warnings.
UNWANTED = re.compile(r"site-packages|/home/|/root/|/work/|/tmp/|/Users/|Warning:|Traceback")


def names() -> list[str]:
    """Return the names of all notebooks, in order."""
    return sorted(path.stem for path in HERE.glob("[0-9][0-9]_*.ipynb"))


def load(name: str) -> dict[str, Any]:
    """Read a notebook as it is stored."""
    document: dict[str, Any] = json.loads((HERE / f"{name}.ipynb").read_text(encoding="utf-8"))
    return document


def source(cell: dict[str, Any]) -> str:
    """Return the text of a cell, which a file may hold line by line."""
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def parameters(document: dict[str, Any]) -> dict[str, Any]:
    """Return the quick values of a notebook's parameters."""
    return dict(document["metadata"].get("pymc_dpvi", {}).get("quick", {}))


def code_hash(document: dict[str, Any]) -> str:
    """Return a hash of all code cells, in order."""
    cells = [source(cell) for cell in document["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(cells, ensure_ascii=False).encode()).hexdigest()


def shown(document: dict[str, Any]) -> Iterator[str]:
    """Yield all text that the outputs show."""
    for cell in document["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            texts = [data[kind] for kind in data if not kind.startswith("image/")]
            for text in [output.get("text", ""), output.get("traceback", ""), *texts]:
                yield text if isinstance(text, str) else "".join(text)


def unwanted(document: dict[str, Any]) -> list[str]:
    """Return what the outputs show and should not, and whatever went to the stream of errors."""
    found = [match[0] for text in shown(document) for match in UNWANTED.finditer(text)]
    outputs = [output for cell in document["cells"] for output in cell.get("outputs", ())]
    return found + ["".join(output["text"])[:200] for output in outputs if output.get("name") == "stderr"]


def sources(document: dict[str, Any], *, quick: bool) -> list[str]:
    """Return the code cells in order; if `quick`, with the quick values after the cell of parameters."""
    found = []
    for cell in document["cells"]:
        if cell["cell_type"] != "code":
            continue
        found.append(source(cell))
        if quick and "parameters" in cell["metadata"].get("tags", ()):
            found.append("\n".join(f"{name} = {value!r}" for name, value in parameters(document).items()))
    return found


def run(name: str, *, quick: bool) -> Any:
    """Run one notebook in a kernel of its own, in its folder, and return it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    if quick:
        for cell in notebook.cells:
            if "parameters" in cell["metadata"].get("tags", ()):
                values = parameters(notebook)
                cell["source"] += "\n" + "\n".join(f"{key} = {value!r}" for key, value in values.items())
    client = NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}
    )
    return client.execute()


def kept(outputs: list[Any]) -> list[Any]:
    """Return outputs as they are stored: prints joined, which are cut by chance, and no text beside HTML."""
    found: list[Any] = []
    for output in outputs:
        if output["output_type"] == "stream" and found and found[-1].get("name") == output["name"]:
            found[-1]["text"] += output["text"]
            continue
        if "text/html" in output.get("data", {}):
            output["data"].pop("text/plain", None)
        found.append(output)
    return found


def write(name: str, notebook: Any) -> None:
    """Store a notebook with its outputs, without what changes from run to run and tells nothing."""
    import nbformat

    for cell in notebook.cells:
        cell["metadata"].pop("execution", None)
        if "outputs" in cell:
            cell["outputs"] = kept(cell["outputs"])
    if found := unwanted(notebook):
        raise SystemExit(f"{name}: not stored, for its outputs show {found}")
    notebook.metadata["kernelspec"], notebook.metadata["language_info"] = KERNEL, LANGUAGE
    notebook.metadata["pymc_dpvi"]["code_run"] = code_hash(notebook)
    nbformat.write(notebook, HERE / f"{name}.ipynb")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Run the notebooks.")
    parser.add_argument("names", nargs="*", help="such as 01_quickstart; all by default")
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(names())):
        parser.error(f"no such notebook: {', '.join(unknown)}; there are {', '.join(names())}")
    if arguments.quick and arguments.write:
        parser.error("--write stores the outputs of whole runs, not of quick ones")
    # Sphinx and GitHub show pictures that the kernel's inline backend makes.
    # The search for a BLAS ends in a warning that shows where this machine keeps its packages.
    os.environ.setdefault("PYTENSOR_FLAGS", "blas__ldflags=")
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for name in arguments.names or names():
        begin = time.perf_counter()
        notebook = run(name, quick=arguments.quick)
        if arguments.write:
            write(name, notebook)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

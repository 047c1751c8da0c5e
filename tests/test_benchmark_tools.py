"""What the benchmarks share: README's table of accuracies, and processes that say no more than they must."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def readme_table() -> Any:
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "benchmarks" / "readme_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run() -> dict[str, Any]:
    """What `logistic_regression.py` writes, in short."""
    rows, fits = [], []
    for name in ("abalone", "adult"):
        for epsilon in (None, 0.1, 3.0):
            accuracies = [0.75, 0.77] if epsilon else [0.8]
            fits += [{"dataset": name, "epsilon": epsilon, "accuracy": a} for a in accuracies]
            mean, error = (0.76, 0.01) if epsilon else (0.8, None)
            rows.append(
                {
                    "dataset": name,
                    "epsilon": epsilon,
                    "fits": len(accuracies),
                    "accuracy": mean,
                    "accuracy_se": error,
                }
            )
    return {
        "table": rows,
        "fits": fits,
        "delta": 1e-5,
        "quick": False,
        "insecure_noise_seed": None,
        "python": "3.11.7",
        "versions": {"pymc": "5.28.1"},
    }


def test_the_table_of_the_readme(readme_table: Any) -> None:
    text = readme_table.section(run())
    assert "of two private fits (one ordinary ones), δ = 1e-5" in text
    assert "(Python 3.11, PyMC 5.28)" in text
    head, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert head == "| | ADVI (not private) | ε = 0.1 | ε = 3 |" and rule == "|---|---|---|---|"
    assert rows == [
        "| Abalone | 0.8000 | 0.7600 ± 0.0100 | 0.7600 ± 0.0100 |",
        "| Adult | 0.8000 | 0.7600 ± 0.0100 | 0.7600 ± 0.0100 |",
    ]
    assert text.endswith(
        "At ε = 0.1 single fits are between 0.750 and 0.770 on Abalone, between 0.750 and 0.770 on Adult."
    )


def test_it_goes_into_the_readme_and_nowhere_else(readme_table: Any) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    new = readme_table.replaced(page, readme_table.section(run()))
    begin, end = page.index(readme_table.BEGIN), page.index(readme_table.END)
    assert new.startswith(page[:begin]) and new.endswith(page[end:]) and "0.7600 ± 0.0100" in new
    assert "0.7600" not in readme_table.replaced(new, page[begin + len(readme_table.BEGIN) : end])
    with pytest.raises(ValueError, match="once each"):
        readme_table.replaced("no marks", "text")


@pytest.mark.parametrize(("name", "value"), [("quick", True), ("insecure_noise_seed", 1)])
def test_other_runs_are_not_for_the_readme(readme_table: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="a full run"):
        readme_table.section(run() | {name: value})


SAYS = (
    "import warnings; warnings.warn('PyTensor could not link to a BLAS installation. Operations ...'); "
    "warnings.warn('another one')"
)


def test_processes_are_quiet_about_blas_and_nothing_else() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "import subprocess, workers\n"
        "workers.quiet_about_blas()\n"
        f"subprocess.run([sys.executable, '-c', {SAYS!r}])\n{SAYS}"
    )
    for asked in ({}, {"PYTHONWARNINGS": "ignore::ImportWarning"}):
        found = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, **asked},
            check=True,
        )
        assert "BLAS" not in found.stderr and found.stderr.count("UserWarning: another one") == 2
    loud = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert "BLAS" in loud.stderr

"""What callbacks see, when they are called, and what the progress bar says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
from pymc.variational.callbacks import Tracker
from rich.theme import Theme
from short_fits import CHEAP, MARKS, SEEDED, Build, Iterates, params, quiet

from pymc_dpvi import DPADVI, ModelEvaluationError, PrivacyReport
from pymc_dpvi.progress import StepProgress

pytestmark = MARKS


@pytest.mark.turns
def test_tracker(logistic: Build) -> None:
    with logistic():
        method = DPADVI(**CHEAP)
        tracker = Tracker(
            mean=method.approx.mean.eval, std=method.approx.std.eval, hist=lambda approx, losses, i: losses
        )
        approx = pm.fit(6, method=method, callbacks=[tracker], progressbar=False)
    assert np.shape(tracker["mean"]) == np.shape(tracker["std"]) == (6, 2)
    assert tracker["hist"] == [None] * 6
    assert len(np.unique(tracker["mean"], axis=0)) == 6
    # The result is the average of the last half of the iterates (of the parameters, not of std).
    np.testing.assert_allclose(approx.mean.eval(), np.mean(tracker["mean"][3:], axis=0), rtol=1e-12)


@pytest.mark.turns
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_iterates_of_the_last_half_are_averaged(logistic: Build, n: int) -> None:
    seen = Iterates()
    with logistic():
        approx = quiet(DPADVI(**CHEAP), n, callbacks=[seen])
    np.testing.assert_allclose(params(approx), np.mean(seen.values[n // 2 :], axis=0), rtol=1e-10)
    assert seen.calls == [(None, i) for i in range(1, n + 1)]
    assert approx.hist.shape == (n,) and (approx.hist > 0).all()


@pytest.mark.turns
@pytest.mark.parametrize(
    ("periods", "called"),
    [([5], [1, 5, 10, 12]), ([4, 6], [1, 2, 4, 6, 8, 10, 12]), ([5, None], range(1, 13))],
)
def test_callbacks_with_a_period(logistic: Build, periods: list[int | None], called: Any) -> None:
    """Called less often, they see what they would have seen; in a second run, the count goes on."""
    seen = [Iterates() for _ in periods]
    for callback, period in zip(seen, periods, strict=True):
        if period is not None:
            callback.every = period  # type: ignore[attr-defined]
    always = Iterates()
    for callbacks in (seen, [always]):
        with logistic():
            quiet(DPADVI(**CHEAP), 12, callbacks=callbacks)
    for callback in seen:
        assert [i for _, i in callback.calls] == list(called)
        for value, i in zip(callback.values, called, strict=True):
            np.testing.assert_array_equal(value, always.values[i - 1])


@pytest.mark.turns
def test_a_period_counts_the_steps_of_all_runs(logistic: Build) -> None:
    seen = Iterates()
    seen.every = 5  # type: ignore[attr-defined]
    with logistic():
        method = DPADVI(**CHEAP)
        quiet(method, 12, callbacks=[seen])
        method.refine(6, progressbar=False)
    assert [i for _, i in seen.calls] == [1, 5, 10, 12, 13, 15, 18]


# -------------------------------------------------------------------------------- progress bar


@pytest.mark.parametrize("public", [True, False])
def test_progressbar(
    logistic: Build, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, public: bool
) -> None:
    """The speed tells of the number of records: where that is private, it does not stay."""
    theme = Theme({"bar.complete": "red"})
    monkeypatch.setenv("COLUMNS", "160")
    live: list[str] = []
    advance = StepProgress.advance

    def watched(self: StepProgress, steps: int) -> None:
        advance(self, steps)
        live.append(self._bar.tasks[0].fields["speed"])

    monkeypatch.setattr(StepProgress, "advance", watched)
    with logistic():
        relation = "replace_one" if public else "add_or_remove_one"
        method = DPADVI(**SEEDED, neighboring_relation=relation)
        pm.fit(20, method=method, progressbar=True, progressbar_theme=theme)
        method.refine(10)
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert "20/20 steps" in shown and "10/10 steps" in shown
    assert live and all("steps/s" in speed for speed in live)
    assert ("steps/s" in shown) is public and ("0:00" in shown) is public
    assert "ε = 1 at δ = 1e-06" in shown
    for word in ("loss", "elbo", "score"):
        assert word not in shown.lower()


def test_no_progressbar(logistic: Build, capsys: pytest.CaptureFixture[str]) -> None:
    with logistic():
        quiet(DPADVI(**CHEAP))
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_the_bar_never_shows_less_than_is_spent(
    logistic: Build, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(PrivacyReport, "epsilon", property(lambda _: 1.0041))
    monkeypatch.setattr(PrivacyReport, "delta", property(lambda _: 1.0041e-6))
    with logistic():
        pm.fit(3, method=DPADVI(**SEEDED), progressbar=True)
    assert "ε = 1.01 at δ = 1.01e-06 (planned)" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("error", "left"), [(ModelEvaluationError, "0/20"), (KeyboardInterrupt, "13/20")])
def test_the_bar_does_not_tell_at_which_step_a_record_ended_a_run(
    error: type[BaseException],
    left: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(error), StepProgress(20, "", True) as progress:
        progress.advance(13)
        raise error("")
    shown = "".join(capsys.readouterr())
    assert f"{left} steps" in shown and ("13/20" in shown) is (left == "13/20")

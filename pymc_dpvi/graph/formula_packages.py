"""Models that a formula package has written: their numbers may come from the records, and no graph says so.

Bambi, for one, centres predictors by their means and scales priors by the standard deviations of the data,
before there is a model. A single record can then move every other record's row, or turn a prior's scale
into nothing. The names that such a package gives tell of it; no data value is looked at.
"""

from __future__ import annotations

import pymc as pm

__all__ = ["FORMULA_ADVICE", "formula_mark"]

#: What follows from a mark, for a warning.
FORMULA_ADVICE = (
    "Such a package centres predictors and scales priors by numbers of the records, which nothing protects. "
    "Give it a prior for each term, public levels, and no centring (Bambi: center_predictors=False, "
    "auto_scale=False). If that was done, or the model was written by hand, nothing is wrong."
)

_DIMS = ("__factor_dim", "__expr_dim", "__obs__")


def formula_mark(model: pm.Model) -> str | None:
    """Return a name that formula packages give, or None if the model has none.

    That is a coefficient ``Intercept``, a group-specific term ``1|group``, or a dim such as ``__obs__`` and
    ``group__factor_dim``.

    Parameters
    ----------
    model : pymc.Model

    Returns
    -------
    str or None
        Of a variable or dim of the model. It does not depend on the records.
    """
    names = [str(rv.name) for rv in model.free_RVs]
    dims = [str(dim) for dim in model.coords]
    marked = [n for n in names if n == "Intercept" or "|" in n] + [d for d in dims if d.endswith(_DIMS)]
    return marked[0] if marked else None

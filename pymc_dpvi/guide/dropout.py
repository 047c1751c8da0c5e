r"""Variational dropout: :math:`z = \varphi + \varsigma\,\zeta` with a log-uniform prior.

A weight is multiplied by noise of mean one and variance :math:`\alpha = \varsigma^2/\varphi^2` (Kingma,
Salimans and Welling 2015), and its prior is :math:`p(|z|) \propto 1/|z|`. The divergence from that prior is a
function of :math:`\alpha` alone; with :math:`\sigma(x) = 1/(1 + e^{-x})` (Molchanov, Ashukha and Vetrov,
"Variational dropout sparsifies deep neural networks", 2017, eq. 14),

.. math:: -\mathrm{KL} \approx k_1\,\sigma(k_2 + k_3\log\alpha) - \tfrac12\log(1 + \alpha^{-1}) - k_1,
          \qquad k = (0.63576,\ 1.87320,\ 1.48695).

As there, :math:`\varsigma` is a parameter of its own, and not :math:`\alpha`, whose gradients are noisier.
It is written in :math:`t = 1/\alpha`, which is zero and smooth where a weight is zero.

The posterior under a log-uniform prior is improper (Hron, Matthews and Ghahramani 2018): read the fit as a
penalised one, in which dropped weights have :math:`\log\alpha` above about three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.guide.mean_field import MeanField

__all__ = ["Dropout"]

_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695


class Dropout(MeanField):
    """Variational dropout: a normal for each weight, and a log-uniform prior that lets weights go.

    The family has its prior in it, so the variable's own must be ``pm.Flat``. The dropout rates are released:
    ``approx.log_alpha``.

    Notes
    -----
    Weights with ``log_alpha`` above about 3 (a dropout probability of 0.95) count as dropped. Start weights
    at draws (``start=``), as for :class:`Point`.

    References
    ----------
    .. [1] Molchanov, Ashukha, Vetrov, "Variational dropout sparsifies deep neural networks", 2017,
       arXiv:1701.05369.
    .. [2] Ermis, Cemgil, "Differentially private variational dropout", 2017, arXiv:1712.02629.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     W = pm.Flat("W", shape=(64, 10))
    >>> DPADVI(epsilon=1.0, delta=1e-6, guide={"W": Dropout()}, start={"W": init})
    """

    start_sigma: ClassVar[float | None] = math.exp(-5)  # as Molchanov et al.
    noise_aware: ClassVar[bool] = False

    def entropy(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        """Minus the divergence from the log-uniform prior."""
        t = (mean / self.stddev(params, mean)) ** 2
        kept = _K1 / (1.0 + math.exp(-_K2) * t**_K3)
        return (kept - 0.5 * pt.log1p(t) - _K1).sum()

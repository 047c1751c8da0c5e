"""Noisy sums of a regression, released once, and the posterior that knows of their noise.

**Release.** A record (x, y) is multiplied by √c = min(1, R/‖x‖); y is −1 or 1, or continuous and then
clipped to [−B, B]. S = Σ c xx', b = Σ c yx and, if y is continuous, q = Σ c y² are released as sums of the
vectors (xx'/R², √2 xy/(RB), y²/B²), of xx' the upper triangle with √2 for what is off the diagonal. The
norm of such a vector is at most ‖x‖²/R² + y²/B² ≤ 2, or √3 without the last entry: the sensitivity Δ to one
record added or removed. Gaussian noise of standard deviation τ = Δm, for a noise multiplier m, makes

    S̃ = S + τR² G,    b̃ = b + τRB/√2 · z,    q̃ = q + τB² · z',    G of the orthogonal ensemble.

**Posterior.** S is latent. Given S, the other two are nearly normal (where c < 1, less spread than this).
For the linear family b is exactly so, which is better than the central limit theorem for all three
(Alparslan, Yıldırım and Birbil, 2023):

    linear:    b ~ N(Sβ, σ²S);   q given b: mean 2β'b − β'Sβ + (N−D)σ² + (b−Sβ)'S⁻¹(b−Sβ), variance 2Nσ⁴
    logistic:  b ~ N(N E[x tanh(η/2)], N E[1 − tanh²(η/2)] E[xx']),   η = x'β,   N = Σ c = S₀₀

The intercept x₀ = 1 makes S tell N and the mean of x. The expectations are over x normal with the mean and
variance that S tells, by Stein's lemma, with tanh as a mixture of error functions. ``polynomial=True``
takes instead Huggins's quadratic log σ(s) ≈ a₁s + a₂s² + const on |s| ≤ 4: b ~ N(κSβ, κS/a₁), κ = −2a₂/a₁.
b is integrated out, and q as a normal variable given b̃. Hamiltonian Monte Carlo draws (S, β, σ) given (S̃,
b̃, q̃). The prior of S/N₀, for N₀ records, is inverse Wishart with D + 4 degrees of freedom and mean I; β
is normal and σ half-normal, as in the model.

Only `release` sees records. What it takes for R and B is not private: see `bounds_of`.

Sources: Bernstein and Sheldon, 2019, arXiv:1910.13153 (noise-aware linear regression); Kulkarni, Jälkö,
Koskela, Kaski and Honkela, 2021, arXiv:2011.00467 (the same for generalised linear models); Huggins, Adams
and Broderick, 2017, arXiv:1709.09216; Alparslan, Yıldırım and Birbil, 2023, arXiv:2301.13778.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from calibration_problems import Array, Draws, Problem
from scipy import optimize, special

__all__ = ["Posterior", "Release", "bounds_of", "release", "sample", "sensitivity", "statistics_of"]

#: Of the norms of x: R.
QUANTILE = 0.95
_FREEDOM = 4  # degrees of freedom of the prior of S, beyond D
# tanh(η/2) = Σ share · erf(scale · η/√2) to 1e-6: the logistic distribution is a mixture of normals.
_GRID, _SCALES = np.linspace(0.0, 15.0, 301), np.geomspace(0.2, 1.5, 8)
_SHARES = optimize.nnls(special.erf(_GRID[:, None] * _SCALES / math.sqrt(2.0)), np.tanh(_GRID / 2.0))[0]


@dataclass(frozen=True)
class Release:
    """Noisy sums, and the standard deviations of their noise (of S: on the diagonal).

    Attributes
    ----------
    xx : ndarray, shape (D, D)
    xy : ndarray, shape (D,)
    yy : float or None
        None for y of −1 and 1.
    noise : tuple of float
        Of the three.
    """

    xx: Array
    xy: Array
    yy: float | None
    noise: tuple[float, float, float]


def bounds_of(problem: Problem) -> tuple[float, float]:
    """Bounds R and B, from the data and without privacy."""
    sizes = np.linalg.norm(problem.x, axis=1)
    r = float(np.quantile(sizes, QUANTILE))
    if problem.family == "logistic":
        return r, 1.0
    return r, float(np.max(np.abs(problem.y) * np.minimum(1.0, r / sizes)))


def statistics_of(x: Array, y: Array, r: float, b: float, binary: bool) -> Array:
    """Return what each record adds to the sums, in units of the bounds, shape ``(n, D(D+1)/2 + D [+ 1])``."""
    with np.errstate(all="ignore"):
        peak = np.maximum(np.max(np.abs(x), axis=1, keepdims=True), 1e-300)  # squares must not overflow
        shrink = np.minimum(1.0, r / np.linalg.norm(x / peak, axis=1, keepdims=True) / peak)
        x = np.nan_to_num(x * shrink) / r
        y = np.nan_to_num(np.clip((np.where(y > 0, 1.0, -1.0) if binary else y) * shrink[:, 0], -b, b)) / b
    rows, columns = np.triu_indices(x.shape[1])
    squares = x[:, rows] * x[:, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))
    return np.column_stack([squares, math.sqrt(2.0) * x * y[:, None], *([] if binary else [y**2])])


def sensitivity(binary: bool) -> float:
    """Largest norm of what a record adds: ((1 + 1)², less the square of y where it is not released)^½."""
    return math.sqrt(3.0) if binary else 2.0


def release(problem: Problem, noise_multiplier: float, rng: np.random.Generator) -> Release:
    """Release the sums once with the Gaussian mechanism."""
    (r, b), binary, d = bounds_of(problem), problem.family == "logistic", problem.x.shape[1]
    stddev = noise_multiplier * sensitivity(binary)
    sums: Array = sum(  # type: ignore[assignment]
        statistics_of(problem.x[i : i + 5000], problem.y[i : i + 5000], r, b, binary).sum(axis=0)
        for i in range(0, len(problem.y), 5000)
    )
    sums = sums + stddev * rng.standard_normal(len(sums))
    rows, columns = np.triu_indices(d)
    xx = np.zeros((d, d))
    xx[rows, columns] = sums[: len(rows)] / np.where(rows == columns, 1.0, math.sqrt(2.0))
    xx = (xx + np.triu(xx, 1).T) * r**2
    xy = sums[len(rows) : len(rows) + d] * r * b / math.sqrt(2.0)
    noise = stddev * r**2, stddev * r * b / math.sqrt(2.0), stddev * b**2
    return Release(xx, xy, None if binary else float(sums[-1]) * b**2, noise)


class Posterior:
    """Log density of u = (entries of L, U'β, log σ) where S = PLL'P', P = UΛ^½, and its gradient.

    Parameters
    ----------
    seen : Release
    num_records : int
        N₀.
    prior_stddev : float
        Of β.
    polynomial : bool
        Whether the logistic family's log-likelihood is the quadratic one.
    """

    def __init__(self, seen: Release, num_records: int, prior_stddev: float, polynomial: bool = False):
        self.seen, self.n, self.prior = seen, num_records, prior_stddev
        self.linear, self.d = seen.yy is not None, len(seen.xy)
        self.rows, self.columns = np.tril_indices(self.d)
        self.diagonal = np.flatnonzero(self.rows == self.columns)
        self.quadratic = quadratic() if polynomial else None
        values, vectors = np.linalg.eigh(seen.xx)
        self.rebase((vectors * np.clip(values, 0.1 * num_records, None)) @ vectors.T)

    @property
    def size(self) -> int:
        """Length of u."""
        return len(self.rows) + self.d + self.linear

    def rebase(self, xx: Array) -> None:
        """Put L = I at this S."""
        values, self.basis = np.linalg.eigh(xx)
        self.root = self.basis * np.sqrt(values)
        self.inverse_root = (self.basis / np.sqrt(values)).T

    def unpack(self, u: Array) -> tuple[Array, Array, Array, float]:
        """Return L, S, β and σ²."""
        lower = np.zeros((self.d, self.d))
        lower[self.rows, self.columns] = u[: len(self.rows)]
        lower[np.diag_indices(self.d)] = np.exp(u[self.diagonal])
        half = self.root @ lower
        beta = self.basis @ u[len(self.rows) : len(self.rows) + self.d]
        return lower, half @ half.T, beta, float(np.exp(2.0 * u[-1])) if self.linear else 1.0

    def __call__(self, u: Array) -> tuple[float, Array]:
        """Return the log density up to a constant, and its gradient."""
        lower, s, beta, v = self.unpack(u)
        tau, apart = self.seen.noise[0], self.seen.xx - s
        value, by_s = -0.5 * float(np.sum(apart**2)) / tau**2, apart / tau**2
        more, slope, by_beta, by_v = (self._linear if self.linear else self._logistic)(s, beta, v)
        # The priors: of S inverse Wishart, of β normal, of σ half-normal; with Jacobians.
        freedom, half = self.d + _FREEDOM, np.linalg.solve(lower, self.inverse_root)
        inverse, scale = half.T @ half, (_FREEDOM - 1.0) * self.n
        logs = u[self.diagonal]
        by_log = self.d + 1.0 - np.arange(self.d) - (freedom + self.d + 1.0)
        value += more + float(by_log @ logs) - 0.5 * scale * float(np.trace(inverse))
        value -= 0.5 * float(beta @ beta) / self.prior**2
        by_s = by_s + (slope + slope.T) / 2.0 + 0.5 * scale * inverse @ inverse
        by_lower = 2.0 * self.root.T @ by_s @ self.root @ lower
        out = np.empty(self.size)
        out[: len(self.rows)] = by_lower[self.rows, self.columns]
        out[self.diagonal] = out[self.diagonal] * np.exp(logs) + by_log
        out[len(self.rows) : len(self.rows) + self.d] = self.basis.T @ (by_beta - beta / self.prior**2)
        if self.linear:
            value += float(u[-1]) - 0.5 * v
            out[-1] = 2.0 * v * by_v + 1.0 - v
        return value, out

    def _linear(self, s: Array, beta: Array, v: float) -> tuple[float, Array, Array, float]:
        """Log density of (b̃, q̃) given (S, β, σ² = v), and its slopes by the three."""
        t, sb = self.seen.noise[1] ** 2, s @ beta
        r = self.seen.xy - sb
        c = v * s + t * np.eye(self.d)
        k = np.linalg.inv(c)
        u, kb = k @ r, k @ beta
        su, trace = s @ u, float(np.trace(k))
        # Given b̃, X'e has the mean vSu and the variance vtSK; e'e follows from it but for N − D squares.
        mean = beta @ sb + 2 * v * u @ sb + (s[0, 0] - self.d) * v + v**2 * u @ su + v * t * trace
        var = 2.0 * v**2 * s[0, 0] + self.seen.noise[2] ** 2 + 4.0 * v * t * sb @ kb
        left = float(self.seen.yy) - mean  # type: ignore[arg-type]
        value = -0.5 * (r @ u + np.linalg.slogdet(c)[1] + left**2 / var + math.log(var))
        g = left / var  # slopes by mean and variance
        h = 0.5 * (g**2 - 1.0 / var)
        by_u = 2.0 * g * v * (sb + v * su)
        by_r = -u + k @ by_u
        ksb = k @ sb
        by_c = 0.5 * (np.outer(u, u) - k) - np.outer(k @ by_u, u)
        by_c -= v * t * (g * k @ k + 4.0 * h * np.outer(ksb, kb))
        by_s = g * (np.outer(beta, beta + 2.0 * v * u) + v**2 * np.outer(u, u)) - np.outer(by_r, beta)
        by_s += 4.0 * h * v * t * np.outer(beta, kb) + v * by_c
        by_s[0, 0] += g * v + 2.0 * h * v**2
        by_beta = 2.0 * g * (sb + v * su) + 8.0 * h * v * t * (s @ kb) - s @ by_r
        by_v = g * (2 * u @ sb + s[0, 0] - self.d + 2 * v * u @ su + t * trace)
        by_v += h * (4.0 * v * s[0, 0] + 4.0 * t * sb @ kb) + np.sum(s * by_c)
        return float(value), by_s, by_beta, float(by_v)

    def _logistic(self, s: Array, beta: Array, _: float) -> tuple[float, Array, Array, float]:
        """Return the same for b̃ alone."""
        t, sb, column, total = self.seen.noise[1] ** 2, s @ beta, s[0], s[0, 0]
        at = column @ beta / total
        spread = max(float(beta @ sb / total - at**2), 1e-12)
        e = self._moments(float(at), spread)
        v = 2.0 * e[1] if self.quadratic is None else self.quadratic[1]
        r = self.seen.xy - column * (e[0] - at * e[1]) - sb * e[1]
        c = v * s + t * np.eye(self.d)
        k = np.linalg.inv(c)
        u = k @ r
        value = -0.5 * (r @ u + np.linalg.slogdet(c)[1])
        by_c = 0.5 * (np.outer(u, u) - k)
        by_0 = column @ u
        by_1 = (sb - at * column) @ u
        by_1 = by_1 + 2.0 * np.sum(s * by_c) if self.quadratic is None else by_1
        by_spread = 0.5 * (by_0 * e[2] + by_1 * e[3]) if self.quadratic is None else 0.0
        by_at = by_1 * e[2] - 2.0 * at * by_spread  # E[tanh] and at E[tanh'] cancel but for this
        by_s = e[1] * np.outer(u, beta) + v * by_c + by_spread * np.outer(beta, beta) / total
        by_s[0] += u * (e[0] - at * e[1]) + by_at * beta / total
        by_s[0, 0] -= (by_at * at + by_spread * (beta @ sb) / total) / total
        by_beta = e[1] * (s @ u) + (2.0 * by_spread * sb + by_at * column) / total
        return float(value), by_s, by_beta, 0.0

    def _moments(self, mean: float, variance: float) -> Array:
        """Return E[f], E[f'], E[f''] and E[f'''] of f = tanh(η/2), or of the quadratic's line κη."""
        if self.quadratic is not None:
            return np.array([self.quadratic[0] * mean, self.quadratic[0], 0.0, 0.0])
        a = _SCALES / np.sqrt(1.0 + _SCALES**2 * variance)
        slopes = _SHARES * a * math.sqrt(2.0 / math.pi) * np.exp(-0.5 * (a * mean) ** 2)
        value = _SHARES @ special.erf(a * mean / math.sqrt(2.0))
        second, third = -mean * slopes @ a**2, slopes @ (a**2 * ((a * mean) ** 2 - 1.0))
        return np.array([value, slopes.sum(), second, third])


def quadratic(limit: float = 4.0) -> tuple[float, float]:
    """Return κ and κ/a₁ of the Chebyshev approximation of degree two of log σ on [−limit, limit]."""
    a = np.polynomial.Chebyshev.interpolate(lambda s: -np.logaddexp(0.0, -s), 2, domain=[-limit, limit])
    a1, a2 = a.convert(kind=np.polynomial.Polynomial).coef[1:]
    return float(-2.0 * a2 / a1), float(-2.0 * a2 / a1**2)


def sample(target: Posterior, draws: int, rng: np.random.Generator) -> tuple[Draws, float]:
    """Draw from the posterior: Hamiltonian Monte Carlo from its mode.

    Returns
    -------
    draws : mapping
        By variable.
    accepted : float
        Share of accepted proposals.
    """

    def loss(u: Array) -> tuple[float, Array]:
        value, slope = evaluate(target, u)
        return (-value, -slope) if math.isfinite(value) else (1e300, np.zeros_like(u))

    def start() -> Array:
        u = np.zeros(target.size)
        u[target.size - target.d - target.linear : target.size - target.linear] = target.basis.T @ beta
        if target.linear:
            u[-1] = 0.5 * math.log(v)
        return u

    beta, v = np.zeros(target.d), 1.0
    for _ in range(2):
        _, s, beta, v = target.unpack(optimize.minimize(loss, start(), jac=True, method="L-BFGS-B").x)
        target.rebase(s)
    u = start()
    curvature = np.empty(target.size)
    for i in range(target.size):
        step = np.zeros(target.size)
        step[i] = 1e-4
        curvature[i] = (loss(u + step)[1][i] - loss(u - step)[1][i]) / 2e-4
    scale = 1.0 / np.sqrt(np.maximum(curvature, 1.0))
    warm, step_size = max(20, draws // 4), 0.5 / target.size**0.25
    first, u, step_size, _ = hamiltonian(target, u, scale, step_size, warm, rng, adapt=True)
    spread = first[warm // 2 :].std(axis=0)
    scale = np.sqrt((warm * spread**2 + 10.0 * scale**2) / (warm + 10.0))
    _, u, step_size, _ = hamiltonian(target, u, scale, step_size, warm, rng, adapt=True)
    kept, _, _, accepted = hamiltonian(target, u, scale, step_size, draws, rng, adapt=False)
    own = kept[:, len(target.rows) :]
    out = {"beta": own[:, : target.d] @ target.basis.T}
    if target.linear:
        out["sigma"] = np.exp(own[:, -1])
    return out, accepted


def evaluate(target: Callable[[Array], tuple[float, Array]], u: Array) -> tuple[float, Array]:
    """Return the log density and its gradient, and −∞ where they cannot be computed."""
    try:
        with np.errstate(all="ignore"):
            value, slope = target(u)
    except (np.linalg.LinAlgError, ValueError, OverflowError, ZeroDivisionError):
        return -math.inf, np.zeros_like(u)
    return (value, slope) if math.isfinite(value) and np.isfinite(slope).all() else (-math.inf, slope)


def hamiltonian(
    target: Callable[[Array], tuple[float, Array]],
    u: Array,
    scale: Array,
    step_size: float,
    draws: int,
    rng: np.random.Generator,
    adapt: bool,
) -> tuple[Array, Array, float, float]:
    """Run Hamiltonian Monte Carlo with paths of random length; adapt the step to 80 % acceptance."""
    value, slope = evaluate(target, u)
    kept, accepted, log_step, mean_log = np.empty((draws, len(u))), 0.0, math.log(step_size), 0.0
    for i in range(draws):
        step = math.exp(log_step) * rng.uniform(0.8, 1.2)
        momentum = rng.standard_normal(len(u))
        before, at, now, gradient = value - 0.5 * momentum @ momentum, u, value, slope
        for _ in range(min(60, max(1, round(rng.uniform(0.8, 2.4) / step)))):
            momentum = momentum + 0.5 * step * scale * gradient
            at = at + step * scale * momentum
            now, gradient = evaluate(target, at)
            if now == -math.inf:
                break
            momentum = momentum + 0.5 * step * scale * gradient
        chance = (
            float(np.exp(min(0.0, float(now - 0.5 * momentum @ momentum - before))))
            if now > -math.inf
            else 0.0
        )
        if rng.random() < chance:
            u, value, slope = at, now, gradient
        kept[i], accepted = u, accepted + chance / draws
        if adapt:
            log_step += (chance - 0.8) / (i + 1.0) ** 0.6
            mean_log += (log_step - mean_log) / (i // 2 + 1.0)
    return kept, u, math.exp(mean_log) if adapt else step_size, accepted

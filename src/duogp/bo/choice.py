"""The model of an optimisation where its user names none: `DuoGPModel` and TuRBO ask here.

The exact GP while its n³ is affordable, a sparse one above, and of thousands of rows a decoupled one where
those that were held out are predicted better by it. Lengthscales have the prior that grows with the dimension
and the noise one that prefers little, as BoTorch's `SingleTaskGP` has them since 0.12 (Hvarfner et al. 2024):
a few dozen rows leave the evidence of twenty lengthscales nearly flat.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from duogp.api import fit
from duogp.data.rows import hold_out
from duogp.errors import DuoGPWarning
from duogp.fitting.factories import lengthscale_prior
from duogp.kernels import ActiveDims, Hamming, Kernel, Matern52, Product, Scale, Sum
from duogp.methods.settings import BY_DIMENSION, Settings
from duogp.numerics.parameters import LogNormalPrior
from duogp.posterior.gp import GP

#: In place of a method of the registry.
AUTO = "auto"
EXACT, SPARSE, DECOUPLED = "exact", "svgp", "dcsvgp"
#: Rows up to which the exact GP is the default: of one fit, and of a loop that refits after every batch.
#: On a busy CPU core a fit of 1,000 rows took 20 s, as BoTorch's did (18 s); a sparse one of 1,100 rows took
#: 15 s, its refit 4 s. The numbers of GPUs are guesses.
EXACT_ROWS = {"cpu": 1000, "cuda": 8000}
EXACT_ROWS_OF_LOOPS = {"cpu": 500, "cuda": 4000}
#: Rows up to which a new fit of the exact GP costs about as little as going on from an old one.
ANEW_ROWS = 200
#: Inducing points of the sparse default.
POINTS = 300
NOISE_PRIOR = LogNormalPrior(-4.0, 1.0)
#: The default's settings. Inputs have a range, not a distribution, since points gather where values are good;
#: standardised outcomes have the variance 1, which a few dozen rows do not correct. Kernel and priors are
#: those of BoTorch's `SingleTaskGP`.
SETTINGS: dict[str, Any] = {
    "kernel": "rbf",
    "standardize": "cube",
    "output_scale": False,
    "lengthscale_prior": BY_DIMENSION,
    "noise_prior": NOISE_PRIOR,
    "initial_noise": NOISE_PRIOR.mode,
}
#: Settings that only sparse methods read.
SPARSE_SETTINGS = ("num_inducing", "inducing_init", "learn_inducing", "batch_size", "num_latents")
#: Rows of the comparison of coupled and decoupled models, and those of them that are held out; its points.
COMPARED_ROWS, HELD_OUT, COMPARED_POINTS = 1500, 300, 100
#: Rows from which on they are compared: a decoupled fit costs several times a coupled one.
DECOUPLED_ROWS = 4000
#: Standard errors of the difference by which the decoupled model must be better.
MARGIN = 2.0


def exact_is_affordable(rows: int, device: torch.device | str, *, refits: bool = False) -> bool:
    """Whether so many rows are few enough for an n × n matrix; ``refits``: after every batch of a loop."""
    limits = EXACT_ROWS_OF_LOOPS if refits else EXACT_ROWS
    return rows <= limits["cuda" if torch.device(device).type == "cuda" else "cpu"]


def choose_method(X: Any, y: Any, settings: dict[str, Any], *, noise: Any = None) -> str:
    """The method for these rows and settings."""
    if reads_only_sparse(settings):
        return SPARSE
    if exact_is_affordable(len(X), Settings.of(settings).torch_device):
        return EXACT
    if len(X) < DECOUPLED_ROWS:
        return SPARSE
    return DECOUPLED if decoupling_helps(X, y, settings, noise=noise) else SPARSE


def reads_only_sparse(settings: dict[str, Any]) -> bool:
    """Whether settings ask for what the exact GP has not."""
    asked = any(settings.get(name) is not None for name in SPARSE_SETTINGS)
    solver = settings.get("solver", "auto") not in ("auto", "closed-form")
    return asked or solver or settings.get("likelihood", "gaussian") != "gaussian"


def default_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The user's settings, completed by the default's where these mean something."""
    own = dict(SETTINGS)
    if not isinstance(settings.get("kernel", ""), str):
        del own["lengthscale_prior"], own["output_scale"], own["kernel"]
    if settings.get("likelihood", "gaussian") != "gaussian":
        del own["noise_prior"], own["initial_noise"]
    return own | settings


def mixed_kernel(dims: int, categorical: Sequence[int]) -> Kernel:
    """Of numbers and category codes: k(x) + k(c) + k′(x) k′(c); categories may share what they show."""
    codes = sorted({c % dims for c in categorical})
    numbers = [i for i in range(dims) if i not in codes]

    def of_codes() -> Kernel:
        return ActiveDims(Hamming(len(codes)), codes)

    def of_numbers() -> Kernel:
        prior = lengthscale_prior(Settings.of(SETTINGS), len(numbers))
        assert prior is not None and prior.mode is not None
        return ActiveDims(Matern52(len(numbers), lengthscale=prior.mode, prior=prior), numbers)

    if not numbers:
        return Scale(of_codes())
    return Sum(Scale(of_numbers()), Scale(of_codes()), Scale(Product(of_numbers(), of_codes())))


def decoupling_helps(X: Any, y: Any, settings: dict[str, Any], *, noise: Any = None) -> bool:
    """Whether held-out rows are predicted better by decoupled conditionals than by the coupled GP.

    Both are fitted to a sample of the rows with few inducing points, so that the question costs the same for
    any table.
    """
    if noise is not None or reads_only_sparse(settings):  # densities of rows with known noise of their own
        return False
    rows = np.random.default_rng(Settings.of(settings).random_state).permutation(len(X))[:COMPARED_ROWS]
    train, held_out = hold_out(rows, HELD_OUT, 0)
    densities = [_density(X, y, method, settings, train, held_out) for method in (DECOUPLED, SPARSE)]
    gain = densities[0] - densities[1]
    return bool(gain.mean() > MARGIN * gain.std(ddof=1) / np.sqrt(len(gain)))


def _density(
    X: Any, y: Any, method: str, settings: dict[str, Any], train: NDArray[Any], held_out: NDArray[Any]
) -> NDArray[np.float64]:
    """log p of every row that was held out."""
    few = settings | {"num_inducing": COMPARED_POINTS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuoGPWarning)
        gp = fit(np.asarray(X)[train], np.asarray(y)[train], method, **few)
    assert isinstance(gp, GP)
    return gp.log_density(np.asarray(X)[held_out], np.asarray(y)[held_out])

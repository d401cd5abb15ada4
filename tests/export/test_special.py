"""Functions that onnxruntime lacks, against SciPy; quantiles of mixtures against the library's search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special as reference

from duogp.export import mixtures, special
from duogp.numerics.mixtures import mixture_quantiles


@pytest.mark.parametrize("name", ["erf", "erfc", "ndtr", "log_ndtr", "sinh", "cosh"])
def test_functions_by_elementary_ones(name):
    x = torch.linspace(-30, 30, 6001, dtype=torch.float64)
    expected = getattr(reference, name, None) or getattr(np, name)
    np.testing.assert_allclose(getattr(special, name)(x), expected(x.numpy()), rtol=1e-12, atol=1e-13)


def test_gelu_is_that_of_torch():
    x = torch.linspace(-8, 8, 101, dtype=torch.float64)
    np.testing.assert_allclose(special.gelu(x), torch.nn.functional.gelu(x), rtol=1e-12, atol=1e-15)


def test_quantiles_of_any_mixture_by_a_fixed_number_of_steps():
    rng, levels = np.random.default_rng(0), [0.005, 0.05, 0.5, 0.95, 0.99]
    for components in (1, 2, 5, 27):
        mean = rng.normal(size=(components, 40)) * 10 ** rng.uniform(-2, 1, size=40)
        std = 10 ** rng.uniform(-3, 1, size=(components, 40))
        w = rng.dirichlet(np.full(components, 0.3))
        found = mixtures.mixture_quantiles(levels, *map(torch.tensor, (mean, std, w[:, None])))
        deviation = np.sqrt(w @ (std**2 + (mean - w @ mean) ** 2))
        away = np.abs(found.numpy() - mixture_quantiles(np.array(levels), mean, std, w)) / deviation
        assert away.max() < 2e-7

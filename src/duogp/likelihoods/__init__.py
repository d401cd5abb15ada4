"""p(y | f): expectations in closed form or by quadrature."""

from duogp.likelihoods.base import Density, Likelihood
from duogp.likelihoods.gaussian import GaussianDensity, GaussianLikelihood

__all__ = ["Density", "GaussianDensity", "GaussianLikelihood", "Likelihood"]

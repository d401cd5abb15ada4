"""Deep Gaussian processes: layers are bases (Salimbeni and Deisenroth 2017; Popescu et al.)."""

from duogp.deep.build import KINDS, Architecture, build_deep_model
from duogp.deep.draws import LayerDraws
from duogp.deep.gp import DeepGP, LayerVariances
from duogp.deep.layers import Layer
from duogp.deep.mixture import MixtureDensity
from duogp.deep.model import DeepModel
from duogp.deep.skip import SkipMean

__all__ = [
    "KINDS",
    "Architecture",
    "DeepGP",
    "DeepModel",
    "Layer",
    "LayerDraws",
    "LayerVariances",
    "MixtureDensity",
    "SkipMean",
    "build_deep_model",
]

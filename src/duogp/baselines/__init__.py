"""Baselines that are networks, not Gaussian processes: deep ensembles and MC dropout."""

from duogp.baselines.fit import fit_neural
from duogp.baselines.networks import Committee, DeepEnsemble, MCDropout
from duogp.baselines.options import KINDS, NeuralSettings
from duogp.baselines.predictor import NeuralPredictor

__all__ = [
    "KINDS",
    "Committee",
    "DeepEnsemble",
    "MCDropout",
    "NeuralPredictor",
    "NeuralSettings",
    "fit_neural",
]

"""Baselines that are networks, not Gaussian processes: deep ensembles and MC dropout."""

from duogp.neural.fitting import fit_neural
from duogp.neural.networks import Committee, DeepEnsemble, MCDropout
from duogp.neural.predictor import NeuralPredictor
from duogp.neural.settings import KINDS, NeuralSettings

__all__ = [
    "KINDS",
    "Committee",
    "DeepEnsemble",
    "MCDropout",
    "NeuralPredictor",
    "NeuralSettings",
    "fit_neural",
]

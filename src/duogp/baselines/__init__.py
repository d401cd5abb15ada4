"""Baselines that are networks, not Gaussian processes: deep ensembles and MC dropout."""

from duogp.baselines.fitting import fit_neural
from duogp.baselines.networks import Committee, DeepEnsemble, MCDropout
from duogp.baselines.predictor import NeuralPredictor
from duogp.baselines.settings import KINDS, NeuralSettings

__all__ = [
    "KINDS",
    "Committee",
    "DeepEnsemble",
    "MCDropout",
    "NeuralPredictor",
    "NeuralSettings",
    "fit_neural",
]

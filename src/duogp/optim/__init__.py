"""Optimisers that know what they optimise."""

from duogp.optim.natural import NaturalGradient

__all__ = ["NaturalGradient"]

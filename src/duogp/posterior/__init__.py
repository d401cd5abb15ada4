"""Fitted models in the user's units: predictions, densities, samples."""

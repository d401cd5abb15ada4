"""Gaussian processes whose mean and covariance learn separately."""

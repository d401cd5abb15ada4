"""Storey 0: factorisations, jitter, triangular products, constrained parameters, networks."""

"""Factorisations, jitter, triangular inverses, positive parameters, networks, CUDA streams."""

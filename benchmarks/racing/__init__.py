"""The rooms of `benchmarks/race.py`: contestants, what they do, the roof above them, tables and figure.

Nothing is imported here, so that a peer's environment needs only numpy and the peer (see `serve`).
"""

"""The arena: `GPRegressor()` and `GPClassifier()`, untouched, against their peers on tables of every kind.

`tables` (the sets and their halves), `laws` (predicted distributions and their scores), `encoding` and
`contestants` (the peers), `run` (jobs in worker processes, a resumable file of rows), `ranks` and `report`
(mean ranks, paired tests, critical differences, figures). ``python -m arena`` from the folder `benchmarks`.
"""

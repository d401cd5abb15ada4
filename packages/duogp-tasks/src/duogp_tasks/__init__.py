"""Optimisation tasks of the decoupled-conditionals paper (Zhu et al. 2023), for `duogp.bo`.

Once installed, `duogp.bo.tasks.make("rover")`, `"rover-small"`, `"lunar"` and `"ranolazine"` return them.
"""

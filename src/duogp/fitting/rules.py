"""Sizes, steps and shares of the time of ``method="auto"``, read as ``rules.NAME``."""

from __future__ import annotations

from duogp.means.crossfit import Trees

#: Rows up to which every row is left out in its turn.
SMALL = 2000
#: Rows up to which the exact GP is a candidate, by device.
EXACT = {"cpu": 1000, "cuda": 8000}
#: Inducing points of closed forms and of predictive methods, by device; fewer for several latent functions.
POINTS = {"cpu": 300, "cuda": 3000}
#: Of likelihoods without a closed form, and steps of their natural gradients: small tables and larger ones.
CLASS_POINTS, NATURAL_STEPS = (50, 100), (80, 400)
#: Most steps on a collapsed bound, by device: functions without noise improve for ever, and by little.
CLOSED_STEPS = {"cpu": 300, "cuda": 1000}
#: Nats a row that more steps of a candidate must gain: a stack forgives more than a single model.
TOLERANCE = 0.01
#: More points than these are rows, not centres of k-means.
MOST_CENTRES = 1000
#: Seconds unless told otherwise, which only large tables need: steps and trees end by themselves.
SECONDS = 55.0
#: Shares of the time: trees, closed forms, the log excess; the rest is for predictive methods.
TREES_SHARE, CLOSED_SHARE, EXCESS_SHARE = 0.3, 0.45, 0.08
#: Of the trees where GPs have no closed form: there they are more often the better half.
CLASS_TREES_SHARE = 0.45
#: Share of the rows of a larger table that is held out, and most of them.
HELD_OUT, MOST_HELD_OUT = 0.15, 5000
#: Rows of the sample that the kernel of an exact GP is first learned on, where there are twice as many.
EXACT_SAMPLE = 400
#: Share of the time of a closed form that it may spend on a sample of the rows.
SAMPLE_SHARE = 0.6
#: Noise variance, in scaled units, below which a model goes through its rows, and those held out would
#: change its variances by more than they have judged.
LEAST_NOISE = 1e-3
#: Steps on all rows for which there must be time; otherwise the kernel of the sample stays.
FEWEST_WHOLE_STEPS = 5
#: Fewest and most rows from which the log excess is learned.
EXCESS_ROWS, EXCESS_MOST = 300, 10_000
EXCESS_TREES = Trees(learning_rate=0.1, max_leaves=8, min_leaf=40, max_trees=100, trees_per_round=20)
#: Predictive candidates, the steps of their first round and of the second, and the rate.
PREDICTIVE = ("ppgpr-chol", "dcppgpr")
ROUND_STEPS, FINISH_STEPS, RATE = 80, {"cpu": 600, "cuda": 6000}, 0.02
#: Inducing points of predictive methods, by device.
PREDICTIVE_POINTS = {"cpu": 200, "cuda": 1000}
#: Steps between looks at the validation rows, and looks without improvement before it ends.
LOOK_EVERY, PATIENCE = 40, 15
FOLDS = 5

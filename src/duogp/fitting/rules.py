"""The rules of ``method="auto"``: sizes, steps and shares of the time.

A race reads `RULES` once, when it begins; ``replace(RULES, small=300)`` in its place is another set of rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from duogp.means.crossfit import Trees

SMALL_TREES = Trees(learning_rate=0.1, max_leaves=8, min_leaf=40, max_trees=100, trees_per_round=20)


@dataclass(frozen=True)
class ByDevice:
    """A number that is larger where there is a GPU."""

    cpu: int
    cuda: int

    def on(self, device: str) -> int:
        return {"cpu": self.cpu, "cuda": self.cuda}[device]


@dataclass(frozen=True)
class BySize:
    """A number of small tables, those where every row is left out in its turn, and of larger ones."""

    small: int
    large: int

    def of(self, small: bool) -> int:
        return self.small if small else self.large


@dataclass(frozen=True)
class Rules:
    """Numbers that decide a race of `auto`: rows held out, points, steps and time of its candidates."""

    # -- rows that candidates have not seen
    #: Rows up to which every row is left out in its turn.
    small: int = 2000
    #: Threads that a race of them uses.
    small_threads: int = 1
    #: Of those of other likelihoods than Gaussian: the folds.
    folds: int = 5
    #: Share of the rows of a larger table that is held out, and most of them.
    held_out: float = 0.15
    most_held_out: int = 5000

    # -- time
    #: Seconds unless told otherwise, which only large tables need: steps and trees end by themselves.
    seconds: float = 55.0
    #: Fewest seconds that are worth a training.
    least_seconds: float = 0.1
    #: Seconds that the law of the stack takes, about: for a candidate, and for each row of it.
    stacking_seconds: float = 0.02
    stacking_pace: float = 3e-5
    #: Shares of the time: trees, closed forms, the log excess; the rest is for predictive methods.
    trees_share: float = 0.3
    closed_share: float = 0.35
    excess_share: float = 0.08
    #: Of the time that learned means took, what growing them again on all rows may take, and the share of
    #: all time above which they are not: beside closed forms, and where there are none.
    regrow_cost: float = 1.5
    regrow_share: float = 0.3
    natural_regrow_share: float = 0.3
    #: Of the trees where GPs have no closed form: there they are more often the better half.
    natural_trees_share: float = 0.45
    #: Of the time, for bagged trees of classes; rows up to which they and logistic regression are candidates.
    learned_share: float = 0.12
    most_learned_rows: int = 100_000
    #: Nats a row that more steps of a candidate must gain: a stack tolerates members that are not converged.
    tolerance: float = 0.01
    #: More points than these are rows, not centres of k-means.
    most_centres: int = 1000

    # -- closed forms
    #: Columns up to which a ridge regression is a mean of small tables too: its cost is cubic in them.
    ridge_columns: int = 500
    #: Skewness of a target above zero from which its logarithm is tried too.
    least_skew: float = 0.5
    #: Nats a row by which a scale may be behind with its first candidate and still have others.
    scale_gap: float = 0.15
    #: Rows up to which the exact GP is a candidate.
    exact_rows: ByDevice = ByDevice(cpu=1000, cuda=8000)
    #: Rows of the sample that the kernel of an exact GP is first learned on, where there are twice as many.
    exact_sample: int = 400
    #: Fewest rows whose halves judge an exact GP: halves of fewer learn nothing.
    least_halves: int = 60
    #: Inducing points of the sparse ones.
    closed_points: ByDevice = ByDevice(cpu=300, cuda=3000)
    #: Most steps on a collapsed bound: functions without noise improve for ever, and by little.
    closed_steps: ByDevice = ByDevice(cpu=300, cuda=1000)
    #: Rows up to which a mean may stand on all of them, rows that its kernel is learned from, share of time.
    row_means: ByDevice = ByDevice(cpu=10_000, cuda=50_000)
    rows_sample: ByDevice = ByDevice(cpu=1000, cuda=8000)
    rows_share: float = 0.15
    #: What such a mean may leave of the squared error of a sparse GP, or there is no second one.
    rows_gain: float = 0.97
    #: Rows of the factorisation that tells how long that of all rows takes.
    rows_probe: ByDevice = ByDevice(cpu=1000, cuda=4000)
    #: Share of the time of a closed form that it may spend on a sample of the rows.
    sample_share: float = 0.6
    #: Steps on all rows for which there must be time; otherwise the kernel of the sample stays.
    fewest_whole_steps: int = 5
    #: Share of the time that solving for q(u) once more, with all rows, may take.
    refit_share: float = 0.1
    #: Noise variance, in scaled units, below which a model goes through its rows, and those held out would
    #: change its variances by more than they have judged.
    least_noise: float = 1e-3

    # -- the log excess
    #: Fewest and most rows that it is learned from.
    excess_rows: int = 300
    most_excess_rows: int = 10_000
    excess_trees: Trees = SMALL_TREES

    # -- predictive methods
    #: Their names.
    predictive: tuple[str, ...] = ("ppgpr-chol", "dcppgpr")
    predictive_points: ByDevice = ByDevice(cpu=200, cuda=1000)
    #: Steps of their first round and of the second, and the rate.
    round_steps: int = 80
    finish_steps: ByDevice = ByDevice(cpu=600, cuda=6000)
    predictive_rate: float = 0.02
    #: Steps between looks at the validation rows, and looks without improvement before it ends.
    look_every: int = 40
    patience: int = 15

    # -- natural gradients
    #: Inducing points and steps.
    natural_points: BySize = BySize(small=50, large=100)
    natural_steps: BySize = BySize(small=80, large=400)

    # -- the stack
    #: Members with a smaller share are left out.
    least_share: float = 1e-4


RULES = Rules()

"""How long a fit trains, at which rates, and from where: on a sample first, or from a closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from duogp.fitting.deep import MAX_WIDTH
from duogp.fitting.solver import closed_form_obstacle
from duogp.likelihoods import Likelihood
from duogp.methods.registry import METHODS, Method
from duogp.methods.settings import Settings
from duogp.training import TrainingPlan, make_schedule
from duogp.training.adam import BETAS, QUICK_BETAS
from duogp.training.schedules import cycles

#: Epochs of minibatches unless told otherwise: a hundred, but on small tables as many as make so many steps;
#: where the loss says when to stop, so many at most.
EPOCHS, MIN_STEPS, MOST_STEPS = 100, 500, 6000
#: Steps on the collapsed bound unless told otherwise: of L-BFGS, which stops by itself, and of Adam.
NEWTON_STEPS, ADAM_STEPS = 3000, 200
#: Adam's rate on minibatches, the highest of every cycle; where two batches are the whole table, so that
#: gradients have little noise, and in deep GPs (the q(u) of hidden layers has far to go); and in a protocol.
CYCLE_RATE, QUICK_RATE, PROTOCOL_RATE = 0.03, 0.1, 0.01
#: Batches of a table whose gradients have little noise, at most.
FEW_BATCHES = 2
#: Step size of natural gradients, by whether the likelihood is log-concave. Where it is not, a quick q(u)
#: settles before the kernel has moved.
NATURAL_RATE = {True: 0.1, False: 0.02}
#: Rows of a warm start, and its steps by Adam, at most.
WARM_ROWS, WARM_ADAM_STEPS = 5000, 100
#: Rows of the sample that L-BFGS starts on, half of all: at least and at most so many, and what they must
#: gain there, in nats for each row of the table. 300 points follow 2,000 rows too closely: on 10,000 rows of
#: kin40k training ends after 42 s of CPU time with a sample of 5,000, and after 56 s with one of 2,000.
SAMPLE_ROWS, MOST_SAMPLE_ROWS, SAMPLE_TOLERANCE = 2000, 5000, 0.01
#: Tables of so many rows start on a larger sample, to the end, and then on a larger one still; then few steps
#: on all rows are enough. What p numbers have learned from k rows and not from all is about p / 2k a row.
LARGE_TABLES = {200_000: 20_000, 1_000_000: 200_000}
#: On a CPU one more sample between the first and what comes next: with 500 points a step on 200,000 rows
#: takes five seconds of two cores, and houseelectric took 300 of them after 20,000 rows, ten after 60,000.
CPU_SAMPLE = 60_000
#: What a row of the larger sample must gain, in units of the tolerance on all rows.
LARGER_SAMPLE = 0.5
#: Steps on more rows before the loss may be called at rest, and between looks at it, after such a start: on a
#: larger sample, and on all rows, where ten steps of that sample cost as much as one.
FEWEST_STEPS, CHECK_EVERY = 10, 5
FEWEST_WHOLE_STEPS, CHECK_WHOLE_EVERY = 4, 1
#: Of the weights of networks, unless the user says otherwise.
WEIGHT_DECAY = 1e-4
#: Looks at the validation rows without improvement before training ends. Networks train in noisy steps; those
#: of L-BFGS are long, and validation NLL may fall again after a hundred of them in which it rose.
PATIENCE, LONG_PATIENCE = 10, 40
#: The same for cycles of rates, as a share of all looks: the last cycle has 0.53 of four cycles' looks, 0.67
#: of those of two, and most of it is worse than the end of the one before.
CYCLE_PATIENCE = 0.7


def make_training(
    method: Method, settings: Settings, n: int, solver: str, early: bool, likelihood: Likelihood
) -> TrainingPlan:
    """Steps, rate, schedule and end of the training itself; ``early``: validation rows may end it."""
    closed = solver == "closed-form"
    newton = _uses_newton(settings, closed)
    given = settings.epochs is not None or settings.steps is not None or settings.time_budget is not None
    # Networks are ended by validation rows, a protocol by its steps, everything else by its loss.
    rests = not closed and not method.has_network and not given and settings.tolerance > 0
    if closed:
        epochs, every = (NEWTON_STEPS if newton else ADAM_STEPS), 5
    else:
        epochs, every = _minibatch_epochs(n, settings.batch_size, MOST_STEPS if rests else MIN_STEPS)
        every = looks_of(epochs) if rests else every
    if settings.epochs is not None and not closed:
        every = 1
    rate = method.recipe.closed_form_rate if closed else PROTOCOL_RATE
    if rests:
        few = solver == "stochastic" and n <= FEW_BATCHES * settings.batch_size
        rate = QUICK_RATE if method.is_deep or few else CYCLE_RATE
    natural = settings.natural_rate or NATURAL_RATE[likelihood.is_log_concave]
    patience = LONG_PATIENCE if newton or method.has_network else PATIENCE
    schedule = settings.schedule or ("cosine" if closed else "cycles" if rests else "multistep")
    if schedule == "cycles" and not newton:
        looks = (settings.epochs or epochs) / (settings.evaluate_every or every)
        patience = max(patience, math.ceil(CYCLE_PATIENCE * looks))
    return TrainingPlan(
        epochs=settings.epochs or epochs,
        learning_rate=settings.learning_rate or rate,
        schedule=make_schedule(schedule),
        evaluate_every=settings.evaluate_every or every,
        patience=(settings.patience or patience) if early else None,
        restore_best=early,
        check_every=10 if closed else 50,
        natural_rate=natural if solver == "natural" else None,
        mean_rule=settings.mean_rule,
        adam_betas=adam_betas(settings, QUICK_BETAS if rests else BETAS),
        steps=settings.steps,
        seconds=settings.time_budget,
        weight_decay=WEIGHT_DECAY if settings.weight_decay is None else settings.weight_decay,
        backend=settings.backend,
        verbose=settings.verbose,
        optimiser="lbfgs" if newton else "adam",
        tolerance=settings.tolerance,
    )


def adam_betas(settings: Settings, otherwise: tuple[float, float]) -> tuple[float, float]:
    """Those of the settings, where they are given."""
    if settings.adam_betas is None:
        return otherwise
    first, second = settings.adam_betas
    return first, second


def _uses_newton(settings: Settings, closed: bool) -> bool:
    """Whether L-BFGS trains: it has no rate, schedule or betas, so who gives one means Adam."""
    if settings.optimizer == "lbfgs" and not closed:
        raise ValueError("optimizer='lbfgs' is for losses of all rows: use solver='closed-form' or 'adam'")
    if settings.optimizer != "auto":
        return settings.optimizer == "lbfgs"
    asked = settings.learning_rate, settings.schedule, settings.adam_betas
    return closed and asked == (None, None, None)


def _minibatch_epochs(n: int, batch_size: int, steps: int) -> tuple[int, int]:
    """How many, and after how many to look at the validation rows: a hundred times in all."""
    epochs = max(EPOCHS, -(-steps // -(-n // batch_size)))
    return epochs, epochs // EPOCHS


def looks_of(epochs: int) -> int:
    """After how many of them to look at the validation rows: at most a hundred times in all."""
    return max(1, -(-epochs // EPOCHS))


class Stage(NamedTuple):
    """Training on a sample of the rows, before the training on all of them."""

    rows: int
    training: TrainingPlan


def make_sample_starts(
    method: Method, training: TrainingPlan, n: int, device: str = "cpu"
) -> tuple[Stage, ...]:
    """L-BFGS on samples of the rows first: its steps are as good, and cost a share of what all rows do."""
    if training.optimiser != "lbfgs" or n < 2 * SAMPLE_ROWS or method.recipe.points_are_rows:
        return ()
    tolerance = max(SAMPLE_TOLERANCE, training.tolerance)
    on_sample = replace(training, patience=None, restore_best=False)
    if n < min(LARGE_TABLES):
        rows = max(SAMPLE_ROWS, min(n // 2, MOST_SAMPLE_ROWS))
        return (Stage(rows, replace(on_sample, tolerance=tolerance)),)
    # A row of the sample gains as much; the loss is that of all n rows.
    sizes = [rows for least, rows in LARGE_TABLES.items() if n >= least]
    if device == "cpu" and n >= 2 * CPU_SAMPLE:
        sizes.insert(1, CPU_SAMPLE)
    first, *larger = sizes
    stages = [Stage(rows, on_larger_sample(on_sample, rows / n)) for rows in larger]
    return (Stage(first, replace(on_sample, tolerance=tolerance * first / n)), *stages)


def on_larger_sample(training: TrainingPlan, share: float = 1.0) -> TrainingPlan:
    """Training on a larger sample, of a share of the rows, that goes on where a large one led to.

    It may end early, but nearer to its end than the training on all rows: what is gained here is gained there
    as well, and costs less.
    """
    tolerance = LARGER_SAMPLE * (training.tolerance or SAMPLE_TOLERANCE) * share
    return replace(training, tolerance=tolerance, fewest_steps=FEWEST_STEPS, check_every=CHECK_EVERY)


def on_all_rows(training: TrainingPlan) -> TrainingPlan:
    """Training on all rows that goes on where a large sample led to: it may end earlier still."""
    return replace(training, fewest_steps=FEWEST_WHOLE_STEPS, check_every=CHECK_WHOLE_EVERY)


def is_large_sample(stage: Stage) -> bool:
    """Whether this is a sample of the size that large tables have."""
    return stage.rows >= min(LARGE_TABLES.values())


def started_on_large_sample(stages: Sequence[Stage]) -> bool:
    """Whether the last stage before all rows was such a sample."""
    return bool(stages) and is_large_sample(stages[-1])


def make_warm_start(
    method: Method, settings: Settings, training: TrainingPlan, closed: bool, dims: int
) -> TrainingPlan | None:
    """Closed-form steps of the coupled basis to start from; None without."""
    steps = settings.warm_start
    if steps is None and closed:
        steps = method.recipe.warm_start_steps
    elif steps is None:  # minibatches till the loss rests: most of the way has a shorter one
        steps = NEWTON_STEPS if training.schedule is cycles and _starts_warm(method, settings) else 0
    if not steps:
        return None
    if method.is_deep and not _hands_inputs_on(settings, dims):
        raise ValueError(
            f"warm_start trains the last layer on X itself: it needs hidden layers of width {dims}, as X has "
            f"columns, got {settings.hidden_width or MAX_WIDTH}"
        )
    if closed_form_obstacle(METHODS["svgp"], settings):
        raise ValueError("warm_start trains a coupled model in closed form: it needs a Gaussian likelihood")
    newton = settings.optimizer != "adam"
    return replace(
        training,
        epochs=steps if newton else min(steps, WARM_ADAM_STEPS),
        learning_rate=METHODS["svgp"].recipe.closed_form_rate,
        adam_betas=adam_betas(settings, BETAS),
        schedule=make_schedule("cosine"),
        check_every=10,
        natural_rate=None,
        steps=None,
        optimiser="lbfgs" if newton else "adam",
        tolerance=settings.tolerance or Settings.tolerance,
        patience=None,
        restore_best=False,
    )


def _starts_warm(method: Method, settings: Settings) -> bool:
    """Whether minibatches start from a closed form unasked.

    Deep GPs do not: started as shallow ones they stay shallow, which is not what was asked for.
    """
    return not (method.is_deep or method.has_network or closed_form_obstacle(METHODS["svgp"], settings))


def _hands_inputs_on(settings: Settings, dims: int) -> bool:
    """Whether the hidden layers of a deep GP start as the identity, so that its last layer sees X."""
    return (settings.hidden_width or min(dims, MAX_WIDTH)) == dims

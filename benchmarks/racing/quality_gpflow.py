"""GPflow's contestants of the part quality, in a Python of their own (CPU): one JSON object on stdout.

    python benchmarks/racing/quality_gpflow.py rows.npz sgpr 300 150 2

    "sgpr"          the collapsed bound of all rows, by L-BFGS-B as its documentation trains it
    "svgp natural"  minibatches, natural gradients on q(u) (rate 0.1) beside Adam (0.01) on the rest

Iterations of the first and epochs of the second are counted alike. Both run in the precision in which an
epoch is faster here. Neither tracing its graphs nor looking at the validation rows is timed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # the Adam that GPflow's documentation uses
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpflow
import numpy as np
import tensorflow as tf

BATCH = 1024
#: Where the other contestants start: softplus(0).
START = math.log(2.0)
JITTER = {"float32": 1e-4, "float64": 1e-6}


class Stop(Exception):
    """The end of an optimiser that has no other."""


class Training:
    def __init__(self, kind: str, rows: dict[str, np.ndarray], inducing: int, dtype: str) -> None:
        gpflow.config.set_default_float(getattr(np, dtype))
        gpflow.config.set_default_jitter(JITTER[dtype])
        tf.random.set_seed(0)
        self.kind = kind
        self.rows = {name: values.astype(dtype) for name, values in rows.items()}
        x, y = self.rows["X_train"], self.rows["y_train"][:, None]
        Z = x[np.random.default_rng(0).permutation(len(x))[:inducing]].copy()
        kernel = gpflow.kernels.SquaredExponential(lengthscales=START)
        mean = gpflow.functions.Constant()
        if kind == "sgpr":
            self.model: Any = gpflow.models.SGPR((x, y), kernel, Z, mean_function=mean, noise_variance=START)
            return
        self.model = gpflow.models.SVGP(
            kernel, gpflow.likelihoods.Gaussian(START), Z, mean_function=mean, num_data=len(x)
        )
        gpflow.set_trainable(self.model.q_mu, False)
        gpflow.set_trainable(self.model.q_sqrt, False)
        shuffled = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(len(x), seed=0)
        batches = iter(shuffled.batch(BATCH).prefetch(2))
        loss = self.model.training_loss_closure(batches, compile=True)
        natural, adam = gpflow.optimizers.NaturalGradient(gamma=0.1), tf.keras.optimizers.Adam(0.01)
        of_q, others = [(self.model.q_mu, self.model.q_sqrt)], self.model.trainable_variables

        @tf.function
        def step() -> None:
            natural.minimize(loss, of_q)
            adam.minimize(loss, others)

        self.step, self.steps = step, -(-len(x) // BATCH)

    def run(self, epochs: int, after: Callable[[int], None]) -> None:
        """``after`` is called with the number of every epoch; the first begins with traced graphs."""
        if self.kind == "sgpr":
            variables = self.model.trainable_variables
            values = [v.numpy() for v in variables]
            loss = self.model.training_loss_closure(compile=True)
            optimizer = gpflow.optimizers.Scipy()

            def count(step: int, _: Any, __: Any) -> None:
                after(step + 1)
                if step + 1 >= epochs:
                    raise Stop

            if not getattr(self, "traced", False):
                optimizer.minimize(loss, variables, options={"maxiter": 1})
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)
                self.traced = True
                after(0)
            with contextlib.suppress(Stop):
                optimizer.minimize(loss, variables, options={"maxiter": epochs}, step_callback=count)
            return
        self.step()
        after(0)
        for epoch in range(1, epochs + 1):
            for _ in range(self.steps):
                self.step()
            after(epoch)

    def nll(self, which: str) -> float:
        """Mean negative log density of held-out rows, in the units of the given targets."""
        total, x, y = 0.0, self.rows[f"X_{which}"], self.rows[f"y_{which}"]
        for i in range(0, len(x), 4096):
            mean, variance = (v.numpy()[:, 0].astype(float) for v in self.model.predict_y(x[i : i + 4096]))
            error = y[i : i + 4096] - mean
            total += float(np.sum(0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)))
        return total / len(x)


def timed(training: Training, epochs: int, look_every: int) -> list[dict[str, float]]:
    """A full run: seconds without tracing and looks, and what it knew then."""
    looks: list[dict[str, float]] = []
    clock = {"spent": 0.0, "since": time.perf_counter()}

    def after(epoch: int) -> None:
        now = time.perf_counter()
        if epoch:
            clock["spent"] += now - clock["since"]
            if epoch % look_every == 0 or epoch == epochs:
                found = {"validation_nll": training.nll("val"), "test_nll": training.nll("test")}
                looks.append({"seconds": clock["spent"], "epoch": epoch, **found})
        clock["since"] = time.perf_counter()

    training.run(epochs, after)
    return looks


def main(arguments: list[str]) -> None:
    path, kind, inducing, epochs, threads = arguments
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tf.config.threading.set_intra_op_parallelism_threads(int(threads))
    tf.config.threading.set_inter_op_parallelism_threads(int(threads))
    rows = dict(np.load(path))
    seconds = {}
    for dtype in JITTER:
        try:
            probe = timed(Training(kind, rows, int(inducing), dtype), 2, 2)
            if probe and math.isfinite(probe[-1]["validation_nll"]):
                seconds[dtype] = probe[-1]["seconds"]
        except Exception as error:  # a factorisation in float32, say
            print(f"{dtype}: {type(error).__name__}: {error}", file=sys.stderr)
    dtype = min(seconds, key=lambda name: seconds[name])
    looks: list[dict[str, float]] = []
    for name in dict.fromkeys([dtype, "float64"]):  # what fails on the way begins again in float64
        try:
            looks = timed(Training(kind, rows, int(inducing), name), int(epochs), max(1, int(epochs) // 60))
            dtype = name
            if looks and math.isfinite(looks[-1]["validation_nll"]):
                break
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    version = importlib.metadata.version("gpflow")
    print(json.dumps({"dtype": dtype, "looks": looks, "version": version}), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""GPflow's contestant (CPU): SVGP, whitened, its step compiled with `tf.function` as its tutorial does."""

from __future__ import annotations

import os
import time

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # the Adam that GPflow's documentation uses
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpflow
import numpy as np
import tensorflow as tf

from racing.problem import LEARNING_RATE, Problem


class Training:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        tf.config.threading.set_intra_op_parallelism_threads(problem.threads)
        tf.config.threading.set_inter_op_parallelism_threads(problem.threads)
        gpflow.config.set_default_float(getattr(np, problem.dtype))
        gpflow.config.set_default_jitter(1e-4 if problem.dtype == "float32" else 1e-6)
        X, y = (a.astype(problem.dtype) for a in problem.arrays())
        Z, _ = problem.points()
        kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(problem.dims, problem.lengthscale))
        model = gpflow.models.SVGP(
            kernel,
            gpflow.likelihoods.Gaussian(),
            Z.astype(problem.dtype),
            mean_function=gpflow.functions.Constant(),
            num_data=len(X),
            whiten=True,
        )
        rows = tf.data.Dataset.from_tensor_slices((X, y[:, None])).repeat().shuffle(len(X), seed=problem.seed)
        batches = iter(rows.batch(problem.batch).prefetch(2))
        loss = model.training_loss_closure(batches, compile=True)
        optimizer = tf.keras.optimizers.Adam(LEARNING_RATE)
        variables = model.trainable_variables

        @tf.function
        def step() -> None:
            optimizer.minimize(loss, variables)

        self.step = step

    def block(self) -> float:
        begun = time.perf_counter()
        for _ in range(self.problem.steps):
            self.step()
        return (time.perf_counter() - begun) / self.problem.steps

"""GPJax's contestant (CPU): whitened SVGP; a block of steps is one compiled scan, as in `gpjax.fit`."""

from __future__ import annotations

import time
from typing import Any

import equinox as eqx
import gpjax as gpx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax as ox
from gpjax.fit import get_batch

from racing.problem import LEARNING_RATE, Problem


class Training:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        jax.config.update("jax_enable_x64", problem.dtype == "float64")
        dtype = jnp.dtype(problem.dtype)
        X, y = problem.arrays()
        data = gpx.Dataset(X=jnp.asarray(X, dtype), y=jnp.asarray(y[:, None], dtype))
        kernel = gpx.kernels.RBF(lengthscale=jnp.full(problem.dims, problem.lengthscale, dtype))
        prior = gpx.gps.Prior(
            mean_function=gpx.mean_functions.Constant(),
            kernel=kernel,
            jitter=1e-4 if problem.dtype == "float32" else 1e-6,
        )
        model = gpx.variational_families.WhitenedVariationalGaussian(
            model=prior * gpx.likelihoods.Gaussian(), inducing_inputs=jnp.asarray(problem.points()[0], dtype)
        )
        optimiser = ox.adam(LEARNING_RATE)
        arrays, static = eqx.partition(model, eqx.is_array)

        def loss(arrays: Any, batch: Any) -> Any:
            return -gpx.objectives.elbo(eqx.combine(arrays, static), batch)

        def step(carry: Any, key: Any) -> tuple[Any, Any]:
            arrays, state = carry
            batch = get_batch(data, problem.batch, key)
            value, gradient = jax.value_and_grad(loss)(arrays, batch)
            updates, state = optimiser.update(gradient, state, arrays)
            return (eqx.apply_updates(arrays, updates), state), value

        def strong(tree: Any) -> Any:
            """Without weak types, which would have the next block compiled anew."""
            return jax.tree.map(lambda a: jax.lax.convert_element_type(a, a.dtype), tree)

        @jax.jit
        def block(carry: Any, key: Any) -> tuple[Any, Any]:
            carry, losses = jax.lax.scan(step, carry, jr.split(key, problem.steps))
            return strong(carry), losses

        self.carry = strong((arrays, optimiser.init(arrays)))
        self.key, self.run = jr.key(problem.seed), block

    def block(self) -> float:
        self.key, key = jr.split(self.key)
        begun = time.perf_counter()
        self.carry, losses = self.run(self.carry, key)
        losses.block_until_ready()
        return (time.perf_counter() - begun) / self.problem.steps

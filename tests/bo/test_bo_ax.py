"""`DuoGPModel` in Ax: its surrogate, a generation node, cross-validation; against the real package."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch

pytest.importorskip("ax")

with warnings.catch_warnings():  # of what Ax imports
    warnings.simplefilter("ignore")
    from ax.adapter.cross_validation import cross_validate
    from ax.adapter.registry import Generators
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
    from ax.core.search_space import SearchSpaceDigest
    from ax.generation_strategy.generation_node import GenerationNode
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.generation_strategy.generator_spec import GeneratorSpec
    from ax.generation_strategy.transition_criterion import MinTrials
    from ax.generators.torch.botorch_modular.surrogate import ModelConfig, Surrogate, SurrogateSpec
from botorch.models import ModelListGP
from botorch.utils.datasets import SupervisedDataset

from duogp.bo import DuoGPModel
from helpers.botorch_models import data

pytestmark = pytest.mark.filterwarnings("ignore")  # Ax and what it imports warn of their own affairs


def strategy(initial: int, **options: Any) -> GenerationStrategy:
    config = ModelConfig(botorch_model_class=DuoGPModel, model_options=options)
    own = {"surrogate_spec": SurrogateSpec(model_configs=[config])}
    start = MinTrials(threshold=initial, transition_to="duogp", use_all_trials_in_exp=True)
    sobol = GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": 0})
    return GenerationStrategy(
        name="Sobol, then duogp",
        nodes=[
            GenerationNode(name="Sobol", generator_specs=[sobol], transition_criteria=[start]),
            GenerationNode(
                name="duogp",
                generator_specs=[GeneratorSpec(Generators.BOTORCH_MODULAR, generator_kwargs=own)],
            ),
        ],
    )


def surrogate(**options: Any) -> Surrogate:
    config = ModelConfig(botorch_model_class=DuoGPModel, model_options=options)
    return Surrogate(SurrogateSpec(model_configs=[config]))


def digest(dims: int) -> SearchSpaceDigest:
    return SearchSpaceDigest(feature_names=[f"x{i}" for i in range(dims)], bounds=[(0.0, 2.0)] * dims)


def sets(n: int, outputs: int = 1) -> list[SupervisedDataset]:
    X, Y = data(n, outputs)
    return [
        SupervisedDataset(2 * X, Y[:, i : i + 1], feature_names=["x0", "x1"], outcome_names=[f"y{i}"])
        for i in range(outputs)
    ]


def test_a_surrogate():
    fitted = surrogate(steps=15)
    fitted.fit(sets(20), digest(2))
    assert isinstance(fitted.model, DuoGPModel) and fitted.model.gp.method.name == "exact"
    X, Y = data(20)
    mean, covariance = fitted.predict(2 * X)
    assert mean.shape == (20, 1) and covariance.shape == (20, 1, 1)
    assert (mean - Y).abs().mean() < 0.2


def test_a_surrogate_of_two_outcomes_and_another_method():
    fitted = surrogate(method="svgp", num_inducing=8, steps=10)
    fitted.fit(sets(20, 2), digest(2))
    assert isinstance(fitted.model, ModelListGP)
    assert [model.gp.method.name for model in fitted.model.models] == ["svgp", "svgp"]


@pytest.mark.parametrize("refit", [True, False])
def test_hyperparameters_of_fewer_rows_are_loaded(refit):
    first, later = surrogate(steps=15), surrogate(steps=15)
    first.fit(sets(15), digest(2))
    state = first.model.state_dict()
    later.fit(sets(20), digest(2), state_dict=state, refit=refit)
    (raw,) = [name for name in state if name.endswith("lengthscale.raw")]
    same = torch.equal(later.model.state_dict()[raw], state[raw])
    assert same is not refit and later.model.gp.model.num_data == 20


def branin(x1: float, x2: float) -> float:
    valley = (x2 - 5.1 / (4 * math.pi**2) * x1**2 + 5 / math.pi * x1 - 6) ** 2
    return valley + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x1) + 10


def test_a_generation_node_minimises():
    client = Client(random_seed=0)
    bounds = {"x1": (-5.0, 10.0), "x2": (0.0, 15.0)}
    client.configure_experiment(
        [RangeParameterConfig(name=name, bounds=b, parameter_type="float") for name, b in bounds.items()]
    )
    client.configure_optimization(objective="-branin")
    client.set_generation_strategy(strategy(5))
    for _ in range(9):
        for index, point in client.get_next_trials(max_trials=1).items():
            client.complete_trial(index, raw_data={"branin": branin(**point)})
    best = client.get_best_parameterization()[1]["branin"]
    assert (best[0] if isinstance(best, tuple) else best) < 12.0  # of values up to 300
    adapter = client._generation_strategy.adapter
    assert isinstance(adapter.generator.surrogate.model, DuoGPModel)
    assert len(cross_validate(adapter, folds=3)) == 8  # the state is loaded for every fold


def test_objectives_constraints_and_categories():
    client = Client(random_seed=0)
    client.configure_experiment(
        [
            RangeParameterConfig(name="x", bounds=(-2.0, 2.0), parameter_type="float"),
            ChoiceParameterConfig(name="c", values=["a", "b", "c"], parameter_type="str", is_ordered=False),
        ]
    )
    client.configure_optimization(objective="f, -g", outcome_constraints=["h <= 3"])
    client.set_generation_strategy(strategy(4))
    for _ in range(5):
        for index, point in client.get_next_trials(max_trials=1).items():
            code = "abc".index(point["c"])
            values = {"f": -(point["x"] ** 2) + code, "g": point["x"] + code, "h": 2 * point["x"]}
            client.complete_trial(index, raw_data=values)
    model = client._generation_strategy.adapter.generator.surrogate.model
    assert [type(part) for part in model.models] == [DuoGPModel] * 3

"""`Paths`: functions drawn from the posterior of a BoTorch model, in the units of its outcomes."""

from __future__ import annotations

from torch import Tensor

from duogp.bo.fitted_model import FittedModel
from duogp.bo.processes import Draws


class Paths:
    """Functions drawn from a posterior: ``paths(X)`` is [n, *b, q, m] for X [*b, q, d]."""

    def __init__(self, model: FittedModel, n: int, path: Draws) -> None:
        self.model, self.n, self.path = model, n, path

    def __len__(self) -> int:
        return self.n

    def __call__(self, X: Tensor) -> Tensor:
        model = self.model
        inputs = model.transform_inputs(X)
        values = model._in_units(self.path(model._double(inputs)))
        if (transform := model._transform) is not None:
            values, _ = transform.untransform(values, X=inputs)
        return values.to(X)

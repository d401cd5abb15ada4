"""A fitted GP of any method, deep ones included, as a part of a manifest and tensors, and back.

The model is rebuilt by `build_model`, as in fitting, and then takes the saved values. Its sizes (points,
widths, layers, latent functions) are read from the tensors and not from the manifest, so that nothing is
allocated which the file does not hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from duogp.bases.subspace_prior import SubspaceState
from duogp.errors import SavedModelError
from duogp.fitting.build import build_model
from duogp.fitting.deep import Architecture
from duogp.io.common import common_from_state, common_state, settings_from_state
from duogp.io.learned import PREFIX, learned_from_state, learned_state
from duogp.io.modules import count_numbers, layer_weights, module_state, restore_module
from duogp.io.plain import entry
from duogp.io.specs import FREE_NUMBERS, NUMBERS_EACH, Reader
from duogp.methods import Method
from duogp.methods.settings import Settings
from duogp.models.deep import DeepModel
from duogp.models.model import Batch, Model
from duogp.numerics.lognormal import LogScale
from duogp.posterior.deep import DeepGP
from duogp.posterior.gp import GP
from duogp.posterior.log_target import LogTargetGP, LogUnits

#: Names that a second set of points has in one basis or another.
SECOND_POINTS = ("orthogonal_inducing", "mean_inducing")


def gaussian_state(gp: GP) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A fitted GP as a manifest and tensors."""
    model = gp.model
    described, tensors = module_state(model)
    learned, of_mean = learned_state(gp.learned)
    omegas = [part.omega for part in model.modules() if isinstance(getattr(part, "omega", None), str)]
    return {
        "kind": "gp",
        **common_state(gp),
        "model": {
            "class": type(gp).__name__,
            "basis": type(model.basis).__name__,
            "known_noise": bool(gp.known_noise),
            "num_data": int(model.num_data.max()),
            "omega": omegas[0] if omegas else None,
            "jitter": model.numerics.initial_jitter,
            # While the bases of Cheng and Boots grow tied, the mean has the points of the covariance.
            "shared_points": bool(getattr(model.basis, "shared", False)),
            **described,
        },
        **({} if learned is None else {"learned_mean": learned}),
        **({"log_target": _log_units(gp.units)} if isinstance(gp, LogTargetGP) else {}),
    }, {**tensors, **of_mean}


def gaussian_from_state(
    part: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    method: Method | None,
    reader: Reader,
    device: str | torch.device | None,
) -> GP:
    """The inverse of `gaussian_state`."""
    if method is None or method.is_baseline:
        raise SavedModelError(f"its method is {part['method']!r}, which is no GP")
    learned = learned_from_state(part.get("learned_mean"), tensors)
    tensors = {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}
    sizes = Sizes(tensors, 0 if learned is None else learned.fit.goal.columns)
    reader.functions = sizes.latents
    settings = settings_from_state(Settings, part, reader, device)
    common = common_from_state(part)
    described = entry(part, "model", dict)
    known_noise = entry(described, "known_noise", bool)
    labels, outputs = common["classes"], len(common["y_scaler"].scale)
    functions = outputs if labels is None else len(labels)  # about as many as the likelihood sees
    if learned is not None and learned.fit.inputs != common["columns"].sum():
        raise SavedModelError(
            f"the trees of its prior mean read {learned.fit.inputs} columns, not those used"
        )
    sizes.check(method, settings, int(common["columns"].sum()), outputs, functions)
    model = _build(method, settings, common, described, sizes, known_noise)
    if (model.likelihood.target == "classes") != (labels is not None):
        raise SavedModelError("its manifest has class labels without a likelihood of classes, or the reverse")
    restore_module(model, described, tensors)
    fitted = DeepGP if isinstance(model, DeepModel) else GP
    gp = fitted(model, method=method, settings=settings, known_noise=known_noise, learned=learned, **common)
    return gp if part.get("log_target") is None else LogTargetGP.of(gp, _read_log_units(part["log_target"]))


def _log_units(units: LogUnits) -> list[float]:
    return [units.scale.shift, units.centre, units.spread]


def _read_log_units(numbers: Any) -> LogUnits:
    if not (isinstance(numbers, list) and len(numbers) == 3 and all(isinstance(v, float) for v in numbers)):
        raise SavedModelError("the log scale of its target is not three numbers")
    shift, centre, spread = numbers
    if not (shift >= 0 and math.isfinite(centre) and 0 < spread < math.inf):
        raise SavedModelError("the log scale of its target has impossible numbers")
    return LogUnits(LogScale(shift), centre, spread)


class Sizes:
    """Sizes of a model, read from its tensors."""

    def __init__(self, tensors: Mapping[str, Tensor], learned: int = 0) -> None:
        self.tensors, self.numbers = tensors, count_numbers(tensors)
        self.learned = learned  # columns of a cross-fitted mean, behind those of X
        self.layers = 1
        while f"hidden.{self.layers - 1}.basis.inducing" in tensors:
            self.layers += 1
        first = "hidden.0.basis" if self.layers > 1 else "basis"
        self.inducing = self._points(f"{first}.inducing")
        second = [name for name in SECOND_POINTS if f"{first}.{name}" in tensors]
        self.extra = self._points(f"{first}.{second[0]}") if second else None
        self.latents = self._width("basis")

    def _points(self, name: str) -> Tensor:
        points = self.tensors.get(name)
        if points is None or points.dim() != 4 or points.shape[:2] != (1, 1):
            raise SavedModelError(f"its tensors have no points {name!r} of one model")
        return points

    def _width(self, basis: str) -> int:
        """Latent functions of a layer."""
        for name in ("q.mean", "q.a0", "q.blocks.0.mean"):
            mean = self.tensors.get(f"{basis}.{name}")
            if mean is not None and mean.dim() == 3:
                return mean.shape[1]
        raise SavedModelError(f"its tensors have no coefficients of {basis!r}")

    def network(self, name: str) -> list[int] | None:
        """Widths of the layers of a network of ours."""
        shapes = [weight.shape[-2:] for weight in layer_weights(self.tensors, name)]
        if any(before[-1] != after[0] for before, after in itertools.pairwise(shapes)):
            raise SavedModelError(f"the layers of {name!r} among its tensors do not fit together")
        return [shape[-1] for shape in shapes] or None

    def check(self, method: Method, settings: Settings, dims: int, outputs: int, functions: int) -> None:
        """An error where the manifest describes another model than the tensors."""
        mixed = self.tensors.get("mixing.weight")
        if settings.num_latents is None:
            fits = mixed is None and functions <= 2 * self.latents
        else:
            fits = mixed is not None and mixed.shape == (1, outputs, self.latents)
            fits = fits and settings.num_latents == self.latents
        if not fits:
            raise SavedModelError(f"its manifest and its {self.latents} latent functions do not go together")
        if settings.num_layers not in (None, self.layers):
            raise SavedModelError(f"its manifest has {settings.num_layers} layers, its tensors {self.layers}")
        width = self._width("hidden.0.basis") if self.layers > 1 else None
        if settings.hidden_width is not None and width is not None and settings.hidden_width != width:
            raise SavedModelError(
                f"its manifest has layers of {settings.hidden_width} units, its tensors of {width}"
            )
        columns, dims = self.inducing.shape[-1], dims + self.learned
        if settings.inducing_space != "feature" and columns not in (dims, 2 * dims):
            raise SavedModelError(f"its manifest uses {dims} columns, and its inducing points have {columns}")
        points = (self.inducing.shape[-2], 0 if self.extra is None else self.extra.shape[-2])
        if self.latents * method.num_variational_parameters(*points) > self.numbers:
            raise SavedModelError("its tensors hold no covariance of as many inducing points as there are")
        draws = (settings.num_samples or 1) * (width or 0) * self.layers * Architecture.columns
        if draws + self.latents * dims > FREE_NUMBERS + NUMBERS_EACH * self.numbers:
            raise SavedModelError("its manifest describes a model far larger than the file of its tensors")


def _build(
    method: Method,
    settings: Settings,
    common: Mapping[str, Any],
    described: Mapping[str, Any],
    sizes: Sizes,
    known_noise: bool,
) -> Model:
    tensors, dims = sizes.tensors, int(common["columns"].sum()) + sizes.learned
    inducing, extra = sizes.inducing.clone(), None if sizes.extra is None else sizes.extra.clone()
    if settings.inducing_space == "feature" and "extractor" in method.defaults:
        # The saved points are features; `build_model` takes inputs and maps them there.
        inducing = _placeholder(inducing, dims)
        extra = None if extra is None else _placeholder(extra, dims)
    noise, weight = (tensors.get(f"basis.{name}") for name in ("row_noise", "weight"))
    num_data, sized = entry(described, "num_data", int), _build_settings(settings, described, sizes)
    labels = common["classes"]
    try:
        model = build_model(
            method,
            sized,
            inducing=inducing,
            extra=extra,
            outputs=len(common["y_scaler"].scale),
            num_data=num_data,
            beta1=tensors["beta1"],
            beta2=tensors["beta2"],
            omega=entry(described, "omega", str, type(None)) or "batch",
            fixed_noise=known_noise,
            spread=torch.ones(1, 1, dims, dtype=torch.float64),
            generators=[torch.Generator().manual_seed(0)],
            classes=None if labels is None else len(labels),
            rows=Batch(inducing[:, 0], torch.empty(0), noise, weight),  # the exact basis has all of them
            learned=sizes.learned,
        )
        state = {name: tensors.get(f"basis.prior_{name}") for name in SubspaceState._fields}
        prior = None if state["alpha"] is None else SubspaceState(**state)  # type: ignore[arg-type]
        if (shared := entry(described, "shared_points", bool)) or prior is not None:
            basis: Any = model.basis
            index = basis.columns_index
            columns = None if index is None else index.shape[-1]
            points = basis.mean_inducing, basis.inducing
            model.basis = basis.rebuilt(*points, columns, shared=shared, prior=prior)
    except Exception as error:  # from a user's module, or settings and tensors of different models
        raise SavedModelError(f"the model cannot be built as it was: {error}") from error
    return model.eval()


def _placeholder(points: Tensor, dims: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*points.shape[:-1], dims, generator=generator, dtype=torch.float64).to(points.dtype)


def _build_settings(settings: Settings, described: Mapping[str, Any], sizes: Sizes) -> Settings:
    """Settings with the widths and the jitter of the saved model instead of today's defaults."""
    known: dict[str, Any] = {"jitter": float(entry(described, "jitter", int, float))}
    if (widths := sizes.network("basis.kernel.extractor")) is not None:
        known["widths"] = widths
    if (widths := sizes.network("basis.mean_kernel.extractor")) is not None:
        known["mean_widths"] = widths
    if (widths := sizes.network("mean.net")) is not None and len(widths) > 1:
        known["mean_widths"] = widths[:-1]  # the last layer has the one output of a mean
    return settings.but(**known)

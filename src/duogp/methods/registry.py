"""THE REGISTRY: one line per named method of the papers. This is the table of contents of the field.

A method is a choice at each arrow: a basis, a q(u), an objective. `is_bound` says whether its objective is a
lower bound on log p(y) at its default weights; `parameters` counts the variational parameters of one output.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from duogp.bases.base import Basis
from duogp.bases.recipes import Recipe, recipe_of
from duogp.bases.subspace import SubspaceQ
from duogp.methods.advice import USE_WHEN
from duogp.objectives import OBJECTIVES, DataTerm, Objective, as_objective
from duogp.variational import CentredQ, CholeskyQ, DiagonalQ, PointQ, Q, RidgeQ

CITATIONS = {
    "titsias2009": "Titsias 2009, Variational Learning of Inducing Variables in Sparse Gaussian Processes",
    "snelson2006": "Snelson, Ghahramani 2006, Sparse Gaussian Processes using Pseudo-inputs",
    "hensman2013": "Hensman, Fusi, Lawrence 2013, Gaussian Processes for Big Data",
    "salimbeni2018": "Salimbeni, Cheng, Boots, Deisenroth 2018, Orthogonally Decoupled Variational Gaussian Processes",
    "salimbeni2017": "Salimbeni, Deisenroth 2017, Doubly Stochastic Variational Inference for Deep Gaussian Processes",
    "gal2016": "Gal, Ghahramani 2016, Dropout as a Bayesian Approximation",
    "lakshminarayanan2017": "Lakshminarayanan, Pritzel, Blundell 2017, Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
    "shi2020": "Shi, Titsias, Mnih 2020, Sparse Orthogonal Variational Inference for Gaussian Processes",
    "cheng2017": "Cheng, Boots 2017, Variational Inference for Gaussian Process Models with Linear Complexity",
    "cheng2016": "Cheng, Boots 2016, Incremental Variational Sparse Gaussian Process Regression",
    "rasmussen2006": "Rasmussen, Williams 2006, Gaussian Processes for Machine Learning",
    "seeger2003": "Seeger, Williams, Lawrence 2003, Fast Forward Selection to Speed Up Sparse Gaussian Process Regression",
    "popescu2020": "Popescu, Sharp, Cole, Glocker, Decoupled Sparse Gaussian Processes Components",
    "knoblauch2019": "Knoblauch, Jewson, Damoulas 2019, Generalized Variational Inference",
    "jankowiak2020": "Jankowiak, Pleiss, Gardner 2020, Parametric Gaussian Process Regressors",
    "wilson2016": "Wilson, Hu, Salakhutdinov, Xing 2016, Deep Kernel Learning",
    "zhu2023": "Zhu, Wu, Maus, Gardner, Bindel 2023, Variational Gaussian Processes with Decoupled Conditionals",
}


@dataclass(frozen=True)
class Method:
    """One named method. ``own_settings`` belong to it; the user's settings win.

    ``basis``: a name of `bases.RECIPES`, or a `Basis` class of one's own; None for baselines that are no GPs.
    ``q``: a name of `Q_CLASSES`, or a `Q` class. ``objective``: a name of `objectives.OBJECTIVES`, an
    `Objective`, or a function (density, marginals, y) → one value per datum.
    """

    name: str
    basis: str | type[Basis] | None
    q: str | type[Q] = "full"
    objective: str | Objective | DataTerm = "elbo"
    is_bound: bool = False
    citation: str = ""
    summary: str = ""
    own_settings: tuple[tuple[str, Any], ...] = ()

    @property
    def defaults(self) -> dict[str, Any]:
        return dict(self.own_settings)

    @property
    def reference(self) -> str:
        return CITATIONS.get(self.citation, self.citation)

    @property
    def recipe(self) -> Recipe:
        """How its basis is built, and the traits of that basis."""
        if not self.basis:
            raise ValueError(f"{self.name!r} is no GP: it has no basis")
        recipe = recipe_of(self.basis)
        if self.q_class.depends_on_points and not recipe.binds_q:
            raise ValueError(f"the basis {recipe.name!r} cannot have a q(u) that depends on the points")
        return recipe

    @property
    def q_class(self) -> type[Q]:
        return _looked_up(self.q, Q_CLASSES, "q(u)") if isinstance(self.q, str) else self.q

    @property
    def q_name(self) -> str:
        return self.q if isinstance(self.q, str) else self.q.__name__

    @property
    def data_term(self) -> Objective:
        """The objective, at the default values of its options."""
        if isinstance(self.objective, str):
            return _looked_up(self.objective, OBJECTIVES, "objective")
        return as_objective(self.objective)

    @property
    def is_deep(self) -> bool:
        """Whether layers of GPs stand on each other."""
        return "num_layers" in self.defaults

    @property
    def is_baseline(self) -> bool:
        """Whether there is no GP at all, but networks."""
        return not self.basis

    @property
    def learns_online(self) -> bool:
        """Whether rows come as a stream."""
        return bool(self.defaults.get("online"))

    @property
    def use_when(self) -> str:
        """When to choose it, in one line; empty for a method of one's own."""
        return USE_WHEN.get(self.name, "")

    @property
    def has_extra_points(self) -> bool:
        """Whether there is a second set of points at all."""
        return not self.is_baseline and self.recipe.has_extra_points

    @property
    def has_second_block(self) -> bool:
        """Whether a second set of points stands orthogonal to the first."""
        return not self.is_baseline and self.recipe.has_second_block

    @property
    def has_network_mean(self) -> bool:
        return self.defaults.get("mean") == NETWORK_MEAN

    @property
    def has_network(self) -> bool:
        """Whether a network is trained: an extractor of features, a mean, or all of it."""
        return "extractor" in self.defaults or self.has_network_mean or self.is_baseline

    @property
    def options(self) -> frozenset[str]:
        """Settings that its basis, q(u) and objective read."""
        return frozenset({*self.recipe.options, *self.q_class.options, *self.data_term.options})

    def num_variational_parameters(self, num_inducing: int, num_extra: int | None = None) -> int:
        """Size of q for one output: its means and its covariances. Of a deep GP: for each of its units."""
        if self.is_baseline or self.recipe.points_are_rows:
            return 0
        m, e = num_inducing, num_inducing if num_extra is None else num_extra
        mean = {"0": 0, "M": m, "E": e, "M + E": m + e}[self._mean_size]
        size = self.q_class.covariance_size
        return mean + size(m) + (size(e) if self.recipe.has_second_covariance else 0)

    @property
    def variational_parameters(self) -> str:
        """The count as a formula in M (inducing points) and E (extra points)."""
        if self.is_baseline or self.recipe.points_are_rows:
            return "0"
        of_u = self.q_class.covariance_formula
        of_v = of_u.replace("M", "E") if self.recipe.has_second_covariance else ""
        parts = [part for part in (self._mean_size, of_u, of_v) if part not in ("", "0")]
        return " + ".join(parts) + (" a unit" if self.is_deep else "")

    @property
    def _mean_size(self) -> str:
        return self.recipe.mean_size if self.q_class.learns_mean else "0"


#: q(u) by name.
Q_CLASSES: dict[str, type[Q]] = {
    "full": CholeskyQ,
    "diagonal": DiagonalQ,
    "point": PointQ,
    "ridge": RidgeQ,
    "centred": CentredQ,
    "square": SubspaceQ,
}
#: The prior mean that is a network, see `means.NetworkMean`.
NETWORK_MEAN = "network"


def _looked_up(name: str, table: Mapping[str, Any], what: str) -> Any:
    if name not in table:
        raise ValueError(f"unknown {what} {name!r}; the names are {', '.join(table)}")
    return table[name]


def _with(**settings: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(settings.items())


class Registry(Mapping[str, Method]):
    """Methods by name; unknown names are answered with the nearest known one."""

    def __init__(self, methods: list[Method], aliases: Mapping[str, str]) -> None:
        self._methods = {method.name: method for method in methods}
        self.aliases = dict(aliases)

    def __getitem__(self, name: str | Method) -> Method:
        """The method of that name or alias; a `Method` is returned as it is."""
        if isinstance(name, Method):
            return name
        if not isinstance(name, str):
            raise TypeError(f"method must be a name or a Method, got {type(name).__name__}")
        key = self.aliases.get(name.lower(), name.lower())
        if key not in self._methods:
            near = difflib.get_close_matches(key, [*self._methods, *self.aliases], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown method {name!r}{hint} The methods are {', '.join(self._methods)}")
        return self._methods[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name.lower() in self._methods or name.lower() in self.aliases)


# fmt: off
METHODS = Registry([
    #      name            basis          q           objective       bound  paper            in a sentence
    Method("svgp",         "coupled",     "full",     "elbo",         True,  "hensman2013",   "sparse variational GP"),
    Method("map",          "coupled",     "point",    "elbo",         False, "jankowiak2020", "inducing values as parameters"),
    Method("gamma-robust", "coupled",     "full",     "gamma-robust", False, "knoblauch2019", "γ-divergence: outliers weigh less"),
    Method("vfitc",        "coupled",     "full",     "vfitc",        False, "jankowiak2020", "stochastic FITC: a bound on FITC's evidence"),
    Method("ppgpr-delta",  "coupled",     "point",    "predictive",   False, "jankowiak2020", "parametric predictive, q(u) a point"),
    Method("ppgpr-mf",     "coupled",     "diagonal", "predictive",   False, "jankowiak2020", "parametric predictive, mean-field q(u)"),
    Method("ppgpr-chol",   "coupled",     "full",     "predictive",   False, "jankowiak2020", "parametric predictive, full q(u)"),
    Method("ppgpr-mfd",    "separate",    "diagonal", "predictive",   False, "jankowiak2020", "parametric predictive, own points for the mean"),
    Method("dcsvgp",       "conditional", "full",     "elbo",         False, "zhu2023",       "decoupled conditionals", _with(beta2=1e-3)),
    Method("dcppgpr",      "conditional", "full",     "predictive",   False, "zhu2023",       "decoupled conditionals, predictive", _with(beta2=1e-3)),
    Method("odsvgp",       "orthogonal",  "full",     "elbo",         True,  "salimbeni2018", "orthogonal second block for the mean"),
    Method("odppgpr",      "orthogonal",  "full",     "predictive",   False, "salimbeni2018", "orthogonal second block, predictive"),
    Method("solvegp",      "solve",       "full",     "elbo",         True,  "shi2020",       "orthogonal second block for mean and covariance"),
    Method("dsgpc-eps",    "components-eps", "full",  "elbo",         True,  "popescu2020",   "second block shrunk towards zero: a true bound"),
    Method("dsgpc",        "components",  "ridge",    "elbo",         False, "popescu2020",   "dsgpc-free with a ridge S: a surrogate"),
    Method("dsgpc-free",   "components",  "full",     "elbo",         False, "popescu2020",   "second block explains variance only: a surrogate"),
    Method("sgpr",         "coupled",     "full",     "elbo",         True,  "titsias2009",   "Titsias' collapsed bound", _with(solver="closed-form")),
    Method("fitc",         "coupled",     "full",     "vfitc",        False, "snelson2006",   "FITC's evidence, maximised", _with(solver="closed-form")),
    Method("dtc",          "coupled",     "full",     "dtc",          False, "seeger2003",    "DTC's evidence, maximised", _with(solver="closed-form")),
    Method("exact",        "exact",       "point",    "elbo",         True,  "rasmussen2006", "the GP itself, n³", _with(solver="closed-form")),
    Method("bkrr",         "exact",       "point",    "elbo",         True,  "popescu2020",   "Bayesian kernel ridge regression: the GP with λ = noise / scale", _with(solver="closed-form")),
    Method("svgp-dkl",     "coupled",     "full",     "elbo",         True,  "wilson2016",    "svgp on a network's features", _with(extractor="shared")),
    Method("svgp-dcdkl",   "conditional", "full",     "elbo",         False, "zhu2023",       "dcsvgp, a network for each kernel", _with(extractor="decoupled", beta2=1e-3)),
    Method("svgp-meandkl", "conditional", "full",     "elbo",         False, "zhu2023",       "dcsvgp, a network for the mean kernel", _with(extractor="mean", beta2=1e-3)),
    Method("ppgpr-dkl",    "coupled",     "full",     "predictive",   False, "jankowiak2020", "ppgpr on a network's features", _with(extractor="shared")),
    Method("ppgpr-dcdkl",  "conditional", "full",     "predictive",   False, "zhu2023",       "dcppgpr, a network for each kernel", _with(extractor="decoupled", beta2=1e-3)),
    Method("ppgpr-meandkl", "conditional", "full",    "predictive",   False, "zhu2023",       "dcppgpr, a network for the mean kernel", _with(extractor="mean", beta2=1e-3)),
    Method("ppgpr-mfd-dkl", "separate",   "diagonal", "predictive",   False, "jankowiak2020", "ppgpr-mfd on a network's features", _with(extractor="shared")),
    Method("nnsvgp",       "coupled",     "centred",  "elbo",         False, "zhu2023",       "a network's mean, a GP's variance: a surrogate", _with(mean=NETWORK_MEAN)),
    Method("nnppgpr",      "coupled",     "centred",  "predictive",   False, "zhu2023",       "a network's mean, a GP's variance, predictive", _with(mean=NETWORK_MEAN)),
    Method("dgp",          "coupled",     "full",     "elbo",         True,  "salimbeni2017", "layers of GPs, doubly stochastic", _with(num_layers=2)),
    Method("dgp-solve",    "solve",       "full",     "elbo",         True,  "shi2020",       "dgp, every layer a solvegp", _with(num_layers=2)),
    Method("dgp-dc",       "conditional", "full",     "elbo",         False, "zhu2023",       "dgp with decoupled conditionals in every layer", _with(num_layers=2, beta2=1e-3)),
    Method("ddgpc",        "layer-components", "full", "elbo",        False, "popescu2020",   "dgp of decoupled components, free S: a surrogate", _with(num_layers=2)),
    Method("ddgpc-ridge",  "layer-components", "ridge", "elbo",       False, "popescu2020",   "ddgpc with a ridge S", _with(num_layers=2)),
    Method("mc-dropout",   None,          "none",     "likelihood",   False, "gal2016",       "a baseline: one network, units left out at random"),
    Method("deep-ensemble", None,         "none",     "likelihood",   False, "lakshminarayanan2017", "a baseline: the mixture of several networks"),
    Method("coupled-nat",  "coupled",     "full",     "elbo",         True,  "hensman2013",   "natural gradients on q(u)", _with(solver="natural")),
    Method("orthnat",      "orthogonal",  "full",     "elbo",         True,  "salimbeni2018", "odsvgp with natural gradients", _with(solver="natural")),
    Method("solvegp-nat",  "solve",       "full",     "elbo",         True,  "shi2020",       "solvegp with natural gradients", _with(solver="natural")),
    Method("dcsvgp-nat",   "conditional", "full",     "elbo",         False, "zhu2023",       "dcsvgp with natural gradients", _with(solver="natural", beta2=1e-3)),
    Method("orth-a",       "orthogonal-a", "full",    "elbo",         True,  "salimbeni2018", "orth for many mean points: cost linear in E", _with(solver="natural", mean_columns=64)),
    Method("hybrid",       "hybrid",      "full",     "elbo",         True,  "salimbeni2018", "extra mean points with plain coefficients"),
    Method("hybrid-nat",   "hybrid",      "full",     "elbo",         True,  "salimbeni2018", "hybrid with natural gradients", _with(solver="natural")),
    Method("decoupled",    "subspace",    "square",   "elbo",         True,  "cheng2017",     "own points for the mean, B form"),
    Method("svdgp",        "subspace",    "square",   "elbo",         True,  "cheng2017",     "decoupled with bases grown online", _with(online=True)),
    Method("ivsgpr",       "coupled",     "full",     "elbo",         True,  "cheng2016",     "coupled with bases grown online", _with(online=True)),
    Method("decoupled-s",  "separate",    "full",     "elbo",         True,  "salimbeni2018", "own points for the mean, S form: a true bound"),
], aliases={"ppgpr": "ppgpr-chol", "coupled": "svgp", "orth": "odsvgp", "svi": "coupled-nat", "vsgpr": "sgpr"})
# fmt: on

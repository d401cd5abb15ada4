"""When to use which method: one line for each, and a chooser of six."""

from __future__ import annotations

#: The chooser, in the order of the questions: what is known of the table, and the method. The page
#: docs/which-method.md prints the same lines (docs/_tools/chooser.py), with the evidence for each.
CHOOSER: tuple[tuple[str, str], ...] = (
    (
        "A table, and you want good predictions with honest intervals",
        "auto, the default of GPRegressor(), GPClassifier() and duogp fit",
    ),
    (
        "One GP whose training loss, a bound on log p(y), compares kernels without held-out rows",
        "exact up to 5,000 rows, in a fraction of the default's time; svgp for more rows",
    ),
    (
        "Few inducing points for a function with detail",
        "dcsvgp; compare its held-out NLL with that of svgp",
    ),
    (
        "The density matters more than the mean, and there are a few thousand rows or more",
        "ppgpr-chol, then dcppgpr",
    ),
    (
        "Classes, counts or positive numbers, by one method",
        "svgp; orthnat where the mean needs many points",
    ),
    (
        "Raw columns that a network should combine, many rows; or rows that keep arriving",
        "svgp-dcdkl; for a stream ivsgpr, by partial_fit or duogp.OnlineGP",
    ),
)

#: By the name of a method.
USE_WHEN: dict[str, str] = {
    "svgp": "more rows than an exact GP takes, or another likelihood than Gaussian; what to compare with",
    "map": "the inducing values as plain parameters are enough; a baseline of Jankowiak et al. 2020",
    "gamma-robust": "some targets are far off; student-t is the likelihood for the same",
    "vfitc": "FITC's variances are wanted on minibatches",
    "ppgpr-delta": "as ppgpr-chol, with the fewest parameters: q(u) has no covariance at all",
    "ppgpr-mf": "as ppgpr-chol, with many inducing points: the covariance is diagonal",
    "ppgpr-chol": "calibrated intervals count, noise differs between places; a few thousand rows or more, "
    "minutes of training",
    "ppgpr-mfd": "as ppgpr-mf, and the mean needs more points than the covariance",
    "dcsvgp": "mean and covariance vary over different distances: each has own lengthscales",
    "dcppgpr": "as ppgpr-chol, and mean and covariance vary over different distances",
    "odsvgp": "a finer mean than svgp at the cost of twice the points, still a bound",
    "odppgpr": "as ppgpr-chol, with more points for the mean",
    "solvegp": "more points than one Cholesky factor allows, for mean and covariance, still a bound",
    "dsgpc-eps": "the components of Popescu et al. 2020 with a true bound",
    "dsgpc": "the surrogate of Popescu et al. 2020 as published",
    "dsgpc-free": "the surrogate of Popescu et al. 2020 with a free covariance",
    "sgpr": "Gaussian noise and rows that fit into memory: q(u) is solved for, no learning rate",
    "fitc": "noise differs between places, Gaussian likelihood, rows that fit into memory",
    "dtc": "comparison with the older approximation; its variances are too small far from the data",
    "exact": "up to 5,000 rows (20,000 on a GPU), Gaussian noise",
    "bkrr": "kernel ridge regression with a variance, tuned by the evidence",
    "svgp-dkl": "raw inputs with structure that a kernel does not see, many rows",
    "svgp-dcdkl": "as svgp-dkl, with a network each for mean and covariance",
    "svgp-meandkl": "as svgp-dkl, with variances that do not depend on the network",
    "ppgpr-dkl": "as svgp-dkl (many rows), and calibrated intervals count",
    "ppgpr-dcdkl": "as ppgpr-dkl, with a network each for mean and covariance",
    "ppgpr-meandkl": "as ppgpr-dkl, with variances that do not depend on the network",
    "ppgpr-mfd-dkl": "as ppgpr-dkl, with a cheap covariance and own points for the mean",
    "nnsvgp": "a baseline: the mean is a network alone",
    "nnppgpr": "a baseline: the mean is a network alone, calibrated by its density",
    "dgp": "functions whose smoothness changes from place to place; slower than svgp by the layers",
    "dgp-solve": "as dgp, with more points in every layer",
    "dgp-dc": "as dgp, with own lengthscales for mean and covariance in every layer",
    "ddgpc": "the deep components of Popescu et al. 2020, free covariance",
    "ddgpc-ridge": "the deep components of Popescu et al. 2020 as published",
    "mc-dropout": "a baseline that is no GP",
    "deep-ensemble": "a baseline that is no GP",
    "coupled-nat": "svgp under a likelihood without a closed form: q(u) by natural gradients",
    "orthnat": "as odsvgp, by natural gradients",
    "solvegp-nat": "as solvegp, by natural gradients",
    "dcsvgp-nat": "as dcsvgp, by natural gradients",
    "orth-a": "as orthnat with many thousand mean points: the cost is linear in their number",
    "hybrid": "a mean on all rows beside the covariance of few points",
    "hybrid-nat": "as hybrid, by natural gradients",
    "decoupled": "the basis of Cheng and Boots 2017 as published; odsvgp is better conditioned",
    "svdgp": "a stream, with more mean points than covariance points",
    "ivsgpr": "a stream: points grow with the rows, q(u) by natural gradients",
    "decoupled-s": "comparison with decoupled: the same points, better conditioned",
}

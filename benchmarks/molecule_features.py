"""What a model can know of Ranolazine's score: latent points, substructures and descriptors of molecules.

Exact GPs (variance, noise and, for Matérn-5/2, one lengthscale by the evidence on a grid) and boosted trees
learn the scores of molecules of ZINC-250k and predict those of a thousand others. After the smallest number
of molecules they also predict the new molecules among three hundred points of each kind that a search asks
about:

    box   TuRBO's first trust region around the best molecule: 0.8 of the cube's sides, all coordinates moved
    near  near the best twenty molecules and between them, as in `duogp_tasks.molecules.search`

    latent       posterior means of the autoencoder, 256
    informative  those of its coordinates that spread by more than 0.4, where the prior's spread is 1
    morgan       counts of circular substructures, 2,048; a Tanimoto kernel
    pairs        counts of atom pairs, 2,048; a Tanimoto kernel
    descriptors  RDKit's molecular quantum numbers and surfaces by logP, refractivity and charge; standardised

Every number is a line of the results file: coefficients of determination and rank correlations.

    export DUOGP_DATA=<folder with molecules/>
    python benchmarks/molecule_features.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from duogp.bench.provenance import stamp
from duogp.bo.candidates import perturbations, trust_box
from duogp.kernels import Kernel, Matern52, Tanimoto
from duogp_tasks.molecules.alphabet import canonical_smiles
from duogp_tasks.molecules.fingerprints import COLUMNS, morgan_counts
from duogp_tasks.molecules.scoring import ranolazine_mpo
from duogp_tasks.molecules.search import near_and_between
from duogp_tasks.ranolazine import RanolazineMPO, zinc_molecules

ROOT = Path(__file__).parent
TEST, ASKED = 1000, 300
SPREAD = 0.4  # least standard deviation of an informative coordinate
CHOICE = 1000  # rows whose evidence chooses a lengthscale
#: Grids of the evidence.
LENGTHSCALES = (5.0, 10.0, 20.0, 40.0)
VARIANCES, NOISES = np.exp(np.linspace(-2, 6, 17)), np.exp(np.linspace(-6, 0, 13))

Predictor = Callable[[np.ndarray], np.ndarray]


def gp(X: np.ndarray, y: np.ndarray, kernels: list[Kernel]) -> Predictor:
    """The mean of the exact GP of the largest evidence among kernels, variances and noises."""
    if len(X) > CHOICE and len(kernels) > 1:
        kernels = [evidence_and_weights(X[:CHOICE], y[:CHOICE], kernels)[1]]
    _, chosen, weights = evidence_and_weights(X, y, kernels)
    x, centre, scale = torch.as_tensor(X), y.mean(), y.std()
    return lambda new: _matrix(chosen, torch.as_tensor(new), x) @ weights * scale + centre


def evidence_and_weights(
    X: np.ndarray, y: np.ndarray, kernels: list[Kernel]
) -> tuple[float, Kernel, np.ndarray]:
    """The largest evidence, its kernel, and the weights of the rows in the mean of standardised values."""
    x, z = torch.as_tensor(X), (y - y.mean()) / y.std()
    best: tuple[float, Kernel, np.ndarray] | None = None
    for kernel in kernels:
        roots, vectors = np.linalg.eigh(_matrix(kernel, x, x))
        a = vectors.T @ z
        for variance in VARIANCES:
            for noise in NOISES:
                spectrum = variance * np.maximum(roots, 0.0) + noise
                evidence = -0.5 * float((a * a / spectrum + np.log(spectrum)).sum())
                if best is None or evidence > best[0]:
                    best = evidence, kernel, vectors @ (variance * a / spectrum)
    assert best is not None
    return best


def _matrix(kernel: Kernel, x1: torch.Tensor, x2: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(kernel(x1, x2))


def matern(X: np.ndarray, y: np.ndarray) -> Predictor:
    dims = X.shape[1]
    return gp(X, y, [Matern52(dims, ard=False, lengthscale=value).double() for value in LENGTHSCALES])


def tanimoto(X: np.ndarray, y: np.ndarray) -> Predictor:
    return gp(X, y, [Tanimoto()])


def trees(X: np.ndarray, y: np.ndarray) -> Predictor:
    from lightgbm import LGBMRegressor

    model = LGBMRegressor(
        n_estimators=300, learning_rate=0.05, num_leaves=15, min_child_samples=10, colsample_bytree=0.3,
        n_jobs=1, verbose=-1, random_state=0,
    )  # fmt: skip
    return model.fit(X, y).predict


class Table:
    """Features of molecules, by name."""

    def __init__(self, task: RanolazineMPO, smiles: list[str], X: np.ndarray, y: np.ndarray) -> None:
        self.task, self.smiles, self.X, self.y = task, smiles, X, y

    @classmethod
    def of_points(cls, task: RanolazineMPO, X: np.ndarray, known: set[str]) -> Table:
        """The new molecules that points decode to, each once."""
        smiles = task.molecules(X)
        first = {text: i for i, text in reversed(list(enumerate(smiles))) if text and text not in known}
        kept = sorted(first.values())
        return cls(task, [smiles[i] for i in kept], X[kept], task(X[kept]))

    def columns(self, name: str) -> np.ndarray:
        if name == "morgan":
            return morgan_counts(self.smiles)
        if name == "pairs":
            return self._atom_pairs()
        if name == "descriptors":
            return self._descriptors()
        low, high = self.task.bounds
        return low + (high - low) * self.X

    def _atom_pairs(self) -> np.ndarray:
        from rdkit import Chem
        from rdkit.Chem.rdFingerprintGenerator import GetAtomPairGenerator

        generator = GetAtomPairGenerator(fpSize=COLUMNS, maxDistance=10)
        counts = [generator.GetCountFingerprintAsNumPy(Chem.MolFromSmiles(s)) for s in self.smiles]
        return np.stack(counts).astype(np.float64)

    def _descriptors(self) -> np.ndarray:
        from rdkit import Chem
        from rdkit.Chem import rdMolDescriptors as d

        parts = (d.MQNs_, d.SlogP_VSA_, d.SMR_VSA_, d.PEOE_VSA_)
        molecules = [Chem.MolFromSmiles(s) for s in self.smiles]
        return np.array([[x for part in parts for x in part(m)] for m in molecules], dtype=np.float64)


def measured(predict: Predictor, features: np.ndarray, y: np.ndarray) -> dict[str, float]:
    mean = predict(features)
    r2 = 1.0 - float(np.square(mean - y).mean() / y.var())
    return {"r2": r2, "rank_correlation": float(spearmanr(mean, y).statistic), "molecules": len(y)}


def rows(sizes: list[int], seed: int) -> Iterator[dict[str, Any]]:
    task = RanolazineMPO()
    largest = max(sizes)
    smiles = zinc_molecules(largest + TEST, seed)
    X, y = task.points(smiles), np.array([ranolazine_mpo(text) for text in smiles])
    learn, test = (
        Table(task, smiles[part], X[part], y[part]) for part in (slice(largest), slice(largest, None))
    )
    informative = (task.bounds[1] - task.bounds[0]) * learn.X.std(0) > SPREAD
    first = min(sizes)
    rng = np.random.default_rng(seed)
    order = np.argsort(-learn.y[:first])
    centre, unit = learn.X[order[0]], 1.0 / (task.bounds[1] - task.bounds[0])
    low, high = trust_box(centre, 0.8, np.ones(task.dims))
    points = {
        "box": perturbations(centre, low, high, ASKED, rng, task.dims),
        "near": near_and_between(learn.X[order[:20]], ASKED, rng, unit),
    }
    known_molecules = {str(canonical_smiles(text)) for text in smiles}
    asked = {name: Table.of_points(task, X, known_molecules) for name, X in points.items()}
    models = {"latent": matern, "informative": matern, "morgan": tanimoto, "pairs": tanimoto}
    models["descriptors"] = matern
    for features in models:
        known, held_out = learn.columns(features), test.columns(features)
        others = {name: table.columns(features) for name, table in asked.items()}
        pick = informative if features == "informative" else np.ones(known.shape[1], dtype=bool)
        centre, scale = np.zeros(known.shape[1]), np.ones(known.shape[1])
        if features == "descriptors":
            centre, scale = known[:first].mean(0), known[:first].std(0)
            pick = scale > 0
        wanted = {"gp": models[features]} | ({"trees": trees} if find_spec("lightgbm") else {})

        def ready(
            F: np.ndarray, pick: np.ndarray = pick, centre: np.ndarray = centre, scale: np.ndarray = scale
        ) -> np.ndarray:
            return np.clip((F[:, pick] - centre[pick]) / scale[pick], -1e3, 1e3)

        for size in sizes:
            for model, fit in wanted.items():
                predict = fit(ready(known[:size]), learn.y[:size])
                line = {"features": features, "columns": int(pick.sum()), "model": model, "rows": size}
                line |= {"seed": seed}
                yield line | {"asked": "zinc"} | measured(predict, ready(held_out), test.y)
                if size == first:
                    for name, F in others.items():
                        yield line | {"asked": name} | measured(predict, ready(F), asked[name].y)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000], help="molecules learned from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "molecule_features.jsonl")
    options = parser.parse_args()
    lines = []
    for line in rows(sorted(options.sizes), options.seed):
        lines.append(line | {**stamp()})
        text = f"{line['features']:12} {line['model']:6} {line['rows']:6} {line['asked']:5}"
        print(f"{text} R² {line['r2']:6.3f}  ρ {line['rank_correlation']:6.3f}", flush=True)
    options.output.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()

"""Seconds of one suggestion by Optuna's samplers and by `DuoGPSampler`, at 200 to 3,000 finished trials.

    python benchmarks/optuna_speed.py

Processor seconds of one thread, on random trials of a mixed space of eight parameters: of the first
suggestion (hyperparameters are learned) and the median of the next ones (only the data are new).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from duogp.bo.optuna import DuoGPSampler

SPACE: dict[str, BaseDistribution] = {f"x{i}": FloatDistribution(0, 1) for i in range(6)}
SPACE |= {"n": IntDistribution(1, 64, log=True), "kind": CategoricalDistribution(["a", "b", "c"])}
SAMPLERS: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
    "`DuoGPSampler`": lambda: DuoGPSampler(seed=0),
    "Optuna's `GPSampler`": lambda: optuna.samplers.GPSampler(seed=0),
    "Optuna's `TPESampler`": lambda: optuna.samplers.TPESampler(seed=0, multivariate=True),
}
#: Most trials that a sampler is asked about: of 3,000, six suggestions did not end in five minutes.
MOST = {"Optuna's `GPSampler`": 1000}


def value(params: dict) -> float:
    bowl = sum((params[f"x{i}"] - 0.3) ** 2 for i in range(6))
    return bowl + abs(np.log2(params["n"]) - 3) / 5 + 0.3 * (params["kind"] != "b")


def study_of(sampler: optuna.samplers.BaseSampler, trials: int) -> optuna.Study:
    rng = np.random.default_rng(0)
    study = optuna.create_study(sampler=sampler)
    made = []
    for _ in range(trials):
        params = {f"x{i}": float(rng.random()) for i in range(6)}
        params |= {"n": int(2 ** rng.integers(0, 7)), "kind": "abc"[rng.integers(3)]}
        noisy = value(params) + 0.02 * rng.normal()
        made.append(optuna.create_trial(params=params, distributions=SPACE, value=noisy))
    study.add_trials(made)
    return study


def seconds(study: optuna.Study, suggestions: int) -> list[float]:
    out = []
    for _ in range(suggestions):
        start = time.process_time()
        trial = study.ask(SPACE)
        out.append(time.process_time() - start)
        study.tell(trial, value(trial.params))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[200, 1000, 3000])
    parser.add_argument("--suggestions", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print("| sampler |" + "".join(f" {n:,} trials |" for n in options.trials))
    print("|---|" + "---:|" * len(options.trials))
    study_of(DuoGPSampler(seed=0), 20).ask(SPACE)  # imports
    for name, make in SAMPLERS.items():
        cells = []
        for n in options.trials:
            if n > MOST.get(name, n):
                cells.append("–")
                continue
            spent = seconds(study_of(make(), n), options.suggestions)
            cells.append(f"{spent[0]:.2f} s, then {np.median(spent[1:]):.2f} s")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

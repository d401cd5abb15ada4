"""`duogp fit`: a table in, a model folder out."""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from duogp.cli.manners import command, say
from duogp.cli.models import relevance, rows_with_target, save_model
from duogp.cli.options import AsJson, DataFile, Device, Quiet, names_of, settings_of
from duogp.cli.scores import WORDS, metrics_of, score_rows
from duogp.cli.showing import number, percent, print_json, print_pairs, some


def register(app: typer.Typer) -> None:
    @command(app)
    def fit(
        data: DataFile,
        target: Annotated[str, typer.Option("--target", "-t", help="Column to predict.")],
        output: Annotated[str, typer.Option("--output", "-o", help="Folder for the model.")],
        method: Annotated[str, typer.Option(help="auto, or a name that `duogp methods` lists.")] = "auto",
        num_inducing: Annotated[int | None, typer.Option(help="Inducing points.")] = None,
        likelihood: Annotated[
            str | None,
            typer.Option(help="gaussian, student-t, heteroscedastic, poisson, gamma, beta; softmax, …"),
        ] = None,
        kernel: Annotated[str | None, typer.Option(help="matern52, rbf, rbf + linear, …")] = None,
        epochs: Annotated[int | None, typer.Option(help="Epochs of training.")] = None,
        time_budget: Annotated[float | None, typer.Option(help="Seconds after which training stops.")] = None,
        classify: Annotated[bool, typer.Option("--classify", help="Whole numbers are class labels.")] = False,
        missing: Annotated[
            str, typer.Option(help="impute: fill gaps, with an indicator; refuse: gaps are an error.")
        ] = "impute",
        drop: Annotated[str | None, typer.Option(help="Columns to leave out, with commas between.")] = None,
        category: Annotated[
            str | None, typer.Option(help="Columns of numbers that are names of categories.")
        ] = None,
        weights: Annotated[str | None, typer.Option(help="Column of row weights.")] = None,
        test_fraction: Annotated[
            float, typer.Option(help="Share of the rows held back to test the model on.")
        ] = 0.0,
        set_: Annotated[
            list[str] | None,
            typer.Option("--set", help="Any other setting, name=value (repeatable): --set ard=false"),
        ] = None,
        seed: Annotated[int, typer.Option(help="Seed of all that is random.")] = 0,
        device: Device = None,
        force: Annotated[bool, typer.Option("--force", "-f", help="Replace a model that is there.")] = False,
        quiet: Quiet = False,
        as_json: AsJson = False,
    ) -> None:
        """Fit a model to a table and save it."""
        given = {
            "method": method,
            "num_inducing": num_inducing,
            "likelihood": likelihood,
            "kernel": kernel,
            "epochs": epochs,
            "time_budget": time_budget,
            "device": device,
            "random_state": seed,
            "verbose": not (quiet or as_json),
        }
        report = fit_file(
            data,
            target,
            output,
            parameters={name: value for name, value in given.items() if value is not None},
            settings=settings_of(set_),
            table={
                "missing": missing,
                "drop": names_of(drop),
                "category": names_of(category),
                "weights": weights,
                "classify": classify,
            },
            test_fraction=test_fraction,
            seed=seed,
            force=force,
        )
        if as_json:
            print_json(report)
        elif not quiet:
            print_report(report)


def fit_file(
    data: str,
    target: str,
    output: str,
    *,
    parameters: dict[str, Any],
    settings: dict[str, Any],
    table: dict[str, Any],
    test_fraction: float = 0.0,
    seed: int = 0,
    force: bool = False,
) -> dict[str, Any]:
    """Read, fit, test, save; what is said about it. ``table``: keywords of `Schema.learn`."""
    from duogp.tables import Schema, read_table

    start = time.perf_counter()
    folder = Path(output)
    require_free(folder, force)
    if seed < 0:
        raise ValueError(f"--seed must not be negative, got {seed}")
    if not 0 <= test_fraction < 1:
        hint = f"; did you mean {test_fraction / 100:g}?" if 1 < test_fraction < 100 else ""
        raise ValueError(f"--test-fraction must be in [0, 1), got {test_fraction:g}{hint}")
    table["classify"] |= is_class_likelihood(parameters.get("likelihood"))
    rows = read_table(data, text=table["category"])
    everything = Schema.learn(rows, target, **table)  # what the target is, before any row is set aside
    rows, y, without = rows_with_target(everything, rows)
    train, test = split(len(y), test_fraction, seed)
    train_table = rows.take(train) if len(test) else rows
    schema = Schema.learn(train_table, target, **table) if len(test) or without else everything
    X = schema.encode(train_table).matrix
    weights = schema.row_weights(train_table)
    estimator = make_estimator(schema.target is not None and schema.target.is_class, parameters, settings)
    estimator.fit(X, y[train], sample_weight=weights)
    gp = estimator.gp_
    report = {
        "model": str(folder),
        "task": "classification" if gp.classes is not None else "regression",
        "target": target,
        "classes": None if gp.classes is None else gp.classes.tolist(),
        "rows": len(train),
        "rows_without_target": without,
        "columns": {column.name: column.kind for column in schema.columns},
        "inputs": len(schema.names),
        "dropped": dict(schema.dropped),
        "imputed": schema.gaps(train_table),
        "method": estimator.method_,
        "reasons": list(estimator.reasons_),
        "likelihood": type(gp.model.likelihood).__name__ if hasattr(gp, "model") else None,
        "num_inducing": num_inducing_of(gp),
        "noise_std": noise_std(gp, X),
        "relevance": relevance(gp, schema),
        "validation_nll": estimator.history_.validation_nll,
        "notes": [note for note in estimator.history_.notes if note not in estimator.reasons_],
        "test_rows": len(test),
        "test": test_metrics(gp, schema, rows.take(test), y[test]) if len(test) else None,
    }
    report["seconds"] = time.perf_counter() - start
    save_model(estimator, schema, report, folder)
    values = len(np.unique(y))
    if values == 1:
        say(f"note: {target!r} is the same in every row: there is nothing to learn", "yellow")
    if gp.classes is None and values == 2:
        say(f"note: {target!r} has two values only; --classify would predict their probabilities", "yellow")
    return report


def require_free(folder: Path, force: bool) -> None:
    """The folder is new, empty, or a model that may be replaced: better said before training than after."""
    from duogp.io import is_saved_model

    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{str(folder)!r} is a file; the model is a folder: choose another name")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not is_saved_model(folder):
        raise FileExistsError(f"{str(folder)!r} is a folder with other things in it: choose another name")
    if not force:
        raise FileExistsError(f"{str(folder)!r} holds a model already: use --force to replace it")


def is_class_likelihood(name: str | None) -> bool:
    from duogp.fitting.factories import target_kind
    from duogp.methods.settings import Settings

    return name is not None and target_kind(Settings(likelihood=name)) == "classes"


def split(n: int, fraction: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to train on and rows to test on, each in the order of the table."""
    size = round(fraction * n)
    if fraction > 0 and not 1 <= size <= n - 2:
        raise ValueError(f"--test-fraction {fraction:g} of {n} rows leaves too few to train or to test on")
    order = np.random.default_rng([seed, 2]).permutation(n)
    return np.sort(order[size:]), np.sort(order[:size])


def make_estimator(classes: bool, parameters: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Constructor keywords where there is one; all other names are settings of the fit."""
    import duogp
    from duogp.methods.settings import Settings

    kind = duogp.GPClassifier if classes else duogp.GPRegressor
    known = kind().get_params()
    twice = [
        name for name in settings if name in parameters and name not in ("verbose", "random_state", "method")
    ]
    if twice:
        raise ValueError(f"--set {twice[0]} and --{twice[0].replace('_', '-')} say the same thing: give one")
    own = {name: value for name, value in settings.items() if name in known and name != "settings"}
    rest = {name: value for name, value in settings.items() if name not in own}
    Settings.of(rest)  # an unknown name is answered with the nearest
    return kind(**parameters | own, settings=rest or None)


def test_metrics(gp: Any, schema: Any, rows: Any, y: NDArray) -> dict[str, float]:
    X = schema.encode(rows).matrix
    size = 65_536
    pieces = ((X[i : i + size], y[i : i + size]) for i in range(0, len(y), size))
    return metrics_of(gp, score_rows(gp, pieces))


test_metrics.__test__ = False  # type: ignore[attr-defined]  # not a test, whatever its name


def num_inducing_of(gp: Any) -> int | None:
    try:
        return len(gp.inducing_points)
    except (AttributeError, ValueError, AssertionError):
        return None


def noise_std(gp: Any, X: NDArray) -> float | None:
    """Of an observation, in the units of the target; on average, where it differs from row to row."""
    if gp.classes is not None:
        return None
    return float(np.sqrt(np.mean(gp.predict(X[:1024]).noise)))


def print_report(report: dict[str, Any]) -> None:
    kinds: dict[str, int] = {}
    for kind in report["columns"].values():
        kinds[kind] = kinds.get(kind, 0) + 1
    columns = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    pairs: list[tuple[str, Any]] = [
        ("rows", f"{report['rows']:,}" + _without(report["rows_without_target"])),
        ("columns", f"{len(report['columns'])} ({columns}), {report['inputs']} inputs"),
        *((("left out", f"{name}: {reason}")) for name, reason in list(report["dropped"].items())[:8]),
        ("gaps filled", some(f"{name} ({count})" for name, count in report["imputed"].items())),
        ("target", report["target"] + _classes(report["classes"])),
        ("method", report["method"]),
        *(("why", reason) for reason in report["reasons"]),
        ("inducing points", report["num_inducing"]),
        ("noise (std)", number(report["noise_std"]) if report["noise_std"] is not None else None),
        *(("note", note) for note in report["notes"]),
    ]
    if report["relevance"]:
        top = list(report["relevance"].items())[:5]
        pairs.append(("most relevant", ", ".join(f"{name} {percent(share)}" for name, share in top)))
    if report["validation_nll"] is not None:
        pairs.append(("validation NLL", f"{number(report['validation_nll'])} (scaled target)"))
    if report["test"]:
        pairs.append(("test rows", f"{report['test_rows']:,}"))
        pairs += metric_pairs(report["test"])
    pairs += [("time", f"{report['seconds']:.1f} s"), ("saved to", report["model"])]
    print_pairs(f"{report['task']} of {report['target']}", pairs)


def metric_pairs(found: dict[str, float]) -> list[tuple[str, str]]:
    shares = ("coverage", "accuracy")
    return [
        (WORDS.get(name, name), percent(value) if name.startswith(shares) else number(value))
        for name, value in found.items()
    ]


def _without(count: int) -> str:
    return f" ({count:,} without a target left out)" if count else ""


def _classes(classes: list[Any] | None) -> str:
    return "" if classes is None else f" ({len(classes)} classes: {some(map(str, classes), 5)})"

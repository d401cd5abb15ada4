"""`duogp fit`: a model folder from a table."""

import time
import warnings
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from duogp.cli.errors import note
from duogp.cli.fit_streamed import StreamedFit, is_streamed, require_none
from duogp.cli.model_folder import facts, rows_with_target, save_model
from duogp.cli.options import (
    AsJson,
    DataFile,
    Decimal,
    Device,
    Encoding,
    Quiet,
    Seed,
    files_in,
    names_of,
    settings_of,
    spooled,
)
from duogp.cli.output import number, percent, print_pairs, show
from duogp.cli.scores import metric_pairs
from duogp.errors import DataWarning
from duogp.reports.effects import importances, relevance
from duogp.reports.scores import metrics_of, score_rows
from duogp.tables.frames import some

AS_ASKED = "as asked"
#: Rows over which noise that varies is averaged.
NOISE_ROWS = 1024
#: Kinds of columns whose name is not that of a user.
WORDS_OF_KINDS = {"moment": "date"}
#: Training has at least so many seconds of a budget.
LEAST_SECONDS = 1.0


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
    time_budget: Annotated[float | None, typer.Option(help="Seconds for the whole command.")] = None,
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
    stream: Annotated[
        bool | None,
        typer.Option("--stream/--no-stream", help="Read rows in chunks (default: files of more than 2 GiB)."),
    ] = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    date_format: Annotated[
        str | None, typer.Option(help="Of dates that are written as text, such as %d/%m/%Y.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Unreadable cells, unusable columns and rows without a target are errors."
        ),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting, name=value (repeatable): --set ard=false"),
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a model that is there.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit a model to a table and save it."""
    start = time.perf_counter()
    import duogp.sklearn  # noqa: F401  # now, so that its seconds are not those of reading
    from duogp.tables import Schema, TargetColumn, TextForm
    from duogp.tables.schema import NothingUsableError, check_roles
    from duogp.tables.values import require_finite

    folder, settings = Path(output), settings_of(set_)
    parameters: dict[str, Any] = {
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
    parameters = {name: value for name, value in parameters.items() if value is not None}
    dropped, categories = names_of(drop), names_of(category)
    reading = {"decimal": decimal, "date_format": date_format, "strict": strict}
    reading = {name: value for name, value in reading.items() if value}
    form = TextForm(encoding or "utf-8", decimal)
    require_free(folder, force)
    if seed < 0:
        raise ValueError(f"--seed must not be negative, got {seed}")
    if not 0 <= test_fraction < 1:
        hint = f"; did you mean {test_fraction / 100:g}?" if 1 < test_fraction < 100 else ""
        raise ValueError(f"--test-fraction must be in [0, 1), got {test_fraction:g}{hint}")
    if missing not in ("impute", "refuse"):
        raise ValueError(f"missing must be 'impute' or 'refuse', got {missing!r}")
    paths = files_in(spooled(data))
    if is_streamed(paths, stream):
        require_none({"--test-fraction": test_fraction})
        wanted = {
            "weights": weights,
            "drop": dropped,
            "category": categories,
            "missing": missing,
            "classify": classify or is_class_likelihood(likelihood),
            **reading,
        }
        report = StreamedFit(paths, target, folder, parameters | settings, wanted, form).run()
        if report is not None:
            show(report, as_json, quiet, print_report)
        return
    table = read_together(paths, categories, form)
    check_roles(table, target, weights, dropped, categories)
    for name in table.column_names:
        if name.strip() and name not in dropped:
            require_finite(table.column(name), name, "line", 2)
    is_class = classify or is_class_likelihood(likelihood)
    goal = TargetColumn.learn(target, table.column(target), is_class, decimal)
    roles = Schema((), goal, weights, missing)
    rows, y, without = rows_with_target(roles, table)
    if not len(y):
        raise ValueError("no row has a target")
    if without:
        report_rows_without_target(goal, table, without, strict)
    train, test = split(len(y), test_fraction, seed)
    train_rows = rows.take(train) if len(test) else rows
    unused = dict.fromkeys(dropped, AS_ASKED) | {
        name: "it has no name" for name in table.column_names if not name.strip()
    }
    inputs = [name for name in table.column_names if name not in (target, weights, *unused)]
    parameters |= {
        "missing": missing,
        "categorical_features": categories or None,
        "reading": reading or None,
    }
    if time_budget is not None and time_budget > 0:  # of the whole command
        parameters["time_budget"] = max(LEAST_SECONDS, time_budget - (time.perf_counter() - start))
    estimator = make_estimator(goal.is_class, parameters, settings)
    if not inputs:
        raise NothingUsableError("there is no column to predict from")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X: ", DataWarning)  # reported below, with lines
        estimator.fit(train_rows.select(inputs), y[train], sample_weight=roles.row_weights(train_rows))
    if estimator.schema_ is None:
        raise NothingUsableError("there is no column to predict from: every one is the same in every row")
    unused |= estimator.schema_.dropped
    schema = replace(estimator.schema_, target=goal, weights=weights, dropped=unused)
    report_losses(schema, table)
    gp = estimator.gp_
    report = {
        "model": str(folder),
        "target": target,
        **facts(gp, schema),
        "rows": len(train),
        "rows_without_target": without,
        "imputed": schema.gaps(train_rows),
        "method": estimator.method_,
        "reasons": list(estimator.reasons_),
        "likelihood": type(gp.model.likelihood).__name__ if hasattr(gp, "model") else None,
        "noise_std": noise_std(gp, schema.encode(train_rows.slice(0, NOISE_ROWS)).matrix),
        "importances": importances(estimator),
        "relevance": relevance(gp, schema),
        "validation_nll": estimator.history_.validation_nll,
        "validation_nll_y": estimator.history_.validation_nll_y,
        "notes": [text for text in estimator.history_.notes if text not in estimator.reasons_],
        "test_rows": len(test),
        "test": held_back_metrics(gp, schema, rows.take(test), y[test]) if len(test) else None,
        "text": asdict(form),
    }
    report["seconds"] = time.perf_counter() - start
    save_model(estimator, schema, report, folder)
    few = gp.classes is None and np.isin(y, (y.min(), y.max())).all()
    if few and y.min() == y.max():
        note(f"{target!r} is the same in every row: there is nothing to learn")
    elif few:
        note(f"{target!r} has two values only; --classify would predict their probabilities")
    show(report, as_json, quiet, print_report)


def read_together(paths: list[str], text: list[str], form: Any) -> Any:
    """One file or several as one arrow table; those of several must have the same columns."""
    from duogp.tables import read_table
    from duogp.tables.arrow import arrow, first_line

    tables = [read_table(path, text=text, form=form) for path in paths]
    try:
        return tables[0] if len(tables) == 1 else arrow().concat_tables(tables, promote_options="permissive")
    except arrow().ArrowException as error:
        raise ValueError(f"the files cannot be put together: {first_line(error)}") from None


def report_rows_without_target(goal: Any, table: Any, without: int, strict: bool) -> None:
    """A note, or with ``strict`` an error, that names the first row without a target."""
    first = int(np.argmax(goal.gaps(table.column(goal.name))))
    text = f"{without:,} of {table.num_rows:,} rows have no {goal.name!r}, the first in line {first + 2}"
    if strict:
        raise ValueError(f"{text}: leave them out of the table, or leave out --strict")
    note(f"{text}: they are left out")


def report_losses(schema: Any, table: Any) -> None:
    """A note for each column that is left out, and for each with cells that could not be read."""
    from duogp.tables.texts import unreadable

    for name, reason in schema.dropped.items():
        if reason != AS_ASKED:
            note(f"column {name!r} is left out: {reason}")
    for column in schema.columns:
        if column.name not in schema.notes:
            continue
        values = table.column(column.name)
        bad = unreadable(values, column.gaps(values))
        cells = some((f"{values[int(row)].as_py()!r} in line {row + 2}" for row in bad), 3)
        what = "number" if column.kind == "number" else "date"
        note(f"column {column.name!r}: {len(bad):,} cells are no {what} and count as gaps: {cells}")


def held_back_metrics(gp: Any, schema: Any, table: Any, y: NDArray) -> dict[str, float]:
    """Metrics on rows that were held back."""
    from duogp.sklearn.new_rows import new_rows

    matrix = schema.encode(table).matrix
    return metrics_of(gp, score_rows([(new_rows(gp, matrix, schema.completions(table, matrix)), y)]))


def require_free(folder: Path, force: bool) -> None:
    """An error, before training, unless the folder is new, empty, or a model that may be replaced."""
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
    """Whether the targets of a likelihood are classes."""
    if name is None:
        return False
    from duogp.fitting.factories import target_kind

    return target_kind(name) == "classes"


def split(n: int, fraction: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to train on and rows to test on, each in the order of the table."""
    from duogp.data.rows import hold_out

    size = round(fraction * n)
    if fraction > 0 and not 1 <= size <= n - 2:
        raise ValueError(f"--test-fraction {fraction:g} of {n} rows leaves too few to train or to test on")
    train, test = hold_out(np.arange(n), size, (seed, 2))
    return np.sort(train), np.sort(test)


def make_estimator(classes: bool, parameters: dict[str, Any], settings: dict[str, Any]) -> Any:
    """An estimator with these parameters; ``settings`` are its other parameters and settings of the fit."""
    from duogp.methods.settings import Settings
    from duogp.sklearn import GPClassifier, GPRegressor

    kind = GPClassifier if classes else GPRegressor
    known = kind().get_params().keys() - {"settings"}
    twice = [name for name in settings if name in parameters.keys() - {"verbose", "random_state", "method"}]
    if twice:
        raise ValueError(f"--set {twice[0]} and --{twice[0].replace('_', '-')} say the same thing: give one")
    own = {name: value for name, value in settings.items() if name in known}
    rest = {name: value for name, value in settings.items() if name not in known}
    Settings.of(rest)  # an unknown name is an error with the nearest known one
    return kind(**parameters | own, settings=rest or None)


def noise_std(gp: Any, X: NDArray) -> float | None:
    """Standard deviation of the noise in the units of the target; where it varies, over the first rows."""
    if gp.classes is not None:
        return None
    return float(np.sqrt(np.mean(gp.predict(X).noise)))


def print_report(report: dict[str, Any]) -> None:
    """The report of a fit, for people."""
    counts = Counter(report["columns"].values())
    kinds = ", ".join(f"{count} {WORDS_OF_KINDS.get(kind, kind)}" for kind, count in counts.items())
    without, classes, noise = report["rows_without_target"], report["classes"], report["noise_std"]
    labels = "" if classes is None else f" ({len(classes)} classes: {some(map(str, classes), 5)})"
    found = report.get("importances") or report["relevance"] or {}  # streamed fits have the kernel's alone
    top = list(found.items())[:5]
    weight = "most important" if report.get("importances") else "most relevant to the kernel"
    nll = report["validation_nll_y"]
    pairs: list[tuple[str, Any]] = [
        ("rows", f"{report['rows']:,}" + (f" ({without:,} without a target left out)" if without else "")),
        ("columns", f"{len(report['columns'])} ({kinds}), {report['inputs']} inputs"),
        *((("left out", f"{name}: {reason}")) for name, reason in list(report["dropped"].items())[:8]),
        ("gaps filled", some(f"{name} ({count})" for name, count in report["imputed"].items())),
        ("target", report["target"] + labels),
        ("method", report["method"]),
        *(("why", reason) for reason in report["reasons"]),
        ("inducing points", report["num_inducing"]),
        ("noise (std)", None if noise is None else number(noise)),
        *(("note", text) for text in report["notes"]),
        (weight, ", ".join(f"{name} {percent(share)}" for name, share in top)),
        ("NLL of unseen rows", None if nll is None else number(nll)),
        ("test rows", f"{report['test_rows']:,}" if report["test"] else None),
        *metric_pairs(report["test"] or {}),
        ("time", f"{report['seconds']:.1f} s"),
        ("saved to", report["model"]),
    ]
    print_pairs(f"{report['task']} of {report['target']}", pairs)

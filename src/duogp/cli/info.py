"""`duogp info`: the content of a model folder."""

import json
from typing import Any

from duogp.cli.fit import num_inducing_of
from duogp.cli.model_folder import open_model
from duogp.cli.options import AsJson, ModelFolder
from duogp.cli.output import number, print_pairs, show, some
from duogp.cli.scores import metric_pairs


def info(model: ModelFolder, as_json: AsJson = False) -> None:
    """Method, settings, columns, versions and size of a saved model."""
    show(describe(model), as_json, False, _print)


def describe(folder: str) -> dict[str, Any]:
    """The content of a model folder as plain values."""
    saved = open_model(folder, "cpu")
    gp, schema, report = saved.gp, saved.schema, saved.report
    kernel = getattr(gp.settings, "kernel", None)  # networks have none
    manifest = json.loads((saved.folder / "manifest.json").read_text(encoding="utf-8"))
    return {
        "model": folder,
        "task": "classification" if saved.is_classifier else "regression",
        "target": saved.target,
        "classes": gp.classes.tolist() if saved.is_classifier else None,
        "method": report.get("method"),
        "reference": gp.method.reference if gp.method is not None else None,
        "likelihood": report.get("likelihood"),
        "kernel": None if kernel is None else str(kernel),
        "num_inducing": num_inducing_of(gp),
        "solver": gp.history.solver,
        "columns": {column.name: column.kind for column in schema.columns},
        "inputs": len(schema.names),
        "dropped": dict(schema.dropped),
        "missing": schema.missing,
        "rows": report.get("rows"),
        "noise_std": report.get("noise_std"),
        "test": report.get("test"),
        "training_seconds": report.get("seconds"),
        "written_by": manifest.get("written_by"),
        "format_version": manifest.get("format_version"),
        "bytes": sum(file.stat().st_size for file in saved.folder.rglob("*") if file.is_file()),
    }


def _print(found: dict[str, Any]) -> None:
    seconds, noise = found["training_seconds"], found["noise_std"]
    names_by_kind: dict[str, list[str]] = {}
    for name, kind in found["columns"].items():
        names_by_kind.setdefault(kind, []).append(name)
    pairs: list[tuple[str, Any]] = [
        ("method", found["method"]),
        ("paper", found["reference"]),
        ("likelihood", found["likelihood"]),
        ("kernel", found["kernel"]),
        ("inducing points", found["num_inducing"]),
        ("solver", found["solver"]),
        ("trained on", f"{found['rows']:,} rows in {seconds:.1f} s" if found["rows"] and seconds else None),
        ("noise (std)", None if noise is None else number(noise)),
        ("classes", None if found["classes"] is None else some(map(str, found["classes"]), 12)),
        ("missing values", "filled" if found["missing"] == "impute" else "refused"),
        *((f"{kind} columns", some(names, 12)) for kind, names in names_by_kind.items()),
        *(("not used", f"{name}: {reason}") for name, reason in list(found["dropped"].items())[:8]),
        *((f"test {name}", value) for name, value in metric_pairs(found["test"] or {})),
        ("versions", ", ".join(f"{name} {value}" for name, value in (found["written_by"] or {}).items())),
        ("size", f"{found['bytes'] / 1024:,.0f} KiB"),
    ]
    print_pairs(f"{found['task']} of {found['target']}: {found['model']}", pairs)

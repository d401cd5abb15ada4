"""`duogp export`: a saved model as one file, an ONNX graph or a program of torch.export."""

from pathlib import Path
from typing import Annotated, Any

import typer

from duogp.cli.errors import note, print_line
from duogp.cli.model_folder import open_model
from duogp.cli.options import AsJson, ModelFolder, Quiet, probabilities_of, spooled
from duogp.cli.output import show


def export(
    model: ModelFolder,
    output: Annotated[str, typer.Option("--output", "-o", help="A file that ends in .onnx or .pt2.")],
    quantiles: Annotated[str, typer.Option(help="Levels of the quantiles in the graph.")] = "0.05,0.5,0.95",
    float32: Annotated[
        bool,
        typer.Option("--float32", help="The graph in float32; its error is written into the file."),
    ] = False,
    check: Annotated[
        str | None,
        typer.Option(help="Table whose rows the file is compared on (default: drawn)."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as one graph, scaling inside: mean, parts of the variance, quantiles or probabilities."""
    from duogp.export import export_model
    from duogp.io import load
    from duogp.io.kinds import TABLE

    fitted: Any
    rows = schema = None
    if check is None and Path(model).is_dir() and not (Path(model) / TABLE).is_file():
        fitted = load(model, device="cpu")  # saved from Python, fitted to a frame or to an array
    else:
        saved = open_model(model, "cpu", from_python=True)
        fitted, schema = saved.gp if saved.estimator is None else saved.estimator, saved.schema
        rows = None if check is None else schema.encode(saved.table(spooled(check))).matrix
    made = export_model(
        fitted,
        output,
        quantiles=probabilities_of(quantiles, "--quantiles"),
        precision="float32" if float32 else "float64",
        rows=rows,
        schema=schema,
        progress=None if quiet or as_json else print_line,
    )
    error = max(made.error.values())
    line = f"{output}: {', '.join(made.outputs)}; on {made.rows_checked} rows within {error:.1e} of predict"
    report: dict[str, Any] = {"output": output, "bytes": made.path.stat().st_size, **made.description}
    report.pop("schema")
    if made.description["no_quantiles"] and not quiet:
        note(f"no quantiles: {made.description['no_quantiles']}")
    show(report, as_json, quiet, lambda _: print_line(line))

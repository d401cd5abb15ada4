"""`duogp serve`: a saved model as an HTTP service."""

from pathlib import Path
from typing import Annotated, Any

import typer

from duogp.cli.errors import print_line
from duogp.cli.model_folder import open_model
from duogp.cli.options import Device, Quiet


def serve(
    model: Annotated[str, typer.Argument(help="Folder of a saved model.")],
    host: Annotated[
        str, typer.Option(help="Address to listen at; other machines reach 0.0.0.0.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8000,
    max_rows: Annotated[int, typer.Option(help="Rows of one request.", min=1)] = 10_000,
    max_bytes: Annotated[int, typer.Option(help="Bytes of one request.", min=1)] = 16 * 2**20,
    max_waiting: Annotated[
        int, typer.Option(help="Rows that may wait; more are answered by 503.", min=1)
    ] = 100_000,
    batch: Annotated[int, typer.Option(help="Rows that are predicted together.", min=1)] = 4096,
    drain: Annotated[
        float, typer.Option(help="Seconds after SIGTERM in which connections are still taken.", min=0)
    ] = 0.5,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Answer HTTP requests with a saved model: POST /predict (JSON or Arrow), GET /health, GET /metrics."""
    from duogp.serving import Limits
    from duogp.serving import serve as run

    limits = Limits(rows=max_rows, bytes=max_bytes, waiting=max_waiting, batch=batch)
    served = served_model(model, device)
    if served.schema is None and not quiet:
        print_line(f"the columns are numbers: {', '.join(served.columns[:8])}")

    def announce(address: str) -> None:
        if not quiet:
            print_line(f"{model} at {address} (POST /predict, GET /health, GET /metrics)")

    run(served, host=host, port=port, limits=limits, drain=drain, announce=announce)


def served_model(folder: str, device: str | None) -> Any:
    """The model in a folder that `duogp fit` or `duogp.save` wrote."""
    from duogp.io import load
    from duogp.io.kinds import TABLE
    from duogp.serving import ServedModel

    name = Path(folder).resolve().name
    if Path(folder).is_dir() and not (Path(folder) / TABLE).is_file():
        return ServedModel(load(folder, device=device), name=name)
    saved = open_model(folder, device)
    return ServedModel(saved.gp, saved.schema, name)

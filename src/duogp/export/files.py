"""Exported files, ONNX and .pt2: compared with `predict` before they are kept."""

from __future__ import annotations

import importlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from duogp._version import __version__
from duogp.export.graph import Predictor
from duogp.export.lowering import lowered, traced
from duogp.export.onnx_quantiles import add_quantiles
from duogp.export.special import decompositions
from duogp.posterior.gp import GP
from duogp.posterior.stack import Stack
from duogp.sklearn.quantiles import as_levels, predictive_quantiles
from duogp.sklearn.training_rows import reach_of

FORMAT, VERSION = "duogp export", 1
#: Where the description of a model stands: a property of an ONNX model, a file in a .pt2 archive.
DESCRIPTION = "duogp"
DESCRIPTION_FILE = "duogp.json"
#: The largest difference from `predict` that a float64 file may have, see `Exported.error`.
TOLERANCE = 1e-6
PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
#: Rows on which a file is compared with the model, where none are given.
CHECKED_ROWS = 256
EXTRA = "needs onnx, onnxscript and onnxruntime: pip install 'duogp[export]'"

#: rows ↦ outputs in the order of their names.
Run = Callable[[NDArray], Sequence[NDArray]]


@dataclass(frozen=True)
class Exported:
    """An exported file. ``error``: the largest difference of each output from `predict` on the rows checked.

    Means and quantiles are compared in units of the standard deviation of the targets, variances in units of
    its square, probabilities and latent moments of classes as they are.
    """

    path: Path
    outputs: tuple[str, ...]
    error: dict[str, float]
    rows_checked: int
    description: dict[str, Any]


def export_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    quantiles: Any = (0.05, 0.5, 0.95),
    precision: str = "float64",
    rows: Any = None,
    schema: Any = None,
    progress: Callable[[str], None] | None = None,
) -> Exported:
    """Write a fitted model as one graph: scaling, trees of the mean and the law of a stack inside.

    ``model``: what `duogp.fit` returns, or a fitted estimator. ``path`` ends in .onnx or .pt2. The graph has
    one input, ``rows`` [n, columns], and the outputs of `duogp.export.graph`; quantiles at these levels where
    the observation is a mixture of Gaussians, which the description says. ``precision="float32"``: the whole
    graph in float32, half the size; its error is measured and written into the file. ``rows``: rows of X on
    which the file is compared with `predict` (default: rows around the inducing points). ``schema``: the
    `Schema` of the table that the model was fitted to, kept in the description (default: the estimator's).
    ``progress``: called with one line of text when a step begins; a stack takes a minute or two.

    Raises a ValueError, and writes nothing, where a float64 graph is further than 1e-6 from `predict`.
    """
    path = Path(path)
    kind = _kind_of(path)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be 'float64' or 'float32', got {precision!r}")
    if kind == "onnx":
        _onnx()  # before the work
    gp = _exportable(model)
    say = progress or (lambda text: None)
    if schema is None and not getattr(model, "_by_name", True):
        schema = model.schema_
    levels = [] if gp.classes is not None else as_levels(quantiles).tolist()
    predictor = Predictor(gp, levels, reach_of(gp) if gp is not model else None).eval()
    reason = predictor.add_quantiles() if levels else None
    checked = _checked_rows(gp, rows)
    parts = f"the {len(gp.members)} members of a stack" if isinstance(gp, Stack) else gp.method.name
    say(f"{path.name}: predictions of {len(checked)} rows to compare with")
    reference = _reference(gp, checked, predictor)
    description = _describe(gp, predictor, precision, reason, schema)
    example = torch.as_tensor(checked[:7])
    write = _write_onnx if kind == "onnx" else _write_pt2
    with _beside(path) as draft:
        say(f"{path.name}: writing the graph of {parts}")
        run = write(predictor, example, PRECISIONS[precision], draft)
        say(f"{path.name}: comparing the file with predict")
        found = run(checked)
        error = _errors(gp, predictor.names, found, reference)
        if precision == "float64" and not max(error.values()) <= TOLERANCE:
            worst = max(error, key=lambda name: np.nan_to_num(error[name], nan=np.inf))
            raise ValueError(
                f"the exported graph differs from predict by {error[worst]:.1e} in {worst!r}: nothing was "
                "written. Variances close to zero, of a model almost without noise, are differences of large "
                "numbers whose rounding differs; fit with noise_floor=1e-4"
            )
        description |= {"error": error, "rows_checked": len(checked)}
        _describe_file(kind, draft, description)
        draft.replace(path)
    return Exported(path, predictor.names, error, len(checked), description)


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The description that an exported file carries: columns, outputs, classes, levels, errors."""
    path = Path(path)
    if _kind_of(path) == "onnx":
        properties = {p.key: p.value for p in _onnx().load(str(path)).metadata_props}
        text = properties.get(DESCRIPTION)
    else:
        extra: dict[str, Any] = {DESCRIPTION_FILE: ""}
        torch.export.load(str(path), extra_files=extra)
        text = extra[DESCRIPTION_FILE]
    if not text:
        raise ValueError(f"{str(path)!r} was not exported by duogp")
    found: dict[str, Any] = json.loads(text)
    return found


# -- the model and what it says ------------------------------------------------------------------------------


def _exportable(model: Any) -> GP | Stack:
    gp = getattr(model, "gp_", model)
    if not isinstance(gp, GP | Stack):
        raise TypeError(
            f"export is for Gaussian processes and stacks of them, got {type(gp).__name__}: networks, and "
            "streams that still learn, have no frozen posterior"
        )
    device = gp.model.beta1.device
    if device.type != "cpu":
        raise ValueError(f"the model is on {device}: save it, and load it with device='cpu'")
    return gp


def _checked_rows(gp: GP | Stack, rows: Any) -> NDArray[np.float64]:
    if rows is not None:
        given = np.array(gp._rows(rows), dtype=np.float64)
        if len(given) < 2:
            raise ValueError(f"rows must be at least 2 to compare the graph on, got {len(given)}")
        return given
    rng = np.random.default_rng(0)
    used = np.asarray(gp.columns, dtype=bool)
    scaled = rng.standard_normal((CHECKED_ROWS, int(used.sum())))
    try:
        points = gp.x_scaler.transform(gp.inducing_points[:, used])
        near = points[rng.integers(len(points), size=CHECKED_ROWS)]
        scaled = np.where(rng.random((CHECKED_ROWS, 1)) < 0.75, near + 0.3 * scaled, 1.5 * scaled)
    except (ValueError, AssertionError):  # points in feature space, or none
        pass
    out = np.zeros((CHECKED_ROWS, len(used)))
    out[:, used] = gp.x_scaler.inverse(scaled)
    return out


def _reference(gp: GP | Stack, rows: NDArray, predictor: Predictor) -> dict[str, NDArray]:
    prediction: Any = gp.predict(rows)
    like = prediction.mean if gp.classes is None else prediction.latent_mean
    out = {
        name: np.broadcast_to(value, like.shape)
        if np.ndim(value := getattr(prediction, name)) == 0
        else value
        for name in predictor.names
        if name != "quantiles"
    }
    if "quantiles" in predictor.names:
        found = predictive_quantiles(gp, rows, np.array(predictor.levels))  # [levels, n, outputs]
        out["quantiles"] = found[..., 0].T if gp.single_output else found.transpose(1, 2, 0)
    return out


def _errors(
    gp: GP | Stack, names: Sequence[str], found: Sequence[NDArray], reference: dict[str, NDArray]
) -> dict[str, float]:
    scale = np.ones(1) if gp.classes is not None else np.asarray(gp.y_scaler.scale)
    out = {}
    for name, values in zip(names, found, strict=True):
        if values.shape != reference[name].shape:
            raise ValueError(f"{name!r} has shape {values.shape}, predict's {reference[name].shape}")
        away = np.abs(values.astype(np.float64) - reference[name])
        if gp.classes is None:
            unit = scale if name in ("mean", "quantiles") else scale**2
            unit = unit[0] if gp.single_output else unit[:, None] if name == "quantiles" else unit
            away = away / unit
        out[name] = float(away.max())
    return out


def _describe(
    gp: GP | Stack, predictor: Predictor, precision: str, reason: str | None, schema: Any
) -> dict[str, Any]:
    names = gp.column_names if schema is None else schema.names
    return {
        "format": FORMAT,
        "version": VERSION,
        "written_by": {"duogp": __version__, "torch": torch.__version__},
        "task": "regression" if gp.classes is None else "classification",
        "method": getattr(gp, "name", None) or gp.method.name,
        "precision": precision,
        "inputs": {"rows": list(names) if names is not None else [f"x{i}" for i in range(len(gp.columns))]},
        "outputs": list(predictor.names),
        "classes": None if gp.classes is None else np.asarray(gp.classes).tolist(),
        "quantiles": predictor.levels if "quantiles" in predictor.names else None,
        "no_quantiles": reason,
        "schema": None if schema is None else schema.to_dict(),
    }


# -- the two kinds of files ---------------------------------------------------------------------------------


def _kind_of(path: Path) -> str:
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"the file must end in .onnx or .pt2, got {path.name!r}")
    return path.suffix[1:]


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A path of the same kind in a new folder next to the file; what is left there is removed."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r}")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
        yield Path(folder) / path.name


def _write_onnx(predictor: Predictor, example: torch.Tensor, dtype: torch.dtype, path: Path) -> Run:
    onnx = _onnx()
    predictor.unfinished = True  # the search for quantiles is added to the finished graph, as a loop
    program = lowered(traced(predictor, example), example, dtype, decompositions())
    with _quiet():
        made: Any = torch.onnx.export(
            program, (example.to(dtype),), dynamo=True, verbose=False, input_names=["rows"]
        )
        made.save(str(path))
    model = onnx.load(str(path))
    names = [*predictor.names]
    if len(model.graph.output) > len(names):
        names[-1:] = ["component_mean", "component_std", "component_weight"]
    _name_outputs(model.graph, names)
    if "component_mean" in names:
        scales: dict[str, Any] = {"logs": predictor.logs, "roundings": predictor.roundings}
        add_quantiles(onnx, model, predictor.levels, predictor.single, **scales)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return onnx_run(path)


def _name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Give the outputs of a graph their names; other values get a prefix, so that no two names are equal."""
    new = {value.name: value.name for value in graph.input}
    new |= {output.name: name for output, name in zip(graph.output, names, strict=True)}

    def renamed(name: str) -> str:
        return new.get(name, f"value_{name}") if name else name  # an input that is left out has no name

    for node in graph.node:
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
    for value in (*graph.initializer, *graph.output):
        value.name = renamed(value.name)
    del graph.value_info[:]


def onnx_run(path: Path) -> Run:
    """The function that an ONNX file is, by onnxruntime on the CPU."""
    runtime = _imported("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = session.get_inputs()[0]
    dtype = np.float32 if "float)" in wanted.type else np.float64
    return lambda rows: session.run(None, {wanted.name: np.ascontiguousarray(rows, dtype=dtype)})


def _write_pt2(predictor: Predictor, example: torch.Tensor, dtype: torch.dtype, path: Path) -> Run:
    own = traced(predictor, example)
    if dtype != torch.float64:
        own = lowered(own, example, dtype)
    _save_pt2(own, path, {})
    module = own.module()

    def run(rows: NDArray) -> Sequence[NDArray]:
        with torch.no_grad():
            return [part.numpy() for part in module(torch.as_tensor(rows, dtype=dtype))]

    return run


def _save_pt2(program: ExportedProgram, path: Path, description: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.export.save(program, str(path), extra_files={DESCRIPTION_FILE: json.dumps(description)})


def _describe_file(kind: str, path: Path, description: dict[str, Any]) -> None:
    """Write the description, which now has the measured errors, into the file."""
    if kind == "pt2":
        _save_pt2(torch.export.load(str(path)), path, description)
        return
    onnx = _onnx()
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {DESCRIPTION: json.dumps(description)})
    model.producer_name, model.producer_version = "duogp", __version__
    onnx.save(model, str(path))


def _onnx() -> Any:
    _imported("onnxscript")
    return _imported("onnx")


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(f"ONNX {EXTRA}", name=name) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about packages that are not there."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)

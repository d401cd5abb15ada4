"""The tables of docs/ that come from the registry and from the results files.

    python benchmarks/readme_tables.py           rewrite what stands between the markers
    python benchmarks/readme_tables.py --check   change nothing; exit status 1 when something is out of date

A table NAME stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from duogp.bench.report import Comparison, compare
from duogp.bench.results import Results
from duogp.bench.suite import Suite, load_suite
from duogp.methods import METHODS, Method

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs"
RESULTS = PAGES / "results.md"
OPTIMISATION = PAGES / "bayesian-optimisation.md"
CONVERGENCE = ROOT / "benchmarks" / "results" / "orth_convergence.json"
SUITES = ROOT / "benchmarks" / "suites"
RACE = ROOT / "benchmarks" / "results" / "closed_form_race.json"
ONLINE = ROOT / "benchmarks" / "results" / "online_robot.jsonl"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> str:
    """A table whose first columns are text and whose others are numbers, set to the right."""
    rule = ["---" if i < text_columns else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *rows))


# -- the registry ------------------------------------------------------------------------------------------


def methods() -> str:
    rows = []
    for m in METHODS.values():
        names = [m.name, *(alias for alias, target in METHODS.aliases.items() if target == m.name)]
        rows.append(
            (
                ", ".join(f"`{name}`" for name in names),
                m.use_when,
                str(m.basis or "none"),
                str(m.q),
                str(m.objective),
                "yes" if m.is_bound else "no",
                m.variational_parameters,
                short_reference(m),
            )
        )
    head = ("method", "use when", "basis", "q(u)", "objective", "bound", "variational parameters", "paper")
    return markdown(head, rows, text_columns=len(head))


def short_reference(method: Method) -> str:
    """``A, B, C 2013, Title`` → ``A et al. 2013``; the year is that of the citation's key."""
    authors = []
    for part in method.reference.split(", "):
        words = part.split()
        if len(words) > 2 or (len(words) == 2 and not words[1].isdigit()):
            break  # the title
        authors.append(words[0])
        if len(words) == 2:
            break
    who = " and ".join(authors) if len(authors) < 3 else f"{authors[0]} et al."
    return f"{who} {method.citation[-4:]}"


# -- a suite beside its paper ------------------------------------------------------------------------------


def paper(name: str) -> Callable[[], str]:
    """A suite beside the numbers of its paper."""

    def table() -> str:
        suite = load_suite(SUITES / f"{name}.toml")
        results = Results.read(suite.results)
        rows = compare(suite, results)
        blocks = [_paper_block(rows, metric) for metric in suite.metrics]
        return "\n\n".join([*blocks, _verdict(suite, rows), _where(suite, results)])

    return table


METRIC_NAMES = {
    "rmse": "RMSE",
    "nll": "NLL",
    "loglik": "log-likelihood",
    "accuracy": "accuracy",
    "accuracy_percent": "accuracy, %",
}


def _paper_block(rows: Sequence[Comparison], metric: str) -> str:
    """One line per data set, one column per method: the paper's number / ours."""
    mine = [row for row in rows if row.metric == metric]
    there = [row for row in mine if row.ours is not None]  # what was not run has no line and no column
    tables, methods = {row.data for row in there}, {row.method for row in there}
    mine = [row for row in mine if row.data in tables and row.method in methods]
    labels = list(dict.fromkeys(row.method for row in mine))
    head = [METRIC_NAMES[metric]] + [f"{label} ({_splits(mine, label)})" for label in labels]
    digits = 1 if metric == "accuracy_percent" else 3
    lines = []
    for data in dict.fromkeys(row.data for row in mine):
        cells = {row.method: row for row in mine if row.data == data}
        pairs = [_pair(cells[label], digits) if label in cells else "" for label in labels]
        lines.append([data.removeprefix("classification/"), *pairs])
    return markdown(head, lines)


def _splits(rows: Sequence[Comparison], label: str) -> str:
    counts = sorted({row.splits for row in rows if row.method == label})
    return "–".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))


def _pair(row: Comparison, digits: int) -> str:
    paper, ours = ("–" if v is None else f"{v:.{digits}f}".replace("-", "−") for v in (row.paper, row.ours))
    return f"{paper} / {ours}" + (" †" if row.within is False else "")


def _verdict(suite: Suite, rows: Sequence[Comparison]) -> str:
    parts = []
    for label in dict.fromkeys(row.method for row in rows):
        judged = [row for row in rows if row.method == label and row.within is not None]
        if judged:
            parts.append(f"{label} {sum(row.within is True for row in judged)} of {len(judged)}")
    tolerances = [
        f"{100 * value:.0f} % ({METRIC_NAMES[name.removesuffix('_relative')]})"
        if name.endswith("_relative")
        else f"{value:g} ({METRIC_NAMES[name]})"
        for name, value in suite.tolerance.items()
    ]
    return (
        "Each cell: the paper's mean / ours, over the number of splits in the column's head. "
        f"No more than {' or '.join(tolerances)} worse than the paper are "
        f"{', '.join(parts)} cells; † marks the others."
    )


def _where(suite: Suite, results: Results) -> str:
    cells = [row for cell in suite.cells() if (row := results.ok(cell)) is not None]
    devices = sorted({str(row["device_name"]) for row in cells})
    torch = sorted({str(row["versions"]["torch"]) for row in cells})
    return (
        f"{', '.join(devices)}, torch {', '.join(torch)}, {', '.join(sorted({r['dtype'] for r in cells}))}."
    )


def scores(name: str, metrics: Sequence[str]) -> Callable[[], str]:
    """A suite whose paper prints no numbers: ours alone, the best of each line in bold."""

    def table() -> str:
        suite = load_suite(SUITES / f"{name}.toml")
        results = Results.read(suite.results)
        rows = [row for row in compare(suite, results) if row.ours is not None]
        blocks = [_score_block(rows, metric) for metric in metrics]
        return "\n\n".join([*blocks, _where(suite, results)])

    return table


def _score_block(rows: Sequence[Comparison], metric: str) -> str:
    mine = [row for row in rows if row.metric == metric]
    labels = list(dict.fromkeys(row.method for row in mine))
    best = min if metric in ("rmse", "nll", "crps") else max
    lines = []
    for data in dict.fromkeys(row.data for row in mine):
        values = {row.method: row.ours for row in mine if row.data == data and row.ours is not None}
        shown = {label: f"{value:.3f}".replace("-", "−") for label, value in values.items()}
        winner = shown[best(values, key=lambda label: values[label])]
        cells = [shown.get(label, "") for label in labels]
        lines.append(
            [data.removeprefix("classification/"), *(f"**{c}**" if c == winner else c for c in cells)]
        )
    head = [METRIC_NAMES[metric]] + [f"{label} ({_splits(mine, label)})" for label in labels]
    return markdown(head, lines)


def finite(name: str) -> Callable[[], str]:
    """A suite that asks whether fits end with finite numbers."""

    def sentence() -> str:
        suite = load_suite(SUITES / f"{name}.toml")
        cells, results = suite.cells(), Results.read(suite.results)
        ok = sum(results.ok(cell) is not None for cell in cells)
        failed = sum(results.failure(cell) is not None for cell in cells)
        sets = list(dict.fromkeys(cell.data for cell in cells))
        count = len({cell.label for cell in cells})
        return (
            f"{ok} of {len(cells)} fits ended with finite metrics, {failed} did not: {count} methods on "
            f"{', '.join(sets)}. {_where(suite, results)}"
        )

    return sentence


# -- calibration -------------------------------------------------------------------------------------------


def calibration() -> str:
    """The deep regressors of benchmarks/calibration.py, with the settings it has now."""
    script = ROOT / "benchmarks" / "calibration.py"
    spec = importlib.util.spec_from_file_location("duogp_benchmark_calibration", script)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cells = module.make_cells(module.CANDIDATES, module.SPLITS)
    found = module.rows_by_label(Results.read(module.RESULTS), cells)
    if not found:
        return "Not run yet."
    lines = []
    for label, rows in found.items():
        means = [sum(row["metrics"][name] for row in rows) / len(rows) for name in module.COLUMNS]
        seconds = sum(row["seconds"]["fit"] for row in rows) / len(rows)
        lines.append([label, *(f"{mean:.3f}".replace("-", "−") for mean in means), f"{seconds:.0f}"])
    every = [row for rows in found.values() for row in rows]
    devices = ", ".join(sorted({str(row["device_name"]) for row in every}))
    size = f"{every[0]['n_train']:,} training and {every[0]['n_test']:,} test rows"
    splits = max(len(rows) for rows in found.values())
    parts = [markdown(["", *module.COLUMNS.values(), "fit, s"], lines)]
    parts.append(f"{size}, {splits} split{'s' * (splits > 1)}; {devices}, float32.")
    if module.FIGURE.exists():
        parts.append(f"![z-scores of deep regressors](images/{module.FIGURE.name})")
    return "\n\n".join(parts)


# -- online learning ---------------------------------------------------------------------------------------


def online(what: str, name: str, scale: float = 1.0) -> str:
    """A mean over the outputs for every data set and method of the experiment on robots."""
    found = _online_rows()
    methods = list(dict.fromkeys(row["method"] for row in found))
    lines = []
    for data in dict.fromkeys(row["data"] for row in found):
        values = {r["method"]: sum(r[what]) / len(r[what]) / scale for r in found if r["data"] == data}
        cells = [f"{values[m]:.4f}".replace("-", "−") if m in values else "" for m in methods]
        lines.append([data, *cells])
    return markdown([name, *methods], lines)


def online_tables() -> str:
    found = _online_rows()
    parts = [online("nmse", "nMSE"), online("lower_bound", "lower bound, 10³ nats", 1e3)]
    devices = ", ".join(sorted({row["device"] for row in found}))
    steps = ", ".join(sorted({f"{row['iterations']:,}" for row in found}))
    return "\n\n".join([*parts, f"Means over the outputs after {steps} iterations; {devices}, float64."])


def _online_rows() -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in ONLINE.read_text(encoding="utf-8").splitlines())
    latest = {(row["data"], row["method"]): row for row in lines if row["kind"] == "result"}
    order = ("svdgp", "svdgp-nystrom", "svi-128", "svi", "ivsgpr-128", "ivsgpr", "vsgpr-128", "vsgpr", "gpr")
    return sorted(latest.values(), key=lambda row: order.index(row["method"]))


# -- convergence -------------------------------------------------------------------------------------------


def convergence() -> str:
    found: dict[str, Any] = json.loads(CONVERGENCE.read_text(encoding="utf-8"))
    lines = []
    for name, part in found["summary"].items():
        for label, row in part["methods"].items():
            near = row["iterations_to_near"]
            lines.append(
                (
                    found["experiments"][name]["settings"]["data"].removeprefix("classification/"),
                    label,
                    f"{row['final']:.4f}".replace("-", "−"),
                    "not reached" if near is None else f"{near:,}",
                )
            )
    head = ("data", "method", "final ELBO per datum", "iterations to within 0.01 of the optimum")
    where = f"{found['device']}, torch {found['versions']['torch']}."
    return f"{markdown(head, lines, text_columns=2)}\n\n{where}"


# -- the race ----------------------------------------------------------------------------------------------


def race() -> str:
    found: dict[str, Any] = json.loads(RACE.read_text(encoding="utf-8"))
    lines = []
    for row in found["rows"]:
        peer, ours = row["gpytorch"], row["duogp"][-1]
        lines.append(
            (
                f"{row['data']} (M = {row['num_inducing']})",
                f"{peer['seconds']:.1f}",
                f"{peer['nll']:.3f}".replace("-", "−"),
                f"{ours['seconds']:.2f}",
                str(ours["steps"]),
                f"{ours['nll']:.3f}".replace("-", "−"),
                f"{row['ratio']:.0f} ×" if row["reached"] else "not reached",
            )
        )
    epochs = ", ".join(sorted({str(row["epochs"]) for row in found["rows"]}))
    head = ("data", f"gpytorch, {epochs} epochs: s", "NLL", "duogp, closed form: s", "steps", "NLL", "faster")
    versions = found["versions"]
    names = ("duogp", "gpytorch", "torch", "python")
    where = f"{found['device']}; " + ", ".join(f"{name} {versions[name]}" for name in names) + "; float64."
    return f"{markdown(head, lines)}\n\n{where}"


# -- the file ----------------------------------------------------------------------------------------------


def boosting() -> str:
    """`method="auto"` beside CatBoost."""
    path = ROOT / "benchmarks" / "results" / "against_boosting.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows, wins = [], {"nll": 0, "crps": 0, "rmse": 0}
    for name in dict.fromkeys(row["data"] for row in found):
        ours, theirs = (
            next(row for row in found if (row["data"], row["contestant"]) == (name, who))
            for who in ("auto", "catboost")
        )
        cells = [name]
        for metric in wins:
            pair = [f"{row[metric]:.3f}".replace("-", "−") for row in (ours, theirs)]
            better = ours[metric] < theirs[metric]
            wins[metric] += better
            pair[0 if better else 1] = f"**{pair[0 if better else 1]}**"
            cells.append(" / ".join(pair))
        rows.append([*cells, f"{ours['seconds']:.0f} / {theirs['seconds']:.0f}", f"`{ours['method']}`"])
    table = markdown(("auto / CatBoost", "NLL", "CRPS", "RMSE", "seconds", "chosen"), rows)
    counts = ", ".join(f"{metric.upper()} {count}" for metric, count in wins.items())
    where = f"{found[0]['threads']} CPU cores, torch {found[0]['versions']['torch']}"
    return f"{table}\n\nauto is better on, of {len(rows)}: {counts}. One split. {where}."


def _find_benchmarks() -> None:
    """So that what lies beside this file can be imported from it."""
    folder = str(ROOT / "benchmarks")
    if folder not in sys.path:
        sys.path.insert(0, folder)


def speed() -> str:
    """The race (benchmarks/race.py), which keeps its own table."""
    _find_benchmarks()
    from racing.tables import table

    return table()


def optimisation() -> str:
    """Bayesian optimisation (benchmarks/paper_bo.py): best values at the end, task by task."""
    _find_benchmarks()
    import paper_bo

    lines = paper_bo.stored(ROOT / "benchmarks" / "results" / "paper_bo.jsonl")
    blocks = []
    for tasks in (("rover", "lunar"), ("ranolazine",)):
        groups = {task: paper_bo.of_task(lines, task) for task in tasks}
        head = ["contestant"]
        for task in tasks:
            experiment = paper_bo.EXPERIMENTS[task]
            head.append(f"{experiment.title}, {experiment.evaluations:,} evaluations (runs)")
            if experiment.scored is not None:
                head.append("its best points on all terrains")
            if task == "ranolazine":
                head.append("rank correlation one batch ahead")
        rows = []
        for name, contestant in paper_bo.CONTESTANTS.items():
            cells = [contestant.label]
            for task in tasks:
                runs = groups[task].get(name, [])
                best = f"{paper_bo.summary(runs, 'best')} ({len(runs)})" if runs else ""
                cells.append(best)
                if paper_bo.EXPERIMENTS[task].scored is not None:
                    cells.append(paper_bo.summary(runs, "score"))
                if task == "ranolazine":
                    cells.append(paper_bo.summary(runs, "ahead"))
            if any(cells[1:]):
                rows.append(cells)
        blocks.append(markdown(head, rows))
    return "\n\n".join([*blocks, "Means and standard errors over runs."])


def decoupling() -> str:
    """What decoupling changes in paper_bo.py, run by run."""
    _find_benchmarks()
    import paper_bo

    lines = paper_bo.stored(ROOT / "benchmarks" / "results" / "paper_bo.jsonl")
    groups = {task: paper_bo.of_task(lines, task) for task in paper_bo.EXPERIMENTS}
    names = [name for name in paper_bo.CONTESTANTS if "dc" in name]
    rows = [
        [
            paper_bo.CONTESTANTS[name].label,
            paper_bo.CONTESTANTS[paper_bo.coupled_one(name)].label,
            *(paper_bo.against_coupled(groups[task], name) for task in groups),
        ]
        for name in names
    ]
    head = ["decoupled", "coupled", *(paper_bo.EXPERIMENTS[task].title for task in groups)]
    return markdown(head, [row for row in rows if any(row[2:])])


def loops(
    name: str, ours: str, against: Mapping[str, str], beside: Mapping[str, str] | None = None
) -> Callable[[], str]:
    """Regrets of loops at equal evaluations (benchmarks/bo_loops.py, bo_turbo.py), with paired tests."""

    def tables() -> str:
        _find_benchmarks()
        from bo_rows import read, table

        rows = read(ROOT / "benchmarks" / "results" / f"{name}.jsonl")
        return table(rows, "duogp", list(against), {"duogp": ours, **against, **(beside or {})})

    return tables


def molecules() -> str:
    """Rank correlations and R² of exact GPs of molecules (benchmarks/molecule_features.py), by features."""
    path = ROOT / "benchmarks" / "results" / "molecule_features.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    columns = {
        "ZINC": (1000, "zinc"),
        "ZINC, after 5,000": (5000, "zinc"),
        "trust region": (1000, "box"),
        "near good ones": (1000, "near"),
    }
    names = {
        "latent": "latent point",
        "informative": "its informative coordinates",
        "morgan": "substructures",
        "pairs": "atom pairs",
        "descriptors": "descriptors",
    }
    cells = {
        (line["features"], line["rows"], line["asked"]): f"{line['rank_correlation']:.2f} ({line['r2']:.2f})"
        for line in lines
        if line["model"] == "gp"
    }
    rows = [[label, *(cells[name, *key] for key in columns.values())] for name, label in names.items()]
    return markdown(["features of a molecule", *columns], rows).replace("-0.", "−0.").replace("−0.00", "0.00")


TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    PAGES / "methods.md": {"methods": methods},
    PAGES / "families" / "conditional.md": {"benchmark:paper_dc": paper("paper_dc")},
    PAGES / "families" / "orthogonal.md": {"benchmark:convergence": convergence},
    PAGES / "training.md": {"benchmark:race": race},
    RESULTS: {
        "benchmark:paper_orth": paper("paper_orth"),
        "benchmark:paper_orth_classification": paper("paper_orth_classification"),
        "benchmark:paper_components": scores("paper_components", ("loglik", "accuracy")),
        "benchmark:paper_dkl": paper("paper_dkl"),
        "benchmark:calibration": calibration,
        "benchmark:paper_deep": scores("paper_deep", ("loglik", "rmse")),
        "benchmark:float32": finite("float32"),
        "benchmark:speed": speed,
        "benchmark:boosting": boosting,
        "benchmark:online": online_tables,
    },
    OPTIMISATION: {
        "benchmark:loops": loops(
            "bo_loops",
            "`DuoGPModel.fit`",
            {n: f"`{n}`" for n in ("SingleTaskGP", "SingleTaskVariationalGP")},
        ),
        "benchmark:turbo": loops(
            "bo_turbo",
            "ours",
            {"tutorial": "BoTorch's tutorial"},
            {"duogp,successes=3": "ours, `successes=3`"},
        ),
        "benchmark:bo": optimisation,
        "benchmark:decoupling": decoupling,
        "benchmark:molecules": molecules,
    },
}


def rewrite(path: Path, text: str) -> str:
    """The text with every table as it should be."""
    for name, make in TABLES[path].items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.S)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"{path.name} must have one <!-- {name} --> and one <!-- /{name} -->")
        table = make()
        text = pattern.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)  # type: ignore[misc]
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say whether the pages are up to date")
    options = parser.parse_args(arguments)
    stale = []
    for path in TABLES:
        before = path.read_text(encoding="utf-8")
        after = rewrite(path, before)
        if before != after:
            stale.append(path.name)
            if not options.check:
                path.write_text(after, encoding="utf-8")
    if options.check and stale:
        print(f"{', '.join(stale)}: out of date, run python benchmarks/readme_tables.py", file=sys.stderr)
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())

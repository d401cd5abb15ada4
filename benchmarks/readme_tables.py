"""The blocks of README.md and of docs/ that come from the registry and from the results files.

    python benchmarks/readme_tables.py           rewrite what stands between the markers
    python benchmarks/readme_tables.py --check   change nothing; exit status 1 when a number is out of date

A block NAME stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``, in whichever page has these markers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from duogp.bench.results import Results
from duogp.methods import METHODS, Method

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))  # for what lies beside this file

import adam_betas  # noqa: E402
import demo_study  # noqa: E402
import grids  # noqa: E402
import large_tables  # noqa: E402
import speed_tables  # noqa: E402
import to_the_end  # noqa: E402
import verdict_tables  # noqa: E402
from suite_tables import finite, markdown, paper, scores  # noqa: E402
from verdict_tables import with_state  # noqa: E402

CONVERGENCE = ROOT / "benchmarks" / "results" / "orth_convergence.json"
ONLINE = ROOT / "benchmarks" / "results" / "online_robot.jsonl"


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
        lines.append([label, *(f"{mean:.3f}".replace("-", "−") for mean in means)])
    every = [row for rows in found.values() for row in rows]
    devices = ", ".join(sorted({str(row["device_name"]) for row in every}))
    size = f"{every[0]['n_train']:,} training and {every[0]['n_test']:,} test rows"
    splits = max(len(rows) for rows in found.values())
    parts = [markdown(["", *module.COLUMNS.values()], lines)]
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
    return "\n\n".join(
        [*parts, f"Means over the outputs after {steps} iterations, seed 0; {devices}, float64."]
    )


def _online_rows() -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in ONLINE.read_text(encoding="utf-8").splitlines())
    first = (row for row in lines if row["kind"] == "result" and row["seed"] == 0)
    latest = {(row["data"], row["method"]): row for row in first}
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


# -- the file ----------------------------------------------------------------------------------------------


def speed() -> str:
    """The race (benchmarks/race.py), which keeps its own table."""
    from racing.tables import table

    return table()


def optimisation() -> str:
    """Bayesian optimisation (benchmarks/paper_bo.py): best values at the end, task by task."""
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


BLOCKS: dict[str, Callable[[], str]] = {
    "methods": methods,
    "benchmark:status": verdict_tables.status,
    "benchmark:coverage": verdict_tables.coverage,
    "benchmark:reruns": verdict_tables.reruns,
    "benchmark:verdicts": verdict_tables.tables,
    "benchmark:claims": verdict_tables.claims,
    **{f"benchmark:claims:{name}": verdict_tables.claims_of(name) for name in verdict_tables.FAMILIES},
    "benchmark:paper_dc": paper("paper_dc"),
    "benchmark:paper_dc_doubled": paper("paper_dc_doubled"),
    "benchmark:omega": scores("omega", ("nll",)),
    "benchmark:study": with_state(demo_study.table, "demo_study"),
    "benchmark:convergence": with_state(convergence, "orth_convergence"),
    "benchmark:paper_orth": paper("paper_orth"),
    "benchmark:paper_orth_classification": paper("paper_orth_classification"),
    "benchmark:paper_components": scores("paper_components", ("loglik", "accuracy")),
    "benchmark:paper_dkl": paper("paper_dkl"),
    "benchmark:calibration": with_state(calibration, "calibration"),
    "benchmark:paper_deep": scores("paper_deep", ("loglik", "rmse")),
    "benchmark:float32": finite("float32"),
    "benchmark:speed": with_state(speed, "race_cuda", "race_cpu"),
    "benchmark:steps": with_state(speed_tables.steps, "race_cuda_within"),
    "benchmark:steps-cpu": with_state(speed_tables.cpu_steps, "steps_cpu", "steps_cpu_two_threads"),
    "benchmark:quality-cpu": with_state(speed_tables.quality("cpu"), "quality_cpu"),
    "benchmark:quality-brief": with_state(speed_tables.quality_in_brief, "quality_cuda", "quality_cpu"),
    "benchmark:quality-cuda": with_state(speed_tables.quality("cuda"), "quality_cuda"),
    "benchmark:predictions": with_state(speed_tables.predictions, "prediction_speed"),
    "benchmark:online": with_state(online_tables, "online_robot"),
    "benchmark:adam-betas": with_state(adam_betas.table, "adam_betas"),
    "benchmark:to-the-end": with_state(to_the_end.table, "to_the_end"),
    "benchmark:grids": with_state(grids.table, "grids"),
    "benchmark:large-tables": with_state(large_tables.table, "large_tables"),
    "benchmark:loops": with_state(
        loops(
            "bo_loops", "`DuoGPModel.fit`", {n: f"`{n}`" for n in ("SingleTaskGP", "SingleTaskVariationalGP")}
        ),
        "bo_loops",
    ),
    "benchmark:turbo": with_state(
        loops(
            "bo_turbo",
            "ours",
            {"tutorial": "BoTorch's tutorial"},
            {"duogp,successes=3": "ours, `successes=3`"},
        ),
        "bo_turbo",
    ),
    "benchmark:bo": with_state(optimisation, "paper_bo"),
    "benchmark:decoupling": with_state(decoupling, "paper_bo"),
    "benchmark:molecules": with_state(molecules, "molecule_features"),
}


def pages(root: Path = ROOT) -> list[Path]:
    """README.md and every page of docs/ with a marker of a block."""
    candidates = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    marker = re.compile("|".join(re.escape(f"<!-- {name} -->") for name in BLOCKS))
    return [path for path in candidates if path.is_file() and marker.search(path.read_text("utf-8"))]


def rewrite(path: Path, text: str) -> str:
    """The text with every block as it should be."""
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.S)
        if (begun := text.count(f"<!-- {name} -->")) != len(pattern.findall(text)) or begun > 1:
            raise ValueError(f"{path.name}: one <!-- {name} --> needs one <!-- /{name} -->")
        if begun:
            block = make()
            text = pattern.sub(lambda found, block=block: f"{found[1]}{block}\n{found[2]}", text)  # type: ignore[misc]
    return text


def without_states(text: str) -> str:
    """A page without what it says of stale rows, so that a change of the source alone changes nothing."""
    kept = re.sub(r"<!-- benchmark:status -->.*?<!-- /benchmark:status -->", "", text, flags=re.S)
    kept = re.sub(r"\n+(\*\*Stale\*\*:|No row is stale).*", "", kept)
    return re.sub(r" \| \d+ of \d+ \|$", " |", kept.replace(" ˢ", ""), flags=re.M)


def out_of_date(*, states: bool = True) -> list[str]:
    """The pages whose blocks are not what the store says; without ``states``: but for stale marks."""
    strip = (lambda text: text) if states else without_states
    texts = {path: path.read_text(encoding="utf-8") for path in pages()}
    return [path.name for path, text in texts.items() if strip(text) != strip(rewrite(path, text))]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say whether the pages are up to date")
    options = parser.parse_args(arguments)
    if not options.check:
        for path in pages():
            before = path.read_text(encoding="utf-8")
            if before != (after := rewrite(path, before)):
                path.write_text(after, encoding="utf-8")
        return 0
    if wrong := out_of_date(states=False):
        print(f"{', '.join(wrong)}: out of date, run python benchmarks/readme_tables.py", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

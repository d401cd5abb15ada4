"""duogp beside its peers: steps, variants, prediction, closed forms, time to quality; one run, one machine.

Every round times ours and each peer once, in alternating order; a row holds the medians over the rounds,
their spread, and the share of the roofline (counted operations at the rate of the machine's own matrix
product, timed in the same rounds). Peers run at their best documented settings, TF32 is off for everybody,
and everybody may use all CPU threads.

    python benchmarks/race.py --quick --device cpu --json      a minute: rows as JSON on stdout
    python benchmarks/race.py --device cuda --parts steps,variants,prediction,closed-form
    python benchmarks/race.py --device cuda --parts quality
    python benchmarks/race.py --device cuda --within 240      steps of four methods and predictions, all sizes
    python benchmarks/race.py --peer-python gpflow=/path/to/python --peer-python gpjax=/path/to/python
    python benchmarks/race.py --device cpu --parts quality --data elevators,kin40k --sample 10000 \\
        --inducing 200 --epochs 100 --time-limit 800 --peer-python gpflow=/path/to/python
    python benchmarks/race.py --device cpu --parts steps --sizes 200,800 --steps 20 --cpu-time \
        --output benchmarks/results/steps_cpu.json
    python benchmarks/race.py --figure | --table                from the stored results

Results are kept in benchmarks/results/race_<device>.json; what is there is not run again without ``--again``.
GPflow and GPJax run in processes of their own, in any Python that has them (`racing/serve.py`), on the CPU.
Times are of whole user calls: a step is one of `duogp.fit`'s, a prediction takes and returns arrays.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PARTS = ("steps", "variants", "field", "prediction", "closed-form", "quality")
#: What is raced without ``--parts``: the field has the steps and the second blocks of the variants again.
USUAL = ("steps", "variants", "prediction", "closed-form", "quality")
#: Seconds of `--within` that are left for the end of the last course.
RESERVE = 12.0
QUICK_SIZES = (200, 800)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="cpu or cuda; CUDA where there is one")
    parser.add_argument("--parts", help=f"of {', '.join(PARTS)}; in this order")
    parser.add_argument(
        "--within",
        type=float,
        metavar="SECONDS",
        help="field and prediction in this time: courses share it, float32 first; known ones run again",
    )
    parser.add_argument(
        "--quick", action="store_true", help="svgp step, M = 200 and 800, float32; not stored"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as a JSON list, and nothing else")
    parser.add_argument("--sizes", help="inducing points, by default 200,500,1000,2000")
    parser.add_argument("--dtypes", help="by default float32,float64")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument(
        "--steps", type=int, help="of a block; by default as many as last an eighth of a second"
    )
    parser.add_argument("--rounds", type=int, help="7; quick: 5")
    parser.add_argument("--rows", type=int, help="of a prediction: a million; on a CPU a tenth")
    parser.add_argument("--data-rows", type=int, help="of the closed form: all of houseelectric")
    parser.add_argument("--data", default="pol,kin40k,protein", help="sets of the part quality")
    parser.add_argument("--sample", type=int, metavar="ROWS", help="of a set of the part quality: all")
    parser.add_argument("--inducing", type=int, help="of the part quality: by set, 500 or 800")
    parser.add_argument("--models", default="own,same", help="of the part quality: our own, gpytorch's")
    parser.add_argument("--epochs", type=int, default=300, help="of gpytorch in the part quality")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="for everybody: all")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="seconds of the process and one thread, for a machine with other work; not for GPflow and GPJax",
    )
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds; no course after it")
    parser.add_argument("--peer-python", action="append", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--output", type=Path, help="by default benchmarks/results/race_<device>.json")
    parser.add_argument("--again", action="store_true", help="also what the results file has")
    parser.add_argument("--figure", action="store_true", help="draw docs/images/race.png and end")
    parser.add_argument("--table", action="store_true", help="print the markdown table and end")
    options = parser.parse_args(arguments)
    if options.within is not None:
        options.time_limit, options.again = options.within, True
        options.parts = options.parts or "field,prediction"
    options.parts = options.parts.split(",") if options.parts else list(USUAL)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts must be of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    if given.table:
        from racing.tables import table

        print(table())
        return 0
    if given.figure:
        from racing.figure import draw

        print(draw().relative_to(ROOT))
        return 0
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the rows
        rows = race(given)
    if given.json:
        print(json.dumps(rows, indent=1))
    return 0


def race(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is asked for and not yet known; the rows of this call's courses, stored ones included."""
    import torch

    from duogp.bench.measure import device_name, resolve_device, versions
    from racing.clock import Clock, say
    from racing.courses import Options
    from racing.remote import pythons
    from racing.running import run
    from racing.store import Store, commit_of_tree

    begun = time.perf_counter()
    device = resolve_device(given.device)
    if given.cpu_time:
        Clock.of_process, given.threads = True, 1
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(given.threads)
    on_cuda = device.startswith("cuda")
    options = Options(
        device=device,
        threads=given.threads,
        batch=given.batch,
        sizes=_numbers(given.sizes) or (QUICK_SIZES if given.quick else Options.sizes),
        dtypes=tuple((given.dtypes or ("float32" if given.quick else "float32,float64")).split(",")),
        peer_pythons=pythons(given.peer_python),
        rows=given.rows or (1_000_000 if on_cuda else 100_000),
        data_rows=given.data_rows,
        steps=given.steps,
        warm_up=1 if given.quick else 2,
        rounds=given.rounds or (5 if given.quick else 7),
        seconds=5.0 if given.quick else 12.0 if on_cuda else 60.0,
        compile_up_to=0 if given.within is not None else 500 if given.quick else None,  # it takes long
    )
    parts = ["steps"] if given.quick else given.parts
    path = given.output or (None if given.quick else RESULTS / f"race_{device.split(':')[0]}.json")
    commit, dirty = commit_of_tree()
    head = {
        "device": device_name(device),
        "device_name": device_name(device),
        "commit": commit,
        "dirty": dirty,
        "versions": versions() | _peer_versions(),
    }
    store = Store(path, head)
    done: list[dict[str, Any]] = []

    def in_time() -> bool:
        return time.perf_counter() - begun < given.time_limit

    def take(what: str, M: int, dtype: str, run_it: Any) -> None:
        if not given.again and store.has(what, M, dtype):
            say(f"{what}, M = {M}, {dtype}: known")
        elif not in_time():
            say(f"{what}, M = {M}, {dtype}: the time was up")
            return
        else:
            say(f"{what}, M = {M}, {dtype}")
            try:
                rows = run_it()
            except Exception:  # the other courses need not suffer
                traceback.print_exc()
                return
            store.add(rows)
            for row in rows:
                ratio = "none" if row["ratio"] is None else f"{row['ratio']:.2f}"
                ours, peer = (
                    "not reached" if ms is None else f"{ms:.3g} ms" for ms in (row["ms"], row["peer_ms"])
                )
                say(f"  {ours}; {row['peer']} {peer}; {row['ratio_is']} {ratio}")
        done.extend(row for row in store.rows if (row["what"], row["M"], row["dtype"]) == (what, M, dtype))

    planned = _courses(parts, options, by_precision=given.within is not None)
    for i, course in enumerate(planned):
        own = options
        if given.within is not None:  # half of a course is setting up and warming up
            left = given.within - RESERVE - (time.perf_counter() - begun)
            own = replace(options, seconds=min(options.seconds, 0.5 * left / (len(planned) - i)))
            if left <= 0:
                say(f"{course.what}, M = {course.M}, {course.dtype}: the time was up")
                continue
        take(course.what, course.M, course.dtype, lambda course=course, own=own: run(course, own))
    if "quality" in parts:
        _quality(given, device, begun, take)
    say(f"{time.perf_counter() - begun:.0f} s")
    return done


def _courses(parts: Sequence[str], options: Any, *, by_precision: bool) -> list[Any]:
    """The courses of all parts but quality; of one precision after the other where that is asked for."""
    from racing import courses, predictions

    known = courses.PARTS | predictions.PARTS
    each = [replace(options, dtypes=(dtype,)) for dtype in options.dtypes] if by_precision else [options]
    return [course for own in each for part in parts if part in known for course in known[part](own)]


def _quality(given: argparse.Namespace, device: str, begun: float, take: Any) -> None:
    """Sets share what is left of the time; a peer whose full run does not fit into it does not take part."""
    from racing import quality
    from racing.remote import pythons

    names = given.data.split(",")
    families = [family for family in quality.FAMILIES if family.split()[0] in given.models.split(",")]
    for i, name in enumerate(names):
        left = given.time_limit - (time.perf_counter() - begun)
        share = 0.8 * left / (len(names) - i)
        take(
            f"time to quality, {name}", quality.inducing_of(name, given.inducing), "float64",
            lambda name=name, share=share: quality.run(
                name, device, share, given.epochs, families,
                rows=given.sample, inducing=given.inducing, pythons=pythons(given.peer_python),
            ),
        )  # fmt: skip


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def _peer_versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("gpytorch", "gpflow", "gpjax"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


if __name__ == "__main__":
    sys.exit(main())

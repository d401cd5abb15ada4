"""``python -m duogp.bench``: the benchmark runner with nothing but the core installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from duogp.bench import commands


def parser() -> argparse.ArgumentParser:
    """run, table and missing, each with a suite and a choice of its cells."""
    choice = argparse.ArgumentParser(add_help=False)
    choice.add_argument("suite", help="name in benchmarks/suites, or the path of a TOML file")
    choice.add_argument("--results", metavar="FILE", help="default: benchmarks/results/NAME.jsonl")
    choice.add_argument("--data", metavar="NAMES", help="only these data sets, separated by commas")
    choice.add_argument("--methods", metavar="NAMES", help="only these methods, separated by commas")
    choice.add_argument("--splits", metavar="K", type=int, help="only the first K splits")

    top = argparse.ArgumentParser(prog="python -m duogp.bench", description="Suites against papers.")
    kinds = top.add_subparsers(dest="command", required=True)
    run = kinds.add_parser("run", parents=[choice], help="run the cells that have no result yet")
    run.add_argument("--device", help="cpu, cuda, cuda:1 (default: cuda where there is one)")
    run.add_argument("--workers", metavar="K", type=int, default=1, help="processes that share the device")
    run.add_argument(
        "--replicates", metavar="K", type=int, default=1, help="splits trained as one batched model"
    )
    run.add_argument("--time-limit", metavar="SECONDS", type=float, help="start no cell that would end later")
    table = kinds.add_parser("table", parents=[choice], help="the paper's numbers beside ours")
    table.add_argument("--json", action="store_true", dest="as_json", help="a list of rows")
    table.add_argument("--learned", action="store_true", dest="learned_values", help="learned values instead")
    kinds.add_parser("missing", parents=[choice], help="list the cells without a result")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 when a cell failed, 2 for a mistake in the call or the suite."""
    options = vars(parser().parse_args(arguments))
    known: dict[str, Callable[..., int]] = {
        "run": commands.run_suite,
        "table": commands.table_of_suite,
        "missing": commands.missing_of_suite,
    }
    try:
        return known[options.pop("command")](**options)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; finished cells are kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

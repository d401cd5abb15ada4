"""``python -m arena run|table|missing`` from the folder `benchmarks`; also ``duogp bench run arena``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from arena import report, run


def main(arguments: Sequence[str] | None = None, prog: str = "python -m arena") -> int:
    """Exit status of a command."""
    top = argparse.ArgumentParser(prog=prog, description="The default against its peers on all tables.")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    runner = commands.add_parser("run", help="run the jobs that have no row yet")
    run.add_arguments(runner)
    runner.set_defaults(command=run.main)
    lister = commands.add_parser("missing", help="list the jobs that have no row yet")
    run.add_arguments(lister)
    lister.set_defaults(command=run.print_missing)
    reporter = commands.add_parser("table", help="mean ranks, paired tests, figures, in markdown")
    report.add_arguments(reporter)
    reporter.set_defaults(command=report.main)
    options = top.parse_args(arguments)
    status: int = options.command(options)
    return status


if __name__ == "__main__":
    sys.exit(main())

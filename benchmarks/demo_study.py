"""The demo's comparison over five seeds (`python -m duogp.demo --study`), stored with its provenance.

python benchmarks/demo_study.py           writes benchmarks/results/demo_study.json
python benchmarks/demo_study.py --table   prints what is stored
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from duogp.bench.provenance import stamp
from duogp.bench.results import finite
from suite_tables import markdown

RESULTS = Path(__file__).resolve().parent / "results" / "demo_study.json"


def table() -> str:
    """Means ± standard errors over seeds, a line per data set and metric, the best in bold."""
    if not RESULTS.is_file():
        return "Not run yet."
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text("utf-8"))["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        for metric, digits in (("rmse", None), ("nll", 3)):
            cells = {row["method"]: row for row in rows if row["data"] == data}
            best = min(methods, key=lambda method: fmean(cells[method][metric]))
            line = []
            for method in methods:
                values = cells[method][metric]
                places = digits or (1 if abs(fmean(values)) >= 10 else 3)
                error = stdev(values) / math.sqrt(len(values))
                text = f"{fmean(values):.{places}f} ± {error:.{places}f}".replace("-", "−")
                line.append(f"**{text}**" if method == best else text)
            lines.append([data if metric == "rmse" else "", metric.upper(), *line])
    return markdown(["data", "", *methods], lines, text_columns=2)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print what is stored")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    if not options.table:
        import torch

        from duogp.demo import comparison

        torch.set_num_threads(1)  # as the demo: small matrices gain little from a second one
        rows = comparison.study(list(comparison.EXAMPLES), options.seeds)
        content = finite({"rows": rows, "seeds": options.seeds, **stamp("cpu")})
        RESULTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())

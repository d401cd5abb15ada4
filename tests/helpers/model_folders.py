"""Model folders as earlier versions wrote them."""

from __future__ import annotations

import json
from pathlib import Path

from duogp.io.folder import MANIFEST, checksum


def without_checksum_of_table(folder: Path) -> None:
    """A folder whose manifest does not know its table.json, as before format entries of files."""
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["files"]
    (folder / MANIFEST).write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))

"""The built site in a browser: no console errors, nothing wider than the screen, on a desktop and on a phone.

`make docs` builds it; without it, or without Chromium, these tests are skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[2] / "docs" / "_build" / "html"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=4000"),
)
PAGES = (
    *("index.html", "start.html", "which-method.html", "methods.html", "algebra.html", "settings.html"),
    *("families/conditional.html", "families/orthogonal.html", "howto/training-loop.html", "results.html"),
    *("arena.html", "serving.html", "auto_gallery/index.html", "api/duogp.html", "api/kernels.html"),
    "auto_gallery/plot_01_decoupled_lengthscales.html",
)
#: Put at the end of a page: how wide the screen is, and how wide the page.
PROBE = """<script>window.addEventListener("load", () => {
  document.body.dataset.probe = document.documentElement.clientWidth + " " + document.body.scrollWidth;
});</script></body>"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make docs"),
]


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_in_a_browser(page, width, tmp_path):
    assert CHROMIUM is not None
    source = SITE / page
    probe = source.with_name(f"probe-{width}-{source.name}")
    text = source.read_text(encoding="utf-8")
    assert text.count("</body>") == 1
    probe.write_text(text.replace("</body>", PROBE), encoding="utf-8")
    arguments = (f"--window-size={width},900", f"--user-data-dir={tmp_path}", "--dump-dom", probe.as_uri())
    try:
        found = subprocess.run([CHROMIUM, *QUIET, *arguments], capture_output=True, text=True, timeout=120)
    finally:
        probe.unlink()
    said = [line for line in found.stderr.splitlines() if "CONSOLE" in line]
    assert [line for line in said if "[PST]: " not in line] == []  # the theme tells what it does
    sizes = re.search(r'data-probe="(\d+) (\d+)"', found.stdout)
    assert sizes, "the page did not load"
    visible, whole = map(int, sizes.groups())
    assert whole <= visible + 1, f"{whole - visible} pixels are outside the screen"

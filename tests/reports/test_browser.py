"""The page in a browser: no message on the console, never wider than the screen."""

from __future__ import annotations

import html
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

import duogp

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--enable-logging=stderr",
]
#: A page that shows another in a frame of a width, and writes the widths that it finds into its title.
MEASURE = """<!doctype html><title>none</title>
<iframe id="f" style="width:{width}px;height:900px" srcdoc="{page}"></iframe>
<script>const f = document.getElementById("f"); f.onload = () => {{
const d = f.contentDocument, e = d.documentElement;
const broken = [...d.images].filter(i => !i.naturalWidth).length;
document.title = `${{e.scrollWidth}} ${{e.clientWidth}} ${{d.images.length}} ${{broken}}` }}</script>"""


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium to open the page with")
def test_the_page_fits_screens_and_is_silent(tmp_path):
    rng = np.random.default_rng(0)
    long = "a_rather_long_name_of_a_column_without_any_space_in_it_" * 2
    frame = pd.DataFrame({long: rng.normal(size=80), "c": rng.choice(["u" * 60, "v", "<w>"], 80)})
    model = duogp.GPRegressor(method="svgp", num_inducing=10, epochs=5, random_state=0)
    y = pd.Series(frame[long] + 0.1 * rng.normal(size=80), name="t" * 70)
    page = duogp.report(model.fit(frame, y), frame, y).html
    for width in (1280, 390):
        path = tmp_path / f"{width}.html"
        path.write_text(MEASURE.format(width=width, page=html.escape(page, quote=True)))
        folder = f"--user-data-dir={tmp_path / f'profile-{width}'}"
        command = [str(BROWSER), *QUIET, folder, "--virtual-time-budget=10000", "--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "CONSOLE" not in done.stderr
        found = re.search(r"<title>(\d+) (\d+) (\d+) (\d+)</title>", done.stdout)
        assert found is not None
        whole, seen, images, broken = map(int, found.groups())
        assert whole <= seen
        assert images >= 5
        assert broken == 0

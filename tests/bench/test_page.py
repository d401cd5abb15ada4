"""The HTML report: everything is in it, nothing breaks out of it, and a browser shows it at both widths."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from duogp.bench import load_suite
from duogp.bench.__main__ import main
from duogp.bench.page import page
from duogp.bench.page_plots import colours, curves, quantiles
from duogp.bench.results import append
from duogp.bench.runner import failure
from helpers.bench_suite import SUITE, fake_row

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
    "--virtual-time-budget=4000",
]  # fmt: skip
#: Measures the report in a frame of a given width, then sorts its first table of numbers and reads it back.
PROBE = """<!doctype html><iframe src="report.html" width="%d" height="900" style="border:0"></iframe>
<pre></pre><script>
document.querySelector("iframe").onload = function () {
  var inside = this.contentDocument, root = inside.documentElement;
  var table = inside.querySelectorAll("section table.sortable")[0];
  var heads = table.querySelectorAll("thead button");
  function names() {
    return Array.from(table.tBodies[0].rows).map(function (row) { return row.cells[0].textContent.length; });
  }
  heads[0].click(); var up = names(); heads[0].click(); var down = names(); heads[2].click();
  document.querySelector("pre").textContent = JSON.stringify(
    { width: root.clientWidth, needs: root.scrollWidth, up: up, down: down, last: names() });
};
</script>"""


class Tags(HTMLParser):
    """Every tag must be closed by its own."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "circle", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def hostile(tmp_path):
    """A suite whose names try to be markup, with done, failed, stale and missing cells."""
    folder = tmp_path / "suites"
    folder.mkdir()
    text = SUITE.replace('label = "MAP"', 'label = "<script>alert(1)</script>"')
    text = text.replace('name = "absent"', 'name = "a&b\\"c"')
    text = text.replace("MAP = 0.5", '"<script>alert(1)</script>" = 0.5')
    (folder / "tiny.toml").write_text('description = "a < b & c"\n' + text)
    suite = load_suite(folder / "tiny.toml")
    cells = suite.cells(["sklearn/diabetes"], splits=1)
    for cell in cells[:2]:
        trace = [[10 * i, 0.1 * i, 3.0 / (i + 1)] for i in range(20)]
        append(suite.results, fake_row(cell, "cpu") | {"history": {"trace": trace}, "zscores": [-1, 0, 1]})
    append(suite.results, fake_row(cells[2], "cpu") | failure(ValueError("<b>bad</b>")))
    return suite


def test_everything_is_in_the_page_and_escaped(hostile):
    text = page([hostile], claims=False, experiments=False)
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    assert "<script>alert" not in text and "<b>bad" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "a &lt; b &amp; c" in text
    assert "not run" in text and "no cell" in text  # of our suite, and of the paper's OTHER
    assert "2 stale cells" in text and "1 failed cells" in text and "9 missing cells" in text
    assert "Learning curves" in text and "quantiles of z-scores" in text
    outside = [a for _, attrs in tags.seen for k, a in attrs.items() if k in ("src", "href") and a[0] != "#"]
    assert not outside  # one file, nothing fetched


def test_the_command_writes_the_whole_report(tmp_path, capsys):
    path = tmp_path / "report.html"
    assert main(["report", "-o", str(path)]) == 0
    tags = Tags()
    tags.feed(path.read_text("utf-8"))
    ids = {attrs.get("id") for _, attrs in tags.seen}
    assert {"claims", "experiments", "paper_dc", "paper_orth"} <= ids
    links = {a["href"][1:] for tag, a in tags.seen if tag == "a"}
    assert links <= ids


def test_plots_of_nothing_are_nothing():
    palette = colours(["a"])
    assert curves("t", {"a": [(0, float("nan"))]}, palette, "loss") == ""
    assert quantiles("t", {"a": []}, palette) == ""
    assert "polyline" in curves("t", {"a": [(0, 1.0), (10, 1.0)]}, palette, "loss")  # a constant loss


@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_scrolling_sideways_and_sorts(hostile, tmp_path, width):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    (tmp_path / "report.html").write_text(page([hostile], claims=False, experiments=False), "utf-8")
    (tmp_path / "probe.html").write_text(PROBE % width)
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, (tmp_path / "probe.html").as_uri()], capture_output=True, text=True, timeout=120
    )
    found = re.search(r"<pre>(\{.*?\})</pre>", done.stdout)
    if done.returncode or found is None:
        pytest.fail(f"Chromium said nothing: {done.stderr[-500:]}")
    measured = json.loads(found[1])
    assert measured["needs"] <= measured["width"] <= width
    assert measured["up"] == measured["down"][::-1] == [5, 16]  # by name
    assert measured["last"] == [16, 5]  # by number: what was not run comes last

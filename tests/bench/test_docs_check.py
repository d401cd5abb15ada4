"""Numbers in the prose of the pages: which are found, and that those of the repository are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check():
    """`benchmarks/docs_check.py` as a module."""
    folder = ROOT / "benchmarks"
    if not folder.is_dir():
        pytest.skip("no benchmarks folder beside these tests")
    sys.path.insert(0, str(folder))
    try:
        import docs_check

        yield docs_check
    finally:
        sys.path.remove(str(folder))


def test_numbers_are_read_from_prose_alone(check):
    text = """## A
The RMSE is 0.307 (−1.075 before), see §11.2, torch 2.13.0, 3 × 10⁻⁴ and 1,234.5 rows.
With Python 3.11 to 3.14.

| 9.99 | 8.88 |
```
x = 7.77
```
`6.66` [link](page-5.55.md)
<!-- benchmark:x -->
4.44
<!-- /benchmark:x -->
"""
    assert check.numbers_in(check.prose_of(text)) == ["0.307", "-1.075", "1234.5"]


@pytest.mark.parametrize(
    ("printed", "value", "found"),
    [("0.307", 0.30651, True), ("0.307", 0.3064, False), ("-1.1", 1.1, True), ("0.31", 0.3051, True)],
)
def test_numbers_match_to_their_digits(check, printed, value, found):
    assert check.matches(printed, [value]) is found


def test_a_number_that_nobody_stored_is_named(check):
    store = check.Store()
    text = "## A section\n`duogp bench run paper_dc`: an RMSE of 0.307 (SVGP on pol) and of 47.1134.\n"
    assert check.unknown_numbers("docs/results.md", text, store) == ["docs/results.md, 'A section': 47.1134"]


def test_the_pages_of_this_repository_hold_no_number_that_the_store_lacks(check):
    store = check.Store()
    pages = {page: (ROOT / page).read_text("utf-8") for page in check.PAGES}
    assert [line for page, text in pages.items() for line in check.unknown_numbers(page, text, store)] == []


def test_the_readme_refuses_stale_rows_without_their_commit(check, monkeypatch):
    store = check.Store()
    monkeypatch.setattr(store, "stale", lambda name: (3, {"abc1234"}) if name == "paper_dc" else (0, set()))
    text = "## A\n`paper_dc`: an RMSE of 0.307{}.\n## B\n`paper_dc` without a number.\n"
    (line,) = check.refused("README.md", text.format(""), store)
    assert line.startswith("README.md, 'A': 3 stale rows of paper_dc")
    assert check.refused("README.md", text.format(", commit 7654321"), store)  # not theirs
    assert check.refused("README.md", text.format(", commit abc1234"), store) == []
    monkeypatch.setattr(store, "stale", lambda name: (0, set()))
    assert check.refused("README.md", text.format(""), store) == []


def test_the_readme_of_this_repository_names_the_commits_of_its_rows(check):
    store = check.Store()
    assert [
        line
        for page in check.REFUSING
        for line in check.refused(page, (ROOT / page).read_text("utf-8"), store)
    ] == []


def test_every_claim_stands_on_one_family_page(check):
    sources = [name for names in check.verdict_tables.FAMILIES.values() for name in names]
    assert len(sources) == len(set(sources))
    assert {each.claim.source for each in check.verdict_tables.decisions()} == set(sources)
    for name in check.verdict_tables.FAMILIES:
        text = (ROOT / "docs" / "families" / f"{name}.md").read_text("utf-8")
        assert f"<!-- benchmark:claims:{name} -->" in text
        assert "| claim | verdict |" not in text  # no verdict is typed


def test_what_pages_say_of_stale_rows_may_change_with_the_source(check):
    page = "| a | 0.1 ˢ |\n\n**Stale**: all 3 rows.\n\nText.\n| holds | x | 3 of 4 |\n"
    fresh = "| a | 0.1 |\n\nNo row is stale; 0 cells failed.\n\nText.\n| holds | x | 0 of 4 |\n"
    strip = check.readme_tables.without_states
    assert strip(page) == strip(fresh)
    assert strip(page.replace("0.1", "0.2")) != strip(fresh)


def test_exceptions_are_used(check):
    """Every exception stands for a number that is still there."""
    for page, known in check.exceptions().items():
        printed = check.numbers_in(check.prose_of((ROOT / page).read_text("utf-8")))
        assert {number for number, _ in known} <= set(printed)

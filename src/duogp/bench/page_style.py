"""The style and the script of the report, both inline, so that the page is one file."""

from __future__ import annotations

CSS = """
:root {
  --paper: #fdfcf9; --ink: #1f2328; --faint: #6a7079; --line: #dcd9d2; --panel: #f4f2ec; --link: #1b5e9b;
  --ok: #2f6f4f; --ok-back: #e3f1e8; --better: #1b5e9b; --better-back: #e1ecf7; --worse: #a63d1f;
  --worse-back: #fbe6de; --stale-line: #b98b00;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181c; --ink: #e4e6e9; --faint: #9aa2ad; --line: #343a42; --panel: #1d2126; --link: #7fb7ea;
    --ok: #8fd0aa; --ok-back: #1c3327; --better: #8fc1ee; --better-back: #18314a; --worse: #f0a287;
    --worse-back: #47231a; --stale-line: #d9b23c;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main, header, nav { max-width: 76rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .4rem; }
p { max-width: 46rem; margin: .5rem 0; }
a { color: var(--link); }
.faint { color: var(--faint); }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .35rem .9rem; margin: 1rem 0; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td {
  padding: .34rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line);
}
tbody tr:last-child > * { border-bottom: 0; }
th { background: var(--panel); font-weight: 600; position: relative; }
th button {
  all: unset; cursor: pointer; padding: .1rem .1rem; border-radius: 3px;
}
th button:focus-visible { outline: 2px solid var(--link); }
th[aria-sort="ascending"] button::after { content: " \\2191"; }
th[aria-sort="descending"] button::after { content: " \\2193"; }
.text { text-align: left; }
.prose { white-space: normal; min-width: 15rem; max-width: 30rem; }
tbody th, thead th:first-child { position: sticky; left: 0; z-index: 1; text-align: left; }
.place { white-space: normal; min-width: 9rem; }
.ok { color: var(--ok); background: var(--ok-back); }
.better { color: var(--better); background: var(--better-back); }
.worse { color: var(--worse); background: var(--worse-back); }
.missing { color: var(--faint); font-style: italic; }
.stale { box-shadow: inset 0 -2px 0 var(--stale-line); }
.best { font-weight: 700; }
.paper { color: var(--faint); font-weight: 400; }
.tag { display: inline-block; padding: 0 .45rem; border-radius: 3px; font-size: .8rem; font-weight: 600; }
.tag.open { color: var(--faint); background: var(--panel); }
.key { display: flex; flex-wrap: wrap; gap: .3rem .9rem; font-size: .82rem; margin: .6rem 0; }
.bar { display: flex; height: .6rem; border-radius: 3px; overflow: hidden; max-width: 46rem; }
.bar span { display: block; }
.bar .done { background: var(--ok); } .bar .old { background: var(--stale-line); }
.bar .failed { background: var(--worse); } .bar .none { background: var(--line); }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(21rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .7rem; border: 1px solid var(--line); border-radius: 6px; }
figcaption { font-size: .84rem; margin-bottom: .3rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
svg .axis { stroke: var(--line); fill: none; } svg .small { fill: var(--faint); font-size: 10px; }
svg .curve { fill: none; stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: .15rem .8rem; font-size: .78rem; margin-top: .3rem; }
.legend i { display: inline-block; width: .9rem; height: .2rem; vertical-align: middle; margin-right: .3rem; }
details { margin: .8rem 0; } summary { cursor: pointer; font-weight: 600; }
details ul { font-size: .86rem; columns: 22rem; padding-left: 1.1rem; }
code { font-size: .86em; overflow-wrap: anywhere; }
footer { max-width: 76rem; margin: 3rem auto 2rem; padding: 0 1.25rem; color: var(--faint); }
@media (max-width: 40rem) {
  body { font-size: 15px; } header { padding-top: 1.4rem; } h1 { font-size: 1.5rem; }
  main, header, nav, footer { padding-left: .8rem; padding-right: .8rem; }
  tbody th { max-width: 9rem; overflow: hidden; text-overflow: ellipsis; }
  .prose { min-width: 12rem; }
}
@media print { nav { display: none; } details { display: block; } }
""".strip()

#: Sorts a table by a click on its head: by ``data-v`` where cells have it, else by their text.
SCRIPT = """
document.querySelectorAll("table.sortable").forEach(function (table) {
  table.querySelectorAll("thead th").forEach(function (head, column) {
    head.querySelector("button").addEventListener("click", function () {
      var up = head.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("thead th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      var body = table.tBodies[0];
      Array.from(body.rows).map(function (row, place) {
        var cell = row.cells[column], number = cell.dataset.v;
        var empty = number === "" || (number === undefined && cell.textContent.trim() === "");
        return { row: row, place: place, empty: empty,
                 key: number === undefined ? cell.textContent.trim() : parseFloat(number) };
      }).sort(function (a, b) {
        if (a.empty || b.empty) { return a.empty - b.empty || a.place - b.place; }
        var order = typeof a.key === "number" ? a.key - b.key : a.key.localeCompare(b.key);
        return (up ? order : -order) || a.place - b.place;
      }).forEach(function (item) { body.appendChild(item.row); });
    });
  });
});
""".strip()

"""How Sphinx builds the site: `make docs`.

Pages are Markdown (MyST), the gallery is `docs/gallery/plot_*.py`, and the reference comes from docstrings,
whose plain text `docstrings.py` turns into reStructuredText.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(HERE / "_tools")]
os.environ.setdefault("MPLBACKEND", "Agg")

import docstrings  # noqa: E402
import pages  # noqa: E402
import reference  # noqa: E402

import duogp  # noqa: E402

project = "duogp"
author = "The duogp developers"
copyright = "The duogp developers, MIT licence"
version = release = duogp.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_tools", "gallery", "notebooks", "**/*.ipynb", "auto_gallery/**/*.py"]
nitpicky = False
# sphinx-gallery hands functions to Sphinx, which cannot be written to its cache.
suppress_warnings = ["config.cache"]

# -- pages -------------------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4

# -- reference ---------------------------------------------------------------------------------------------

autosummary_generate = True
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"
autodoc_inherit_docstrings = False  # those of torch are not in our notation
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": False, "undoc-members": False}
add_module_names = False

# -- gallery -----------------------------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 5,
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "plot_gallery": "True",
    "abort_on_example_error": False,
    "image_srcset": ["2x"],
    "thumbnail_size": (400, 260),
}

# -- look --------------------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "duogp"
html_static_path = ["_static"]
html_css_files = ["duogp.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "duogp"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 8,
}
html_context = {"default_mode": "auto"}
html_sidebars = {"index": []}


def setup(app):
    app.connect("autodoc-process-docstring", docstrings.process)
    app.connect("source-read", pages.keep_existing)
    app.connect("source-read", reference.expand)

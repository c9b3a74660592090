"""How Sphinx builds the site. urnn has to be installed, as `make docs` does."""

import re

from docutils.nodes import Text, literal_block

import urnn

project = "urnn"
author = "The urnn developers"
copyright = author
version = release = urnn.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
]
exclude_patterns = ["_build"]
default_role = "code"  # docstrings write `name`, as Markdown does
smartquotes = False  # "all" is a string, not a quotation

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
napoleon_custom_sections = [(s, "params_style") for s in ("Attributes", "Returns", "Shape")]
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"urnn {version}"


def _as_restructured_text(app, what, name, obj, options, lines):
    """Say in reStructuredText what our docstrings say plainly."""
    plain = []
    for line in lines:
        if re.match(r"\s*(>>>|\.\.\.)", line):
            plain.append(line)
        else:
            parts = line.split("`")  # outside of code, |z| would be a substitution
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
            # and "size: n." would be a list, item n
            plain.append(re.sub(r"^(\s+\w+: )(\w\.)$", r"\1\\\2", "`".join(parts)))
    lines[:] = plain


def _trim(app, doctree):
    """Drop the blank line that ends the last example of a block for doctest."""
    for block in doctree.findall(literal_block):
        block.rawsource = block.astext().rstrip()
        block[:] = [Text(block.rawsource)]


def setup(app):
    app.connect("doctree-read", _trim)
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)

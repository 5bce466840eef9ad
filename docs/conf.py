"""The documentation site: Sphinx with numpydoc, MyST and executed notebooks; built offline by ``make site``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import latex2mathml.converter
import plotly.offline
import typer
from docutils.nodes import Element, SkipNode, math_block
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode
from sphinx.writers.html5 import HTML5Translator as HTMLTranslator
from typer.cli import get_docs_for_click

from densing import __version__
from densing.cli import app
from densing.cli.help import copyable

HERE = Path(__file__).parent

project = "densing"
author = "The densing authors"
copyright = "The densing authors, Apache-2.0"
release = version = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "sphinxcontrib.programoutput",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "first_hour*", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]

# The pages' own Markdown: cross references to headings, and terms of the glossary as {term}`density`.
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 4

# The faces are stubs read at run time: names are reached by attribute, types stand in the docstrings.
autosummary_generate = True
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
# Defaults as the source writes them: FORECASTERS, not a thousand letters of their repr, and no address of a function.
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# Notebooks and commands run while the site is built, so that no output is older than the code; what fails, fails it.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_merge_streams = True
programoutput_prompt_template = "$ {command}\n{output}"

smartquotes = False

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "densing"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {page: [] for page in ("index", "glossary", "faq")}
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 9,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navigation_with_keys": False,
}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Commands print for a terminal of this width, and find the program of this environment.
os.environ.update(COLUMNS="88", NO_COLOR="1", PLOTLY_RENDERER="notebook_connected")
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

# Kernels of notebooks leave no trace in the home folder, and do not warn of how they talk to this process.
_kernels = HERE / "_build" / "ipython"
_profile = _kernels / "profile_default"
_profile.mkdir(parents=True, exist_ok=True)
(_profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n", encoding="utf-8")
os.environ["IPYTHONDIR"] = str(_kernels)


def write_commands(sphinx: Sphinx) -> None:
    """Write a page of options per command, from the program itself, so that none goes stale."""
    program = typer.main.get_command(app)
    root = typer.Context(program, info_name="densing")
    folder = HERE / "reference" / "commands"
    folder.mkdir(exist_ok=True)
    for name, command in program.commands.items():
        page = get_docs_for_click(
            obj=command, ctx=typer.Context(command, info_name=name, parent=root), name=name, call_prefix="densing"
        )
        page = re.sub(r"^Example: (.+(?:\n.+)*)", _console, page, flags=re.MULTILINE)
        page += f"\nWorked examples: [{name}](../../how-to/{name}.md).\n"
        (folder / f"{name}.md").write_text(page, encoding="utf-8")


def _console(example: re.Match[str]) -> str:
    lines = copyable(" ".join(example[1].split()), 88)
    return "\n".join(["```console", f"$ {lines[0]}", *lines[1:], "```"])


def visit_math(translator: HTMLTranslator, node: Element) -> None:
    """Write an equation as MathML, which browsers draw themselves; MathJax would come from a network."""
    display = "block" if isinstance(node, math_block) else "inline"
    translator.body.append(latex2mathml.converter.convert(node.astext(), display=display))
    raise SkipNode


def find_public_name(sphinx: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element) -> Element | None:
    """Lead a reference to the face that offers it, wherever it is defined (``densing.scores.fit.fit_law``)."""
    if node.get("refdomain") != "py":
        return None
    name = node["reftarget"].rpartition(".")[2]
    known = env.domains.python_domain.objects
    for room in ("", ".timeline", ".profile", ".training", ".tradeoff"):
        if entry := known.get(f"densing{room}.{name}"):
            return make_refnode(sphinx.builder, node["refdoc"], entry.docname, entry.node_id, text)
    return None


def load_plotly_from_site(
    sphinx: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Let a notebook's figures read plotly.js from the site: plotly asks for it, and for MathJax, on the network."""
    if "plotly-graph-div" in context.get("body", ""):
        own = context["pathto"]("_static/plotly.min.js", resource=True)
        body = re.sub(r'<script type="module">import "https://cdn\.plot\.ly/[^<]*</script>', "", context["body"])
        body = re.sub(r'<script [^>]*src="https://cdn\.plot\.ly/[^>]*>', f'<script src="{own}">', body)
        context["body"] = re.sub(r'<script src="https://cdnjs\.cloudflare\.com/[^>]*></script>', "", body)


def write_plotly(sphinx: Sphinx) -> None:
    """Put the installed plotly's script among the site's files."""
    folder = Path(sphinx.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plotly.min.js").write_text(plotly.offline.get_plotlyjs(), encoding="utf-8")


def setup(sphinx: Sphinx) -> None:
    """Register what happens around a build."""
    sphinx.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    sphinx.connect("builder-inited", write_commands)
    sphinx.connect("builder-inited", write_plotly)
    sphinx.connect("missing-reference", find_public_name)
    sphinx.connect("html-page-context", load_plotly_from_site)

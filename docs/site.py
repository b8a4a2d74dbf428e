"""What ``make docs`` adds to the pages in docs/: README, CHANGELOG and the bundles' cards as they are, a page a stage,
and a page of docstrings a package (hooks of MkDocs; mkdocs.yml)."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from core.stages import OF_AN_AGENT, OF_POLICIES, STAGES, Stage

ROOT = Path(__file__).parents[1]
PACKAGES = ("core", "envs", "agents", "generative", "analysis", "validation")
GUIDES = {
    "Questions": (
        "study", "held-changes", "misgeneralisation", "edits", "causal-directions", "saliency-trial",
        "nmmo", "craftax", "semantics",
    ),
    "Methods": ("claims", "statistics", "fidelity", "simulator", "truth", "probes", "planted"),
    "Use": ("bring-your-own", "coming-from", "panel", "scale", "performance", "security", "dependencies", "glossary"),
}  # fmt: skip
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def copies() -> dict[str, str]:
    """{page of the site: file of the repository} of the pages that do not stand in docs/."""
    cards = {f"bundles/{p.parent.name}.md": str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("bundles/*/README.md"))}
    return {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", **cards}


def page_of_stage(name: str, stage: Stage) -> str:
    """The Markdown of a stage's page: what is typed, what it asks and how it can mislead, its own words, its flags."""
    door = stage.door.__name__
    table = (ROOT / "docs" / "stages.md").read_text().partition("| stage | asks |")[2]
    said = re.search(rf"^\| {re.escape(stage.does)} \| (.+) \| (.+) \| (.+) \|$", table, re.M)
    words = ("What it asks", "What its pictures show", "What can mislead")
    about = "" if said is None else "".join(f"**{w}.** {x}\n\n" for w, x in zip(words, said.groups(), strict=True))
    about = LINK.sub(r"\1[\2](../\3)", about)
    return (
        f"# {name}: {stage.does}\n\n`python {stage.command}`\n\n{about}"
        f"::: {door}\n    options: {{members: [], show_root_heading: false, show_root_toc_entry: false}}\n\n"
        f"::: {door}.{stage.config}\n    options: {{heading: Flags, toc_label: Flags}}\n"
    )


def page_of_package(package: str) -> str:
    """The Markdown of a package's page: its modules with their docstrings."""
    found = sorted(p.relative_to(ROOT) for p in (ROOT / package).rglob("*.py") if p.stem != "__main__")
    modules = [".".join(p.with_suffix("").parts).removesuffix(".__init__") for p in found]
    return f"# {package}\n\n" + "".join(f"::: {module}\n\n" for module in modules)


def on_config(config: Any) -> Any:
    def pages(group: dict[str, Stage]) -> list[dict[str, str]]:
        return [{name: f"stages/{name}.md"} for name in group]

    rest = {name: stage for name, stage in STAGES.items() if name not in {**OF_AN_AGENT, **OF_POLICIES}}
    config.nav = [
        {"Dreamlens": "index.md"},
        {"Stages": [
            {"All stages": "stages.md"}, {"An agent, its world and its simulator": pages(OF_AN_AGENT)},
            {"Neural MMO": pages(OF_POLICIES)}, {"More": pages(rest)},
        ]},
        *({title: [f"{name}.md" for name in names]} for title, names in GUIDES.items()),
        {"Bundles": [page for page in copies() if page.startswith("bundles/")]},
        {"Reference": [{package: f"reference/{package}.md"} for package in PACKAGES]},
        {"Project": ["contributing.md", "changelog.md"]},
    ]  # fmt: skip
    return config


def on_files(files: Files, config: Any) -> Files:
    made = {page: (ROOT / source).read_text() for page, source in copies().items()}
    made |= {f"stages/{name}.md": page_of_stage(name, stage) for name, stage in STAGES.items()}
    made |= {f"reference/{package}.md": page_of_package(package) for package in PACKAGES}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links between files of the repository become links between pages; what has no page keeps its name alone."""
    at = page.file.src_uri
    source = copies().get(at, f"docs/{at}")
    pages = {file: page for page, file in copies().items()}

    def link(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in target or target.startswith("mailto:"):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = pages.get(file, file.removeprefix("docs/") if file.startswith("docs/") else None)
        if file.endswith(".py") and file.split("/")[0] in PACKAGES:
            there, anchor = f"reference/{file.split('/')[0]}.md", file.removesuffix(".py").replace("/", ".")
        if there is None or files.get_file_from_path(there) is None:
            return words
        relative = posixpath.relpath(there, posixpath.dirname(at) or ".")
        return f"{picture}[{words}]({relative}{'#' + anchor if anchor else ''})"

    return markdown if at.startswith(("stages/", "reference/")) else LINK.sub(link, markdown)

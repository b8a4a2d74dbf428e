"""The site of ``make docs``: a page a stage, links that lead to pages, and nothing that is loaded from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from core.config import ROOT
from core.stages import STAGES

ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*src=["']?(?:https?:)?//|<link[^>]*href=["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site; a link that leads nowhere raises."""
    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out), strict=True)
        config.plugins.run_event("startup", command="build", dirty=False)
        build(config)
        config.plugins.run_event("shutdown")
    return out


@pytest.mark.slow
def test_every_stage_has_a_page_that_says_what_it_asks_and_its_flags(site: Path) -> None:
    for name, stage in STAGES.items():
        page = (site / "stages" / name / "index.html").read_text()
        assert stage.does in page and "Flags<" in page and f"python {stage.command}" in page
    saliency = (site / "stages" / "saliency" / "index.html").read_text()
    assert "What can mislead" in saliency and "sample_ids" in saliency and "../../saliency-trial/" in saliency


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for path in pages:
        assert ELSEWHERE.search(path.read_text()) is None, path
    for path in site.rglob("*.css"):
        assert re.search(r"url\(['\"]?(?:https?:)?//|@import ['\"]?http", path.read_text()) is None, path


@pytest.mark.slow
def test_links_of_the_repository_are_links_of_the_site(site: Path) -> None:
    first = (site / "index.html").read_text()
    assert 'href="stages/"' in first and 'href="bundles/nmmo-demo/"' in first and 'src="effects.png"' in first
    assert (site / "effects.png").exists() and (site / "reference" / "core" / "index.html").exists()

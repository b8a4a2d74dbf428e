"""The configuration of analysis.activations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from core import config as cli
from core.contracts import UserError


@dataclass(frozen=True, kw_only=True)
class ActivationsConfig:
    """Map and cluster activations, and ask what the clusters are about."""

    directory: tyro.conf.Positional[Path] = Path("runs/activations")
    """the extraction: run directory of analysis.extract_activations"""
    out: Path = Path("runs/clusters")
    """run directory to write"""
    point: str = "h"
    """which activations: h, what enters the decoder; or cell, embedding (the encoder's output), as far as
    analysis.extract_activations --points recorded them"""
    subsample: int = 10
    """keep every so many rows of a life, from its first on: neighbours are nearly the same"""
    fit_rows: int = 0
    """most rows that map and clusters are made from, evenly along all lives; the others are put on the finished map and
    into the finished clusters, and what that costs is measured; 0: all"""
    umap_neighbors: int = 15
    """neighbours of a row on the map (UMAP)"""
    min_dist: float = 0.1
    """least distance of rows on the map, 0 to 1 (UMAP): smaller packs them tighter"""
    hdbscan_min_cluster: int = 15
    """rows of the smallest cluster (HDBSCAN)"""
    hdbscan_min_samples: int = 0
    """how many nearest rows say how dense it is around a row (HDBSCAN): with fewer, less is in no cluster; 0: as many
    as --hdbscan_min_cluster"""
    cluster_before_umap: bool = False
    """cluster the principal components instead of the map, which then only shows the clusters"""
    pre_cluster_dims: int = 30
    """how many principal components those are, and the figures of components show"""
    metric_only: bool = False
    """only principal components and features: no map, no clusters"""
    umap_pairs: bool = True
    """make a map of more dimensions too and draw its pairs of dimensions; --no-umap-pairs saves its time"""
    umap_pairs_dims: int = 10
    """how many dimensions that map has"""
    feature_scatter: bool = True
    """draw every feature's rolling average (--rolling) against every other's"""
    moments: int = 8
    """moments of every cluster to list, of different lives, with links to where they can be seen"""
    dendrogram_explorer: bool = True
    """write the page on which HDBSCAN's tree can be cut anywhere"""
    first_tick: int = 0
    """leave out the rows of a life before this one: a memory that starts from nothing makes a cluster of its own"""
    rolling: int = 10
    """ticks over which the features on the map are averaged, within a life"""
    permutations: int = 999
    """permutations of labels behind every p-value: among whole worlds where there are 10 or more, else among lives"""
    resamples: int = 1000
    """bootstrap resamples behind the intervals of effect sizes: of worlds where there are 10 or more, else of lives"""
    smallest: float = 0.3
    """smallest effect of interest (Cohen's d): a cluster is called noise only if all its effects are surely below it"""
    refits: int = 20
    """clusterings of bootstrapped lives that say how stable the clusters are"""
    surrogates: int = 39
    """data without clusters, of each of two kinds, that are mapped and clustered alike: stable means beyond 95 % of
    them, which fewer than 39 cannot say; 0: none (on a map some seconds each)"""
    seed: int = 0
    """seed of map, bootstraps and permutations"""
    threads: int = 2
    """CPU threads; the map uses one, or its seed would not repeat it"""
    overwrite: bool = False
    """replace an earlier run in --out"""

    @property
    def samples_share(self) -> float:
        """--hdbscan_min_samples in smallest clusters (``analysis.shared.clusters.labeller``)."""
        return self.hdbscan_min_samples / self.hdbscan_min_cluster or 1.0


def check(config: ActivationsConfig) -> None:
    """UserError for settings that mean nothing."""
    cli.require(1, subsample=config.subsample, rolling=config.rolling, permutations=config.permutations)
    cli.require(
        2, umap_neighbors=config.umap_neighbors, pre_cluster_dims=config.pre_cluster_dims, resamples=config.resamples
    )
    cli.require(1, refits=config.refits, moments=config.moments)
    cli.require(5, hdbscan_min_cluster=config.hdbscan_min_cluster)
    cli.require(0, first_tick=config.first_tick, surrogates=config.surrogates, fit_rows=config.fit_rows)
    cli.require(0, hdbscan_min_samples=config.hdbscan_min_samples)
    cli.require(2, umap_pairs_dims=config.umap_pairs_dims)
    if not config.smallest > 0:
        raise UserError(f"--smallest must be above 0, not {config.smallest:g}")
    if not 0 <= config.min_dist <= 1:
        raise UserError(f"--min_dist must lie between 0 and 1, not {config.min_dist:g}")

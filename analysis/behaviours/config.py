"""How analysis.behaviours makes vectors of steps, and clusters of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analysis.shared.clusters import Method
from analysis.shared.maps import Embedding
from core.contracts import UserError


@dataclass(frozen=True, kw_only=True)
class BehaviourOptions:
    """How steps become vectors and vectors become clusters."""

    lags: tuple[int, ...] = (2, 4, 6)
    """steps ahead whose change is part of the vector; the last of them are cut from every episode"""
    world_size: int = 16
    """principal components of the world state (with --simulator)"""
    pca_size: int = 64
    """principal components of the vectors that are clustered"""
    embedding: Embedding = "pca"
    """pca clusters those directly: fast, and distances stay what they were; umap and tsne embed them in 3-D first"""
    method: Method = "k_means"
    """k_means; ward (a tree of 4,000 steps, every step then in the nearest of its clusters); hdbscan (in the
    embedding's 3-D, as density means little in 64: best with umap; finds how many there are, and leaves noise)"""
    clusters: int = 32
    """number of behaviours (k_means, ward)"""
    min_cluster_size: int = 0
    """steps of the smallest behaviour (hdbscan), of all that --fit_on names; 0: 1 % of them"""
    surrogates: int = 39
    """data without clusters, of each of two kinds, that are clustered alike: stable means beyond 95 % of them, which
    fewer than 39 cannot say; 0: none (umap and tsne embed each of them: seconds to minutes)"""
    first_step: int = 1
    """earlier steps are left out: step 0 is all initial state"""
    fit_on: Literal["all", "real"] = "all"
    """the steps that map and clusters are made from: all, real and simulated (with --samples) together; real ones
    alone, into whose behaviours the simulated are put, so that none depends on a simulator's samples"""
    fit_rows: int = 200_000
    """at most about so many steps of either source, of whole episodes drawn at random, that map and clusters are made
    from and described by; those of other episodes are put on the finished map and into the finished clusters, and what
    that costs is measured; 0: all.  With --simulator a step takes four bytes a number of its world state, thrice"""
    most_states: int = 0
    """at most about so many steps of either source that are read at all, of whole episodes drawn at random; those of
    other episodes are in no behaviour; 0: all"""
    filmstrips: int = 4
    """central samples in the filmstrip of every behaviour, each from another episode"""
    videos: int = 9
    """central samples in the video of every behaviour"""
    video_steps: int = 16
    """steps in that video, from each sample's central step on"""


def check(options: BehaviourOptions) -> None:
    """UserError for settings that mean nothing."""
    if not options.lags or min(options.lags) < 1:
        raise UserError(f"--lags {' '.join(map(str, options.lags))}: at least one lag, and none below 1")
    for name, least in (
        ("world_size", 1), ("pca_size", 1), ("first_step", 0), ("filmstrips", 0), ("videos", 0), ("video_steps", 2),
        ("min_cluster_size", 0), ("surrogates", 0), ("fit_rows", 0), ("most_states", 0),
    ):  # fmt: skip
        if getattr(options, name) < least:
            raise UserError(f"--{name} {getattr(options, name)}: at least {least}")

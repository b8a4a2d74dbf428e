"""Directions of a state space: an affine basis with chain rule and a way back.

``h = mean + std * (c @ lift_KH)`` and ``c = ((h - mean) / std) @ project_HK``.  Fitting is
analysis.shared.directions' work; this is what recorder, simulator and interventions share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core.artefacts import (
    files_of,
    fingerprint_of,
    load_json,
    load_tensors,
    read_manifest,
    write_atomically,
    write_json,
)
from core.config import nearest
from core.contracts import UserError
from core.roll import Simulator

NAME = r"(?:((?:d_)?[a-z]+)[:_])?(-?[0-9]+)"  # ica:5; also ica_5, direction_5 and 5, as earlier versions wrote it
LABEL = r"[A-Za-z]\w*(?:\(\w+\))?"  # of a direction that is known by more than a number: health, sin(coin_bearing)


FAR = 100.0  # recorded standard deviations of a coordinate, beyond which a change is warned of
FAR_OUTSIDE = "far_outside"  # fact of a manifest, see ``far_outside``


def name_of(kind: str, i: int, space: str = "h") -> str:
    """A direction's name as it is printed, written into tables and asked for: ``ica:5``; of a world's states
    ``d_ica:5``."""
    return f"{kind}:{i}" if space == "h" else f"{space}_{kind}:{i}"


def direction_of(word: str, kind: str) -> tuple[str, int] | None:
    """(kind of basis, id) of a direction's name, ``ica:5``; None if it is none.  Understood too: ``ica_5``, and, of the
    basis ``kind``, ``direction_5`` and ``5``."""
    found = re.fullmatch(NAME, word)
    return found and (kind if found[1] in (None, "direction") else found[1], int(found[2]))


def require_room(basis: Basis, shifts: Mapping[int, float], where: str) -> None:
    """UserError for an amount that no number of the hidden state can hold."""
    for i, by in shifts.items():
        if not basis.lift_change(torch.eye(basis.size)[i].to(basis.lift_KH) * by).isfinite().all():
            raise UserError(f"{where} {name_of(basis.kind, i)}={by:g} is more than the hidden state can hold")


def far_outside(changes: Mapping[str, Sequence[float]]) -> str | None:
    """A sentence on changes {in words: amounts, in recorded standard deviations of coordinates} that lead further than
    FAR away; None: there is none."""
    far = {words: by for words, each in changes.items() if (by := max(map(abs, each), default=0.0)) > FAR}
    if not far:
        return None
    words, by = max(far.items(), key=lambda one: one[1])
    more = f" (the furthest of {len(far)} such changes)" if len(far) > 1 else ""
    return (
        f"'{words}'{more} moves the hidden state by {by:.3g} recorded standard deviations of a direction, more "
        f"than {FAR:g}, so far from the recorded states: what follows need not hold of any state that the "
        "agent comes into."
    )


def direction_ids(words: Sequence[str], of: str | Basis, what: str) -> list[int]:
    """The ids of directions of one basis, by their names (``direction_of``).  of: the basis, whose directions may have
    labels too (``Basis.labels``: ``probe:drink``), or its kind alone; what: names the words in a UserError."""
    kind = of if isinstance(of, str) else of.kind
    ids = []
    for word in words:
        known = word if isinstance(of, str) else of.numbered(word, what)
        if (found := direction_of(known, kind)) is None:
            labels = [] if isinstance(of, str) else [f"{kind}:{label}" for label in of.labels]
            hint = f"; did you mean {kind}:{word}?" if f"{kind}:{word}" in labels else nearest(word, labels)
            raise UserError(f"{what}: {word!r} is no direction: neither a name such as {name_of(kind, 5)} nor a "
                            f"number{hint}")  # fmt: skip
        if found[0] != kind:
            raise UserError(f"{what}: {word!r} is of another basis than {kind}; choose it with --basis_kind {found[0]}")
        ids.append(found[1])
    return ids


def fingerprint(of: Any) -> str:
    """16 hex digits that name a set of weights, and the users' modules that they are of: of an agent (or another
    module), or of a simulator's world and agent together.  Two with the same weights and modules are the same."""
    if isinstance(of, Simulator):
        agent: Any = of.agent
        world = of.world
        tensors = {**{f"agent.{k}": v for k, v in agent.state_dict().items()}, **world.state_dict()}
        return fingerprint_of(tensors, agent=_source_of(agent), world=_source_of(world))
    return fingerprint_of(of.state_dict(), agent=_source_of(of))


def _source_of(module: Any) -> str:
    """SHA-256 of the user's module that a part was adopted from; '' of our own."""
    return str(getattr(module, "source_sha256", ""))


@dataclass(frozen=True)
class Basis:
    """K directions of an H-dimensional state.

    ``project(lift(c)) == c``, but for a neuron that never changed, whose coordinate is always 0;
    ``lift(project(h))`` is h where K == H and its projection otherwise.
    """

    kind: str  # pca, ica, nmf, random, neurons ...
    mean_H: Tensor
    std_H: Tensor
    project_HK: Tensor
    lift_KH: Tensor
    agent: str = ""  # fingerprint of the agent (spaces d and z: of the simulator) whose states were fitted
    space: str = "h"  # h (agent), d (world) or z (latent)
    facts: dict[str, Any] = field(default_factory=dict)  # explained variance, stability ...

    @property
    def size(self) -> int:
        """K, the number of directions."""
        return int(self.project_HK.shape[1])

    @property
    def names(self) -> list[str]:
        """Of every direction, ``ica:0``, ``ica:1`` ..."""
        return [name_of(self.kind, i, self.space) for i in range(self.size)]

    @property
    def labels(self) -> dict[str, str]:
        """{label: name} of directions that are known by more than a number: of probes by what they read."""
        return {label: name for name, label in self.facts.get("targets", {}).items()}

    def called(self, name: str) -> str:
        """A direction's name with its label, where it has one: ``probe:19`` -> ``probe:drink``."""
        label = self.facts.get("targets", {}).get(name)
        return name if label is None else f"{self.kind}:{label}"

    def numbered(self, text: str, what: str) -> str:
        """A text in which labels stand for directions (``probe:drink``), with their numbers (``probe:6``).  UserError,
        where the basis has labels, for one that it lacks; what: names the text in it."""
        if not self.labels:
            return text

        def number(found: re.Match[str]) -> str:
            if found[1] == "all":
                return found[0]
            if found[1] not in self.labels:
                hint = nearest(found[1], self.labels)
                raise UserError(f"{what}: the {self.kind} basis has no direction {found[0]}{hint}; it has: "
                                f"{', '.join(self.labels)}")  # fmt: skip
            return self.labels[found[1]]

        return re.sub(rf"\b{self.kind}:({LABEL})", number, text)

    @contextmanager
    def wording(self) -> Iterator[None]:
        """A UserError that is raised within calls directions by their labels, as ``worded``."""
        try:
            yield
        except UserError as error:
            raise UserError(self.worded(str(error))) from None

    def worded(self, said: Any) -> Any:
        """A text, or lists and dicts of such, in which directions with labels are called by these, as
        ``numbered`` reads them (labels that are words, or a word of a word)."""
        if isinstance(said, str):
            return re.sub(rf"\b{self.kind}:[0-9]+\b", lambda found: self.called(found[0]), said)
        if isinstance(said, dict):
            return {self.worded(k): self.worded(v) for k, v in said.items()}
        return [self.worded(v) for v in said] if isinstance(said, list) else said

    def project(self, h: Tensor) -> Tensor:
        """States [..., H] -> coordinates [..., K]."""
        return ((h - self.mean_H) / self.std_H) @ self.project_HK

    def lift(self, c: Tensor) -> Tensor:
        """Coordinates [..., K] -> states [..., H]."""
        return self.mean_H + self.lift_change(c)

    def lift_change(self, change: Tensor) -> Tensor:
        """A change of coordinates [..., K] -> the change of state [..., H] that it is."""
        return self.std_H * (change @ self.lift_KH)

    def pullback(self, grad: Tensor) -> Tensor:
        """Gradient with respect to h [..., H] -> with respect to c [..., K] (chain rule through ``lift``)."""
        return (grad * self.std_H) @ self.lift_KH.T

    def check(self, ids: Sequence[int]) -> None:
        """UserError unless every direction id exists and moves something (a neuron that never changed does not)."""
        for i in ids:
            name = name_of(self.kind, i, self.space)
            if not 0 <= i < self.size:
                raise UserError(f"direction {name} does not exist: the {self.kind} basis has 0 to {self.size - 1}")
            if not self.lift_KH[i].any():
                raise UserError(
                    f"direction {name} never changed in the states that the basis was fitted on; choose another"
                )

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Basis:
        tensors: dict[str, Any] = {n: getattr(self, n).to(device=device, dtype=dtype) for n in _TENSORS}
        return replace(self, **tensors)

    def save(self, path: Path) -> None:
        """Write ``basis_KIND.safetensors`` and ``.json`` into the run directory ``path``."""
        from safetensors.torch import save

        name = f"basis_{self.kind}"
        tensors = {n: getattr(self, n).contiguous().clone() for n in _TENSORS}
        write_atomically(path / f"{name}.safetensors", save(tensors))
        about = {"kind": self.kind, "agent": self.agent, "space": self.space, "facts": self.facts}
        write_json(path / f"{name}.json", about)


_TENSORS = ("mean_H", "std_H", "project_HK", "lift_KH")


def bases_of(path: Path) -> list[str]:
    """The kinds of the bases in a run directory.  Raises UserError."""
    return [Path(name).stem.removeprefix("basis_") for name in files_of(path, "basis_*.safetensors")]


def load_basis(path: Path, kind: str, agent: str | None = None) -> Basis:
    """The basis ``kind`` of a run directory.

    agent: fingerprint of the agent (spaces d and z: simulator) it must have been fitted on (None: any).
    Raises UserError.
    """
    have = bases_of(path)
    if not have:
        wrote = read_manifest(path)["stage"]
        raise UserError(f"{path} holds no directions, so no {kind!r} basis (stage {wrote!r} wrote it); "
                        "python -m analysis.hidden_states fits some")  # fmt: skip
    if kind not in have:
        raise UserError(f"{path} has no {kind!r} basis{nearest(kind, have)}; it has: {', '.join(have) or 'none'}")
    about = load_json(path, f"basis_{kind}.json")
    if agent is not None and about["agent"] != agent:
        owner = "agent" if about["space"] == "h" else "simulator"
        raise UserError(f"{path}: the {kind} basis was fitted on {owner} {about['agent']}, not on {agent}")
    tensors: dict[str, Any] = load_tensors(path, f"basis_{kind}.safetensors")
    try:
        basis = Basis(**about, **tensors)
    except TypeError as error:
        raise UserError(f"{path}: broken {kind} basis ({error}); make it again") from None
    if not all(torch.isfinite(getattr(basis, n)).all() for n in _TENSORS):
        raise UserError(f"{path}: the {kind} basis has NaN or infinite values; make it again")
    return basis

"""Users' modules: one .py file each, known by its SHA-256, run only where its user agreed to exactly these bytes.

Agreement is given by content and on one machine: ``agree`` keeps a copy of the file in a folder of this user, named
by its hash, and ``Source.run`` runs nothing that is not there.  So a run directory that came from elsewhere, with a
copy of a module in it, runs no code until its user agrees to that hash (``python -m agents.adopt FILE --trust HASH``).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from core.artefacts import load_bytes, write_atomically
from core.config import ROOT
from core.contracts import EnvSpec, UserError
from core.files import read_bytes


def made(module: ModuleType, what: str, source: Source, spec: EnvSpec, parts: Sequence[str]) -> Any:
    """What a user's ``make_agent`` or ``make_world`` (``what``: agent, world) makes for a world, a torch module in eval
    mode, frozen.  source: of the module, by which the net is known, too (``core.directions.fingerprint``).  UserError
    where it fails, or makes something without one of these parts."""
    try:
        net = getattr(module, f"make_{what}")(spec)
    except Exception as error:  # whatever a user's code raises
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"make_{what} of {source.file} fails in {spec.env_id}: {said}") from error
    if not isinstance(net, torch.nn.Module):
        raise UserError(f"make_{what} of {source.file} gives a {type(net).__name__}, not a torch.nn.Module")
    if any(map(is_lazy, (*net.parameters(), *net.buffers()))):
        raise UserError(f"the {what} of {source.file} has lazy layers (nn.LazyLinear), whose sizes nothing says before "
                        "they are used; write layers of known sizes")  # fmt: skip
    if missing := [name for name in parts if not hasattr(net, name)]:
        raise UserError(f"the {what} of {source.file} has no {' and no '.join(missing)}; see docs/bring-your-own.md")
    net.spec, net.source_sha256 = spec, source.sha256  # type: ignore[assignment]
    return net.eval().requires_grad_(False)


def agreed_folder() -> Path:
    """Where this user's copies of modules lie: ``$XDG_DATA_HOME/dreamlens/modules``, else under ``~/.local/share``."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "dreamlens" / "modules"


@dataclass(frozen=True)
class Source:
    """The text of a user's module; ``name`` is its file's, without ``.py``."""

    name: str
    text: bytes
    file: str  # for messages and tracebacks

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the text."""
        return hashlib.sha256(self.text).hexdigest()

    def run(self, needs: Sequence[str] = ()) -> ModuleType:
        """Run it, exactly these bytes (no cached bytecode, none left beside the file).

        needs: names that the module must have, each callable.  UserError if nobody agreed to it on this machine, if it
        raises, or if a name is missing.
        """
        agreed(self)
        unique = f"_plugin_{self.name}_{self.sha256[:16]}"
        spec = importlib.util.spec_from_file_location(unique, self.file)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module  # dataclasses look their module up there
        try:
            exec(compile(self.text, self.file, "exec"), module.__dict__)
        except (Exception, SystemExit) as error:
            del sys.modules[unique]
            raise UserError(f"the module {self.file} cannot be loaded: {type(error).__name__}: {error}") from error
        for name in needs:
            if not callable(getattr(module, name, None)):
                raise UserError(f"the module {self.file} has no function {name}; see docs/bring-your-own.md")
        return module

    def agree(self) -> None:
        """The user of this machine agreed to run this text: keep a copy of it, named by its hash."""
        folder = agreed_folder()
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{self.sha256}.py", self.text)


def _ships(source: Source) -> bool:
    """Whether it is docs/forager.py, of which a bundled policy is made: as good as the rest of the checkout's code."""
    return source.text == (ROOT / "docs" / "forager.py").read_bytes()


def agreed(source: Source) -> None:
    """UserError unless the user of this machine agreed to run this text, or it ships with the checkout."""
    if not (agreed_folder() / f"{source.sha256}.py").exists() and not _ships(source):
        raise UserError(
            f"{source.file} is code that nobody agreed to run on this machine; read it, then agree to its SHA-256: "
            f"python -m agents.adopt {source.file} --trust {source.sha256}"
        )


def read_source(path: Path) -> Source:
    """A user's file; UserError if it is not a readable .py file."""
    path = Path(path)
    if path.suffix != ".py":
        raise UserError(f"{path} is not a .py file")
    return Source(path.stem, read_bytes(path, "module"), str(path))


def copied_source(run: Path, file: str, name: str, sha256: str) -> Source:
    """The copy of a module in a whole run directory; UserError unless it is the one of this hash."""
    source = Source(name, load_bytes(run, file), str(Path(run) / file))
    if source.sha256 != sha256:
        raise UserError(f"{source.file} is not the module that its description names; copy or adopt it again")
    return source


def agreed_source(name: str, sha256: str) -> Source:
    """A module that the user of this machine agreed to, by its hash alone.  Raises UserError."""
    path = agreed_folder() / f"{sha256}.py"
    if not path.exists():
        raise UserError(
            f"nobody agreed to run {name}.py of SHA-256 {sha256} on this machine; read it (an adopted agent's run "
            f"directory has a copy, world_module.py), then agree: python -m agents.adopt FILE --trust {sha256}"
        )
    source = Source(name, read_bytes(path, "module"), str(path))
    if source.sha256 != sha256:
        raise UserError(f"{path} is not the module that its name says; agree to it again")
    return source

"""What the contracts promised in another revision: read from git, in a process of its own.

Two versions of one package cannot live in one process. So the revision's files are unpacked into a temporary directory,
a fresh interpreter looks there first, and hands back the snapshot. The working tree and `.git` are only read.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from spectral.core.contracts.contract import ContractError
from spectral.core.contracts.schema import parse_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.contracts.schema import Snapshot

_PATIENCE: Final = 120.0

# Modules of today must not be found where the revision has none: their directories are taken from the path.
_READER: Final = """
import json, os, sys
order = json.load(sys.stdin)
sys.path[:] = order["before"] + [each for each in sys.path if os.path.realpath(each) not in order["without"]]
from spectral.core.contracts import ContractError, discover, render_snapshot, snapshot
try:
    text = render_snapshot(snapshot(discover(order["packages"])))
except ContractError as error:
    sys.exit(str(error))
with open(order["output"], "w", encoding="utf-8") as file:
    file.write(text)
"""


@dataclass(frozen=True, slots=True)
class _Repository:
    git: str
    root: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(  # noqa: S603  arguments are ours, or verified to be a revision
            [self.git, "-C", str(self.root), *arguments], capture_output=True, check=False, timeout=_PATIENCE
        )


@dataclass(frozen=True, slots=True)
class _Unpacked:
    """A commit, and the directory that its files go to."""

    repository: _Repository
    commit: str
    there: Path


def snapshot_at(revision: str, packages: Sequence[str], *, allow_new: bool = False) -> Snapshot:
    """What these packages promised in a revision of the git repository they are in.

    Args:
        revision: as git names it.
        packages: the contexts.
        allow_new: whether a package that has no contracts there promised nothing; else it was moved, or misspelt.

    Raises:
        ContractError: there is no such revision, its contracts cannot be read, or it has none of a package.
    """
    found: Snapshot = {}
    for repository, homes in _repositories(packages):
        commit = _commit(repository, revision)
        with TemporaryDirectory(prefix="spectral-contracts-") as directory:
            found |= _read(_Unpacked(repository, commit, Path(directory).resolve()), homes, allow_new=allow_new)
    return found


def is_revision(name: str, packages: Sequence[str]) -> bool:
    """Whether the repositories that the packages are in have a revision of this name."""
    try:
        return all(_commit(repository, name) for repository, _ in _repositories(packages))
    except ContractError:
        return False


def _repositories(packages: Sequence[str]) -> list[tuple[_Repository, dict[str, Path]]]:
    """Each repository, and the packages in it with their directories."""
    found: dict[Path, dict[str, Path]] = {}
    for package in packages:
        home = _home(package)
        found.setdefault(_root(package, home), {})[package] = home
    return [(_Repository(_git(), root), homes) for root, homes in found.items()]


def _git() -> str:
    found = shutil.which("git")
    if found is None:
        raise ContractError("git is not installed; compare with a snapshot file instead of a revision")
    return found


def _home(package: str) -> Path:
    """The directory of the package's modules."""
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise ContractError(f"{package} is no package; check the spelling")
    return Path(places[0]).resolve()


def _root(package: str, home: Path) -> Path:
    """The repository that the package is in."""
    inside = _Repository(_git(), home).run("rev-parse", "--show-toplevel")
    if inside.returncode != 0 or "site-packages" in home.parts:
        raise ContractError(
            f"{package} is installed from {home}, which is in no git repository; compare with a snapshot file, "
            "written by: spectral catalog snapshot --output contracts.json"
        )
    return Path(inside.stdout.decode().strip()).resolve()


def _commit(repository: _Repository, revision: str) -> str:
    found = repository.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if found.returncode != 0:
        raise ContractError(
            f"{revision!r} is neither a snapshot file nor a revision in {repository.root}; a shallow clone has few "
            "of them: git fetch --unshallow origin"
        )
    return found.stdout.decode().strip()


def _read(unpacked: _Unpacked, homes: dict[str, Path], *, allow_new: bool) -> Snapshot:
    repository, commit, there = unpacked.repository, unpacked.commit, unpacked.there
    paths = {Path(each).resolve() for each in sys.path if each}
    paths |= {home.parents[package.count(".")] for package, home in homes.items()}
    ours = sorted(each for each in paths if each.is_relative_to(repository.root) and "site-packages" not in each.parts)
    roots = [each.relative_to(repository.root).as_posix() for each in ours]
    _unpack(repository, commit, roots, there)
    present = [
        package
        for package, home in homes.items()
        if (there / home.relative_to(repository.root) / "contracts" / "events").is_dir()
    ]
    _refuse_new([each for each in homes if each not in present], commit, allow_new=allow_new)
    if not present:
        return {}
    output = there / ".snapshot.json"
    order: dict[str, object] = {
        "before": [str(there / each) for each in roots if (there / each).is_dir()],
        "without": [str(each) for each in ours],
        "packages": present,
        "output": str(output),
    }
    _run_reader(order, there, commit)
    return parse_snapshot(output.read_text(encoding="utf-8"), source=commit)


def _refuse_new(absent: list[str], commit: str, *, allow_new: bool) -> None:
    """A package that was moved looks like a new one: everything that it promised would be forgotten."""
    if absent and not allow_new:
        raise ContractError(
            f"{commit[:12]} has no contracts of {', '.join(absent)}; if the package is new: --allow-new-package"
        )


def _unpack(repository: _Repository, commit: str, roots: list[str], there: Path) -> None:
    """The revision's files below the directories that modules are imported from."""
    known = [
        each for each in roots if each == "." or repository.run("cat-file", "-e", f"{commit}:{each}").returncode == 0
    ]
    if not known:
        return
    packed = repository.run("archive", "--format=tar", commit, "--", *known)
    if packed.returncode != 0:
        raise ContractError(f"git cannot read {commit[:12]}: {packed.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(there, filter="data")


def _run_reader(order: dict[str, object], there: Path, commit: str) -> None:
    ran = subprocess.run(  # noqa: S603  the interpreter that runs us, and a script of ours
        [sys.executable, "-P", "-c", _READER],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        cwd=there,
        check=False,
        timeout=_PATIENCE,
    )
    if ran.returncode != 0:
        last = ran.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
        raise ContractError(f"the contracts of {commit[:12]} cannot be read: {last[0]}")

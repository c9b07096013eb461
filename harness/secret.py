"""What a run's hidden cases are made from: a secret of its own, or an organiser's file, whose hash is public before."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import SeedError
from harness.problem import Problem
from harness.record import Layer, Record, Secret

MIN_BYTES, MAX_BYTES = 16, 64 << 10
"""Fewer could be guessed from the published hash; more are some other file, named by mistake."""
_OTHERS = stat.S_IRGRP | stat.S_IROTH


@dataclass(frozen=True)
class SeedFile:
    """An organiser's secret, read once, by the referee."""

    content: bytes = field(repr=False)
    mode: int | None = None
    """Permission bits of a file on the disk; None for a pipe, which nobody can read again."""

    @property
    def commitment(self) -> str:
        """The file's SHA-256, as `sha256sum` tells it: publish this first, and the file when all is over."""
        return hashlib.sha256(self.content).hexdigest()

    def master(self, problem_hash: str) -> bytes:
        """32 bytes that the hidden cases on this version of a problem are made from, in every run with this file.

        HKDF-Extract of RFC 5869, the file being its key material. It must not be the key of an HMAC: that takes the
        SHA-256 of a key of more than 64 bytes in its place, which is what everybody has been told.
        """
        return hmac.digest(b"podium hidden cases", problem_hash.encode() + b"\0" + self.content, "sha256")

    def exposure(self, isolation: Sequence[Layer]) -> tuple[str, ...]:
        """How a submission that was kept apart by these layers could have read it; nothing where it could not."""
        applied = {layer.name for layer in isolation if layer.applied}
        if not applied & {"own user", "namespaces", "Landlock"}:
            return (
                "the submission could look into Podium's own memory, and at the seed in it: `podium doctor` lists the "
                "missing layers",
            )
        if self.mode is None:
            return ()
        if "own user" not in applied:
            return (
                "the submission ran as a user who may read the seed file, and could have looked into it: start Podium "
                "as root, or give the file by a pipe from elsewhere",
            )
        if self.mode & _OTHERS:
            return (f"others may read the seed file (mode {self.mode:04o}), and so could the submission: chmod 600 it",)
        return ()


@dataclass(frozen=True)
class Source:
    """What the hidden cases of one run are made from, and nothing else of it."""

    master: bytes = field(repr=False)
    seed_file: SeedFile | None = None
    replay_of: str | None = None
    """Id of the record that had the same cases."""

    @property
    def told(self) -> Secret:
        """What a record may keep of it, now that the run is over."""
        return Secret(commitment=self.seed_file.commitment) if self.seed_file else Secret(master=self.master.hex())

    def notes(self, isolation: Sequence[Layer]) -> tuple[str, ...]:
        """Remarks on how hidden the cases were."""
        notes = self.seed_file.exposure(isolation) if self.seed_file else ()
        if self.replay_of is None:
            return notes
        return (*notes, f"the hidden cases of record {self.replay_of} once more: shown, not recorded, never ranked")


def own_source() -> Source:
    """A secret that no other run has."""
    return Source(secrets.token_bytes(32))


def source_of(problem: Problem, device: str, seed_file: SeedFile | None, replayed: Record | None = None) -> Source:
    """An organiser's source, or a record's (with its seed file, if it had one), for a run on this problem and device.

    SeedError where a seed file would hide nothing, or where the record's hidden cases cannot be had again.
    """
    if seed_file is not None and not any("seed" in case.spec for case in problem.cases_on(device)[1]):
        raise SeedError(f"the cases of {problem.name} have no seed, so a seed file would hide nothing; leave it out")
    if replayed is not None:
        _check_same_cases(replayed, problem, device)
        _check_same_secret(replayed, seed_file)
    replay_of = replayed.id if replayed else None
    if seed_file is not None:
        return Source(seed_file.master(problem.content_hash), seed_file, replay_of)
    kept = replayed.secret.master if replayed and replayed.secret else None
    return Source(bytes.fromhex(kept), None, replay_of) if kept else own_source()


def _check_same_cases(record: Record, problem: Problem, device: str) -> None:
    if record.problem.name != problem.name:
        raise SeedError(f"record {record.id} is of {record.problem.name}, not {problem.name}: name that one with -p")
    if record.problem.content_hash != problem.content_hash:
        raise SeedError(f"record {record.id} is of another version of {problem.name}, whose hidden cases are not these")
    if (record.device.kind == "cpu") != (device == "cpu"):
        kind = "a CPU" if record.device.kind == "cpu" else "a GPU"
        raise SeedError(f"record {record.id} ran the cases for {kind}: choose one with --device")


def _check_same_secret(record: Record, seed_file: SeedFile | None) -> None:
    secret = record.secret
    if secret is None:
        raise SeedError(f"record {record.id} has no secret: it hid no cases, or is from before secrets were kept")
    if secret.commitment is None:
        if seed_file is not None:
            raise SeedError(f"the hidden cases of record {record.id} are of no seed file: leave --seed-file out")
        return
    known = f"SHA-256 {secret.commitment[:16]}…"
    if seed_file is None:
        raise SeedError(f"the hidden cases of record {record.id} are of a seed file ({known}): give it by --seed-file")
    if seed_file.commitment != secret.commitment:
        raise SeedError(f"the hidden cases of record {record.id} are of another seed file ({known})")


def read_seed_file(path: Path) -> SeedFile:
    """The file's bytes, whatever they are; SeedError when they cannot be read, or are too few or too many."""
    try:
        if path.is_dir():
            raise SeedError(f"{path} is a folder; name a file in it, as `podium seed FILE` makes one")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_BYTES + 1)  # no more: it may be a device without an end
    except FileNotFoundError:
        raise SeedError(f"{path} does not exist; `podium seed {path}` makes one") from None
    except OSError as error:
        raise SeedError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) < MIN_BYTES:
        size = f"has {len(content)} bytes, which could be guessed" if content else "is empty"
        raise SeedError(f"{path} {size}; a seed file has {MIN_BYTES} or more, and `podium seed FILE` makes a good one")
    if len(content) > MAX_BYTES:
        raise SeedError(f"{path} has more than {MAX_BYTES} bytes; is it a seed file? `podium seed FILE` makes one")
    return SeedFile(content, stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else None)


def make_seed_file(path: Path) -> SeedFile:
    """Write 32 random bytes, as hex, to a file that must not exist yet and that only its owner may read."""
    content = f"{secrets.token_hex(32)}\n".encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # its hash is about to be published
        except BaseException:
            path.unlink(missing_ok=True)  # half of a secret is none
            raise
    except FileExistsError:
        raise SeedError(
            f"{path} exists already and is left as it is; `podium seed {path} --commit` prints its hash"
        ) from None
    except OSError as error:
        raise SeedError(f"{path} cannot be written: {error.strerror}") from None
    return SeedFile(content, 0o600)

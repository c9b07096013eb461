"""What stands between a contestant and the rest of the machine: how it is started, and what was applied.

A session of its own, an environment built from nothing, a scratch folder, a watch on its memory; and what the sandbox
(processes.sandbox) takes away before the contestant's program begins: another user's powers, namespaces, the file
system, the network, resource limits. Every layer is best effort and reported.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.processes import landlock, sandbox
from harness.record import Layer

Isolation = Literal["auto", "strict", "none"]
"""Every layer that this machine gives; all of them or no run; no sandbox."""

PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "ROCM_HOME",
    "HIP_PATH",
    "CC",
    "CXX",
    "TRITON_PTXAS_PATH",
    "TRITON_LIBCUDA_PATH",
    "TORCH_CUDA_ARCH_LIST",
    "PYTORCH_ROCM_ARCH",
    "HSA_OVERRIDE_GFX_VERSION",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
)
"""Variables of the referee's environment that toolchains need; everything else stays behind."""

KEPT_CACHES = 100
"""Submissions whose compiled kernels are kept."""
MAX_FILE_BYTES = 4 << 30
MAX_OPEN_FILES = 4096


@dataclass(frozen=True)
class Limits:
    """What a contestant may use. Seconds per stage; bytes of resident memory on the host."""

    load_s: float = 120.0
    compile_s: float = 300.0
    call_s: float = 60.0
    memory_bytes: int = 0
    """0: six tenths of the machine's memory."""
    isolation: Isolation = "auto"

    def caches(self, folder: Path) -> Path | None:
        """The folder of compile caches, where another user is to write it; None without a sandbox."""
        return None if self.isolation == "none" else folder

    @property
    def host_memory_bytes(self) -> int:
        """The limit in force."""
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return self.memory_bytes or machine * 6 // 10


def environment(device: str, scratch: Path, caches: Path, kernels: Path) -> dict[str, str]:
    """A child's environment, built from nothing: toolchain variables, the device, and where it may write.

    Compiled kernels come from `kernels`, until a process that may write `caches` has what it needs of the harness.
    """
    built = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    built |= {
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "XDG_CACHE_HOME": str(caches),
        "TRITON_CACHE_DIR": str(kernels / "triton"),
        "TORCH_EXTENSIONS_DIR": str(caches / "torch_extensions"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # more are processes that want semaphores outside of the sandbox
        "CUDA_CACHE_PATH": str(kernels / "cuda"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "USER": "contestant",
    }
    return built | visible_devices(device)


def visible_devices(device: str) -> dict[str, str]:
    """Which GPU a child sees: none for `cpu`, the only or the N-th visible one for `cuda` or `cuda:N`."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    if device == "cpu":
        return dict.fromkeys(names[:2], "") | {"TRITON_INTERPRET": "1"}
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    index = int(device.partition(":")[2] or 0)
    for name in names[:2]:
        if name in inherited:
            visible = [item for item in inherited[name].split(",") if item.strip()]
            if index < len(visible):
                return inherited | {name: visible[index]}
    return inherited | {"CUDA_VISIBLE_DEVICES": str(index)}


def launch(
    module: str,
    arguments: Sequence[str],
    *,
    descriptors: Sequence[int],
    variables: Mapping[str, str],
    folder: Path,
    settings: sandbox.Settings | None = None,
) -> subprocess.Popen[bytes]:
    """Start `python -m module` in a session of its own; its prints go to one pipe, its errors to the same.

    Only the named descriptors are inherited. With settings, by way of the sandbox.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, variables.get("PYTHONPATH")]))
    program = [sys.executable, "-m", module, *arguments]
    if settings is not None:
        program = [sys.executable, "-S", "-m", "harness.processes.sandbox", settings.to_json(), *program]
    return subprocess.Popen(
        program,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(descriptors),
        env={**variables, "PYTHONPATH": path},
        cwd=folder,
        start_new_session=True,
    )


# --- the sandbox ---------------------------------------------------------------------------------------------

_LIMITS = (
    ("no core dump", "RLIMIT_CORE", 0, "none is written"),
    ("file size limit", "RLIMIT_FSIZE", MAX_FILE_BYTES, f"{MAX_FILE_BYTES >> 30} GiB a file"),
    ("open files limit", "RLIMIT_NOFILE", MAX_OPEN_FILES, f"{MAX_OPEN_FILES} at once"),
)
SANDBOX = ("namespaces", "Landlock", "system calls")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "nvidia*", "dri", "kfd", "dxg")
"""Device nodes that programs need: none of them keeps what is written to it."""


def device_nodes() -> list[Path]:
    """Those that are here."""
    return [node for name in _DEVICES for node in sorted(Path("/dev").glob(name))]


def settings(
    limits: Limits,
    report: int,
    writable: Sequence[Path],
    user: User | None = None,
    in_sandbox: bool = True,
    attempts: int | None = None,
) -> sandbox.Settings:
    """What a contestant is started with, where `writable` are the folders that it may write.

    Without what is in SANDBOX where that was found to be in the device's way.
    """
    return sandbox.Settings(
        report=report,
        writable=tuple(str(path.resolve()) for path in writable),
        devices=tuple(map(str, device_nodes())),
        user=user,
        limits=_LIMITS,
        layers=SANDBOX if in_sandbox and limits.isolation != "none" else (),
        attempts=attempts,
    )


# --- another user ----------------------------------------------------------------------------------------------

User = tuple[int, ...]
"""User, group, further groups."""
NOBODY = 65534
_LOOK = """
import os, sys
for path in sys.argv[1:]:
    is_node = path.startswith("/dev/")
    if not os.access(path, os.R_OK | os.W_OK if is_node else os.X_OK if os.path.isdir(path) else os.R_OK):
        sys.exit(path)
"""


def other_user(folders: Sequence[Path]) -> User | str:
    """Whom oracle and contestants become where the referee is root; or why they stay what they are.

    They need this interpreter, torch, the harness and `folders`, and device nodes that are open to all or to a group.
    Both become the same: memory can be shared between processes of one user only (CUDA IPC).
    """
    if os.getuid() != 0:
        return "not started as root"
    nodes = device_nodes()
    groups = {node.stat().st_gid for node in nodes if node.stat().st_mode & 0o066 == 0o060}
    torch = importlib.util.find_spec("torch")
    needed = [Path(__file__), *folders, *([Path(torch.origin)] if torch is not None and torch.origin else [])]
    needed += [node for node in nodes if fnmatch.fnmatch(str(node), "/dev/nvidia[ctlu0-9]*")]
    command = [sys.executable, "-S", "-E", "-c", _LOOK, *map(str, needed)]
    try:
        looked = subprocess.run(
            command, user=NOBODY, group=NOBODY, extra_groups=groups, cwd="/", capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"user {NOBODY} cannot run {sys.executable}: {getattr(error, 'strerror', None) or error}"
    if looked.returncode:
        return f"user {NOBODY} cannot read {looked.stderr.strip()[-200:]}"
    return (NOBODY, NOBODY, *sorted(groups))


def hand_over(folder: Path, user: User) -> None:
    """Let a folder and all in it belong to a user, if it does not."""
    if folder.stat().st_uid == user[0]:
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user[0], user[1], follow_symlinks=False)


class Report:
    """The pipe on which the sandbox says what it did, from before it starts until its program begins."""

    def __init__(self) -> None:
        read_fd, self.descriptor = os.pipe()
        self._lines = os.fdopen(read_fd)
        self._is_here = True

    def begun(self) -> None:
        """The sandbox has the descriptor, or never will."""
        if self._is_here:
            os.close(self.descriptor)
            self._is_here = False

    def close(self) -> None:
        """Nobody will read any more."""
        self.begun()
        self._lines.close()

    def read(self) -> tuple[int | None, list[sandbox.Found]]:
        """The init of its namespaces if it has any, and the layers. Only once, and only after the program has begun.

        Nothing of a submission's has run by then: these lines can be believed.
        """
        said = [json.loads(line) for line in self._lines]
        self.close()
        init = next((line["init"] for line in said if isinstance(line, dict)), None)
        return init, [
            (name, applied, detail) for line in said if isinstance(line, list) for name, applied, detail in line
        ]


class Attempts:
    """The pipe on which the sandbox names each system call that it refused, for as long as its init lives."""

    def __init__(self) -> None:
        self._read_fd, self.descriptor = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._is_here = True

    def begun(self) -> None:
        """The sandbox has the descriptor, or never will."""
        if self._is_here:
            os.close(self.descriptor)
            self._is_here = False

    def read(self) -> tuple[str, ...]:
        """Those since the last look, in order. The sandbox's own words: what runs in it has no such descriptor."""
        found = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._read_fd, 1 << 16):
                found += chunk
        return tuple(found.decode().split())

    def close(self) -> None:
        """Nobody will read any more."""
        self.begun()
        os.close(self._read_fd)


def layers(limits: Limits, pid: int, found: Sequence[sandbox.Found]) -> tuple[Layer, ...]:
    """All that a contestant is kept apart by, with what the sandbox says of its part."""
    return (
        Layer("own session", True, "killed as a whole at the end"),
        Layer("clean environment", True, "toolchain variables only"),
        Layer("scratch folder", True, "removed at the end"),
        Layer(
            "memory watch",
            Path(f"/proc/{pid}/statm").exists(),
            f"ended above {limits.host_memory_bytes / (1 << 30):.1f} GiB of the host's",
        ),
        *(Layer(name, applied, detail) for name, applied, detail in found),
    )


def keeps_signals(found: Sequence[Layer]) -> bool:
    """Whether a contestant kept apart by these can signal no process but those that it started."""
    applied = {layer.name for layer in found if layer.applied}
    return "namespaces" in applied or ("Landlock" in applied and landlock.scopes_signals())


def make_scratch() -> Path:
    """A private folder for one run."""
    return Path(tempfile.mkdtemp(prefix=f"podium-{os.getpid()}-"))


def sweep_scratch() -> None:
    """Remove folders of runs whose referee is gone (a killed machine; a killed run's warden does it at once)."""
    for folder in Path(tempfile.gettempdir()).glob("podium-*-*"):
        pid = folder.name.split("-")[1]
        try:
            if pid.isdigit() and folder.stat().st_uid == os.getuid() and not _is_alive(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # somebody else was quicker


def prune_caches(folder: Path, keep: int = KEPT_CACHES, spare: str = "") -> None:
    """Forget the compile caches that were used longest ago, but for the one of the name `spare`."""
    try:
        found = [each for each in folder.iterdir() if each.name != spare]
        known = sorted(found, key=lambda each: each.stat().st_mtime, reverse=True)
    except OSError:
        return  # not there yet, or another run is pruning it
    for old in known[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def memory_file(name: str) -> int:
    """A descriptor of an unnamed file in memory that children may share: gone with its last holder."""
    if hasattr(os, "memfd_create"):
        import fcntl

        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # A contestant that cut the file short would kill the oracle at its next look.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())

"""What stands between a contestant and the rest of the machine: how it is started, and what was applied.

Here: a session and process group of its own, an environment built from nothing, a scratch folder, resource
limits, a watch on its memory. Every layer is best effort and reported; stronger ones (another user,
Landlock, namespaces) belong in this module and nowhere else.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.record import Layer

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

    @property
    def host_memory_bytes(self) -> int:
        """The limit in force."""
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return self.memory_bytes or machine * 6 // 10


def environment(device: str, scratch: Path, caches: Path) -> dict[str, str]:
    """A child's environment, built from nothing: toolchain variables, the device, and where it may write."""
    built = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    built |= {
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "XDG_CACHE_HOME": str(caches),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TORCH_EXTENSIONS_DIR": str(caches / "torch_extensions"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "USER": "contestant",
    }
    return built | _visible_devices(device)


def _visible_devices(device: str) -> dict[str, str]:
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
) -> subprocess.Popen[bytes]:
    """Start `python -m module` in a session of its own; its prints go to one pipe, its errors to the same.

    Only the named descriptors are inherited.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, variables.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(descriptors),
        env={**variables, "PYTHONPATH": path},
        cwd=folder,
        start_new_session=True,
    )


def confine(process: subprocess.Popen[bytes], limits: Limits) -> tuple[Layer, ...]:
    """Apply what can be applied to a contestant that was just launched, and say what was."""
    layers = [
        Layer("own session", True, "killed as a whole at the end"),
        Layer("clean environment", True, "toolchain variables only"),
        Layer("scratch folder", True, "removed at the end"),
        Layer(
            "memory watch",
            Path(f"/proc/{process.pid}/statm").exists(),
            f"ended above {limits.host_memory_bytes / (1 << 30):.1f} GiB of the host's",
        ),
    ]
    wanted = {
        "no core dump": (resource.RLIMIT_CORE, 0, "none is written"),
        "file size limit": (resource.RLIMIT_FSIZE, MAX_FILE_BYTES, f"{MAX_FILE_BYTES >> 30} GiB a file"),
        "open files limit": (resource.RLIMIT_NOFILE, MAX_OPEN_FILES, f"{MAX_OPEN_FILES} at once"),
    }
    for name, (kind, value, detail) in wanted.items():
        layers.append(_limit(process.pid, name, kind, value, detail))
    return tuple(layers)


def _limit(pid: int, name: str, kind: int, value: int, detail: str) -> Layer:
    if not hasattr(resource, "prlimit"):
        return Layer(name, False, "this system has no prlimit")
    try:
        _, hard = resource.prlimit(pid, kind)
        bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, kind, (bounded, bounded))
    except (OSError, ValueError) as error:
        return Layer(name, False, str(error))
    return Layer(name, True, detail if bounded == value else f"{bounded}, the system's own limit")


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


def prune_caches(folder: Path, keep: int = KEPT_CACHES) -> None:
    """Forget the compile caches that were used longest ago."""
    try:
        known = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
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

"""Starts a program with fewer powers than its parent has, and says which could be taken away.

    python -S -m harness.processes.sandbox SETTINGS PROGRAM ARGUMENT...

Three processes where the kernel gives namespaces: this one waits outside of them; the first one inside is their init,
with which all of them end; the program is its child. Elsewhere this process becomes the program. Standard library only:
nothing of the program's runs before its powers are gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.processes import landlock, syscalls
from harness.processes.privacy import hide

_NEW_MOUNT, _NEW_IPC, _NEW_USER, _NEW_PID, _NEW_NET = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_NO_SUID, _NO_DEVICES, _NO_PROGRAMS, _RECURSIVE, _PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
_SHARED_MEMORY, _SHARED_MEMORY_FORM = "/dev/shm", "mode=1777,size=1g"
_PDEATHSIG, _NO_NEW_PRIVS = 1, 38


@dataclass(frozen=True)
class Settings:
    """What to take away. Paths are absolute."""

    report: int
    """A descriptor for lines of JSON: the init's process number, then the layers as [name, applied, detail]."""
    writable: tuple[str, ...] = ()
    """Folders that may be written; the rest of the file system is read-only."""
    devices: tuple[str, ...] = ()
    """Device nodes that may be used."""
    user: tuple[int, ...] | None = None
    """User and group to become, and further groups to keep."""
    limits: tuple[tuple[str, str, int, str], ...] = ()
    """Name of the layer, of the resource, its most, and that in words."""
    layers: tuple[str, ...] = ("namespaces", "Landlock", "system calls")
    """What to try."""
    attempts: int | None = None
    """A descriptor for lines that each name a system call that was asked for and refused."""

    def to_json(self) -> str:
        """As the command line has it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What `to_json` wrote."""
        fields: dict[str, Any] = {key: _frozen(value) for key, value in json.loads(text).items()}
        return cls(**fields)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


Found = tuple[str, bool, str]


def main(arguments: list[str]) -> None:
    """Take away what can be taken, then become the program."""
    settings = Settings.from_json(arguments[0])
    found: list[Found] = []
    if "namespaces" in settings.layers:
        found.append(_applied("namespaces", _enter_namespaces))
        if found[-1][1]:
            found += _split(settings)
    found += [_limited(*limit) for limit in settings.limits]
    if settings.user is not None:
        user, group, *others = settings.user
        found.append(_applied("own user", lambda: _become(user, group, others)))
    found.append(_applied("no new privileges", lambda: _control(_NO_NEW_PRIVS, 1)))
    if "Landlock" in settings.layers:
        own = [_SHARED_MEMORY] if ("own /dev/shm", True) in {each[:2] for each in found} else []
        found.append(_applied("Landlock", lambda: _restrict(settings, own)))
    if "system calls" in settings.layers and "system calls" not in {each[0] for each in found}:
        found.append(_applied("system calls", _forbid))
    if settings.attempts is not None:
        os.close(settings.attempts)
    _say(settings.report, found)
    os.close(settings.report)
    os.execv(arguments[1], arguments[1:])


def _say(report: int, what: object) -> None:
    os.write(report, json.dumps(what).encode() + b"\n")


def _applied(name: str, step: Callable[[], str]) -> Found:
    """The layer as it is reported; a step says what it did, or raises OSError or Unavailable."""
    try:
        return name, True, step()
    except (OSError, AttributeError, landlock.Unavailable) as error:
        return name, False, getattr(error, "strerror", None) or str(error)


# --- layers ------------------------------------------------------------------------------------------------


def _enter_namespaces() -> str:
    """Own process numbers, mounts, network, System V memory; as a user, by a user namespace with the same numbers."""
    user, group = os.getuid(), os.getgid()
    flags = _NEW_PID | _NEW_MOUNT | _NEW_NET | _NEW_IPC | (_NEW_USER if user else 0)
    _checked(ctypes.CDLL(None, use_errno=True).unshare(flags))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return "own process numbers, no network, own System V memory; ended as a whole"


def _own_mounts() -> list[Found]:
    """Inside: a /proc that shows what is inside, and a /dev/shm that ends with it."""
    hardened = _NO_SUID | _NO_DEVICES
    return [
        _applied("own mounts", lambda: _mount("none", "/", None, _RECURSIVE | _PRIVATE)),
        _applied("own /proc", lambda: _mount("proc", "/proc", "proc", hardened | _NO_PROGRAMS)),
        _applied("own /dev/shm", lambda: _mount("tmpfs", _SHARED_MEMORY, "tmpfs", hardened, _SHARED_MEMORY_FORM)),
    ]


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> str:
    words = [None if each is None else each.encode() for each in (source, target, kind)]
    _checked(ctypes.CDLL(None, use_errno=True).mount(*words, ctypes.c_ulong(flags), data.encode()))
    return ""


def _limited(name: str, kind: str, most: int, words: str) -> Found:
    def limit() -> str:
        number = getattr(resource, kind)
        hard = resource.getrlimit(number)[1]
        bounded = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (bounded, bounded))
        return words if bounded == most else f"{bounded}, the system's own limit"

    return _applied(name, limit)


def _become(user: int, group: int, others: list[int]) -> str:
    os.setgroups(others)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    return f"user {user}"


def _restrict(settings: Settings, own: list[str]) -> str:
    process = [f"/proc/{os.readlink('/proc/self')}"] if os.path.exists("/proc/self") else []
    writable = (*settings.writable, *own, *process)  # CUDA writes below its own /proc/self
    lacking = landlock.restrict(map(Path, writable), map(Path, settings.devices))
    return "writes to its own folders only" + (f"; this kernel does not restrict {lacking}" if lacking else "")


def _control(option: int, value: int) -> str:
    _checked(ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0))
    return ""


def _checked(code: int) -> None:
    if code < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _forbid() -> str:
    syscalls.forbid(listens=False)
    return "those that reach other processes or the system are refused"


# --- three processes -----------------------------------------------------------------------------------------


def _split(settings: Settings) -> list[Found]:
    """Go on as the program-to-be, the child of the namespaces' init; the other two wait and end as it ends.

    What was mounted inside on the way, and whether the init listens for what is refused.
    """
    report = settings.report
    ended, end = os.pipe()
    init = os.fork()
    if init:
        os.close(end)
        _say(report, {"init": init})
        _keep_only(ended)
        _end_like(init, ended)
    os.close(ended)
    _control(_PDEATHSIG, signal.SIGKILL)
    if _is_without_reader(end):
        os._exit(1)  # whoever waits outside was gone before that took hold
    os.setsid()
    found = _own_mounts()
    listeners: list[int] = []
    if "system calls" in settings.layers and settings.attempts is not None:
        found += _listened(listeners)
    program = os.fork()
    if program:
        told = [settings.attempts] if settings.attempts is not None else []
        _keep_only(end, *listeners, *told)
        for listener in listeners:
            _refuse_aside(listener, *told)
        _reap(program, end)
    for descriptor in (end, *listeners):
        os.close(descriptor)
    return found


def _listened(listeners: list[int]) -> list[Found]:
    """Forbid system calls to this process and the program, and listen; nothing where this kernel cannot do that."""
    _control(_NO_NEW_PRIVS, 1)
    try:
        found = syscalls.forbid(listens=True)
    except syscalls.Unavailable:
        return []
    assert found is not None
    listeners.append(found)
    return [("system calls", True, "those that reach other processes or the system are refused, and counted")]


def _refuse_aside(listener: int, told: int) -> None:
    """In a thread, for as long as the init lives."""
    os.set_blocking(told, False)

    def tell(name: str) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # enough of them have been told, or nobody listens
            os.write(told, name.encode() + b"\n")

    threading.Thread(target=syscalls.refuse, args=(listener, tell), daemon=True).start()


def _is_without_reader(descriptor: int) -> bool:
    looked = select.poll()
    looked.register(descriptor, select.POLLERR)
    return bool(looked.poll(0))


def _keep_only(*kept: int) -> None:
    """A pipe ends for its reader when the program ends, not when those do who wait for it. Nobody looks into these."""
    hide()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _reap(program: int, end: int) -> None:
    """The init: collect whoever ends, until the program does; the rest ends with this process."""
    while True:
        process, status = os.wait()
        if process == program:
            os.write(end, status.to_bytes(4, "little"))
            os._exit(0)


def _end_like(init: int, ended: int) -> None:
    """Outside: wait until all inside are gone, then end as the program did."""
    raw = os.read(ended, 4)
    os.waitpid(init, 0)
    code = os.waitstatus_to_exitcode(int.from_bytes(raw, "little")) if len(raw) == 4 else -signal.SIGKILL
    if code >= 0:
        os._exit(code)
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(sys.argv[1:])

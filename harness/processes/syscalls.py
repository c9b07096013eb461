"""System calls that no kernel needs and cheats may: refused from here on, and told to whoever listens.

A filter of the kernel's own (seccomp, Documentation/userspace-api/seccomp_filter.rst), through ctypes; standard library
only, since it is applied before anything heavy is imported.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys
from collections.abc import Callable

NAMES = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
}
"""By name, their numbers on x86-64 and on 64-bit ARM: other processes' memory and descriptors, other views of the
system, and the system itself. Compilers, drivers and profilers of GPUs ask for none of them."""
_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""By machine: which of the numbers, the kernel's name of the architecture, and the number of seccomp itself."""

_SET_FILTER, _NEW_LISTENER = 1, 1 << 3
_ALLOW, _REFUSE, _TELL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x7FC00000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_OTHER_ABI = 0x40000000
"""Numbers from here on are x86-64's second interface, which nothing here uses."""
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_ASKED, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")


class Unavailable(OSError):
    """This kernel, or what surrounds it, takes no filter."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def forbid(*, listens: bool) -> int | None:
    """Refuse them to this process and its descendants, for ever; Unavailable where that cannot be had.

    Where it `listens`, a descriptor on which each attempt waits for `refuse`; otherwise the kernel refuses at once.
    `no_new_privs` must be set, or the process be privileged.
    """
    machine = os.uname().machine
    if machine not in _MACHINES or sys.byteorder != "little":
        raise Unavailable(errno.ENOSYS, f"no filter for {machine}")
    _, _, seccomp = _MACHINES[machine]
    code = ctypes.create_string_buffer(program(machine, _TELL if listens else _REFUSE))
    filter_ = _Program(len(code.raw) // 8, ctypes.cast(code, ctypes.c_void_p))
    flags = _NEW_LISTENER if listens else 0
    found: int = ctypes.CDLL(None, use_errno=True).syscall(
        seccomp, ctypes.c_uint(_SET_FILTER), ctypes.c_uint(flags), ctypes.byref(filter_)
    )
    if found < 0:
        raise Unavailable(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found if listens else None


def program(machine: str, verdict: int) -> bytes:
    """The filter in classic BPF: `verdict` on those names, refusal of other interfaces, and the rest passes."""
    which, architecture, _ = _MACHINES[machine]
    numbers = sorted(each[which] for each in NAMES.values())
    allow, told, refused = (len(numbers) + 4 + end for end in range(3))
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 0, refused - 2, architecture)]
    lines += [(_LOAD, 0, 0, 0), (_AT_LEAST, refused - 4, 0, _OTHER_ABI)]
    lines += [(_EQUAL, told - place, 0, number) for place, number in enumerate(numbers, len(lines) + 1)]
    assert len(lines) == allow
    lines += [(_RETURN, 0, 0, end) for end in (_ALLOW, verdict, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def refuse(listener: int, tell: Callable[[str], object]) -> None:
    """Tell every attempt's name, then refuse it; for as long as this process lives."""
    while True:
        asked = bytearray(_ASKED.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, asked)
            attempt, _, _, number, *_ = _ASKED.unpack(asked)
            tell(name_of(number))
            fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(attempt, 0, -errno.EPERM, 0)))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):
                return
            # whoever asked has ended meanwhile


def name_of(number: int) -> str:
    """Of a call on this machine."""
    which = _MACHINES[os.uname().machine][0]
    return next((name for name, numbers in NAMES.items() if numbers[which] == number), f"call {number}")

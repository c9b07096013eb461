"""Landlock: what this process and all that it starts may do with files, the network and other processes.

The kernel's own interface (Documentation/userspace-api/landlock.rst), through ctypes; standard library only, since it
is applied before anything heavy is imported.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
"""System calls, the same on every architecture."""
_VERSION = 1
_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
READING = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
"""Rights that make sense for what is no folder."""
_ALL_TCP = 0b11
_SCOPES = 6
"""The version since which there are scopes."""
_ALL_SCOPES = 0b11
"""No abstract Unix sockets and no signals out of the domain."""


class Unavailable(Exception):
    """This kernel, or what surrounds it, gives no Landlock."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    code: int = libc.syscall(number, *arguments)
    if code < 0:
        raise Unavailable(os.strerror(ctypes.get_errno()))
    return code


def abi() -> int:
    """The version of the kernel's interface, from 1; Unavailable without one."""
    return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))


def scopes_signals() -> bool:
    """Whether this kernel keeps signals inside."""
    try:
        return abi() >= _SCOPES
    except Unavailable:
        return False


def file_rights(version: int) -> int:
    """All rights over files that this version knows of."""
    known = {1: 13, 2: 14, 3: 15, 4: 15}
    return (1 << known.get(version, 16)) - 1


def restrict(writable: Iterable[Path], devices: Iterable[Path]) -> str:
    """Read everything, write below `writable` and to `devices` only, no TCP, no signals or sockets to others.

    For this process and its descendants, for ever. Says what the kernel could not do, or nothing. Unavailable when it
    can do nothing. `no_new_privs` must be set.
    """
    version = abi()
    every = file_rights(version)
    attributes = _Ruleset(every, _ALL_TCP if version >= 4 else 0, _ALL_SCOPES if version >= _SCOPES else 0)
    size = 24 if version >= _SCOPES else 16 if version >= 4 else 8
    ruleset = _call(_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        _allow(ruleset, Path("/"), READING & every)
        for path in writable:
            _allow(ruleset, path, every)
        for path in devices:
            _allow(ruleset, path, (READ_FILE | WRITE_FILE | IOCTL_DEVICE) & every)
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    lacking = {3: "truncating", 4: "TCP", 5: "device control", _SCOPES: "signals and sockets"}
    return ", ".join(name for since, name in lacking.items() if version < since)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there, or not ours, needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= OF_FILES
        rule = _Beneath(rights, descriptor)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(descriptor)

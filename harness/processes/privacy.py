"""Keeps what a process knows from others of the same user: its memory, environment and descriptors."""

from __future__ import annotations

import ctypes
import sys

_GET_DUMPABLE, _SET_DUMPABLE = 3, 4


def hide() -> bool:
    """Let no process of the same user trace this one or open what is below its /proc. Whether that was to be had.

    A program that it starts is open again. Threads can no more be named from outside of them, which CUDA insists on.
    """
    return sys.platform == "linux" and _control(_SET_DUMPABLE, 0) == 0


def show() -> None:
    """Undo it."""
    _control(_SET_DUMPABLE, 1)


def is_hidden() -> bool:
    """Whether it is."""
    return sys.platform == "linux" and _control(_GET_DUMPABLE, 0) != 1


def _control(option: int, value: int) -> int:
    found: int = ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
    return found

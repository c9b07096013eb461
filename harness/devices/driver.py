"""Driver calls through ctypes that CUDA and HIP share but for their names."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


@dataclass(frozen=True)
class Names:
    """One vendor's names of the five calls, and its code for `out of memory`."""

    allocate: str
    free: str
    export: str
    open: str
    close: str
    out_of_memory: int


class IpcDriver:
    """devices.GpuDriver over a vendor's library. Error codes are the vendor's (cudaError_enum, hipError_t)."""

    def __init__(self, library: ctypes.CDLL, names: Names) -> None:
        self._library = library
        self._names = names
        getattr(library, names.open).argtypes = (ctypes.POINTER(ctypes.c_void_p), _Handle, ctypes.c_uint)
        for name in (names.free, names.close):
            getattr(library, name).argtypes = (ctypes.c_void_p,)
        getattr(library, names.allocate).argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t)
        getattr(library, names.export).argtypes = (ctypes.POINTER(_Handle), ctypes.c_void_p)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code == self._names.out_of_memory:
            raise MemoryError(f"{name}: the device is out of memory")
        if code:
            raise RuntimeError(f"{name} failed with the driver's error {code}")

    def allocate(self, size_bytes: int) -> int:
        """Device memory, an allocation of its own."""
        pointer = ctypes.c_void_p()
        self._call(self._names.allocate, ctypes.byref(pointer), size_bytes)
        return pointer.value or 0

    def free(self, pointer: int) -> None:
        """Free what `allocate` gave."""
        self._call(self._names.free, pointer)

    def export(self, pointer: int) -> bytes:
        """The 64-byte IPC handle of an allocation."""
        handle = _Handle()
        self._call(self._names.export, ctypes.byref(handle), pointer)
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        """Map another process's allocation (flag 1: peer access where it is needed)."""
        pointer = ctypes.c_void_p()
        self._call(self._names.open, ctypes.byref(pointer), _Handle.from_buffer_copy(handle), 1)
        return pointer.value or 0

    def close(self, pointer: int) -> None:
        """Unmap what `open` mapped."""
        self._call(self._names.close, pointer)


def loaded_library(prefix: str) -> str:
    """Path of the library already loaded in this process whose file name starts with `prefix`, or `prefix`.so."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.rsplit("/", 1)[-1].startswith(prefix):
                return path
    return f"{prefix}.so"

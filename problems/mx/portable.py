"""Makes the same random inputs, bit for bit, on CUDA, ROCm and the CPU: a failing case can be replayed anywhere.

A torch generator gives different numbers on different devices. Here element `i` of a tensor is a 32-bit hash of `i`
and of a key made from (seed, stream), and the hash's upper 16 bits pick one of 65536 values from a table that is
always built on the host. Nothing but integer arithmetic and a table look-up happens on the device.
"""

import functools
import hashlib
import math
from collections.abc import Iterator

import torch

REGIMES = ("normal", "shifted", "heavy", "dominant")
TABLE_SIZE = 65536
_CHUNK_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 24}
_INDEX_BITS = 31


def default_device() -> torch.device:
    """The device on which inputs are made: the current GPU (CUDA or ROCm) where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@functools.cache
def normal_table(regime: str = "normal", divisor: float = 1.0, shift: float = 1.0) -> torch.Tensor:
    """The 65536 equally likely bfloat16 values of a distribution, ascending, on the CPU.

    Entry i of the plain table is bf16(z_i), z_i = Phi^-1((i + 1/2) / 65536) in float64: a standard normal cut at 4.2
    sigma. `shifted` is bf16(z + shift), `heavy` bf16(z**3), up to 19 standard deviations; `dominant` draws like
    `normal` (see `plant_dominant`). At the end every entry becomes bf16(entry / divisor), which is what
    `randn(dtype=bfloat16) / sqrt(d)` gives. Made once and kept: don't write to it. Raises ValueError for an unknown
    regime.
    """
    if regime not in REGIMES:
        raise ValueError(f"unknown regime {regime!r}: expected one of {', '.join(REGIMES)}")
    quantiles = (torch.arange(TABLE_SIZE // 2, dtype=torch.float64) + 0.5) / TABLE_SIZE
    lower_half = torch.special.ndtri(quantiles).bfloat16().double()
    values = torch.cat([lower_half, -lower_half.flip(0)])
    if regime == "shifted":
        values = (values + shift).bfloat16().double()
    elif regime == "heavy":
        values = (values * values * values).bfloat16().double()
    return (values / divisor).bfloat16()


def sample_table(
    table: torch.Tensor,
    shape: tuple[int, ...],
    seed: int,
    stream: str,
    device: torch.device | str | None = None,
    first: int = 0,
) -> torch.Tensor:
    """Independent uniform draws from the 65536 entries of `table`: a tensor of `shape` in the table's dtype.

    `first` is the position of the result's first element in the stream, so that a large tensor can be made piece by
    piece with the bits it would have in one go. Peak memory beyond the result: 8 bytes for each of at most 16 Mi
    elements.
    """
    device = torch.device(device) if device is not None else default_device()
    table = table.to(device)
    result = torch.empty(shape, dtype=table.dtype, device=device)
    flat = result.view(-1)
    for begin, hashes in _hash_chunks(flat.numel(), seed, stream, device, first):
        hashes.bitwise_right_shift_(16).bitwise_and_(0xFFFF)
        torch.index_select(table, 0, hashes, out=flat[begin : begin + hashes.numel()])
    return result


def portable_normal(
    shape: tuple[int, ...],
    seed: int,
    stream: str,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Standard normal numbers of `shape`, the same on every device; bfloat16 values, whatever `dtype` holds them.

    `seed` is any integer in [0, 2**63); `stream` names the tensor ("A", "q"), so that tensors of one case are
    independent.
    """
    return sample_table(normal_table().to(dtype), shape, seed, stream, device)


def portable_integers(
    shape: tuple[int, ...], high: int, seed: int, stream: str, device: torch.device | str | None = None
) -> torch.Tensor:
    """int64 integers in [0, high), 0 < high <= 2**31, the same on every device; uniform to within high / 2**32."""
    if not 0 < high <= 1 << 31:
        raise ValueError(f"high is {high}: expected 0 < high <= 2**31")
    device = torch.device(device) if device is not None else default_device()
    result = torch.empty(shape, dtype=torch.int64, device=device)
    flat = result.view(-1)
    for begin, hashes in _hash_chunks(flat.numel(), seed, stream, device, 0):
        unsigned = hashes.to(torch.int64).bitwise_and_(0xFFFFFFFF)
        flat[begin : begin + hashes.numel()] = unsigned.mul_(high).bitwise_right_shift_(32)
    return result


def plant_dominant(x: torch.Tensor, seed: int, stream: str, factor: float = 64.0) -> torch.Tensor:
    """Multiplies one element of every row of x [..., N] by `factor` (a power of two: exact), in place; returns x.

    In the element's block of 32 the scale then follows it alone, and its neighbours fall to zero or near it.
    """
    if math.frexp(factor)[0] != 0.5:
        raise ValueError(f"factor is {factor}: expected a power of two")
    columns = portable_integers((*x.shape[:-1], 1), x.shape[-1], seed, f"{stream}/dominant", x.device)
    return x.scatter_(-1, columns, x.gather(-1, columns) * factor)


def _hash_chunks(
    count: int, seed: int, stream: str, device: torch.device, first: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields (begin, int32 hashes), chunk by chunk, for `count` elements from stream position `first`."""
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed is {seed}: expected 0 <= seed < 2**63")
    limit = _CHUNK_ELEMENTS.get(device.type, _CHUNK_ELEMENTS["cpu"])
    spare = torch.empty(min(limit, count), dtype=torch.int32, device=device)
    begin = 0
    while begin < count:
        high, low = divmod(first + begin, 1 << _INDEX_BITS)
        size = min(limit, count - begin, (1 << _INDEX_BITS) - low)
        before, after = _keys(seed, stream, high)
        hashes = torch.arange(low, low + size, dtype=torch.int32, device=device).bitwise_xor_(before)
        scratch = spare[:size]
        _finalise(hashes, scratch)
        hashes.add_(after)
        _finalise(hashes, scratch)
        yield begin, hashes
        begin += size


def _keys(seed: int, stream: str, high: int) -> tuple[int, int]:
    """Two signed 32-bit keys for a seed, a stream and the part of the element index that 31 bits cannot hold.

    One key alone would make every stream the same sequence with its indices exclusive-ored; the second breaks that.
    """
    digest = hashlib.blake2b(f"{seed}/{high}/{stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:], "little", signed=True)


def _finalise(hashes: torch.Tensor, scratch: torch.Tensor) -> None:
    """MurmurHash3's 32-bit finaliser (fmix32, Austin Appleby, public domain) in place, on int32 that wraps.

    torch shifts int32 arithmetically, so each shift is followed by a mask that clears the copies of the sign.
    """
    for shift, multiplier in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, None)):
        torch.bitwise_right_shift(hashes, shift, out=scratch)
        scratch.bitwise_and_((1 << (32 - shift)) - 1)
        hashes.bitwise_xor_(scratch)
        if multiplier is not None:
            hashes.mul_(multiplier - (1 << 32))

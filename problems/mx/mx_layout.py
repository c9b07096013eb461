"""Rearranges MXFP4 weights and scales into the tiled layouts that the MI355X's FP4 kernels read, and back.

Both layouts are pure permutations of bytes (the scale layout pads with zeros first); they are re-described from the
behaviour of aiter's `shuffle_weight(layout=(16, 16))` and `e8m0_shuffle` and checked against golden vectors made with
them.
"""

import torch

_ROW_PADDING = 256
_COLUMN_PADDING = 8


def shuffle_scale(scales: torch.Tensor) -> torch.Tensor:
    """uint8 scales [M, S] -> [ceil(M/256)*256, ceil(S/8)*8], padded with zero bytes and tiled.

    The byte of (row r, column k) lands at flat offset (r//32)*32*width + (k//8)*256 + (k%4)*64 + (r%16)*4 +
    ((k%8)//4)*2 + (r%32)//16, width being the padded column count: one aligned 32-bit word holds rows {r, r+16} x
    columns {k, k+4}.
    """
    if scales.dim() != 2:
        raise ValueError(f"scales have {scales.dim()} dimensions: expected 2")
    rows, columns = scales.shape
    height, width = _round_up(rows, _ROW_PADDING), _round_up(columns, _COLUMN_PADDING)
    padded = torch.nn.functional.pad(scales, (0, width - columns, 0, height - rows))
    tiles = padded.view(height // 32, 2, 16, width // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)
    return tiles.reshape(height, width)


def unshuffle_scale(shuffled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The inverse of shuffle_scale: shuffled uint8 [height, width] -> the plain [rows, columns] scales, contiguous."""
    height, width = shuffled.shape
    if (height, width) != (_round_up(rows, _ROW_PADDING), _round_up(columns, _COLUMN_PADDING)):
        raise ValueError(f"a {height} x {width} shuffled scale cannot hold {rows} x {columns} scales")
    plain = shuffled.reshape(height // 32, width // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2).reshape(height, width)
    return plain[:rows, :columns].contiguous()


def shuffle_weight(packed: torch.Tensor) -> torch.Tensor:
    """Packed FP4 bytes [..., N, K/2] -> the same shape, tiled 16 rows x 32 bytes. Needs N % 16 == 0 and K % 64 == 0.

    With kb the byte column, (n, kb) of one matrix lands at flat offset
    ((((n//16)*(K/64) + kb//32)*2 + (kb%32)//16)*16 + n%16)*16 + kb%16: each run of 16 rows is contiguous in memory.
    """
    _check_weight_shape(packed)
    rows, width = packed.shape[-2:]
    return packed.reshape(-1, rows // 16, 16, width // 32, 2, 16).permute(0, 1, 3, 4, 2, 5).reshape(packed.shape)


def unshuffle_weight(shuffled: torch.Tensor) -> torch.Tensor:
    """The inverse of shuffle_weight: tiled FP4 bytes [..., N, K/2] -> plain row-major bytes of the same shape."""
    _check_weight_shape(shuffled)
    rows, width = shuffled.shape[-2:]
    return shuffled.reshape(-1, rows // 16, width // 32, 2, 16, 16).permute(0, 1, 4, 2, 3, 5).reshape(shuffled.shape)


def _check_weight_shape(packed: torch.Tensor) -> None:
    rows, width = packed.shape[-2:]
    if rows % 16 or width % 32:
        raise ValueError(f"a {rows} x {width}-byte matrix cannot be tiled: rows must be a multiple of 16, bytes of 32")


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple

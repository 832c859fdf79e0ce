"""Numbers that Python and Lua compute alike, so that a fixture holds results only: tests/spec/formula.lua is the same."""

import torch


def values(shape, seed, bits=15):
    """Scattered multiples of 2**-bits in [-2**(15 - bits), 2**(15 - bits)], in row-major order: exact in float32."""
    count = 1
    for size in shape:
        count *= size
    i = torch.arange(count, dtype=torch.int64)
    a = (i * 12345 + seed * 7919 + 1) % 65521
    b = (a * a + i) % 65537
    return ((b - 32768).double() / 2**bits).reshape(shape)

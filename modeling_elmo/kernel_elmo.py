"""The recurrence over one sentence, compiled by numba where that is installed: no dispatch between steps, no GIL.

With one row a product is as fast as its weights come from memory. So they are laid out as they are read: in tiles of
`TILE` columns, one after the other.

Shapes: T words, P projection, M memory cells.
"""

import os

import numpy as np

from .recurrence_elmo import TILE

try:  # transformers demands what is imported outside a `try`
    import numba
except ImportError as error:
    raise ImportError("needs numba: pip install 'modeling-elmo[fast]'") from error

# Rows of a tile that are read at once; the loop in `_add_product` is written out for it.
ROWS = 8

# Compiled code goes to the user's cache: beside this file it would outlast the package. numba chooses a folder when it
# meets a function; where this one cannot be written, it takes another.
_given = numba.config.CACHE_DIR
_caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
numba.config.CACHE_DIR = _given or os.path.join(_caches, "numba")

# Without leave to reorder or to assume finite values: only to fuse a product and a sum.
OPTIONS = {"nogil": True, "cache": True, "boundscheck": False, "fastmath": {"contract"}}

Array = np.ndarray
f32 = np.float32

# exp(x) = 2^n * exp(r), x = n * ln 2 + r, with ln 2 in two parts and a polynomial for exp(r) (Cephes' expf).
LOG2_E = f32(1.44269504088896341)
LN2_HIGH, LN2_LOW = f32(0.693359375), f32(-2.12194440e-4)
A5, A4, A3 = f32(1.9875691500e-4), f32(1.3981999507e-3), f32(8.3334519073e-3)
A2, A1, A0 = f32(4.1665795894e-2), f32(1.6666665459e-1), f32(5.0000001201e-1)
# Beyond these the sigmoid is 0 or 1 in float32, and 2^n leaves its range.
LOWEST, HIGHEST = f32(-87), f32(88)


@numba.njit(inline="always", **OPTIONS)
def _clip(x: f32, low: f32, high: f32) -> f32:
    """Unlike min and max, it leaves NaN alone."""
    x = low if x < low else x
    return high if x > high else x


@numba.njit(inline="always", **OPTIONS)
def _sigmoid(x: f32) -> f32:
    x = _clip(-x, LOWEST, HIGHEST)
    n = np.floor(x * LOG2_E + f32(0.5))
    r = x - n * LN2_HIGH - n * LN2_LOW
    e = (((((A5 * r + A4) * r + A3) * r + A2) * r + A1) * r + A0) * r * r + r + f32(1)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return f32(1) / (f32(1) + e * power)


@numba.njit(inline="always", **OPTIONS)
def _add_product(sums: Array, x: Array, tiles: Array) -> None:
    """sums (N,) += x (K,) @ W, where W (K, N) is in tiles (N / TILE, K, TILE)."""
    for tile in range(tiles.shape[0]):
        part = sums[tile * TILE : (tile + 1) * TILE]
        for row in range(0, tiles.shape[1], ROWS):
            w = tiles[tile, row : row + ROWS]
            a, b, c, d = x[row], x[row + 1], x[row + 2], x[row + 3]
            e, f, g, h = x[row + 4], x[row + 5], x[row + 6], x[row + 7]
            for n in range(TILE):
                part[n] += (
                    (a * w[0, n] + b * w[1, n] + c * w[2, n] + d * w[3, n])
                    + (e * w[4, n] + f * w[5, n] + g * w[6, n] + h * w[7, n])
                )  # fmt: skip


@numba.njit(**OPTIONS)
def read_sentence(
    gates: Array,
    recurrent: Array,
    projection: Array,
    hidden: Array,
    doubled: Array,
    outputs: Array,
    cell_bound: f32,
    output_bound: f32,
) -> None:
    """Fills outputs (T, P) and brings twice the cell `doubled` (M,) up to date; hidden (P,) is only read.

    gates (T, 4M), those of the inputs, are overwritten. Weights are those of logistic gates, in tiles.
    """
    cells = len(doubled)
    squashed = np.empty(cells, np.float32)
    # Each loop does one thing: longer bodies are not vectorised.
    for step in range(len(gates)):
        of_step = gates[step]
        _add_product(of_step, hidden, recurrent)
        for n in range(4 * cells):
            of_step[n] = _sigmoid(of_step[n])
        i, j = of_step[:cells], of_step[cells : 2 * cells]
        f, o = of_step[2 * cells : 3 * cells], of_step[3 * cells :]
        for n in range(cells):
            cell = doubled[n] * f[n] + i[n] * (f32(4) * j[n] - f32(2))
            doubled[n] = _clip(cell, -cell_bound, cell_bound)
        for n in range(cells):
            squashed[n] = _sigmoid(doubled[n]) - f32(0.5)
        for n in range(cells):
            squashed[n] *= o[n]
        hidden = outputs[step]
        hidden[:] = f32(0)
        _add_product(hidden, squashed, projection)
        for n in range(len(hidden)):
            hidden[n] = _clip(hidden[n], -output_bound, output_bound)


numba.config.CACHE_DIR = _given  # for the functions of others

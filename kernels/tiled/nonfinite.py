"""Which rows see a position that is not finite, read from the tiles a block at a time."""

from __future__ import annotations

from torch import Tensor

from maskzoo.kernels.tiled.masks import Masks
from maskzoo.kernels.tiled.operands import keys_of, put_rows, rows_of
from maskzoo.kernels.tiled.schedule import Block


def spoiled(bad_rows: Tensor, bad_keys: Tensor, blocks: list[Block], masks: Masks) -> Tensor:
    """Rows with a visible pair in which the query or the key is bad.

    Args:
        bad_rows: bool [S, rows].
        bad_keys: bool [Skv, Tk].
        masks: of scores that lie rows × keys.

    Returns:
        bool [S, rows].
    """
    found = bad_rows.new_zeros(bad_rows.shape)
    for block in blocks:
        rows, own = rows_of(bad_rows, block), None
        for chunk in block.chunks:
            pairs = rows[..., None] | keys_of(bad_keys, block, chunk)[:, None]  # [n, rows, keys]
            if chunk.codes is not None:
                by_lane = pairs.unflatten(0, (len(block.lanes), -1))
                pairs = (by_lane & masks.visible(chunk.codes, *pairs.shape[1:])).flatten(0, 1)
            own = pairs.any(-1) if own is None else own | pairs.any(-1)
        assert own is not None
        put_rows(found, block, own)
    return found

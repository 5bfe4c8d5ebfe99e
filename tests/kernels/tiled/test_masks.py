"""Bits hide what is hidden and leave the rest as it is."""

import math

import pytest
import torch

from maskzoo.kernels.tiled.masks import MOST_KEPT, Masks
from maskzoo.kernels.tiles import packed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("fold", [1, 3])
def test_hides_hidden_scores_whatever_they_are(dtype, transposed, fold):
    pattern = torch.rand(2, 8, 8) > 0.5
    masks = Masks(packed(pattern), fold, dtype, transposed)
    codes = (((0, 2, 1), (3, 1, 0)), ((1, 1, 1), (2, 2, 3)))
    tiles = {0: torch.zeros(8, 8).bool(), 1: torch.ones(8, 8).bool(), 2: pattern[0], 3: pattern[1]}
    # Two lanes of two members; the last tiles reach over the end.
    keep = torch.stack([torch.cat([torch.cat([tiles[c] for c in row], 1) for row in lane]) for lane in codes])
    keep = keep[:, :13, :20].repeat_interleave(fold, 1).repeat_interleave(2, 0)
    scores = torch.randn(4, 13 * fold, 20, dtype=dtype)
    scores[~keep] = torch.tensor([math.nan, math.inf, -math.inf, 1e38], dtype=dtype)[
        torch.arange(int((~keep).sum())) % 4
    ]
    turned = (scores.mT if transposed else scores).contiguous()
    hidden, zeroed = turned.clone(), turned.clone()
    masks.hide(hidden, codes)
    masks.zero(zeroed, codes)
    keep = keep.mT if transposed else keep
    assert torch.equal(hidden, turned.masked_fill(~keep, -math.inf))
    assert torch.equal(zeroed, turned.masked_fill(~keep, 0))


def test_nothing_is_hidden_without_codes():
    masks = Masks(packed(torch.zeros(1, 8, 8).bool()), 1, torch.float32, False)
    scores = torch.randn(2, 8, 8)
    before = scores.clone()
    masks.hide(scores, None)
    masks.zero(scores, None)
    assert torch.equal(scores, before)


def test_a_bounded_number_is_kept():
    masks = Masks(packed(torch.zeros(1, 8, 8).bool()), 1, torch.float32, False)
    for tiles in range(2 * MOST_KEPT):
        masks.hide(torch.randn(1, 8, 8 * (tiles + 1)), (((2,) * (tiles + 1),),))
    assert len(masks._kept) == MOST_KEPT

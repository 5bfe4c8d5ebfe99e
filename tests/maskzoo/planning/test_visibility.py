"""Visible pairs in one form answer as in any other."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.kernels import pairs as pairs_of
from maskzoo.kernels import tiles as tiles_of
from maskzoo.planning.visibility import TILE, Visibility

FORMS = ("dense", "tiles", "pairs")


def made(dense, form):
    if form == "dense":
        return Visibility(dense)
    tiles = tiles_of.from_visible(dense, TILE)
    return Visibility(tiles if form == "tiles" else pairs_of.from_tiles(tiles))


def some_pairs(batch, heads, queries, keys, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    noise = torch.rand(batch, heads, queries, keys, generator=generator)
    return (
        {
            "noise": noise < 0.3,
            "sparse": noise < 0.002,
            "causal": (j <= i).expand_as(noise),
            "full": noise < 2,
            "nothing": noise < 0,
            "blocks": (noise[..., :1, :1] < 0.5) | (i // 64 == j // 64) & (noise < 0.9),
            "almost causal": (j <= i) ^ (noise < 0.0002),
            "ahead by as much as is missing": (j <= i) ^ ((i == queries - 2) & ((j == 0) | (j == queries - 1))),
        }[kind]
        .expand(batch, heads, queries, keys)
        .contiguous()
    )


KINDS = ["noise", "sparse", "causal", "full", "nothing", "blocks", "almost causal", "ahead by as much as is missing"]
SIZES = st.sampled_from([1, 2, 63, 64, 65, 130])


def form_of(dense):
    square = dense.shape[2] == dense.shape[3]
    if bool(dense.all()):
        return "full"
    return "causal" if square and bool((dense == torch.ones_like(dense).tril()).all()) else "any"


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 2),
    queries=SIZES,
    keys=st.one_of(st.none(), SIZES),
    kind=st.sampled_from(KINDS),
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 999),
)
def test_every_form_gives_the_same_answers(batch, heads, queries, keys, kind, form, seed):
    keys = queries if keys is None else keys
    dense = some_pairs(batch, heads, queries, keys, kind, seed)
    visibility = made(dense, form)
    assert visibility.shape == (batch, heads, queries, keys)
    assert visibility.seen.expand(batch, heads, queries).tolist() == dense.sum(-1).tolist()
    empty = ~dense.any(-1)
    assert (visibility.empty is None) == (not empty.any())
    assert visibility.empty is None or torch.equal(visibility.empty.expand_as(empty), empty)
    assert visibility.form == form_of(dense)
    assert torch.equal(visibility.dense, dense)
    assert torch.equal(tiles_of.visible(visibility.tiles), dense)
    assert torch.equal(pairs_of.visible(visibility.pairs), dense)


@pytest.mark.parametrize("form", FORMS)
def test_a_triangle_of_counts_that_looks_ahead_in_a_full_tile_is_not_causal(form):
    dense = torch.ones(128, 128, dtype=torch.bool).tril()
    dense[64:, 64:] = True
    dense[64:, :64] = torch.ones(64, 64, dtype=torch.bool).tril()
    assert dense.sum(1).tolist() == list(range(1, 129))
    assert made(dense[None, None], form).form == "any"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [1, 64, 65, 129])
def test_a_triangle_is_causal_for_every_sequence_and_head_or_not_at_all(form, length):
    dense = torch.ones(2, 2, length, length, dtype=torch.bool).tril()
    assert made(dense, form).form == ("causal" if length > 1 else "full")
    if length > 1:
        dense[1, 0, -1, 0] = False
        assert made(dense, form).form == "any"


@pytest.mark.parametrize("form", FORMS)
def test_visible_pairs_travel_without_what_can_be_made_again(form):
    dense = some_pairs(1, 1, 640, 640, "causal", 0)
    visibility = made(dense, form)
    small = len(pickle.dumps(visibility))
    for asked in FORMS:
        getattr(visibility, asked)
    for other in (pickle.loads(pickle.dumps(visibility)), copy.deepcopy(visibility), visibility.to("cpu")):
        assert torch.equal(other.dense, dense) and other.form == "causal" and other.empty is None
    assert len(pickle.dumps(visibility)) <= small + 8192
    assert form == "dense" or small < 2**21
    assert visibility.to("meta").found is not visibility.found and visibility.device.type == "cpu"


def test_bytes_count_every_form_that_was_made():
    visibility = made(some_pairs(1, 1, 128, 128, "causal", 0), "tiles")
    before = visibility.bytes
    assert before == visibility.tiles.bytes and visibility.dense.nbytes == 128 * 128
    assert visibility.bytes == before + 128 * 128

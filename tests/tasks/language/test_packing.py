from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskzoo.positions import PADDING
from maskzoo.tasks.language.documents import Documents
from maskzoo.tasks.language.packing import IGNORED, Block, PackedRows, PaddedRows, StreamRows

BOS, EOS = 256, 257

texts = st.lists(st.lists(st.integers(0, 255), max_size=25), min_size=1, max_size=8)


def documents(*pieces: list[int]) -> Documents:
    return Documents.joined([np.array(piece, np.uint8) for piece in pieces], np.uint8)


def whole(rows: PackedRows | PaddedRows | StreamRows) -> Block:
    return rows.block(np.arange(len(rows)))


def pieces(block: Block) -> list[tuple[list[int], list[int]]]:
    """(inputs, targets) of every segment, row by row."""
    found = []
    for tokens, targets, segment in zip(block.tokens, block.targets, block.segment, strict=True):
        for number in range(segment.max() + 1):
            here = segment == number
            found.append((tokens[here].tolist(), targets[here].tolist()))
    return found


def test_reader_of_a_document_sees_bos_and_what_came_before():  # case A4
    block = whole(PackedRows(documents([4, 7, 9]), 4, BOS, EOS))
    assert block.tokens.tolist() == [[BOS, 4, 7, 9]]
    assert block.targets.tolist() == [[4, 7, 9, EOS]]
    assert block.segment.tolist() == [[0, 0, 0, 0]]


def test_documents_are_packed_end_to_end_and_pieces_continue_with_the_token_before():
    block = whole(PackedRows(documents([1, 2], [3, 4, 5]), 5, BOS, EOS))
    assert block.tokens.tolist() == [[BOS, 1, 2, BOS, 3], [4, 5, 0, 0, 0]]
    assert block.targets.tolist() == [[1, 2, EOS, 3, 4], [5, EOS, IGNORED, IGNORED, IGNORED]]
    assert block.segment.tolist() == [[0, 0, 0, 1, 1], [0, 0, PADDING, PADDING, PADDING]]


def test_padded_rows_are_as_long_as_the_longest_asked_for():
    rows = PaddedRows(documents([1, 2], [3], [4, 5, 6, 7, 8]), 4, BOS, EOS)
    assert len(rows) == 4
    block = rows.block(np.array([1, 0]))
    assert block.tokens.tolist() == [[BOS, 3, 0], [BOS, 1, 2]]
    assert block.targets.tolist() == [[3, EOS, IGNORED], [1, 2, EOS]]
    assert block.segment.tolist() == [[0, 0, PADDING], [0, 0, 0]]
    assert rows.block(np.array([3])).tokens.tolist() == [[7, 8]]


def test_order_of_documents():
    block = whole(PackedRows(documents([1], [2], [3]), 6, BOS, EOS, order=np.array([2, 0, 1])))
    assert block.targets.tolist() == [[3, EOS, 1, EOS, 2, EOS]]


@pytest.mark.parametrize("rows", [PackedRows, PaddedRows])
@settings(max_examples=100, deadline=None)
@given(texts=texts, context=st.integers(1, 12))
def test_every_token_is_a_target_exactly_once_and_no_pair_crosses_documents(rows, texts, context):
    block = whole(rows(documents(*texts), context, BOS, EOS))
    marked = [[BOS, *text, EOS] for text in texts]
    pairs = [pair for text in marked for pair in pairwise(text)]
    real = block.targets != IGNORED
    assert list(zip(block.tokens[real].tolist(), block.targets[real].tolist(), strict=True)) == pairs
    assert np.array_equal(real, block.segment != PADDING)
    assert not block.tokens[~real].any()


@settings(max_examples=100, deadline=None)
@given(texts=texts, context=st.integers(1, 12))
def test_a_segment_holds_one_stretch_of_one_document(texts, context):
    found = pieces(whole(PackedRows(documents(*texts), context, BOS, EOS)))
    for inputs, targets in found:
        assert inputs[1:] == targets[:-1]  # shifted inside the piece
        assert EOS not in targets[:-1] and BOS not in inputs[1:]  # and never past the end of its document
    assert sum(targets[-1] == EOS for _, targets in found) == len(texts)


@settings(max_examples=60, deadline=None)
@given(texts=texts, context=st.integers(1, 12), data=st.data())
def test_rows_do_not_depend_on_the_rows_asked_for_with_them(texts, context, data):
    rows = PackedRows(documents(*texts), context, BOS, EOS)
    everything = whole(rows)
    asked = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5)))
    block = rows.block(asked)
    assert np.array_equal(block.tokens, everything.tokens[asked])
    assert np.array_equal(block.targets, everything.targets[asked])
    assert np.array_equal(block.segment, everything.segment[asked])


@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.integers(0, 255), min_size=2, max_size=60), context=st.integers(1, 12), data=st.data())
def test_stream_predicts_every_token_after_the_first_exactly_once(text, context, data):
    offset = data.draw(st.integers(0, len(text) - 2))
    block = whole(StreamRows(np.array(text, np.uint8), context, offset))
    real = block.targets != IGNORED
    assert block.targets[real].tolist() == text[offset + 1 :]
    assert block.tokens[real].tolist() == text[offset:-1]
    assert block.tokens.shape[1] == context


def test_full_stream_windows_share_one_row_of_positions():
    rows = StreamRows(np.arange(20, dtype=np.uint8), 4, offset=1, windows=4)
    block = whole(rows)
    assert block.segment.tolist() == [[0, 0, 0, 0]]
    assert block.tokens.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
    assert block.targets.tolist() == [[2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13], [14, 15, 16, 17]]


def test_nothing_to_pack():
    with pytest.raises(ValueError, match="no documents"):
        PackedRows(documents(), 4, BOS, EOS)
    with pytest.raises(ValueError, match="1 tokens"):
        StreamRows(np.array([3], np.uint8), 4)


def test_only_empty_documents():
    block = whole(PackedRows(documents([], []), 4, BOS, EOS))
    assert block.tokens.tolist() == [[BOS, BOS, 0, 0]]
    assert block.targets.tolist() == [[EOS, EOS, IGNORED, IGNORED]]

import numpy as np
import pytest
import torch

from maskzoo.positions import Positions
from maskzoo.tasks.language.batch import TokenBatch
from maskzoo.tasks.language.documents import Documents
from maskzoo.tasks.language.packing import IGNORED, PackedRows, StreamRows
from maskzoo.tasks.language.tokenizers import ByteTokenizer

BYTE_LENGTHS = ByteTokenizer().byte_lengths


def packed(*texts: bytes, context: int) -> TokenBatch:
    rows = PackedRows(ByteTokenizer().encode_documents(texts), context, 256, 257)
    return TokenBatch.from_block(rows.block(np.arange(len(rows))), BYTE_LENGTHS)


def test_positions_restart_in_each_document_and_each_continued_piece():
    batch = packed(b"ab", b"cdef", context=5)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert batch.at.segment.tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, -1, -1]]
    assert batch.at.index[0].tolist() == [0, 1, 2, 0, 1]
    assert batch.at.index[1, :3].tolist() == [0, 1, 2]


def test_padding_by_length_and_by_row_agree_with_the_positions_of_packed_lengths():
    batch = packed(b"ab", b"c", context=8)
    expected = Positions.packed([3, 2], padded_to=8)
    assert torch.equal(batch.at.segment, expected.segment)
    assert torch.equal(batch.at.index, expected.index)


def test_end_of_text_counts_as_a_target_that_stands_for_no_byte():
    batch = packed(b"ab", b"", "é".encode(), context=4)
    assert batch.target_count == 3 + 1 + 3
    assert batch.target_bytes == 4


def test_stream_batch_has_one_row_of_positions_for_all():
    rows = StreamRows(np.arange(9, dtype=np.uint8), 4)
    batch = TokenBatch.from_block(rows.block(np.arange(2)), BYTE_LENGTHS)
    assert batch.tokens.shape == (2, 4)
    assert batch.at.batch == 1 and batch.at.length == 4
    assert batch.target_bytes == batch.target_count == 8


def test_a_batch_with_every_label_ignored_can_be_made():  # the input of case B26
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    batch = TokenBatch(tokens, torch.full_like(tokens, IGNORED), Positions.tokens(3), 0, 0)
    moved = batch.to("meta")
    assert moved.tokens.device.type == moved.at.device.type == "meta"
    assert (moved.target_count, moved.target_bytes) == (0, 0)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 4\)"):
        TokenBatch(torch.zeros(2, 3), torch.zeros(2, 4), Positions.tokens(3), 0, 0)


def test_documents_are_views():
    documents = Documents.joined([np.array([1, 2]), np.array([], np.int64), np.array([3])], np.uint16)
    assert [documents[n].tolist() for n in range(3)] == [[1, 2], [], [3]]
    assert documents.lengths.tolist() == [2, 0, 1]
    assert documents[0].base is documents.ids
    with pytest.raises(IndexError):
        documents[3]

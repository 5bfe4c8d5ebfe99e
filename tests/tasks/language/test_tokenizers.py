import logging

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maskzoo.tasks.language import tokenizers
from maskzoo.tasks.language.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    Tokenizer,
    encoded_documents,
    from_state,
    trained_bpe,
)

TEXT = [b"def attend(query, key):\n    return query @ key\n" * 20, "größer, größer\n".encode() * 10]


@pytest.fixture(scope="module")
def bpe() -> BPETokenizer:
    return BPETokenizer.train(TEXT, vocabulary_size=300)


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return ByteTokenizer() if request.param == "bytes" else request.getfixturevalue("bpe")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_bytes_come_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths[ids].sum() == len(text)
    assert not np.isin(ids, [tokenizer.bos, tokenizer.eos]).any()


def test_bytes_are_their_own_ids():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("é!")
    assert ids.tolist() == [195, 169, 33] and ids.dtype == np.uint8
    assert (tokenizer.vocabulary, tokenizer.bos, tokenizer.eos) == (258, 256, 257)
    assert tokenizer.decode([256, 104, 105, 257]) == b"hi"


def test_bpe_learns_merges_within_the_vocabulary(bpe):
    assert 258 < bpe.vocabulary <= 300
    assert (bpe.bos, bpe.eos) == (bpe.vocabulary - 2, bpe.vocabulary - 1)
    assert len(bpe.encode(TEXT[0])) < len(TEXT[0]) / 2
    assert bpe.encode(TEXT[0]).dtype == np.uint16
    assert bpe.byte_lengths[[bpe.bos, bpe.eos]].tolist() == [0, 0]


def test_vocabulary_stops_when_nothing_repeats():
    assert BPETokenizer.train([b"abcd"], 1000).vocabulary == 258


def test_state_round_trip(tokenizer):
    again = from_state(tokenizer.state())
    text = b"return key \xff\xfe caf\xc3\xa9"
    assert type(again) is type(tokenizer)
    assert again.vocabulary == tokenizer.vocabulary
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()


def test_unknown_state():
    with pytest.raises(ValueError, match="'words'; known: bytes, bpe"):
        from_state({"kind": "words"})


def test_documents_are_encoded_one_by_one(tokenizer):
    documents = tokenizer.encode_documents([b"query", b"", b"key"])
    assert [documents[n].tolist() for n in range(3)] == [tokenizer.encode(t).tolist() for t in (b"query", b"", b"key")]


def test_byte_documents_of_one_long_text_are_not_copied():
    text = b"x" * 1000
    assert np.shares_memory(ByteTokenizer().encode_documents([text]).ids, np.frombuffer(text, np.uint8))


def test_training_needs_room_for_all_bytes():
    with pytest.raises(ValueError, match="vocabulary_size=200"):
        BPETokenizer.train(TEXT, 200)


@pytest.mark.parametrize("wrong", [-1, 400])
def test_id_outside_the_vocabulary(tokenizer, wrong):
    with pytest.raises(ValueError, match=rf"token id {wrong} at place 2 .* vocabulary of {tokenizer.vocabulary}"):
        tokenizer.decode([1, 2, wrong])


def test_training_gives_the_same_merges_again(bpe):
    assert BPETokenizer.train(TEXT, 300).json == bpe.json


def test_long_text_is_encoded_in_blocks_after_lines(bpe, monkeypatch):
    monkeypatch.setattr(tokenizers, "_BLOCK", 50)
    long = TEXT[0] + b"y" * 120
    assert bpe.decode(bpe.encode(long)) == long
    blocks = list(tokenizers._blocks(long.decode()))
    assert max(map(len, blocks)) == 50 and "".join(blocks).encode() == long
    assert all(block.endswith("\n") for block in blocks[: TEXT[0].count(b"\n") // 2])


def test_training_sample_is_bounded_and_spread(monkeypatch):
    monkeypatch.setattr(tokenizers, "_BLOCK", 10)
    monkeypatch.setattr(tokenizers, "_TRAINING_BYTES", 100)
    text = "".join(chr(ord("a") + n) * 10 for n in range(26)).encode()
    sample = "".join(tokenizers._training_sample([text]))
    assert 80 <= len(sample) <= 100
    assert {"a", "z"} & set(sample) and len(set(sample)) == len(sample) // 10
    assert "".join(tokenizers._training_sample([text[:90]])) == text[:90].decode()


def test_merges_and_ids_are_cached_by_content(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKZOO_DATA", str(tmp_path))
    first = trained_bpe(TEXT, 300)
    encoded = encoded_documents(first, TEXT)
    monkeypatch.setattr(BPETokenizer, "train", None)  # neither is computed again
    monkeypatch.setattr(BPETokenizer, "encode_documents", None)
    second = trained_bpe(TEXT, 300)
    again = encoded_documents(second, TEXT)
    assert second.json == first.json
    assert np.array_equal(again.ids, encoded.ids) and np.array_equal(again.offsets, encoded.offsets)
    with pytest.raises(TypeError):
        trained_bpe(TEXT, 299)
    with pytest.raises(TypeError):
        encoded_documents(second, TEXT[:1])
    assert not list(tmp_path.rglob("*.part"))


def test_damaged_cache_is_made_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MASKZOO_DATA", str(tmp_path))
    first = encoded_documents(trained_bpe(TEXT, 300), TEXT)
    for file in tmp_path.rglob("*.*"):
        file.write_bytes(file.read_bytes()[:20])
    with caplog.at_level(logging.WARNING):
        again = encoded_documents(trained_bpe(TEXT, 300), TEXT)
    assert np.array_equal(again.ids, first.ids)
    assert caplog.text.count("made again") == 2


def test_cache_that_cannot_be_written_changes_nothing(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MASKZOO_DATA", str(tmp_path / "file"))
    tokenizer = trained_bpe(TEXT, 300)
    assert tokenizer.json == BPETokenizer.train(TEXT, 300).json
    assert "not cached" in caplog.text


def test_prompt_from_a_shell_with_bytes_that_are_no_text(tokenizer):
    prompt = b"caf\xe9".decode("utf-8", "surrogateescape")  # as sys.argv holds it
    assert tokenizer.decode(tokenizer.encode(prompt)) == b"caf\xe9"

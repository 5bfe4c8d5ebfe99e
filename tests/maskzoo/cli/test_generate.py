from maskzoo.cli.generate import written
from maskzoo.tasks.language.tokenizers import ByteTokenizer

TOKENIZER = ByteTokenizer()


def test_one_text_comes_byte_by_byte_and_whole_characters_only() -> None:
    steps = iter([[byte] for byte in "é!".encode()])
    assert list(written([b"caf"], steps, TOKENIZER)) == ["caf", "", "é", "!", "\n"]


def test_later_texts_wait_for_those_before() -> None:
    steps = iter([[ord("a"), ord("x")], [ord("b"), ord("y")]])
    pieces = list(written([b"1", b"2"], steps, TOKENIZER))
    assert pieces[:3] == ["--- 1\n1", "a", "b"]
    assert "".join(pieces) == "--- 1\n1ab\n--- 2\n2xy\n"


def test_a_text_that_has_ended_gives_way_to_the_next() -> None:
    steps = iter([[ord("a"), ord("x")], [None, ord("y")], [None, ord("z")]])
    pieces = list(written([b"1", b"2"], steps, TOKENIZER))
    assert pieces[-2:] == ["z", "\n"]
    assert "".join(pieces) == "--- 1\n1a\n--- 2\n2xyz\n"

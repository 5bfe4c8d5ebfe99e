from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskzoo.tasks.language.corpora.splits import SPLITS, check_split, contiguous, split_names


@given(st.binary(max_size=300))
def test_contiguous_parts_are_the_whole_text(text):
    parts = [contiguous(text, name) for name in SPLITS]
    assert b"".join(parts) == text
    assert len(parts[0]) == len(text) * 90 // 100


@given(st.sets(st.text(max_size=8), min_size=20, max_size=120))
def test_names_are_split_without_loss_and_no_part_is_empty(names):
    parts = split_names(names)
    assert sorted(chain.from_iterable(parts.values())) == sorted(names)
    assert all(parts[name] == sorted(parts[name]) and parts[name] for name in SPLITS)
    assert split_names(sorted(names, reverse=True)) == parts


def test_split_is_the_same_on_every_machine():
    parts = split_names(f"{number}.py" for number in range(40))
    assert (parts["val"], parts["test"]) == (["24.py", "33.py"], ["21.py", "23.py"])


def test_unknown_split():
    with pytest.raises(ValueError, match="'dev'; a data set has train, val and test"):
        check_split("dev")

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from maskzoo import Mask, Positions, plan, register_mask, registry
from maskzoo.masks import parse
from maskzoo.registry import Registry, load_plugins, nearest


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """What a test registers is gone after it."""
    entries, files = dict(registry.masks._entries), set(registry._files_loaded)
    yield
    registry.masks._entries = entries
    registry._files_loaded.clear()
    registry._files_loaded.update(files)


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


SPEAKER = """
    from dataclasses import dataclass
    import maskzoo as mz

    @mz.register_mask("same_speaker")
    @dataclass(frozen=True)
    class SameSpeaker(mz.Mask):
        '''Tokens of the same speaker see one another.'''
        def visible(self, q, k):
            return q.speaker == k.speaker
"""


def test_a_local_file_brings_a_rule(tmp_path: Path) -> None:
    file = write(tmp_path / "speakers.py", SPEAKER)
    load_plugins([file])
    load_plugins([file])
    at = Positions.tokens(3).with_fields(speaker=[0, 1, 0])
    assert plan("same_speaker", at).visible[0, 0].int().tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    entry = registry.masks.entry("same_speaker")
    assert entry.place == f"{file}:5"
    assert entry.summary == "Tokens of the same speaker see one another."
    assert repr(parse("same_speaker & causal")) == "same_speaker & causal"


def test_a_rule_that_reads_a_missing_field_says_so(tmp_path: Path) -> None:
    load_plugins([write(tmp_path / "speakers.py", SPEAKER)])
    with pytest.raises(ValueError, match=r"same_speaker reads the field 'speaker'.*with_fields\(speaker="):
        plan("same_speaker", Positions.tokens(3))


def test_a_plugin_that_imports_a_missing_package_is_named_with_its_file_and_the_error(tmp_path: Path) -> None:
    """Case B32."""
    file = write(
        tmp_path / "broken.py", SPEAKER.replace("same_speaker", "half_done") + "\n    import no_such_package_\n"
    )
    with pytest.raises(ValueError) as caught:
        load_plugins([file])
    message = str(caught.value)
    assert "'broken'" in message and str(file) in message
    assert "ModuleNotFoundError: No module named 'no_such_package_'" in message
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert "half_done" not in registry.masks.names()


def test_a_repaired_plugin_loads_in_the_same_process(tmp_path: Path) -> None:
    file = write(tmp_path / "speakers.py", "import no_such_package_")
    with pytest.raises(ValueError, match="no_such_package_"):
        load_plugins([file])
    write(file, SPEAKER)
    load_plugins([file])
    assert "same_speaker" in registry.masks.names()


def test_plugin_files_that_are_missing_or_no_python(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        load_plugins([tmp_path / "nowhere.py"])
    with pytest.raises(ValueError, match=r"must end in \.py"):
        load_plugins([write(tmp_path / "rules.txt", SPEAKER)])
    with pytest.raises(ValueError, match="SyntaxError"):
        load_plugins([write(tmp_path / "typo.py", "def f(:")])


def test_a_name_used_twice_shows_both_places(tmp_path: Path) -> None:
    first, second = write(tmp_path / "one.py", SPEAKER), write(tmp_path / "two.py", SPEAKER)
    load_plugins([first])
    with pytest.raises(ValueError) as caught:
        load_plugins([second])
    assert f"{first}:5" in str(caught.value) and f"{second}:5" in str(caught.value)
    assert registry.masks.entry("same_speaker").place == f"{first}:5"


def test_a_mask_without_a_rule_is_refused() -> None:
    @dataclass(frozen=True)
    class Empty(Mask):
        """Says nothing."""

    with pytest.raises(ValueError, match=r"'empty'.*visible.*Empty"):
        register_mask("empty")(Empty)
    assert "empty" not in registry.masks.names()
    with pytest.raises(TypeError, match="without a rule"):
        plan(Empty(), Positions.tokens(3))
    with pytest.raises(TypeError, match="without a rule"):
        plan(Empty() | parse("full"), Positions.tokens(3))
    with pytest.raises(ValueError, match=r"subclass of maskzoo\.Mask"):
        register_mask("function")(lambda q, k: q.index >= k.index)


@pytest.mark.parametrize("name", ["two words", "a-b", "", "3d", "and", "not", "lambda", "None", "stack"])
def test_names_that_cannot_be_typed_in_a_rule_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):

        @register_mask(name)
        @dataclass(frozen=True)
        class Named(Mask):
            def visible(self, q, k):  # type: ignore[no-untyped-def]
                return q.index >= k.index


def test_unknown_names_suggest_the_nearest_and_list_all() -> None:
    with pytest.raises(ValueError, match=r"unknown mask 'casual'\. Did you mean 'causal'\? Known: .*block, causal"):
        registry.masks.get("casual")
    with pytest.raises(ValueError, match="Known: none"):
        Registry("colour").get("blue")
    assert nearest("zzzz", ["causal"]) == ""


def test_parameters_of_an_entry() -> None:
    assert [p.name for p in registry.masks.entry("dilated").parameters] == ["size", "step"]
    assert registry.masks.entry("causal").parameters == []

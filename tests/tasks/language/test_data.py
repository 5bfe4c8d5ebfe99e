import itertools
import subprocess
import sys

import numpy as np
import pytest

from maskzoo.registry import datasets
from maskzoo.tasks.language import ByteTokenizer, TokenBatch
from maskzoo.tasks.language.data import DataConfig, LanguageData, byte_count
from maskzoo.tasks.language.packing import IGNORED


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKZOO_DATA", str(tmp_path / "cache"))


@pytest.fixture
def long_text(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("".join(f"line {number}: größer\n" for number in range(100)))
    return str(path)


@pytest.fixture
def folder(tmp_path):
    for number in range(30):
        (tmp_path / "pages").mkdir(exist_ok=True)
        (tmp_path / "pages" / f"{number}.txt").write_text(f"page {number} " * (number + 1))
    return str(tmp_path / "pages")


def text_data(path: str, **options) -> LanguageData:
    return LanguageData(DataConfig(**{"name": "text", "path": path, "context": 32, "batch_size": 4} | options))


def targets(batches: list[TokenBatch]) -> list[int]:
    """Every counted target, in order."""
    return [int(one) for batch in batches for one in batch.targets[batch.targets != IGNORED]]


def test_default_needs_no_network_and_no_file():
    data = LanguageData(DataConfig(max_bytes=50_000))
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.tokens.shape == batch.targets.shape == (16, 256)
    assert batch.target_count == 16 * 256
    known = data.summary()
    assert known["vocabulary"] == 258 and known["train_bytes"] == known["train_tokens"] == 50_000
    assert known["val_bytes"] == sum(map(len, data.texts("val")))
    assert known["batches_per_epoch"] == len(data.train_dataloader()) == 12
    assert "library source" in known["source"]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
@pytest.mark.parametrize("batching", ["packed", "padded"])
@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_counts_every_token_byte_and_end_once(folder, tokenizer, batching, split):
    data = text_data(folder, tokenizer=tokenizer, vocabulary_size=300, batching=batching)
    data.setup(None)
    batches = list(data.val_dataloader() if split == "val" else data.test_dataloader())
    texts = data.texts(split)
    found = targets(batches)
    assert data.tokenizer.decode(found) == b"".join(texts)
    assert found.count(data.tokenizer.eos) == len(texts)
    assert sum(batch.target_bytes for batch in batches) == sum(map(len, texts))
    assert sum(batch.target_count for batch in batches) == len(found)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_evaluation_stream_counts_every_token_but_the_first(long_text, tokenizer):
    data = text_data(long_text, tokenizer=tokenizer, vocabulary_size=300, batching="stream")
    ids = data.documents("val").ids
    batches = list(data.val_dataloader())
    assert targets(batches) == ids[1:].tolist()
    assert sum(batch.target_bytes for batch in batches) == len(data.texts("val")[0]) - len(
        data.tokenizer.decode(ids[:1])
    )


@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_an_epoch_of_training_has_every_row_once(folder, batching):
    data = text_data(folder, batching=batching, batch_size=1)
    batches = list(data.train_dataloader())
    together = np.sort(np.concatenate([data.documents("train").ids, [257] * len(data.documents("train"))]))
    assert sorted(targets(batches)) == together.tolist()
    second = [batch.tokens.tolist() for batch in map(data.train_batches(1).__getitem__, range(len(batches)))]
    assert second != [batch.tokens.tolist() for batch in batches]


def test_training_drops_an_incomplete_batch_and_evaluation_keeps_it(long_text):
    data = text_data(long_text, batch_size=2)
    rows = len(data.train_rows(0))
    assert rows % 2 == 1
    assert [len(batch.tokens) for batch in data.train_dataloader()] == [2] * (rows // 2)
    assert len(data.evaluation_rows("val")) == sum(len(batch.tokens) for batch in data.val_dataloader())


def test_stream_windows_start_anywhere_and_never_overlap(long_text):
    data = text_data(long_text, batching="stream", batch_size=1)
    count = data.train_batches_per_epoch
    starts = set()
    for epoch in range(40):
        rows = data.train_rows(epoch)
        assert len(rows) == count
        starts.add(rows.offset)
        block = rows.block(np.arange(count))
        assert block.segment.shape == (1, 32) and (block.targets != IGNORED).all()
        end = rows.offset + count * 32
        assert block.targets.reshape(-1).tolist() == data.documents("train").ids[rows.offset + 1 : end + 1].tolist()
    assert len(starts) > 15 and max(starts) < 32


@pytest.mark.parametrize("extra", [1, 2, 31, 32, 33])
def test_stream_over_barely_enough_text(tmp_path, extra):
    (tmp_path / "t").write_bytes(b"x" * (200))
    data = text_data(str(tmp_path / "t"), batching="stream", batch_size=1, max_bytes=32 + extra)
    for batch in itertools.islice(data.train_dataloader(), 3):
        assert batch.tokens.shape == (1, 32) and batch.target_count == 32


@pytest.mark.parametrize("batching", ["packed", "padded", "stream"])
def test_text_shorter_than_the_context(tmp_path, batching):
    (tmp_path / "t").write_bytes(b"x" * 100)
    with pytest.raises(
        ValueError, match=r"train text is too short: it has 90 tokens, and data\.context=256 needs .* 257"
    ):
        text_data(str(tmp_path / "t"), batching=batching, context=256).setup("fit")


def test_no_validation_text(tmp_path):
    (tmp_path / "t").write_bytes(b"x" * 19)
    with pytest.raises(ValueError, match="the val text is too short: it has 1 tokens"):
        text_data(str(tmp_path / "t"), context=4).setup("fit")


def test_batch_of_more_rows_than_there_are(long_text):
    data = text_data(long_text, batch_size=1000)
    with pytest.raises(ValueError, match=r"data\.batch_size=1000 is more than the \d+ rows of context 32"):
        data.train_dataloader()


def test_stream_of_many_documents(folder):
    with pytest.raises(ValueError, match="stream reads one long text, and the train part of 'text' has 27 documents"):
        text_data(folder, batching="stream").setup("fit")


def test_path_for_a_data_set_that_takes_none():
    with pytest.raises(ValueError, match=r"'stdlib' takes no data\.path"):
        LanguageData(DataConfig(path="x")).setup("fit")
    with pytest.raises(ValueError, match=r"unknown data set 'stdlb'.*stdlib"):
        LanguageData(DataConfig(name="stdlb")).setup("fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, r"data\.context=0 must be a whole number of at least 1"),
        ({"batch_size": -3}, r"data\.batch_size=-3"),
        ({"workers": -1}, r"data\.workers=-1"),
        ({"max_bytes": 0}, r"data\.max_bytes=0"),
        ({"vocabulary_size": 100}, r"data\.vocabulary_size=100 .* 258"),
        (
            {"batching": "pack"},
            r"data\.batching='pack' is unknown. Did you mean 'packed'\? Known: packed, padded, stream",
        ),
        ({"tokenizer": "words"}, r"data\.tokenizer='words' is unknown. Known: bytes, bpe"),
        ({"path": 3}, r"data\.path=3 must be a path or a list of paths"),
        ({"context": 1.5}, r"data\.context=1\.5"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**options)


def test_paths_are_those_of_the_folder_the_command_started_in(tmp_path, monkeypatch):  # case B38
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.txt").write_text("x" * 1000)
    config = DataConfig(name="text", path="./a=b.txt", context=16, batch_size=2)
    several = DataConfig(name="text", path=["a=b.txt", "/c"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert config.path == str(tmp_path / "a=b.txt")
    assert several.path == [str(tmp_path / "a=b.txt"), "/c"]
    LanguageData(config).setup("fit")


def test_max_bytes_limits_only_training(folder):
    whole, part = text_data(folder), text_data(folder, max_bytes=300)
    assert b"".join(part.texts("train")) == b"".join(whole.texts("train"))[:300]
    assert part.texts("val") == whole.texts("val")


def test_a_checkpoints_tokenizer_is_used(folder):
    learned = text_data(folder, tokenizer="bpe", vocabulary_size=280).tokenizer
    data = LanguageData(DataConfig(name="text", path=folder, tokenizer="bytes"), tokenizer=learned)
    assert data.tokenizer is learned
    assert data.tokenizer.decode(data.documents("val").ids) == b"".join(data.texts("val"))


def test_bytes_of_a_long_text_are_not_copied(tmp_path):
    (tmp_path / "t").write_bytes(bytes(100_000))
    data = text_data(str(tmp_path / "t"), batching="stream")
    documents = data.documents("train")
    assert documents.ids.dtype == np.uint8 and documents.ids.base is not None
    assert byte_count(documents, ByteTokenizer()) == 90_000


def test_a_registered_data_set(monkeypatch):
    class Poems:
        def split(self, name: str) -> list[bytes]:
            return [b"roses are red " * 20] * 3

    monkeypatch.setattr(datasets, "_entries", {name: datasets.entry(name) for name in datasets.names()})
    datasets.register("poems")(Poems)
    data = LanguageData(DataConfig(name="poems", context=16, batch_size=2))
    data.setup("fit")
    assert next(iter(data.train_dataloader())).tokens.shape == (2, 16)


def test_importing_the_package_needs_no_lightning():
    code = "import sys, maskzoo.tasks.language as language; language.Stdlib; print('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_unknown_export():
    import maskzoo.tasks.language as language

    assert language.LanguageData is LanguageData
    with pytest.raises(AttributeError, match="LanguageDatum"):
        language.LanguageDatum  # noqa: B018

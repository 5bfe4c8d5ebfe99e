import itertools

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from maskzoo.tasks.language.data import DataConfig, LanguageData
from maskzoo.tasks.language.sampling import ResumableLoader


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "long.txt"
    path.write_bytes(np.random.default_rng(0).integers(32, 127, 600, np.uint8).tobytes())
    return str(path)


def language_data(text: str, batching: str = "packed", **changes) -> LanguageData:
    options = {"name": "text", "path": text, "context": 16, "batch_size": 4, "batching": batching} | changes
    return LanguageData(DataConfig(**options), seed=3)


def batches(loader: ResumableLoader, count: int) -> list[list[list[int]]]:
    """The tokens of the next `count` batches, over the ends of epochs."""
    epochs = itertools.chain.from_iterable(iter(loader) for _ in itertools.count())
    return [batch.tokens.tolist() for batch in itertools.islice(epochs, count)]


@pytest.mark.parametrize("batching", ["packed", "padded", "stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_stopped_and_resumed_order_equals_the_uninterrupted(text, batching, workers):  # case B29
    per_epoch = language_data(text, batching).train_batches_per_epoch
    whole = batches(language_data(text, batching).train_dataloader(), 2 * per_epoch + 3)
    for stop in {1, per_epoch - 1, per_epoch, per_epoch + 2}:
        first = language_data(text, batching, workers=workers).train_dataloader()
        assert batches(first, stop) == whole[:stop]
        second = language_data(text, batching, workers=workers).train_dataloader()
        second.load_state_dict(first.state_dict())
        assert batches(second, 3) == whole[stop : stop + 3]


@pytest.mark.parametrize("batching", ["packed", "stream"])
def test_order_is_decided_by_seed_and_epoch_alone(text, batching):
    def epoch(seed: int, number: int) -> list[list[list[int]]]:
        data = LanguageData(language_data(text, batching).config, seed=seed)
        return [batch.tokens.tolist() for batch in (data.train_batches(number)[n] for n in range(4))]

    torch.manual_seed(1)
    first = epoch(3, 5)
    torch.manual_seed(2)
    epoch(3, 4)
    assert epoch(3, 5) == first
    assert epoch(3, 6) != first
    assert epoch(4, 5) != first


def test_loading_does_not_draw_from_the_global_generator(text):
    before = torch.get_rng_state()
    batches(language_data(text).train_dataloader(), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_length_is_that_of_a_whole_epoch_also_after_a_resume(text):
    loader = language_data(text).train_dataloader()
    whole = len(loader)
    batches(loader, 3)
    assert loader.state_dict() == {"epoch": 0, "batch": 3, "length": whole}
    assert len(loader) == whole == len(list(language_data(text).train_dataloader()))


def test_resume_with_other_data_is_refused(text):
    state = language_data(text).train_dataloader().state_dict()
    with pytest.raises(ValueError, match="same data, tokenizer, context and batch_size"):
        language_data(text, batch_size=2).train_dataloader().load_state_dict(state)


class Recorder(lightning.LightningModule):
    """Trains nothing worth having and writes down the batches it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[list[int]]] = []

    def training_step(self, batch, _):
        self.seen.append(batch.tokens.tolist())
        return self.weight.sum()

    def validation_step(self, batch, _):
        self.log("val", batch.tokens.float().mean(), batch_size=1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data: LanguageData, folder, resume=None, *, save: dict, **options) -> list[list[list[int]]]:
    """The batches that a trainer sees; it leaves a checkpoint stepN.ckpt whenever `save` says."""
    module = Recorder()
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=1,
        callbacks=[ModelCheckpoint(folder, "step{step}", auto_insert_metric_name=False, save_top_k=-1, **save)],
        **options,
    )
    trainer.fit(module, data, ckpt_path=resume, weights_only=True)
    return module.seen


EVERY_STEP = {"every_n_train_steps": 1}
EVERY_EPOCH = {"every_n_epochs": 1}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("save", "options"),
    [
        (EVERY_STEP, {"max_steps": 19}),
        (EVERY_STEP, {"max_epochs": 2}),
        (EVERY_STEP, {"max_steps": 14, "limit_train_batches": 5}),
        (EVERY_STEP, {"max_steps": 9, "accumulate_grad_batches": 2}),
        ({"monitor": "val"}, {"max_steps": 19, "val_check_interval": 2, "check_val_every_n_epoch": None}),
        (EVERY_EPOCH, {"max_steps": 19}),
        (EVERY_EPOCH | {"save_on_train_epoch_end": True}, {"max_steps": 19}),
        (EVERY_EPOCH, {"max_epochs": 3}),
    ],
    ids=str,
)
def test_lightning_resumes_at_the_next_batch(text, tmp_path, save, options):  # case B29
    data = language_data(text)
    assert data.train_batches_per_epoch == 8
    whole = fit(data, tmp_path / "whole", save=save, **options)
    assert len({str(batch) for batch in whole}) == len(whole) > 8
    saves = {int(path.stem.removeprefix("step")): path for path in (tmp_path / "whole").glob("*.ckpt")}
    starts = {step * options.get("accumulate_grad_batches", 1): path for step, path in saves.items()}
    starts = {batch: path for batch, path in starts.items() if batch < len(whole)}
    # Each end of an epoch with what lies beside it, and a few in between.
    chosen = [batch for batch in starts if batch % 8 in (7, 0, 1) or batch % 5 == 0]
    assert chosen
    for batch in chosen:
        resumed = fit(language_data(text), tmp_path / "resumed", starts[batch], save=save, **options)
        assert resumed == whole[batch:], f"resumed after {batch} batches"


@pytest.mark.filterwarnings("ignore")
def test_lightning_sees_the_same_order_as_a_plain_loop(text, tmp_path):
    plain = batches(language_data(text, "stream").train_dataloader(), 18)
    assert fit(language_data(text, "stream"), tmp_path, save=EVERY_EPOCH, max_steps=18) == plain


def test_an_epoch_can_be_limited(text):
    data = language_data(text)
    loader = ResumableLoader(data.train_batches, data.train_batches_per_epoch, limit=3)
    epochs = [[batch.tokens.tolist() for batch in loader] for _ in range(2)]
    assert epochs == [[data.train_batches(epoch)[n].tokens.tolist() for n in range(3)] for epoch in range(2)]
    loader.load_state_dict({"epoch": 4, "batch": 6, "length": len(loader)})  # of a run with a higher limit
    assert next(iter(loader)).tokens.tolist() == data.train_batches(5)[0].tokens.tolist()

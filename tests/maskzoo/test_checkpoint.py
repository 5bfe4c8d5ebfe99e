from dataclasses import asdict

import pytest
import torch
from torch.testing import assert_close

import maskzoo
from maskzoo.checkpoint import find_checkpoint, load
from maskzoo.transformer import LanguageModel, TransformerConfig

CONFIG = TransformerConfig(layers=2, width=32, heads=4, context=32)
TOKENS = torch.tensor([[1, 2, 3, 4, 5]])


def checkpoint_of(model, bias=None, **about):
    described = {
        "format": 1,
        "task": "language",
        "vocabulary": model.vocabulary,
        "mask": repr(model.mask),
        "bias": bias,
        "model": asdict(model.config),
        "tokenizer": {"kind": "bytes"},
        "config": {},
        "plugins": [],
        "step": 7,
        "scores": {"val/loss": 1.5},
    }
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    return {"state_dict": state, "maskzoo": {**described, **about}, "epoch": 0}


@pytest.fixture
def model():
    return LanguageModel(CONFIG, 9, mask="causal & window(3)")


@pytest.fixture
def file(tmp_path, model):
    path = tmp_path / "model.ckpt"
    torch.save(checkpoint_of(model), path)
    return path


def test_a_path_is_enough(file, model):
    loaded = maskzoo.load(str(file))
    assert not loaded.training
    assert_close(loaded(TOKENS), model.eval()(TOKENS), atol=0, rtol=0)
    assert loaded.mask == model.mask
    assert loaded.config == CONFIG
    assert loaded.tokenizer_state == {"kind": "bytes"}
    assert loaded.scores == {"val/loss": 1.5}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("bias", "per_layer"), [("none", False), ("relative(buckets=8, max_distance=16)", False), ("offset(3)", True)]
)
def test_every_parameter_comes_back(tmp_path, tied, bias, per_layer):
    config = TransformerConfig(layers=2, width=16, heads=2, tied=tied, qk_norm=True, bias_per_layer=per_layer)
    model = LanguageModel(config, 9, bias=bias)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    torch.save(checkpoint_of(model, bias=bias), tmp_path / "a=1.ckpt")
    loaded = load(tmp_path / "a=1.ckpt")
    assert (loaded.head.weight is loaded.embedding.weight) == tied
    for (name, value), (other, loaded_value) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(value, loaded_value)


def test_a_run_folder_means_its_best_then_its_last_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"neither best\.ckpt nor last\.ckpt"):
        find_checkpoint(tmp_path)
    (folder / "last.ckpt").touch()
    assert find_checkpoint(tmp_path) == folder / "last.ckpt"
    (folder / "best.ckpt").touch()
    assert find_checkpoint(tmp_path) == find_checkpoint(folder) == folder / "best.ckpt"


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no checkpoint at .*nowhere\.ckpt: there is no such file"):
        load(tmp_path / "nowhere.ckpt")


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_a_truncated_file_is_refused(file, keep):
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match=r"model\.ckpt") as error:
        load(file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"just a text file\n", b"\x80\x04garbage", b"PK\x03\x04nothing"])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "notes.ckpt").write_bytes(content)
    with pytest.raises(ValueError, match=r"notes\.ckpt"):
        load(tmp_path / "notes.ckpt")


class Evil:
    def __reduce__(self):
        return (print, ("run while loading",))


def test_nothing_in_a_file_is_ever_run(tmp_path, capsys):
    torch.save({"maskzoo": Evil()}, tmp_path / "evil.ckpt")
    with pytest.raises(ValueError, match="more than plain data"):
        load(tmp_path / "evil.ckpt")
    assert capsys.readouterr().out == ""


def assert_refused(tmp_path, checkpoint, message):
    path = tmp_path / "bad.ckpt"
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match=message) as error:
        load(path)
    assert len(str(error.value).splitlines()) <= 2


def test_a_checkpoint_of_another_program_is_refused(tmp_path, model):
    assert_refused(tmp_path, {"state_dict": model.state_dict()}, 'no "maskzoo" entry')
    assert_refused(tmp_path, [1, 2, 3], 'no "maskzoo" entry')


def test_other_formats_and_tasks_are_refused(tmp_path, model):
    assert_refused(tmp_path, checkpoint_of(model, format=2), "format 2; this version of maskzoo reads format 1")
    assert_refused(tmp_path, checkpoint_of(model, task="graphs"), "task 'graphs', which is no language model")


def test_a_missing_description_is_named(tmp_path, model):
    checkpoint = checkpoint_of(model)
    del checkpoint["maskzoo"]["mask"]
    assert_refused(tmp_path, checkpoint, "does not describe its model fully: mask missing")


def test_an_unknown_model_option_is_named(tmp_path, model):
    checkpoint = checkpoint_of(model)
    checkpoint["maskzoo"]["model"]["layer"] = 2
    assert_refused(tmp_path, checkpoint, r"'layer', which this version does not know\. Did you mean 'layers'")


def test_weights_that_do_not_fit_are_named(tmp_path, model):
    missing = checkpoint_of(model)
    del missing["state_dict"]["model.embedding.weight"]
    assert_refused(tmp_path, missing, "missing: embedding.weight")
    extra = checkpoint_of(model)
    extra["state_dict"]["model.spare"] = torch.zeros(1)
    assert_refused(tmp_path, extra, "not in the model: spare")
    assert_refused(
        tmp_path, checkpoint_of(model, vocabulary=10), r"embedding.weight.*shape \[9, 32\].*needs \[10, 32\]"
    )


def test_weights_of_other_modules_beside_the_model_are_left_alone(tmp_path, model):
    checkpoint = checkpoint_of(model)
    checkpoint["state_dict"]["metric.total"] = torch.zeros(1)
    torch.save(checkpoint, tmp_path / "model.ckpt")
    assert load(tmp_path / "model.ckpt").vocabulary == 9


PLUGIN = """
from dataclasses import dataclass
import maskzoo

@maskzoo.register_mask("{name}")
@dataclass(frozen=True, repr=False)
class EveryOther(maskzoo.Mask):
    def visible(self, q, k):
        return (q.index >= k.index) & ((q.index - k.index) % 2 == 0)
"""


def test_plugins_that_a_checkpoint_names_are_loaded_first(tmp_path):
    plugin = tmp_path / "my_masks.py"
    plugin.write_text(PLUGIN.format(name="every_other_of_test_checkpoint"))
    model = LanguageModel(CONFIG, 9)
    torch.save(
        checkpoint_of(model, mask="every_other_of_test_checkpoint", plugins=[str(plugin)]), tmp_path / "model.ckpt"
    )
    assert repr(load(tmp_path / "model.ckpt").mask) == "every_other_of_test_checkpoint"


def test_a_plugin_that_is_gone_is_named(tmp_path, model):
    assert_refused(
        tmp_path, checkpoint_of(model, plugins=[str(tmp_path / "gone.py")]), r"plugin file .*gone\.py.* does not exist"
    )


def test_a_rule_whose_plugin_is_unknown_is_named(tmp_path, model):
    assert_refused(tmp_path, checkpoint_of(model, mask="never_registered"), "unknown mask 'never_registered'")

"""The algebra of biases, their text form, and what is no bias."""

import math

import pytest
import torch

import maskzoo as mz


def scores(text, at, heads, k_at=None):
    return mz.plan("full", at, bias=text, heads=heads, k_at=k_at).scores()


def test_a_learned_table_gets_the_sum_of_its_pairs_gradients():
    bias = mz.biases.parse("relative(buckets=8)", heads=2)
    at = mz.Positions.packed([9, 7])
    plan = mz.plan("causal", at, bias=bias)
    q, k, v = (torch.randn(3, 2, 16, 4, dtype=torch.float64) for _ in range(3))
    whole = plan.scores().detach().double().expand(3, 2, 16, 16).clone().requires_grad_()
    mz.attend(q, k, v, plan).square().sum().backward()
    mz.attend(q, k, v, mz.plan("causal", at, bias=whole, heads=2)).square().sum().backward()
    expected = torch.zeros(2, 8).double()
    buckets = bias.bucket(at.index[0, :, None] - at.index[0])
    for bucket in range(8):
        expected[:, bucket] = whole.grad.sum(0)[:, buckets == bucket].sum(-1)
    torch.testing.assert_close(bias.weight.grad.double(), expected, atol=1e-5, rtol=1e-5)
    assert bias.weight.grad.abs().max() > 1e-3


def test_biases_add_and_scale():
    at = mz.Positions.tokens(5)
    both = scores("alibi + 0.5 * alibi", at, 4)
    torch.testing.assert_close(both, 1.5 * scores("alibi", at, 4))
    learned = mz.biases.parse("2 * (relative(buckets=8) + alibi)", heads=4)
    assert repr(learned) == "2 * (relative(8) + alibi)"
    with torch.no_grad():
        learned.term.terms[0].weight.normal_()
    alone = mz.plan("full", at, bias=learned.term.terms[0]).scores()
    torch.testing.assert_close(mz.plan("full", at, bias=learned).scores(), 2 * alone + 2 * scores("alibi", at, 4))


@pytest.mark.parametrize(
    "text",
    [
        "alibi",
        "relative",
        "relative(8)",
        "relative(max_distance=64)",
        "alibi + relative(8)",
        "3 * alibi",
        "clipped_relative(16)",
        "offset(8, 2)",
        "grid_offset(7, 7)",
        "grid_offset(7, 7, 4)",
        "distance",
        "distance('linear', learned=True)",
        "distance(fields=('row', 'col'), metric='chebyshev')",
        "segment_pair(2)",
        "0.5 * segment_pair(2, 'speaker') + alibi",
    ],
)
def test_text_comes_back(text):
    assert repr(mz.biases.parse(text, heads=2)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alibbi", "Did you mean 'alibi'"),
        ("relative(bucket=8)", "Did you mean 'buckets'"),
        ("relative(buckets=3)", "positive multiple of 2"),
        ("relative(buckets=32, max_distance=16)", "above 16"),
        ("relative(heads=3)", "no parameter 'heads'"),
        ("clipped_relative(-1)", r"clipped_relative\(reach=-1\): reach must be an integer from 0"),
        ("offset(2, after=True)", r"offset\(after=True\): after must be"),
        ("grid_offset(7)", "missing a required argument: 'cols'"),
        ("grid_offset(7, 0)", r"grid_offset\(cols=0\)"),
        ("grid_offset(7, 7, times=0)", r"grid_offset\(times=0\)"),
        ("distance('logg')", "Did you mean 'log'"),
        ("distance(metric='manhattan')", "euclidean, chebyshev"),
        ("distance(fields=[])", "name of a field"),
        ("distance(learned=1)", "True or False"),
        ("segment_pair(0)", "an integer from 1 to 1024"),
        ("segment_pair(2, field=3)", "name of a field"),
        ("dense(3)", "made in Python"),
        ("table(3)", "made in Python"),
        ("alibi & alibi", "is no rule"),
        ("alibi * alibi", "is no rule"),
        ("", "must be a rule such as"),
    ],
)
def test_what_is_no_bias_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        mz.biases.parse(text, heads=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), "float tensor"),
        (torch.zeros(1, 1, 1, 1, 1), "float tensor"),
        (torch.tensor([0.0, -math.inf]), "from_additive"),
        (torch.tensor([math.nan]), "finite"),
    ],
)
def test_a_tensor_that_is_no_bias_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        mz.plan("full", mz.Positions.tokens(2), bias=values, heads=1)


@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_a_factor_is_finite(factor):
    with pytest.raises(ValueError, match="must be finite"):
        factor * mz.biases.parse("alibi", heads=2)


def test_a_bias_of_the_users_own_may_have_any_parameters():  # case B9: a scale and a linear layer over features
    class Smooth(mz.biases.OffsetBias):
        def __init__(self, heads, features):
            super().__init__(heads)
            self.features = features
            self.scale = torch.nn.Parameter(torch.tensor(0.3))
            self.layer = torch.nn.Linear(2, heads)

        def code(self, at):
            return at.index

        def table(self, differences):
            return self.scale * self.layer(self.features[differences.abs()]).T

    bias = Smooth(2, torch.randn(9, 2, dtype=torch.float64)).double()
    q, k, v = (torch.randn(2, 2, 9, 4, dtype=torch.float64) for _ in range(3))

    def loss(*_):
        return mz.attend(q, k, v, mz.plan("causal", mz.Positions.tokens(9), bias=bias)).square().sum()

    assert torch.autograd.gradcheck(loss, tuple(bias.parameters()))
    assert repr(bias) == "Smooth" and all(p.grad_fn is None for p in bias.parameters())


@pytest.mark.parametrize("base", [mz.Bias, mz.OffsetBias])
@pytest.mark.parametrize(
    "written", [(), ("table",), ("index",), ("index", "code"), ("code", "q_code"), ("q_code", "table")]
)
def test_a_registered_bias_has_all_its_parts(base, written):
    provider = type("Mine", (base,), {name: lambda self, *of: None for name in written})
    with pytest.raises(ValueError, match=r"'mine' must be .* its own index.* own code.* own table; 'Mine' is not"):
        mz.register_bias("mine")(provider)
    assert "mine" not in mz.registry.biases.names()


def test_an_offset_bias_is_not_read_by_an_index():
    parts = {name: lambda self, *of: None for name in ("index", "table")}
    with pytest.raises(ValueError, match="own code"):
        mz.register_bias("mine")(type("Mine", (mz.OffsetBias,), parts))
    assert "mine" not in mz.registry.biases.names()

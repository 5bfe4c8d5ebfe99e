"""Sound models of other libraries, with random weights."""

import pytest
import torch


def transformers_model(kind, config, **shape):
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, kind)(getattr(transformers, config)(**shape))


def gpt2():
    model = transformers_model(
        "GPT2LMHeadModel", "GPT2Config", vocab_size=19, n_positions=32, n_embd=16, n_layer=2, n_head=2
    )
    return {"model": model, "inputs": {"input_ids": torch.randint(0, 19, (2, 10))}, "permits": "causal"}


def llama():
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers_model(
        "LlamaForCausalLM", "LlamaConfig", vocab_size=19, num_key_value_heads=2, pad_token_id=None, **shape
    )
    return {"model": model, "inputs": {"input_ids": torch.randint(0, 19, (2, 10))}, "permits": "causal"}


def bert_over_padding():
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers_model("BertModel", "BertConfig", vocab_size=19, **shape)
    real = torch.arange(10) < torch.tensor([[10], [6]])
    inputs = {"input_ids": torch.randint(1, 19, (2, 10)), "attention_mask": real.long()}
    permits = real[:, None, :] | torch.eye(10, dtype=torch.bool)
    return {"model": model, "inputs": inputs, "permits": permits, "blind_spots": False}


def vision_transformer():
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=16, embed_dim=16, depth=2, num_heads=2)

    class Patches(torch.nn.Module):
        """The model from its patches on."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, patches):
            image = patches.unflatten(2, (3, 16, 16)).unflatten(1, (2, 2))
            image = image.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), 3, 32, 32)
            return self.model.forward_features(image)

    return {"model": Patches(), "inputs": torch.randn(2, 4, 768), "permits": "all", "lengths": (4,)}


def classifying_vision_transformer():
    case = vision_transformer()
    inner = case["model"]

    class Classes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, patches):
            return self.inner.model.forward_head(self.inner(patches))

    return {**case, "model": Classes(), "axis": (1, None)}


def graph_convolution():
    geometric = pytest.importorskip("torch_geometric.nn")
    edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 1]])

    class Graph(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = geometric.GCNConv(6, 6)

        def forward(self, x):
            return torch.stack([self.convolution(one, edges) for one in x])

    visible = torch.eye(5, dtype=torch.bool)
    visible[edges[1], edges[0]] = True
    return {"model": Graph(), "inputs": torch.randn(2, 5, 6), "permits": visible, "layers": 1, "lengths": (5,)}


def graph_attention():
    geometric = pytest.importorskip("torch_geometric.nn")
    case = graph_convolution()
    case["model"].convolution = geometric.GATConv(6, 3, heads=2, dropout=0.1)
    return case


SOUND = (
    gpt2,
    llama,
    bert_over_padding,
    vision_transformer,
    classifying_vision_transformer,
    graph_convolution,
    graph_attention,
)


@pytest.mark.parametrize("specimen", SOUND, ids=lambda specimen: specimen.__name__)
def test_sound_model_gives_no_finding(specimen, clean):
    assert clean(specimen).ok

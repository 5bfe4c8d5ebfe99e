"""Faults planted in graph models: direction, batches of graphs, the order of nodes, poolings."""

import pytest
import torch
from torch import nn

NODES, WIDTH = 8, 6
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0], [1, 2, 3, 4, 5, 6, 7, 5]])  # source, target


def sees():
    """Who sees whom in one step: a target its source, and every node itself."""
    visible = torch.eye(NODES, dtype=torch.bool)
    visible[EDGES[1], EDGES[0]] = True
    return visible


class Messages(nn.Module):
    """Each target receives the sum over its sources; x [B, N, C]."""

    def __init__(self, edges=EDGES):
        super().__init__()
        self.own, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("edges", edges)

    def forward(self, x):
        source, target = self.edges
        received = torch.zeros_like(x).index_add(1, target, self.other(x)[:, source])
        return self.own(x) + received.tanh()


def case(model, permits=None, layers=1, **options):
    rule = {"permits": sees() if permits is None else permits, "layers": layers, "lengths": (NODES,)}
    return {"model": model, "inputs": torch.randn(3, NODES, WIDTH), **rule, **options}


def forbidden(query, key):
    return not bool(sees()[query, key])


def messages_against_the_edges():
    return case(Messages(EDGES.flip(0)), violates=forbidden)


def second_layer_against_the_edges():
    two = (sees().float() @ sees().float()) > 0
    model = nn.Sequential(Messages(), Messages(EDGES.flip(0)))
    return case(model, layers=2, violates=lambda query, key: not bool(two[query, key]))


def one_hop_too_many():
    return case(nn.Sequential(Messages(), Messages()), violates=forbidden)


def last_edge_dropped():
    return case(Messages(EDGES[:, :-1]))


def edges_into_the_next_graph():
    class Flat(Messages):
        """All graphs of a batch in one list of nodes, numbered one too low from the second on."""

        def forward(self, x):
            B = len(x)
            shift = torch.arange(B).repeat_interleave(EDGES.shape[1]) * (NODES - 1)
            source, target = self.edges.repeat(1, B) + shift
            flat = x.flatten(0, 1)
            received = torch.zeros_like(flat).index_add(0, target, self.other(flat)[source])
            return (self.own(flat) + received.tanh()).view_as(x)

    return case(Flat(), permits="all", blind_spots=False)


def virtual_node_of_the_whole_batch():
    class Virtual(Messages):
        def forward(self, x):
            return super().forward(x) + x.mean(dim=(0, 1))

    return case(Virtual(), permits="all", blind_spots=False)


def order_of_the_neighbours():
    class Recurrent(nn.Module):
        """Neighbours are read one after another, which no graph has an order for."""

        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

        def forward(self, x):
            return x + self.gru(x)[0][:, -1:]

    return case(Recurrent(), permits="all", symmetric=True)


def numbered_nodes():
    class Numbered(nn.Module):
        def __init__(self):
            super().__init__()
            self.number, self.own = nn.Embedding(NODES, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.own(x + self.number.weight) + x.mean(dim=1, keepdim=True)

    return case(Numbered(), permits="all", symmetric=True)


def pooled_with_weights_by_place():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(NODES))

        def forward(self, x):
            return (x * self.weight[:, None]).sum(dim=1)

    return case(Pooled(), permits="all", symmetric=True, axis=(1, None))


def pooled_over_padding():
    class Pooled(nn.Module):
        def forward(self, x):
            return x.tanh().mean(dim=1)

    real = (torch.arange(NODES) < 5)[None]
    return case(Pooled(), permits=real, axis=(1, None), violates=lambda query, key: key >= 5)


def sage_from_target_to_source():
    geometric = pytest.importorskip("torch_geometric.nn")

    class Sage(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = geometric.SAGEConv(WIDTH, WIDTH, flow="target_to_source")

        def forward(self, x):
            return torch.stack([self.convolution(one, EDGES) for one in x])

    return case(Sage(), violates=forbidden)


def laplacian_of_the_undirected_graph():
    """A normalised adjacency matrix that was made symmetric."""

    class Symmetric(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = nn.Linear(WIDTH, WIDTH)
            adjacency = (sees() | sees().T).float()
            self.register_buffer("adjacency", adjacency / adjacency.sum(1, keepdim=True))

        def forward(self, x):
            return self.adjacency @ self.own(x)

    return case(Symmetric(), violates=forbidden)


FAULTS = {
    messages_against_the_edges: ("leak", {}),
    second_layer_against_the_edges: ("leak", {"layer": "1"}),
    one_hop_too_many: ("leak", {}),
    last_edge_dropped: ("blind spot", {}),
    edges_into_the_next_graph: ("batch coupling", {}),
    virtual_node_of_the_whole_batch: ("batch coupling", {}),
    order_of_the_neighbours: ("broken symmetry", {}),
    numbered_nodes: ("broken symmetry", {}),
    pooled_with_weights_by_place: ("broken symmetry", {}),
    pooled_over_padding: ("leak", {}),
    sage_from_target_to_source: ("leak", {}),
    laplacian_of_the_undirected_graph: ("leak", {}),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_found_and_named(fault, found):
    kind, expected = FAULTS[fault]
    assert found(fault, kind, **expected).findings

"""The stated chance that quick mode misses a leak holds: misses over many seeds against leaks of known width."""

import math

import pytest
import torch
from torch import nn

from maskzoo.audit import check

LENGTH, WIDTH, SEEDS = 40, 4, 60


class Narrow(nn.Module):
    """A causal mean, of which the outputs of a share w also see the very last input."""

    def __init__(self, share):
        super().__init__()
        leaking = torch.randperm(LENGTH - 1, generator=torch.Generator().manual_seed(1))[: round(share * LENGTH)]
        mix = torch.ones(LENGTH, LENGTH).tril()
        mix[leaking, -1] = 1.0
        self.register_buffer("mix", mix / LENGTH)

    def forward(self, x):
        return self.mix @ x


def reports(share):
    torch.manual_seed(0)
    x = torch.randn(1, LENGTH, WIDTH)
    options = {"method": "quick", "layers": 1, "lengths": (LENGTH,), "blind_spots": False}
    return [check(Narrow(share), x, "causal", seed=seed, **options) for seed in range(SEEDS)]


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_quick_mode_misses_no_more_than_it_says(share):
    found = reports(share)
    assert all(report.method == "quick" for report in found)
    missed = sum(not report.leaks for report in found)
    probes = min(probes_of(report) for report in found)
    bound = (1 - share) ** probes
    # Three standard deviations of a count of SEEDS tries that each miss with the stated probability.
    assert missed <= SEEDS * bound + 3 * math.sqrt(SEEDS * bound * (1 - bound)) + 1


def test_quick_mode_finds_a_leak_of_every_output_at_once():
    for report in reports(0.95):
        assert report.leaks, str(report)
        assert all(leak.key == LENGTH - 1 and leak.query < LENGTH - 1 for leak in report.leaks)


def test_quick_mode_raises_no_false_alarm():
    for report in reports(0.0):
        assert not report.findings, str(report)
        assert report.miss


def probes_of(report):
    """The number of random queries, as the report states it: the first whole number in its words on chance."""
    import re

    return int(re.search(r"\b(\d+) (?:random )?(?:probes|queries|outputs)", report.miss).group(1))

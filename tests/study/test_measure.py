"""The numbers of a run, against numbers by hand."""

import math

import pytest
import torch

from tilesieve.hf.session import Seen
from tilesieve.study.measure import Watch, divergence, loss, mask_of, overlap, probabilities
from tilesieve.types import Selection


def test_loss_is_the_mean_over_all_rows():
    logits = torch.randn(300, 7)
    targets = torch.randint(0, 7, (300,))
    want = -torch.log_softmax(logits.double(), -1)[torch.arange(300), targets].mean().item()
    assert loss(logits, targets) == pytest.approx(want, rel=1e-6)


def test_divergence_by_hand():
    dense, sparse = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    first = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    mean, worst, at = divergence(dense, sparse, first=10)
    assert at == 10 and worst == pytest.approx(first, rel=1e-5) and mean == pytest.approx(first / 2, rel=1e-5)


def test_mass_of_a_hand_made_layer():
    """Two positions with attention 0.25 and 0.75; a set that keeps the second keeps 0.75."""
    key = torch.tensor([[[0.0], [math.log(3)]]])
    seen = Seen(0, 1, torch.ones(1, 1, 1), key, key, 1.0,
                (Selection(torch.tensor([[1]], dtype=torch.int32), torch.tensor([1]), None, "position"),))  # fmt: skip
    assert torch.allclose(probabilities(seen, 1), torch.tensor([[[0.25, 0.75]]]))
    watch = Watch()
    watch(seen)
    assert watch.layers[0].mass_mean == pytest.approx(0.75)
    assert watch.layers[0].overlap == 1.0 and watch.layers[0].top1 == 1.0
    assert watch.layers[0].heads == pytest.approx([0.75])


def test_top1_and_heads_of_a_hand_made_layer():
    """Head 0 puts 0.75 on position 1, head 1 on position 0; a shared set of position 1 hits one of the two."""
    key = torch.tensor([[[0.0], [math.log(3)]], [[math.log(3)], [0.0]]])
    picks = Selection(torch.tensor([[1]], dtype=torch.int32), torch.tensor([1]), None, "position")
    watch = Watch()
    watch(Seen(0, 1, torch.ones(1, 2, 1), key, key, 1.0, (picks,), 1))
    assert watch.layers[0].top1 == 0.5 and watch.layers[0].heads == pytest.approx([0.75, 0.25])
    assert watch.numbers()["rate"] == 1.0 and watch.numbers()["mass_worst"] == pytest.approx(0.25)


def test_rate_is_the_share_of_rows_that_chose():
    key = torch.zeros(1, 4, 1)
    picks = Selection(torch.zeros(4, 1, dtype=torch.int32), torch.ones(4), None, "position")
    watch = Watch()
    watch(Seen(0, 0, torch.ones(4, 1, 1), key, key, 1.0, (picks,), 1))
    assert watch.numbers()["rate"] == 0.25


def test_mask_skips_missing_picks_and_spreads_over_heads():
    selection = Selection(
        torch.tensor([[[0, 2, -1], [1, -1, -1]]], dtype=torch.int32), torch.tensor([[2, 1]]), None, "position"
    )
    mask = mask_of((selection,), heads=4, length=3)
    assert mask[:, 0].tolist() == [[True, False, True]] * 2 + [[False, True, False]] * 2


def test_overlap_counts_only_what_a_row_sees():
    dense = torch.tensor([[[1.0, 0.0, 0.0, 0.0], [0.4, 0.6, 0.0, 0.0], [0.1, 0.2, 0.7, 0.0], [0.4, 0.3, 0.2, 0.1]]])
    mask = torch.tensor([[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]]]).bool()
    # Ideal pairs: {0}, {0,1}, {1,2}, {0,1}: hits 1, 1, 1/2, 0.
    assert overlap(dense, mask) == pytest.approx((1 + 1 + 0.5 + 0) / 4)


def test_overlap_grants_the_kept_ends():
    """Weights say {1, 2} for row 3; with the row itself kept the ideal is {1, 3}, with the first kept too {0, 3}."""
    dense = torch.tensor([[[0.1, 0.5, 0.3, 0.1]]])

    def of(*picks, **ends):
        mask = torch.zeros(1, 1, 4, dtype=torch.bool)
        mask[..., list(picks)] = True
        return overlap(dense, mask, **ends)

    assert of(1, 2) == 1.0 and of(1, 3) == 0.5
    assert of(1, 3, last=1) == 1.0 and of(1, 2, last=1) == 0.5
    assert of(0, 3, first=1, last=1) == 1.0
    assert of(1, 2, 3, last=1) == 1.0  # a row that reads more is held against as many

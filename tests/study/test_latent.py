"""Truncated bases by hand, and the latent section: exact where it must be, lossy where it must be."""

import shutil

import pytest
import torch
from models import tiny

from tilesieve.hf.load import Checkpoint
from tilesieve.study import latent as section
from tilesieve.study.bench import Bench
from tilesieve.study.latent import AFTER, BEFORE, Caught
from tilesieve.study.plan import Plan
from tilesieve.study.run import encode
from tilesieve.study.store import Store
from tilesieve.study.texts import read_text

TOKENS = 160


def bench_of(folder, text, model=None):
    plan = Plan(folder, text, tokens=TOKENS, steps=2, budgets=(16,), budget=16, full=True)
    checkpoint = Checkpoint.open(folder)
    bench = Bench(plan, checkpoint, encode(checkpoint.tokenizer, read_text(text), plan, text), lambda *_: None)
    if model is not None:
        from tilesieve.hf.attention import install

        install(model)
        bench._model = model
    return bench


@pytest.fixture(scope="module")
def bench(model_folder, text_file):
    return bench_of(model_folder, text_file)


@pytest.fixture(scope="module")
def found(bench, tmp_path_factory):
    return section.latent(bench, Store(tmp_path_factory.mktemp("out"), {}))


def test_a_basis_by_hand():
    """Rows (3, 0) and (0, 4): the second axis is first, and rank 1 loses 3 of 5."""
    rows = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    basis = section.principal(rows)
    assert torch.allclose(basis.abs(), torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
    assert section.relative(rows, section.through(rows, basis[:, :1])) == pytest.approx(3 / 5)


def test_the_error_is_the_tail_of_the_spectrum():
    """Eckart and Young: on the rows it was fitted to, no rank-5 map does better than what is left of the spectrum."""
    rows = torch.randn(40, 12).double()
    values = torch.linalg.svdvals(rows)
    basis = section.principal(rows)[:, :5]
    want = float(values[5:].norm() / values.norm())
    assert section.relative(rows, section.through(rows, basis)) == pytest.approx(want, rel=1e-12)
    other = torch.linalg.qr(torch.randn(12, 5).double()).Q
    assert section.relative(rows, section.through(rows, other)) > want


def test_rows_of_a_low_rank_come_back_exactly():
    rows = torch.randn(40, 3).double() @ torch.randn(3, 12).double()
    basis = section.principal(rows[:20])
    assert section.relative(rows[20:], section.through(rows[20:], basis[:, :3])) < 1e-12
    assert section.relative(rows[20:], section.through(rows[20:], basis[:, :2])) > 1e-2
    assert section.relative(torch.zeros(2, 2), torch.zeros(2, 2)) == 0.0


@pytest.mark.parametrize("where", [AFTER, BEFORE])
def test_a_whole_basis_changes_nothing(bench, where):
    caught = Caught(bench, where, TOKENS)
    row = section.squeezed(caught, 1, "all of it")
    assert row["rank"] == caught.rows[0].shape[1] == 2 * (16 + 16)
    # fp32: a product with a 64 x 64 orthogonal matrix and back, in three layers.
    assert abs(row["delta"]) < 1e-5 and all(layer["error"] < 1e-6 for layer in row["layers"])


def test_the_layers_are_squeezed_as_their_errors_say(bench):
    """Its caches hold the projection of what would have been there: layer 0 sees the same input either way."""
    caught = Caught(bench, AFTER, TOKENS)
    basis = caught.basis(0)[:, :8]
    session = section.Squeezed.new(bench.shape, None, tokens=TOKENS)
    session.bases = {0: basis}
    section.run(bench, TOKENS, session, "one layer")
    have = torch.cat(section.contents(session, 0, TOKENS), 1)
    assert torch.allclose(have, section.through(caught.rows[0], basis), atol=1e-5)
    assert not torch.allclose(have, caught.rows[0], atol=1e-2)


def test_before_rope_is_before_rope(bench):
    """Without rope's turning both would catch the same: they do at position 0 and not after it; values always do."""
    after, before = (Caught(bench, where, TOKENS).rows[1] for where in (AFTER, BEFORE))
    width = Caught(bench, AFTER, TOKENS).key_width
    assert torch.allclose(after[0], before[0], atol=1e-6) and torch.allclose(after[:, width:], before[:, width:])
    assert not torch.allclose(after[5, :width], before[5, :width], atol=1e-2)


def test_weights_of_a_low_rank_lose_nothing_at_that_rank(model_folder, text_file):
    """K and V of a model whose joint [k_proj; v_proj] has rank 8: exact before rope at 64 / 8, not after it."""
    model = tiny("llama")
    with torch.no_grad():
        for module in section.projections(model).values():
            joint = torch.cat([module.k_proj.weight, module.v_proj.weight])
            u, s, v = torch.linalg.svd(joint, full_matrices=False)
            low = (u[:, :8] * s[:8]) @ v[:8]
            module.k_proj.weight.copy_(low[: len(low) // 2])
            module.v_proj.weight.copy_(low[len(low) // 2 :])
    bench = bench_of(model_folder, text_file, model)
    before = section.squeezed(Caught(bench, BEFORE, TOKENS), 8, "before")
    after = section.squeezed(Caught(bench, AFTER, TOKENS), 8, "after")
    assert before["rank"] == 8 and abs(before["delta"]) < 1e-5 and before["layers"][2]["error"] < 1e-5
    assert after["layers"][2]["key_error"] > 1e-2 and abs(after["delta"]) > abs(before["delta"])


def test_the_section(found, bench):
    assert (found["tokens"], found["scored"], found["width"]) == (TOKENS, [80, 160], 64)
    rows = {(row["where"], row["ratio"]): row for row in found["rows"]}
    assert list(rows) == [(w, r) for w in (AFTER, BEFORE) for r in (2, 4, 8, 16)]
    for where in (AFTER, BEFORE):
        errors = [rows[where, ratio]["layers"][1]["error"] for ratio in (2, 4, 8, 16)]
        assert errors == sorted(errors) and 0 < errors[0] < errors[3] < 1
        assert [rows[where, ratio]["rank"] for ratio in (2, 4, 8, 16)] == [32, 16, 8, 4]
    assert found["by_layer"]["ratio"] == 8 and found["by_layer"]["where"] == BEFORE
    assert [row["layer"] for row in found["by_layer"]["rows"]] == [0, 1, 2] and "note" not in found
    assert not any(m._forward_hooks for m in bench.model.modules())  # the model is as it was


def test_one_layer_alone_is_that_layer(bench, found):
    caught = Caught(bench, BEFORE, TOKENS)
    nll = section.lossy(bench, BEFORE, TOKENS, {1: caught.basis(1)[:, :8]}, "layer 1")
    assert found["by_layer"]["rows"][1]["perplexity"] == pytest.approx(float(torch.tensor(nll).exp()), rel=1e-6)
    every = next(row for row in found["rows"] if (row["where"], row["ratio"]) == (BEFORE, 8))
    assert found["by_layer"]["rows"][1]["perplexity"] != pytest.approx(every["perplexity"], rel=1e-4)


def test_a_finished_section_needs_no_model(model_folder, text_file, found, bench, tmp_path):
    store = Store(tmp_path, {})
    assert section.latent(bench, store) == found
    again = bench_of(model_folder, text_file)
    assert section.latent(again, store) == found and again._model is None


def test_keys_with_a_norm_after_their_projection(model_folder, text_file):
    bench = bench_of(model_folder, text_file, tiny("qwen3"))
    bench.checkpoint = type("Shaped", (), {"shape": shape_of(bench.model)})()
    row = section.squeezed(Caught(bench, BEFORE, TOKENS), 1, "all of it")
    assert row["rank"] == 2 * (24 + 24) and abs(row["delta"]) < 1e-5


def shape_of(model):
    from tilesieve.hf.shape import shape_of

    return shape_of(model.config)


def test_a_fused_projection_has_only_what_its_cache_has(model_folder, text_file, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    tiny("gpt2").save_pretrained(folder)
    found = section.latent(bench_of(folder, text_file), Store(tmp_path / "out", {}))
    assert {row["where"] for row in found["rows"]} == {AFTER} and found["by_layer"]["where"] == AFTER
    assert "after rope only" in found["note"]

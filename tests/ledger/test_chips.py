"""Chips: the numbers that are printed beside every verdict."""

import dataclasses

import pytest

from tilesieve.ledger.chips import CHIPS, H200, H200_MEASURED, chip, cpu


def test_h200():
    assert (H200.peak("bfloat16"), H200.peak("float8_e4m3fn"), H200.bytes_per_second) == (989e12, 1979e12, 4.8e12)
    assert H200.kind == "datasheet"
    assert round(H200.balance()) == 206
    # Measured ceilings move the balance: a verdict between the two depends on which is meant.
    assert H200_MEASURED.kind == "measured"
    assert round(H200_MEASURED.balance()) == 160
    assert all(H200_MEASURED.peak(dtype) < H200.peak(dtype) for dtype, _ in H200_MEASURED.flops)


def test_names():
    assert [chip(known.name.lower()) for known in CHIPS] == list(CHIPS)
    with pytest.raises(ValueError, match="chip is 'H2'; allowed: H200, H200-measured"):
        chip("H2")
    with pytest.raises(ValueError, match="dtype is 'int4'; H200 has peaks for bfloat16"):
        H200.peak("int4")


def test_codes_without_a_peak_run_as_bf16():
    assert H200.peak("int8") == 1979e12
    assert H200_MEASURED.peak("int8") == H200_MEASURED.peak("bfloat16")
    with pytest.raises(ValueError, match="dtype is 'float32'; H200-measured has peaks for bfloat16, float8_e4m3fn"):
        H200_MEASURED.peak("float32")


def test_cpu_holds_what_it_is_given():
    mine = cpu("two cores", flops={"float32": 1e11}, bytes_per_second=2e10, source="a product of 1024^3")
    assert (mine.kind, mine.launch_eager, mine.launch_graph, mine.peak("float32")) == ("measured", 0.0, 0.0, 1e11)
    assert mine.launch_source == mine.source == "a product of 1024^3"
    hash(mine)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mine.name = "other"


@pytest.mark.parametrize("bad", [{"flops": {}}, {"flops": {"float32": 0.0}}, {"bytes_per_second": 0}, {"launch": -1}])
def test_nonsense_is_refused(bad):
    with pytest.raises(ValueError, match="x: "):
        cpu("x", **{"flops": {"float32": 1.0}, "bytes_per_second": 1.0, "source": "", **bad})
    with pytest.raises(ValueError, match="kind is 'guess'"):
        dataclasses.replace(H200, kind="guess")

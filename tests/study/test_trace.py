"""Traces in memory and as files: what a recorder keeps, the round trip, and what a file is refused for."""

import json

import pytest
import torch

from tilesieve.hf.session import Seen
from tilesieve.study.trace import SHARED, Recorder, Trace, read_trace, write_trace
from tilesieve.types import Selection

HEADER = {"format": "tilesieve-trace-1", "length": 8, "start": 4, "model": "any"}


def row(step=0, layer=0, head=-1, positions=(0, 1)):
    return {"step": step, "layer": layer, "head": head, "positions": list(positions)}


def written(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def plain(trace):
    return {key: {q: p.tolist() for q, p in picks.items()} for key, picks in trace.picks.items()}


def seen(index, start, heads=4):
    """One layer's rows, which end with those of the selection."""
    rows = index.shape[0]
    q = torch.zeros(rows, heads, 2)
    key = torch.zeros(2, start + rows, 2)
    count = torch.full(index.shape[:-1], index.shape[-1], dtype=torch.int32)
    return Seen(3, start, q, key, key, 1.0, (Selection(index.int(), count, None, "position"),))


def test_a_recorder_keeps_the_tail_and_some_before():
    recorder = Recorder(1024)
    kept = [query for query in range(1024) if recorder.wanted(query)]
    assert kept == [*range(15, 896, 16), *range(896, 1024)]


def test_a_recorder_knows_rows_and_heads():
    recorder = Recorder(3)
    recorder(seen(torch.tensor([[0, -1], [0, 1], [1, 2]]), 0))
    assert plain(recorder.trace) == {(3, SHARED): {0: [0], 1: [0, 1], 2: [1, 2]}}
    # Two sets for four heads: each stands under the first head it serves.
    recorder = Recorder(3)
    recorder(seen(torch.tensor([[[0, 2], [1, 2]]]), 2))
    assert plain(recorder.trace) == {(3, 0): {2: [0, 2]}, (3, 2): {2: [1, 2]}}


def test_round_trip(tmp_path):
    def some(*positions):
        return torch.tensor(positions, dtype=torch.int32)

    trace = Trace(
        9, {(0, 0): {5: some(0, 5), 8: some()}, (0, 2): {5: some(1, 3)}, (7, SHARED): {6: some(6)}}, 5, {"run": "r"}
    )
    write_trace(trace, tmp_path / "t.jsonl", note=[1, "ü"])
    again = read_trace(tmp_path / "t.jsonl")
    assert (again.length, again.start, again.about) == (9, 5, {"run": "r", "note": [1, "ü"]})
    assert plain(again) == plain(trace)
    assert all(p.dtype == torch.int32 for picks in again.picks.values() for p in picks.values())
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[1]) == row(0, 0, 0, [0, 5])
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_header_cannot_be_contradicted(tmp_path):
    write_trace(Trace(3, {(0, SHARED): {2: torch.tensor([1])}}), tmp_path / "t.jsonl", length=99, start=7)
    again = read_trace(tmp_path / "t.jsonl")
    assert (again.length, again.start) == (3, 0)


def test_written_whole_or_not_at_all(tmp_path):
    path = written(tmp_path / "t.jsonl", row())
    before = path.read_bytes()
    broken = Trace(3, {(0, SHARED): {1: torch.tensor([1]), 2: None}})
    with pytest.raises(AttributeError):
        write_trace(broken, path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_whoever_reads_the_old_file_reads_it_to_its_end(tmp_path):
    path = written(tmp_path / "t.jsonl", row())
    with path.open() as file:
        write_trace(Trace(3, {(0, SHARED): {2: torch.tensor([1])}}), path)
        assert json.loads(file.read()) == row()


def test_positions_come_sorted_and_once(tmp_path):
    path = written(tmp_path / "t.jsonl", HEADER, "", row(2, positions=[6, 1, 6, -1, 0]), row(0, positions=[]))
    trace = read_trace(path)
    assert plain(trace) == {(0, SHARED): {6: [0, 1, 6], 4: []}}
    assert (trace.length, trace.start, trace.about, trace.k) == (8, 4, {"model": "any"}, 3)


def test_without_a_header_steps_are_positions(tmp_path):
    trace = read_trace(written(tmp_path / "t.jsonl", row(3), row(1)))
    assert (trace.length, trace.start) == (4, 0)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((row(1), "{"), r"line 2: not JSON"),
        ((row(1), "[1]"), r"line 2: holds list; allowed: an object"),
        (("[" * 100_000,), r"line 1: not JSON"),
        (({k: v for k, v in row().items() if k != "layer"},), r"line 1: layer is missing"),
        (({k: v for k, v in row().items() if k != "positions"},), r"line 1: positions is missing"),
        ((row(1) | {"step": "1"},), r"line 1: step is '1'; allowed: an integer from 0"),
        ((row(1) | {"step": True},), r"line 1: step is 'True'"),
        ((row(1) | {"step": 1 << 30},), r"line 1: step is '1073741824'"),
        ((row(1, layer=-1),), r"line 1: layer is '-1'; allowed: an integer from 0"),
        ((row(1, head=-2),), r"line 1: head is '-2'; allowed: an integer from -1"),
        ((row(1, positions=[0.5]),), r"line 1: positions is '\[0.5\]'; allowed: a list of integers"),
        ((row(1) | {"positions": {"0": 1}},), r"line 1: positions is .*allowed: a list"),
        ((row(1, positions=[-2]),), r"line 1: positions holds -2"),
        ((row(1, positions=[0, 2]),), r"line 1: position 2 lies after its query, which stands at 1 .*header's start"),
        ((HEADER, row(1, positions=[0, 6])), r"line 2: position 6 lies after its query, which stands at 5 \(start 4"),
        ((row(1), row(2), row(1)), r"line 3: step 1 of layer 0, head -1 is there twice"),
        ((row(1), row(1, head=0)), r"line 2: layer 0 has sets for all heads"),
        ((HEADER, row(4)), r"its header says length 8, but a query stands at position 8"),
        ((HEADER,), r"it holds no rows"),
        ((), r"it holds no rows"),
        (({"format": "other"}, row(1)), r"line 1: format is 'other'; allowed: 'tilesieve-trace-1'"),
        (({"format": "tilesieve-trace-1", "length": "8"}, row(1)), r"line 1: length is '8'"),
        (({"format": "tilesieve-trace-1", "start": -1}, row(1)), r"line 1: start is '-1'"),
        ((row(1), HEADER), r"line 2: step is missing"),
    ],
)  # fmt: skip
def test_refusals(tmp_path, lines, said):
    path = written(tmp_path / "t.jsonl", *lines)
    with pytest.raises(ValueError, match=rf"trace is .*t\.jsonl.*{said}"):
        read_trace(path)


def test_what_is_no_text(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(row(1)).encode() + b'\n{"step": "\xe9"}\n')
    with pytest.raises(ValueError, match=r"t\.jsonl, line 2: not UTF-8: byte 0xe9"):
        read_trace(path)
    with pytest.raises(ValueError, match="no such file"):
        read_trace(tmp_path / "nowhere")

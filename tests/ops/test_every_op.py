"""The contract, asked of every operator in the catalogue on every one of its cases."""

import pytest
import torch
from harness import (
    build,
    clone_strided,
    close,
    execute,
    flat_call,
    map_tensors,
    poison_,
    rows_of,
    same_bits,
    spread,
    tensors,
)  # fmt: skip
from torch._subclasses.fake_tensor import FakeTensorMode

from tilesieve.ops import catalogue, run

PAIRS = [pytest.param(n, c, id=f"{n}-{c.name}") for n in catalogue.NAMES for c in catalogue.cases(n).CASES]
TRIPLES = [
    pytest.param(n, c, i, id=f"{n}-{c.name}-{i}")
    for n in catalogue.NAMES
    for c in catalogue.cases(n).CASES
    for i in catalogue.record(n).implementations
    if i != "tilelang"
]
REPEATS = 20


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Every output the library allocates starts as NaN or garbage."""
    born = run.empty
    monkeypatch.setattr(run, "empty", lambda spec, device: poison_(born(spec, device)))


@pytest.mark.parametrize(("name", "case", "impl"), TRIPLES)
def test_equals_the_reference(name, case, impl):
    want = execute(name, build(case), impl="reference")
    got = execute(name, build(case), impl=impl)
    for g, w in zip(got, want, strict=True):
        assert close(g, w, case.error) == ""


@pytest.mark.parametrize(("name", "case", "impl"), TRIPLES)
def test_repeats_are_bitwise_equal(name, case, impl):
    first = execute(name, build(case), impl=impl)
    for _ in range(REPEATS - 1):
        assert all(same_bits(a, b) for a, b in zip(execute(name, build(case), impl=impl), first, strict=True))


@pytest.mark.parametrize(("name", "case", "impl"), TRIPLES)
def test_a_row_alone_equals_the_row_in_the_batch(name, case, impl):
    module = catalogue.cases(name)
    inputs = build(case)
    whole = execute(name, inputs, impl=impl)
    rows = rows_of(name, inputs)
    # Where the results of a row are not row `row` of the outputs, the cases say which they are.
    part = getattr(module, "part", lambda outputs, row: tuple(o[row] for o in outputs))
    if hasattr(module, "MUTATES"):
        # One row after the other, each on what the rows before it left, gives what all give at once.
        left = inputs[module.MUTATES]
        for row in range(rows):
            left = clone_strided(left)
            catalogue.operator(name)(**{**module.alone(inputs, row), module.MUTATES: left}, impl=impl)
        assert all(same_bits(a, w) for a, w in zip(tensors(left), whole, strict=True))
        return
    for row in range(rows):
        alone = execute(name, module.alone(inputs, row), impl=impl)
        assert all(same_bits(a, w) for a, w in zip(part(alone, 0), part(whole, row), strict=True))


@pytest.mark.parametrize(("name", "case", "impl"), TRIPLES)
def test_leading_strides_are_honoured(name, case, impl):
    inputs = build(case)
    strided = map_tensors(inputs, spread)
    mutated = getattr(catalogue.cases(name), "MUTATES", None)
    got, want = execute(name, strided, impl=impl), execute(name, inputs, impl=impl)
    assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))
    if mutated:  # what lies between the strides is as it was
        target = clone_strided(strided[mutated])
        holes = [torch.as_strided(t, (t.shape[0], *t.shape[1:]), t.stride(), t.shape[1:].numel())
                 for t in tensors(target) if t.numel()]  # fmt: skip
        before = [h.clone() for h in holes]
        catalogue.operator(name)(**{**strided, mutated: target}, impl=impl)
        assert all(same_bits(h, b) for h, b in zip(holes, before, strict=True))


@pytest.mark.parametrize(("name", "case", "impl"), TRIPLES)
def test_out_equals_fresh(name, case, impl):
    if hasattr(catalogue.cases(name), "MUTATES"):
        return  # it has no outputs: its mutation is compared above
    function = catalogue.operator(name)
    fresh = function(**build(case), impl=impl)
    out = map_tensors(fresh, lambda t: poison_(torch.empty_like(t)))
    wide = map_tensors(fresh, lambda t: spread(poison_(torch.empty_like(t))))
    for target in (out, wide):
        result = function(**build(case), impl=impl, out=target)
        for r, o, f in zip(tensors(result), tensors(target), tensors(fresh), strict=True):
            assert r.data_ptr() == o.data_ptr()
            assert same_bits(o, f)


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_fake_agrees_with_real(name, case):
    call = flat_call(name, build(case))
    packet = getattr(torch.ops.tilesieve, name)
    real = packet(*clone_strided(call.args))
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = packet(*map_tensors(call.args, mode.from_tensor))
    for f, r in zip(tensors(fake), tensors(real), strict=True):
        assert (f.shape, f.dtype, f.stride()) == (r.shape, r.dtype, r.stride())


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_compiles_as_one_graph(name):
    module = catalogue.cases(name)
    function = catalogue.operator(name)
    mutated = getattr(module, "MUTATES", None)
    for case in module.CASES[:2]:
        inputs = build(case)
        if mutated:
            inputs[mutated] = clone_strided(inputs[mutated])
        torch._dynamo.reset()
        compiled = torch.compile(lambda given: function(**given), fullgraph=True, backend="aot_eager")
        result = compiled(inputs)
        got = tensors(inputs[mutated]) if mutated else tensors(result)
        want = execute(name, build(case))
        assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_cost_is_what_the_tensors_say(name, case):
    """flops: torch's counter over the reference plus the hand count; bytes_min: elements touched."""
    from torch.utils.flop_counter import FlopCounterMode

    inputs = build(case)
    call = flat_call(name, inputs, impl="reference")
    sizes = call.sizes()
    cost = catalogue.cost(name)(**sizes)
    reference = run._load(name, "reference")
    with FlopCounterMode(display=False) as counter:
        reference(*clone_strided(call.args))
    hand = getattr(catalogue._module(name, "cost"), "hand", lambda **_: 0)(**sizes)
    assert cost.flops == counter.get_total_flops() + hand
    outputs = () if hasattr(catalogue.cases(name), "MUTATES") else execute(name, build(case))
    assert cost.bytes_min == catalogue.cases(name).touched(inputs, outputs)
    assert cost.bytes_moved >= cost.bytes_min


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_has_an_empty_case_and_refuses_what_it_cannot_do(name):
    module = catalogue.cases(name)
    assert any(rows_of(name, build(c)) == 0 for c in module.CASES), "a case without rows is missing"
    inputs = build(module.CASES[0])
    with pytest.raises(ValueError, match="impl is 'nonsense'"):
        execute(name, inputs, impl="nonsense")
    with pytest.raises(ValueError, match="impl is 'tilelang'"):
        execute(name, inputs, impl="tilelang")
    data = inputs[module.ROWS] if module.ROWS in ("k", "q") else None
    if data is not None and data.dtype.is_floating_point:
        with pytest.raises(ValueError, match="requires grad"):
            execute(name, {**inputs, module.ROWS: data.clone().requires_grad_()})
        with torch.no_grad():
            execute(name, {**inputs, module.ROWS: data.clone().requires_grad_()})


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_checked_looks_at_contents(name, case):
    with run.checked():
        if case.invalid:
            with pytest.raises(ValueError):
                execute(name, build(case))
        else:
            execute(name, build(case))


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_observers_see_each_call_once(name):
    call = flat_call(name, build(catalogue.cases(name).CASES[0]))
    assert call.op is catalogue.record(name)
    assert call.impl in call.op.implementations
    assert call.seconds >= 0

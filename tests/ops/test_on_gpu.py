"""PyTorch everywhere: every operator's torch forms on CUDA tensors, against the same case on the CPU.

No kernel exists yet, so the CPU form is what a GPU falls back to, with a warning; under capture that raises.
"""

import pytest
import torch
from harness import build, close, execute, map_tensors

from tilesieve.ops import catalogue

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.filterwarnings("ignore:tilesieve"),
]
PAIRS = [pytest.param(n, c, id=f"{n}-{c.name}") for n in catalogue.NAMES for c in catalogue.cases(n).CASES]
# 2e-6: another library's order of fp32 sums, on cases that are bitwise equal on the CPU.
LEAST = 2e-6


@pytest.mark.parametrize("impl", ["reference", "cpu"])
@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_cuda_equals_cpu(name, case, impl):
    if impl not in catalogue.record(name).implementations:
        pytest.skip(f"{name} has no {impl!r} form")
    want = execute(name, build(case), impl="reference")
    got = execute(name, map_tensors(build(case), lambda t: t.cuda()), impl=impl)
    for g, w in zip(got, want, strict=True):
        assert g.device.type == "cuda"
        assert close(g.cpu(), w, max(case.error, LEAST)) == ""


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_a_fallback_under_capture_raises(name):
    inputs = map_tensors(build(catalogue.cases(name).CASES[0]), lambda t: t.cuda())
    with pytest.raises(RuntimeError, match="no kernel supports this case"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        catalogue.operator(name)(**inputs)

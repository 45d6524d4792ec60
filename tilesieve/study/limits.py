"""How large k may be before sparse decode costs more than dense: counted in several ways, and solved for chips."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tilesieve.ledger.chips import H200_MEASURED, Chip, cpu
from tilesieve.ledger.models import Model
from tilesieve.ledger.roofline import first, seconds
from tilesieve.ledger.step import Step, decode_step
from tilesieve.policies import k_from_cost
from tilesieve.study.bench import Bench
from tilesieve.study.describe import cpu_name
from tilesieve.study.store import Store


def limits(bench: Bench, store: Store) -> dict[str, Any]:
    """Section "limits" at the study's context, for the reduced keys of its low-rank run."""
    plan, shape = bench.plan, bench.shape
    reduced = plan.reduced(shape)
    width, columns, context = shape.head_dim, reduced.columns or shape.head_dim, plan.tokens
    step = Step(context=context, d_score=columns, score_format=reduced.format, cache="kv_fp32",
                basis=reduced.kind == "pca")  # fmt: skip
    row = step.score_bytes / columns
    here = store.part("limits", "chip", {"threads": torch.get_num_threads()}, measured_chip)
    machine = cpu(cpu_name(), flops={"float32": here["flops"], "bfloat16": here["flops"]},
                  bytes_per_second=here["bytes"], source="measured by the study", launch=here["call"])  # fmt: skip
    model = model_of(bench)
    lines = [
        ("quoted count", k_from_cost(context=context, width=width, columns=columns, value_width=0, passes=1.5),
         "multiply-adds of QK alone for dense, half a pass for the gather"),
        ("FLOPs", k_from_cost(context=context, width=width, columns=columns, passes=1.5),
         "QK and PV counted on both sides, half a pass for the gather"),
        ("bytes, packed", k_from_cost(context=context, width=width, columns=columns, itemsize=4, score_itemsize=row),
         "bytes of keys, values and reduced keys; the gather reads, writes and reads again"),
        ("bytes, fused", k_from_cost(context=context, width=width, columns=columns, itemsize=4, score_itemsize=row,
                                     passes=1.0),
         "the same with the gather inside the attention"),
        (f"time, {machine.name}", k_of_time(model, step, machine),
         "floors of all operators of a step, memory and arithmetic measured here, a call's own price counted"),
        ("time, H200", k_of_time(model, Step(context=context, d_score=columns, score_format=reduced.format,
                                             basis=reduced.kind == "pca"), H200_MEASURED),
         "floors of all operators of a step with a bf16 cache, launches in a graph counted"),
    ]  # fmt: skip
    return {
        "context": context, "model": bench.checkpoint.path.name, "chip": {"name": machine.name, **here},
        "lines": [{"name": name, "k": k, "what": what} for name, k, what in lines],
    }  # fmt: skip


def k_of_time(model: Model, step: Step, chip: Chip) -> int:
    """The largest k at which the floor of a sparse step is not above the dense one's; 0 where none is."""

    def floor(k: int | None) -> float:
        return seconds(decode_step(model, replace(step, k=k)), chip)

    dense = floor(None)
    over = first(lambda k: floor(k) > dense, step.context)
    return step.context if over is None else over - 1


def model_of(bench: Bench) -> Model:
    """The ledger's words for the study's model. Only the attention's shape matters here: the rest is on both sides."""
    config, shape = bench.checkpoint.config.get_text_config(decoder=True), bench.shape
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    return Model(shape.name, shape.layers, hidden, shape.heads, shape.kv_heads, shape.head_dim, inner,
                 config.vocab_size, tied=False)  # fmt: skip


def measured_chip() -> dict[str, float]:
    """FLOP/s of a product 1024^3, bytes/s of a copy of 128 MB counting both ways, and seconds of one small call."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    source, target = torch.randn(32_000_000), torch.empty(32_000_000)
    small = torch.randn(64)
    return {
        "flops": 2 * 1024**3 / median(lambda: torch.mm(a, b)),
        "bytes": 2 * source.nbytes / median(lambda: target.copy_(source)),
        "call": median(lambda: torch.add(small, small)),
    }


def median(call: Callable[[], object], repeats: int = 9) -> float:
    """Seconds, after one call that is not counted."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]

"""Keep a finished study in results/: one JSONL of its runs with commit and ceilings, and the README's picture.

Usage: python tools/keep_study.py out/study NAME

The ceilings are measured here, so run this on the machine of the study, with nothing else running.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]


def median_seconds(call: Callable[[], object], repeats: int = 7) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ceilings() -> dict[str, Any]:
    """fp32 product 2048^3 of random data, and a copy of 256 MB counting the read and the write."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    source, target = torch.randn(64_000_000), torch.empty(64_000_000)
    return {
        "gflops_fp32": 2 * 2048**3 / median_seconds(lambda: torch.mm(a, b)) / 1e9,
        "gb_per_s_copy": 2 * source.nbytes / median_seconds(lambda: target.copy_(source)) / 1e9,
        "threads": torch.get_num_threads(),
    }


def main(folder: Path, name: str) -> None:
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if changed:
        sys.exit(f"the tree has changes, so no commit names what ran:\n{changed}")
    study = json.loads((folder / "study.json").read_text())
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    head = {"commit": commit.strip(), "meta": study["meta"], "ceilings": ceilings()}
    rows = [{key: run[key] for key in run if key != "layers"} for run in study["runs"]]
    target = ROOT / "results" / f"{study['meta']['date'][:10]}-{name}.jsonl"
    target.write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)))
    shutil.copy(folder / "perplexity-vs-budget.png", ROOT / "results" / f"{name}.png")
    print(target.relative_to(ROOT))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

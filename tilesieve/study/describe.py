"""What a study is about, in words and hashes: the model, the text, the versions, the machine."""

import hashlib
import os
import platform
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tilesieve.hf.shape import Shape
from tilesieve.study.bench import DTYPE
from tilesieve.study.plan import DENSE, Plan
from tilesieve.study.store import SCHEMA, Store


def assemble(plan: Plan, shape: Shape, store: Store, model: Path, text: Path, command: str = "") -> dict[str, Any]:
    """study.json: what was run where, the runs in the sweep's order, the timelines."""
    runs = store.runs()
    order = [config.name for config in (DENSE, *plan.sweep(shape))]
    dense_bytes = runs[DENSE.name]["bytes_per_token"]
    meta = {
        "model": model.name, "text": text.name, "tokens": plan.tokens, "scored": [plan.scored_from, plan.tokens],
        "k": plan.budget, "rows_looked": next((run["looked"] for run in runs.values() if run["looked"]), None),
        "dense_layers": dense_layers(shape, runs),
        "layers": shape.layers, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "dtype": str(DTYPE).removeprefix("torch."),
        "versions": versions(),
        "machine": {"cpu": cpu_name(), "threads": torch.get_num_threads()},
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "command": command,
    }  # fmt: skip
    ordered = [{**runs[name], "bytes_dense": dense_bytes} for name in order if name in runs]
    kept = store.traced()
    return {
        "schema": SCHEMA, "meta": meta, "runs": ordered,
        "timeline": [look for name in order if name in kept for look in kept[name]["timeline"]],
        "overlaps": next((kept[name]["overlaps"] for name in order if name in kept), None),
    }  # fmt: skip


def dense_layers(shape: Shape, runs: dict[str, dict[str, Any]]) -> list[int]:
    """Layers in which no run selects: the model itself limits them to a window."""
    selecting = {layer["layer"] for run in runs.values() for layer in run["layers"]}
    return [layer for layer in range(shape.layers) if layer not in selecting]


def key_of(plan: Plan, shape: Shape, model: Path, text: str) -> dict[str, Any]:
    """What must be equal for finished rows to count: the model file, the text and every setting of the sweep.

    Sections keep their own settings beside what they found: asking for more of them loses nothing.
    """
    whole = asdict(replace(plan, model=None, text=None, full=False)) | {
        "sweep": [repr(config) for config in plan.sweep(shape)]
    }
    files = [model] if model.is_file() else sorted(p for p in model.iterdir() if p.is_file())
    package = Path(__file__).parents[1]
    code = [p for p in sorted(package.rglob("*.py")) if p.relative_to(package).parts[0] not in ("cli", "report")]
    return {
        "plan": whole, "model": digest(files), "code": digest(code),
        "text": hashlib.sha256(text.encode()).hexdigest(), "versions": versions(), "schema": SCHEMA,
    }  # fmt: skip


def digest(files: list[Path]) -> str:
    """Of names and whole contents: two models may differ in nothing but their numbers."""
    whole = hashlib.blake2b(digest_size=16)
    for path in files:
        whole.update(path.name.encode())
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "blake2b").digest())
    return whole.hexdigest()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "transformers", "tilesieve"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return platform.processor() or platform.machine()

"""Symptoms of a sparse model, each with a number that triggers it, what shows it and what to try.

The first are the questions of a quality loss, the rest the troubles that selection brings; the four pictures of where a
model looked are in pictures.py. A run that leaves nothing out is dense, and nothing is found in it.
"""

from tilesieve.study.findings import Finding, Json, named, of, percent, selecting, worst
from tilesieve.study.pictures import leaves_out, pictures

FULL = "Not measured here: run with --full."
NONE = "Nothing was left out, or nothing was measured."


def diagnose(study: Json) -> list[Json]:
    """All findings of a study, fired or not, in the order in which one would ask."""
    rules = (stage, retrieval, hidden_head, mass_is_no_substitute, scores_disagree, local_k, reuse, latent, slower,
             gather_grows, gather_jitter, gather_order, gather_packed)  # fmt: skip
    return [rule(study).as_dict() for rule in rules] + [found.as_dict() for found in pictures(study)]


def rungs(study: Json) -> list[Json]:
    """The ladder's, where it leaves anything out."""
    ladder = of(study, "sections", "ladder") or {}
    return ladder["rungs"] if ladder.get("k", 0) < ladder.get("tokens", 0) else []


def stage(study: Json) -> Finding:
    rung, own = worst(rungs(study), lambda r: None if r["side"] else r["own"])
    said = NONE
    if rung is not None and own is not None:
        total = study["sections"]["ladder"]["total"]
        said = f"The costliest, “{rung['label']}” ({rung['adds']}), adds {own:+.4f} nats a token; all {total:+.4f}."
    remedies = {
        "per-head": "a larger k, or let the layers that the sensitivity section ranks first stay dense",
        "shared": "one set per kv head (policy.share), or another vote of the heads",
        "low-rank": "more score dimensions (--d-score), or another reduction (--scoring)",
        "narrow": "a wider score format (--score-format score_bf16)",
        "approximate": "a larger local k, or exact selection",
        "reuse": "select at each step, or by the cosine rule",
    }
    name = rung["name"] if rung is not None else ""
    return Finding(
        "stage", "A stage of the approximation loses quality", own, 0.01,
        "a single rung of the ladder adds more than 0.01 nats per token (1 % of perplexity)",
        said, remedies.get(name, "–"), "ladder",
    )  # fmt: skip


def retrieval(study: Json) -> Finding:
    """Against exact selection and against dense, in the cell that suffers most."""
    section = of(study, "sections", "retrieval")
    dense = named(of(section or {}, "runs"), "dense")
    value, said = None, FULL if section is None else NONE
    if section is not None and dense is not None:
        budgets = dict(zip(section["lengths"], section.get("ks") or [], strict=False))  # k goes with the length
        lost = [
            {"run": run, "cell": cell, "lost": base["logprob"] - cell["logprob"]}
            for run in section["runs"] if run["name"] not in ("dense", "window")  # a window is not expected to find it
            for cell, base in zip(run["cells"], dense["cells"], strict=True)
            if budgets.get(cell["length"], section["k"]) < cell["length"] and base["right"] >= 0.5
        ]  # fmt: skip
        row, value = worst(lost, lambda r: r["lost"])
        if row is not None and value is not None:
            cell = row["cell"]
            said = (f"“{row['run']['label']}” loses {value:.2f} nats per needle token at depth {cell['depth']:.1f} of "
                    f"{cell['length']}; dense finds it.")  # fmt: skip
    return Finding(
        "retrieval", "Planted needles are lost", value, 1.0,
        "in a cell where dense gets half of the needle's tokens right, a rung loses more than 1 nat per token",
        said, "a larger k or local k; keep one set per head; scores in more dimensions", "retrieval",
    )  # fmt: skip


def hidden_head(study: Json) -> Finding:
    """The layer's mean is good, one of its heads is not served."""
    heads = [
        {"run": run, "layer": layer["layer"], "head": head, "gap": layer["mass_mean"] - mass}
        for run in selecting(study) if run["family"] == "exact"
        for layer in run["layers"] for head, mass in enumerate(layer.get("heads") or [])
    ]  # fmt: skip
    row, value = worst(heads, lambda r: r["gap"])
    said = NONE if row is None else (f"{row['run']['label']}: head {row['head']} of layer {row['layer']} keeps "
                                     f"{row['gap']:.2f} less of its mass than the layer does on average.")  # fmt: skip
    return Finding(
        "hidden-head", "A head is hurt behind a good average", value, 0.3,
        "a head keeps at least 0.3 less of its attention mass than its layer's mean, under exact shared selection",
        said, "one set per kv head or query head (policy.share), or exempt the layer", "mass",
    )  # fmt: skip


def mass_is_no_substitute(study: Json) -> Finding:
    """Much mass kept, and still a loss: what was dropped is small in weight and large in meaning."""
    row, value = worst((r for r in selecting(study) if r["mass_mean"] > 0.8), lambda r: r["delta"])
    said = NONE if row is None else f"{row['label']} keeps {row['mass_mean']:.3f} and loses {percent(row['delta'])}."
    return Finding(
        "mass", "Mass is kept, perplexity is not", value, 0.05,
        "a run that keeps more than 0.8 of the attention mass loses more than 5 % of perplexity",
        said, "always keep the first and the last positions; look at the worst row and the top-1 hit", "mass",
    )  # fmt: skip


def scores_disagree(study: Json) -> Finding:
    rows = [run for run in selecting(study) if run["family"] == "lowrank" and run["overlap"] is not None]
    row, lowest = worst(rows, lambda r: -r["overlap"])
    value = None if lowest is None else -lowest
    said = NONE
    if row is not None:
        layer, least = worst(row["layers"], lambda n: None if n["overlap"] is None else -n["overlap"])
        said = f"{row['label']} shares {row['overlap']:.3f} of its picks with exact selection"
        said += "." if layer is None or least is None else f"; least in layer {layer['layer']}, {-least:.3f}."
    return Finding(
        "scores", "Scores and attention disagree", value, 0.6,
        "the sets chosen by reduced scores share less than 0.6 with those of exact scores", said,
        "a wider score format, more score dimensions, or a reduction that keeps what neighbours differ in", "mass",
        below=True,
    )  # fmt: skip


def local_k(study: Json) -> Finding:
    row = named(rungs(study), "approximate")
    value = None if row is None else row["own"]
    said = NONE if row is None else (f"{row['label']} costs {row['own']:+.4f} nats a token on the ladder, "
                                     f"{row['alone']:+.4f} on exact scores.")  # fmt: skip
    return Finding(
        "local-k", "The local k is too small", value, 0.01,
        "on the ladder, approximate top-k costs more than 0.01 nats per token: what its block cut off is gone",
        said, "twice the local k (16 where 8 was cut), smaller blocks, or exact selection", "ladder",
    )  # fmt: skip


def reuse(study: Json) -> Finding:
    row = named(rungs(study), "reuse")
    value = None if row is None else row["own"]
    said = NONE if row is None else (f"Keeping a set for 4 steps costs {row['own']:+.4f} nats a token on the ladder, "
                                     f"{row['alone']:+.4f} on exact selection.")  # fmt: skip
    return Finding(
        "reuse", "Sets are kept for too long", value, 0.01,
        "on the ladder, keeping a set for 4 steps costs more than 0.01 nats per token", said,
        "reselect more often, or by the cosine of adjacent queries; keep more recent positions", "ladder",
    )  # fmt: skip


def latent(study: Json) -> Finding:
    rows = [r for r in of(study, "sections", "latent", "rows") or [] if r["ratio"] == 8 and selecting(study)]
    row, value = worst(rows, lambda r: None if r["delta"] is None else -r["delta"])
    value = None if row is None else row["delta"]
    said = FULL if selecting(study) else NONE
    if row is not None:
        said = f"Keys and values in 1/8 of their numbers, {row['where']}: {percent(row['delta'])} perplexity."
    return Finding(
        "latent", "Compression by 8 is too much for this model", value, 0.02,
        "keys and values by truncated SVD at ratio 8, at the better place, lose more than 2 % of perplexity", said,
        "a larger latent, by layer: see which layers bear it", "latent",
    )  # fmt: skip


def slower(study: Json) -> Finding:
    dense = of(named(study.get("runs"), "dense") or {}, "continuation", "tokens_per_second")
    rows = [r for r in selecting(study) if r["family"] == "lowrank" and of(r, "continuation", "tokens_per_second")]
    value, said = None, NONE
    if dense and rows:
        value = rows[0]["continuation"]["tokens_per_second"] / dense
        tokens = study["meta"]["tokens"]
        said = (f"{rows[0]['label']} decodes at {value:.2f} of dense's speed here after {tokens} tokens, and "
                f"moves {rows[0]['bytes_per_token'] / (rows[0]['bytes_dense'] or 1):.2f} of its bytes.")  # fmt: skip
    return Finding(
        "slower", "Sparse decode is slower than dense", value, 1.0,
        "decoded tokens per second are below dense's", said,
        "stay dense below the context where it pays (policy.dense_below; `tilesieve ledger` says from where on)",
        "summary", below=True,
    )  # fmt: skip


def gather_grows(study: Json) -> Finding:
    rows = of(gathered(study), "by_context") or []
    value = rows[-1]["seconds"] / rows[0]["seconds"] if len(rows) > 1 and rows[0]["seconds"] else None
    said = NONE
    if value is not None:
        said = (
            f"From {rows[0]['context']} to {rows[-1]['context']} positions the same k takes {value:.2f} times as long."
        )
    return Finding(
        "gather-grows", "Gather time grows with the context", value, 1.5,
        "at one k, the gather from the whole context takes more than 1.5 times that from a quarter of it", said,
        "keep what is picked often in a compact buffer (see its hit rate)", "gather",
    )  # fmt: skip


def gather_jitter(study: Json) -> Finding:
    runs = of(gathered(study), "runs_by_layer") or []
    value = max(runs) / (sorted(runs)[len(runs) // 2] or 1) if runs else None
    said = (
        NONE if value is None else f"The most scattered layer needs {max(runs):.0f} runs, {value:.2f} times the median."
    )
    return Finding(
        "gather-jitter", "Gather work is uneven", value, 3.0,
        "the layer with most contiguous runs has more than 3 times the median layer's", said,
        "look at the histogram of positions; sort them; one gather per layer sized by its own runs", "gather",
    )  # fmt: skip


def gather_order(study: Json) -> Finding:
    value = _least(study, ("unsorted", "packed"), ("sorted", "packed"))
    said = NONE
    if value is not None:
        said = f"Unsorted positions take {value:.2f} times as long as sorted ones, in the layout that minds it least."
    return Finding(
        "gather-order", "Positions should be sorted before they are gathered", value, 1.2,
        "gathering in random order takes more than 1.2 times as long as in ascending order, in either layout", said,
        "ascending positions, as topk gives them", "gather",
    )  # fmt: skip


def gather_packed(study: Json) -> Finding:
    value = _least(study, ("sorted", "fused"), ("sorted", "packed"))
    said = (
        NONE
        if value is None
        else f"Attention straight from the cache takes {value:.2f} times as long as packing first."
    )
    return Finding(
        "gather-packed", "Selected rows should be packed first", value, 1.2,
        "attention over scattered rows takes more than 1.2 times as long as gather and attention over a packed buffer, "
        "in either layout",
        said, "gather into a contiguous buffer, then attend", "gather",
    )  # fmt: skip


def gathered(study: Json) -> Json:
    """The gather section of a study in which something is left out."""
    found = of(study, "sections", "gather") if selecting(study) or any(map(leaves_out, study["timeline"])) else None
    return found or {}


def _least(study: Json, upper: tuple[str, str], lower: tuple[str, str]) -> float | None:
    """Seconds of one (order, way) over another, in the layout where that is least."""
    took = {(r["layout"], r["order"], r["way"]): r["seconds"] for r in of(gathered(study), "layouts") or []}
    ratios = [took[layout, *upper] / took[layout, *lower] for layout in ("token", "head")
              if took.get((layout, *upper)) and took.get((layout, *lower))]  # fmt: skip
    return min(ratios, default=None)

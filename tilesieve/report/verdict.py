"""What the numbers say, in a few sentences computed from them."""

from tilesieve.report import words
from tilesieve.report.tidy import Json, dense_of

# "As good as dense" for a headline. The table below it has every number for readers with another bar.
NEAR = 0.05


def verdict(study: Json) -> list[str]:
    """Plain sentences; the first is the headline."""
    runs = study["runs"]
    dense = dense_of(runs)
    sparse = [run for run in runs if run["family"] not in ("dense", "full")]
    judged = [run for run in sparse if run["delta"] is not None]
    if not runs and study["meta"]["trace"] is not None:
        return _traced(study)
    if not runs:
        return ["Nothing has run yet: this page holds only what was going to be measured."]
    if not judged:
        return [_only_dense(dense)]
    near = [run for run in judged if run["delta"] <= NEAR]
    if not near:
        best = min(judged, key=lambda run: run["delta"])
        return [
            f"No sparse run stays within {words.percent(NEAR, 0)} of dense. The closest is {best['label']}: "
            f"{_price(best)}.",
            *_where(best),
        ]
    saving = [run for run in near if run["bytes_per_token"] is not None]
    if not saving:
        best = min(near, key=lambda run: run["delta"])
        return [f"Within {words.percent(NEAR, 0)} of dense: {best['label']}, {_price(best)}.", *_where(best)]
    best = min(saving, key=lambda run: run["bytes_per_token"])
    return [
        f"Within {words.percent(NEAR, 0)} of dense, {best['label']} reads least: {_price(best)}{_saves(best)}.",
        *_where(best),
    ]


def _only_dense(dense: Json | None) -> str:
    if dense is None or dense["perplexity"] is None:
        return "No run has a perplexity to compare yet."
    return f"Only dense has run so far: its perplexity is {words.fixed(dense['perplexity'])}."


def _traced(study: Json) -> list[str]:
    """A trace holds selections and no text: it says where the model looked, not what that lost."""
    said = ["This is a trace from elsewhere: it says where the model looked, not what the selection loses."]
    steps = [step for step in study["overlaps"]["steps"] if step["overlap"] is not None and step["lag"] is not None]
    if steps:
        first = min(steps, key=lambda step: step["lag"])
        said.append(f"At a lag of {first['lag']} the sets agree in {words.percent(first['overlap'])} of their picks.")
    fired = sum(bool(each["fired"]) for each in study["findings"])
    if study["findings"]:
        said.append(f"Findings: {fired}." if fired else "No known trouble showed.")
    return said


def _price(run: Json) -> str:
    return f"perplexity {words.fixed(run['perplexity'])} ({words.signed_percent(run['delta'])})"


def _saves(run: Json) -> str:
    share = words.ratio(run["bytes_per_token"], run["bytes_dense"])
    if share is None:
        return ""
    read, full = words.megabytes(run["bytes_per_token"]), words.megabytes(run["bytes_dense"])
    if share >= 1:
        return f", but its {read} MB of attention per decoded token save nothing against the {full} MB of dense"
    saved = f"{words.percent(share)}, {1 / share:.1f}× less" if share else "nothing at all"
    return f", {read} MB of attention per decoded token instead of {full} MB ({saved})"


def _where(run: Json) -> list[str]:
    """Where to look first when hunting the loss."""
    said: list[str] = []
    layers = [layer for layer in run["layers"] if layer["mass_mean"] is not None]
    if layers:
        weak = min(layers, key=lambda layer: layer["mass_mean"])
        said.append(
            f"Its weakest layer is {weak['layer']}: it keeps {words.percent(weak['mass_mean'])} of the attention mass "
            f"on average, {words.percent(weak['mass_worst'])} for the worst query."
        )
    spoken = run["continuation"]
    if spoken and spoken["diverges_at"] is not None:
        said.append(f"Its continuation leaves the dense one at token {spoken['diverges_at']}.")
    elif spoken and spoken["tokens"]:
        said.append(f"Its continuation equals the dense one for all {len(spoken['tokens'])} tokens.")
    return said

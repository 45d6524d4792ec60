"""Where the time goes: stacked seconds per run, a panel per phase, for a pass and a step live on different scales."""

from collections import defaultdict

from tilesieve.report import words
from tilesieve.report.figure import Panel, bars, layout, named
from tilesieve.report.frame import Group, Section
from tilesieve.report.markup import esc
from tilesieve.report.palette import stage_looks
from tilesieve.report.tables import by_stage
from tilesieve.report.tidy import Json


def section(study: Json) -> Section:
    """The stages of every run that was timed."""
    runs = study["runs"]
    phases = list(dict.fromkeys(str(stage["phase"]) for run in runs for stage in run["stages"]))
    panels = [_phase(runs, phase, at) for at, phase in enumerate(phases)]
    note = "Read it for proportions: the times are those of this machine, and selection itself has a price."
    return Section("stages", "Time per stage", note, (Group(panels, tuple(stage_looks(runs))),))


def _phase(runs: list[Json], phase: str, at: int) -> Panel:
    rows = [run for run in runs if any(str(stage["phase"]) == phase for stage in run["stages"])]
    traces = []
    for look in stage_looks(runs):
        seconds: dict[str, float] = defaultdict(float)
        ops: dict[str, list[str]] = defaultdict(list)
        for run in rows:
            for stage in run["stages"]:
                if (str(stage["phase"]), str(stage["stage"])) == (phase, look.key):
                    seconds[run["name"]] += stage["seconds"] or 0
                    ops[run["name"]].append(f"{stage['op']}: {words.fixed(stage['seconds'], 4)} s")
        if seconds:
            text = ["<br>".join(map(esc, ops[name])) for name in seconds]
            trace = bars(look, list(seconds), list(seconds.values()), "s", text=text, textposition="none")
            traces.append(trace | {"hovertemplate": "%{fullData.name} %{x:.4f} s<br>%{text}<extra></extra>"})
    axis = named([run["name"] for run in rows], [run["label"] for run in rows])
    frame = layout("seconds", "", 90 + 38 * len(rows), barmode="stack", bargap=0.35, yaxis=axis,
                   xaxis={"nticks": 6})  # fmt: skip
    caption = "Seconds of all calls of a stage, summed over the layers."
    figure = {"data": traces, "layout": frame}
    return Panel(f"plot-stages-{at}", f"Phase: {phase}", caption, figure, by_stage(rows, phase))

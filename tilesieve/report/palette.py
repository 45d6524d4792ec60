"""How a family, a run and a stage look: the same on the page and in the PNGs, on a light and on a dark ground."""

from dataclasses import dataclass
from types import MappingProxyType

from tilesieve.report.tidy import Json

# Mid tones with at least 3:1 against both grounds; hues that also differ for colour-blind eyes, and never alone:
# every series has its own marker or dash as well.
FAMILY = MappingProxyType(
    {
        "dense": "#7a8290",
        "exact": "#3b7ff0",
        "lowrank": "#d9700d",
        "window": "#c2479b",
        "full": "#0f9d78",
    }
)
OTHER = "#8f6bd9"
TITLE = MappingProxyType(
    {
        "exact": "exact top-k",
        "lowrank": "low rank",
        "window": "sinks and recent",
        "full": "everything selected",
    }
)
SYMBOL = MappingProxyType(
    {"dense": "none", "exact": "circle", "lowrank": "diamond", "window": "square", "full": "star"}
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
# The order in which a step flows, which is also the order of the bars.
STAGE = MappingProxyType(
    {
        "score": "#d9700d",
        "select": "#c2479b",
        "plan": "#8f6bd9",
        "gather": "#c79a0a",
        "compute": "#3b7ff0",
        "combine": "#0f9d78",
    }
)
STAGE_OTHER = "#7a8290"
# For series that belong to no family.
SERIES = (
    ("#3b7ff0", "circle"), ("#d9700d", "diamond"), ("#c2479b", "square"), ("#0f9d78", "triangle-up"),
    ("#8f6bd9", "star"), ("#c79a0a", "circle"), ("#7a8290", "square"),
)  # fmt: skip
# viridis: even steps of lightness, so it reads without colour as well.
SEQUENTIAL = (
    (0.0, "#440154"), (0.125, "#482878"), (0.25, "#3e4989"), (0.375, "#31688e"), (0.5, "#26828e"), (0.625, "#1f9e89"),
    (0.75, "#35b779"), (0.875, "#b5de2b"), (1.0, "#fde725"),
)  # fmt: skip
# Signed costs: blue gains, orange loses, nothing is the ground itself. The page's script knows its colour.
DIVERGING = ((0.0, "#2f6fdc"), (0.5, "var(--mid)"), (1.0, "#d9650a"))


@dataclass(frozen=True)
class Look:
    """One series: `key` is what a click on the legend switches."""

    key: str
    label: str
    color: str
    dash: str = "solid"
    symbol: str = "circle"


def family_looks(runs: list[Json]) -> list[Look]:
    """A look per family in the order of the runs."""
    return [
        Look(name, TITLE.get(name, name), family_color(name), _dash(name), SYMBOL.get(name, "triangle-up"))
        for name in dict.fromkeys(run["family"] for run in runs)
    ]


def run_looks(runs: list[Json]) -> dict[str, Look]:
    """A look per run: colour and marker of its family, and a dash of its own, solid for the largest budget."""
    looks: dict[str, Look] = {}
    for family in family_looks(runs):
        sisters = [run for run in runs if run["family"] == family.key]
        for at, run in enumerate(sorted(sisters, key=lambda run: -(run["k"] or 0))):
            dash = DASHES[at % len(DASHES)]
            looks[run["name"]] = Look(run["name"], run["label"], family.color, dash, family.symbol)
    return {run["name"]: looks[run["name"]] for run in runs}


def stage_looks(runs: list[Json]) -> list[Look]:
    """A look per stage met, in the order of the flow, unknown ones last."""
    met = dict.fromkeys(str(stage["stage"]) for run in runs for stage in run["stages"])
    flow = [name for name in STAGE if name in met] + [name for name in met if name not in STAGE]
    return [Look(name, name, STAGE.get(name, STAGE_OTHER), symbol="bar") for name in flow]


def series(names: list[tuple[str, str]]) -> dict[str, Look]:
    """A look per (key, label), told apart by colour, marker and dash."""
    looks = {}
    for at, (key, label) in enumerate(names):
        color, symbol = SERIES[at % len(SERIES)]
        looks[key] = Look(key, label, color, DASHES[at // len(SERIES) % len(DASHES)], symbol)
    return looks


def family_color(family: str) -> str:
    """The family's colour, or the one for families nobody has named yet."""
    return FAMILY.get(family, OTHER)


def _dash(family: str) -> str:
    # Dense is the level that the others are held against, not a series: a dashed line without markers.
    return "dash" if family == "dense" else "solid"

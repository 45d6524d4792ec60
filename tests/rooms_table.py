"""The walls between the rooms of tilesieve, as data, and a violation of each wall to prove them on.

To add a room, add a row to ROOMS and a line to BAD. To let a room import more, add a word to its row. A new
operator needs no row: `*` stands for any one name, and the first row that matches a file wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Room:
    """One row. The standard library is open to every room, and a room to itself (operators: see `own/`)."""

    name: str  # path pattern below tilesieve/, without .py; it holds everything under that path too
    ours: tuple[str, ...] = ()  # rows it may import; "own/y" is the row "ops/*/y" in the same operator folder
    third: tuple[str, ...] = ()  # other packages it may import
    late: tuple[str, ...] = ()  # rows it may import inside functions only (or under TYPE_CHECKING)
    late_third: tuple[str, ...] = ()  # other packages inside functions only; "*" is any
    computed: bool = False  # may import a module whose name the source does not spell out
    also: tuple[str, ...] = ()  # further path patterns of the same room

    @property
    def house(self) -> str:
        """The top-level room: what the cycle check looks at."""
        return self.name.split("/")[0]

    def holds(self, parts: tuple[str, ...]) -> bool:
        for pattern in (self.name, *self.also):
            names = pattern.split("/")
            if len(names) <= len(parts) and all(map(fnmatchcase, parts, names)):
                return True
        return False


# What an operator folder may hold; "*" is any further file, which may import what a reference may.
OP_FILES = ("op", "reference", "cpu", "cost", "cases", "kernel*", "*")
OPS = (
    *("ops/__init__", "ops/catalogue", "ops/run", "ops/device", "ops/host", "ops/products"),
    *("ops/expect", "ops/*/__init__"),
    *(f"ops/*/{f}" for f in OP_FILES),
)
OWN = tuple(f"own/{f}" for f in OP_FILES)
OWN_NOW = tuple(f for f in OWN if f != "own/kernel*")
LEDGER = ("cost", "policies", "ops/catalogue", "ops/*/cost")
# Everything but cli, which nobody imports, and the package itself.
ALL = (
    *("cost", "policies", "types", "formats", *OPS, "layers", "cache", "parallel", "hf"),
    *("ledger", "ledger/tables", "bench", "study", "report"),
)

ROOMS = (
    Room("__init__", late=ALL, late_third=("*",), computed=True),
    Room("cost"),
    Room("policies"),
    Room("types", third=("torch",)),
    Room("formats", ours=("types",), third=("torch",)),
    Room("ops/__init__", ours=("cost", "ops/catalogue"), late=OPS, computed=True),
    Room("ops/catalogue", ours=("cost",), late=OPS, late_third=("torch",), computed=True),
    # The dispatch loads the implementations, each on first use.
    Room(
        "ops/run",
        ours=("types", "cost", "ops/catalogue"),
        third=("torch",),
        late=("ops/*/reference", "ops/*/cpu", "ops/*/kernel*", "ops/*/*"),
    ),
    Room("ops/device", ours=("types",), third=("torch", "tilelang")),
    Room("ops/host", third=("torch",)),  # what the CPU forms of attention share
    Room("ops/products", third=("torch",)),  # what those of MoE share
    Room("ops/expect", ours=("types",), third=("torch",)),  # what every op.py checks its arguments with
    Room("ops/*/__init__", ours=("own/cost",), late=OWN, computed=True),
    Room(
        "ops/*/op",
        ours=("types", "formats", "policies", "ops/run", "ops/expect", *OWN_NOW),
        late=OWN,
        third=("torch",),
    ),
    Room("ops/*/reference", ours=("types", "formats", "ops/*/reference", "own/*"), third=("torch",)),
    Room(
        "ops/*/cpu",
        ours=("types", "formats", "ops/host", "ops/products", "ops/*/reference", "own/*"),
        third=("torch",),
    ),
    Room("ops/*/cost", ours=("cost",)),
    Room("ops/*/cases", ours=("types", "formats"), third=("torch",)),
    Room(
        "ops/*/kernel*",
        ours=("types", "formats", "ops/device", "own/kernel*", "own/*"),
        third=("torch", "tilelang"),
    ),
    Room("ops/*/*", ours=("types", "formats", "ops/*/reference", "own/*"), third=("torch",)),
    Room("layers", ours=("types", "formats", "policies", *OPS), third=("torch",)),
    Room("cache", ours=("types", "formats"), third=("torch",)),
    Room("parallel", ours=("types", "formats", "policies", *OPS), third=("torch",)),
    Room(
        "hf",
        ours=("layers", "parallel", "cache", "formats", "policies", "types", *OPS),
        third=("torch", "transformers", "safetensors", "gguf", "accelerate"),
    ),
    Room("ledger/tables", ours=LEDGER, third=("rich",)),
    Room("ledger", ours=LEDGER),
    Room(
        "bench",
        ours=("layers", "parallel", "cache", "formats", "types", "ledger", "ledger/tables", *OPS),
        third=("torch",),
    ),
    Room(
        "study",
        ours=(
            *("hf", "layers", "cache", "policies", "types", "formats", "cost"),
            *("ledger", "ledger/tables", *OPS),
        ),
        third=("torch", "transformers"),
    ),
    Room("report", third=("plotly", "matplotlib", "numpy")),
    Room(
        "cli",
        third=("typer", "rich", "click"),
        late=("__init__", *ALL),
        late_third=("*",),
        computed=True,
        also=("__main__",),
    ),
)

# Rooms that must load without these packages; a test reads the rows above for it.
HEAVY = ("torch", "transformers", "tilelang")
TORCH_FREE = (
    *("__init__", "cost", "policies", "ops/__init__", "ops/catalogue", "ops/*/__init__", "ops/*/cost"),
    *("ledger", "ledger/tables", "report", "cli"),
)

# Module state: what may not be assigned at module level, and the few places that may.
MUTABLE_CALLS = (
    *("list", "dict", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque", "ChainMap"),
    *("SimpleNamespace", "local", "Queue", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet"),
    *("count", "cycle", "iter", "Library", "torch.tensor", "torch.zeros", "torch.ones", "torch.empty"),
    *("torch.full", "torch.arange", "torch.Generator"),
)
STATE_ALLOWED = (  # (row, name pattern, what it is)
    ("ops/run", "*observers", "list"),
    ("ops/run", "*OBSERVERS", "list"),
    ("ops/run", "*", "Library"),
)


def room_of(module: str) -> Room | None:
    """The row of a file, given as its path below tilesieve/ without .py ("ops/gate/cost")."""
    parts = tuple(module.split("/"))
    return next((room for room in ROOMS if room.holds(parts)), None)


def op_folder(module: str) -> str:
    """ "gate" for "ops/gate/cost", "" for a file that is in no operator folder."""
    parts = module.split("/")
    return parts[1] if parts[0] == "ops" and len(parts) > 2 else ""


def permits(rows: tuple[str, ...], source: str, target: str) -> bool:
    """Whether one of `rows` covers an import of the file `target` by the file `source`."""
    room = room_of(target)
    if room is None:
        return False
    folder = op_folder(source)
    own = folder != "" and folder == op_folder(target)
    return room.name in rows or (own and room.name.replace("ops/*/", "own/", 1) in rows)


# Seeds. Each is (file below tilesieve/, its source, what must be reported and nothing else); a report is
# "line rule name", several are parted by "; ". They join the STAGE of test_rooms.py.
BAD = (
    ("cost.py", "import torch", "1 wall torch"),
    ("cost.py", "def f():\n    import torch.nn", "2 wall torch.nn"),
    ("cost.py", "from .types import Rows", "1 wall tilesieve.types.Rows"),
    ("policies.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", "3 wall torch"),
    (
        "policies.py",
        "import typing as t\nif t.TYPE_CHECKING:\n    from . import types",
        "3 wall tilesieve.types",
    ),
    ("policies.py", "import numpy as np", "1 wall numpy"),
    ("types.py", "import tilesieve.formats.latent", "1 wall tilesieve.formats.latent"),
    ("types.py", "from tilesieve import policies", "1 wall tilesieve.policies"),
    ("formats/latent.py", "from ..cache import pages", "1 wall tilesieve.cache.pages"),
    ("formats/latent.py", "import transformers", "1 wall transformers"),
    ("ops/__init__.py", "from .run import call", "1 late tilesieve.ops.run.call"),
    ("ops/__init__.py", "def f():\n    from tilesieve.layers import moe", "2 wall tilesieve.layers.moe"),
    ("ops/catalogue.py", "import torch", "1 late torch"),
    ("ops/catalogue.py", "from .gate import op", "1 late tilesieve.ops.gate.op"),
    ("ops/catalogue.py", "from tilesieve.types import Rows", "1 wall tilesieve.types.Rows"),
    ("ops/run.py", "def f():\n    from tilesieve.ledger import claims", "2 wall tilesieve.ledger.claims"),
    ("ops/run.py", "from .gate.reference import gate", "1 late tilesieve.ops.gate.reference.gate"),
    ("ops/run.py", "def f():\n    import tilesieve.ops.gate.op", "2 wall tilesieve.ops.gate.op"),
    ("ops/device.py", "from .run import call", "1 wall tilesieve.ops.run.call"),
    ("ops/host.py", "from tilesieve.types import Pages", "1 wall tilesieve.types.Pages"),
    ("ops/products.py", "from tilesieve.ops import host", "1 wall tilesieve.ops.host"),
    ("ops/expect.py", "from tilesieve.formats import tag", "1 wall tilesieve.formats.tag"),
    ("ops/gate/__init__.py", "from .op import gate", "1 late tilesieve.ops.gate.op.gate"),
    ("ops/gate/__init__.py", "from . import kernel", "1 late tilesieve.ops.gate.kernel"),
    ("ops/gate/__init__.py", "import torch", "1 wall torch"),
    ("ops/gate/op.py", "from ..topk.op import topk", "1 wall tilesieve.ops.topk.op.topk"),
    ("ops/gate/op.py", "from tilesieve.ops.topk import reference", "1 wall tilesieve.ops.topk.reference"),
    ("ops/gate/op.py", "from .kernel import build", "1 late tilesieve.ops.gate.kernel.build"),
    ("ops/gate/op.py", "def f():\n    import tilelang", "2 wall tilelang"),
    ("ops/gate/reference.py", "from .op import gate", "1 wall tilesieve.ops.gate.op.gate"),
    ("ops/gate/reference.py", "from ..topk import cpu", "1 wall tilesieve.ops.topk.cpu"),
    ("ops/gate/cpu.py", "from ..topk import cpu", "1 wall tilesieve.ops.topk.cpu"),
    ("ops/gate/cpu.py", "from ...ops.topk.runs import ends", "1 wall tilesieve.ops.topk.runs.ends"),
    ("ops/gate/cost.py", "from tilesieve.ops.topk.cost import cost", "1 wall tilesieve.ops.topk.cost.cost"),
    ("ops/gate/cost.py", "def f():\n    return __import__('torch')", "2 wall torch"),
    ("ops/gate/cases.py", "from .reference import gate", "1 wall tilesieve.ops.gate.reference.gate"),
    ("ops/gate/kernel.py", "from ..topk.kernel import build", "1 wall tilesieve.ops.topk.kernel.build"),
    ("ops/gate/kernel_ascend.py", "from ..run import call", "1 wall tilesieve.ops.run.call"),
    ("ops/gate/runs.py", "from . import cpu", "1 wall tilesieve.ops.gate.cpu"),
    ("layers/moe.py", "def f():\n    import tilesieve.study", "2 wall tilesieve.study"),
    ("layers/moe.py", "from ..cache.pool import Pool", "1 wall tilesieve.cache.pool.Pool"),
    ("cache/pool.py", "from ..ops.run import call", "1 wall tilesieve.ops.run.call"),
    ("parallel/experts.py", "import tilesieve.bench.clock as clock", "1 wall tilesieve.bench.clock"),
    ("hf/load.py", "from ..study import recall", "1 wall tilesieve.study.recall"),
    ("hf/load.py", "from tilesieve.ledger import *", "1 wall tilesieve.ledger"),
    ("ledger/ledger.py", "import importlib\nimportlib.import_module('torch')", "2 wall torch"),
    ("ledger/ledger.py", "from ..ops.gate import op", "1 wall tilesieve.ops.gate.op"),
    ("ledger/ledger.py", "from rich.table import Table", "1 wall rich.table"),
    (
        "ledger/ledger.py",
        "from importlib import import_module as load\ndef f(n):\n    load(f'tilesieve.ops.{n}.op')",
        "3 wall tilesieve.ops.x.op",
    ),
    (
        "ledger/tables.py",
        "import importlib as i\ndef f(n):\n    i.import_module(n)",
        "3 computed a computed name",
    ),
    ("bench/pair.py", "from ..report import page", "1 wall tilesieve.report.page"),
    ("bench/pair.py", "def f():\n    from tilesieve import __version__", "2 wall tilesieve.__version__"),
    ("study/recall.py", "from ..bench.clock import time", "1 wall tilesieve.bench.clock.time"),
    ("report/page.py", "from tilesieve.cost import Cost", "1 wall tilesieve.cost.Cost"),
    ("report/page.py", "async def f():\n    import torch", "2 wall torch"),
    (
        "report/page.py",
        "from importlib import import_module\nimport_module('..cost', __package__)",
        "2 wall tilesieve.cost",
    ),
    ("cli/main.py", "from tilesieve.study import recall", "1 late tilesieve.study.recall"),
    ("cli/main.py", "import torch", "1 late torch"),
    ("study/recall.py", "def f():\n    from tilesieve.cli import app", "2 wall tilesieve.cli.app"),
    ("__init__.py", "from .cost import Cost", "1 late tilesieve.cost.Cost"),
    ("__init__.py", "try:\n    import torch\nexcept ImportError:\n    pass", "2 late torch"),
    ("__init__.py", "def f():\n    from .cli import app", "2 wall tilesieve.cli.app"),
    ("ledger/ledger.py", "import tilesieve.nowhere.at_all", "1 room tilesieve.nowhere.at_all"),
    ("corner/a.py", "", "1 room tilesieve/corner/a.py"),
    ("ops/helpers.py", "", "1 room tilesieve/ops/helpers.py"),
    # Where these are checked, hf imports layers and gate's reference topk's; a cycle names every place.
    (
        "layers/moe.py",
        "def f():\n    from tilesieve.hf import load",
        "1 cycle tilesieve.layers.moe; 2 wall tilesieve.hf.load",
    ),
    (
        "ops/topk/reference.py",
        "def f():\n    from ..gate import reference",
        "1 cycle tilesieve.ops.topk.reference.topk",
    ),
    ("ops/run.py", "SEEN = {}", "1 state SEEN"),
    ("ops/run.py", "_OBSERVERS = {}", "1 state _OBSERVERS"),
    ("formats/latent.py", "from torch.library import Library\nlib = Library('a', 'DEF')", "2 state lib"),
    ("policies.py", "names: list[str] = ['a']", "1 state names"),
    ("policies.py", "import sys\nif sys.platform == 'linux':\n    A = [x for x in 'ab']", "3 state A"),
    ("policies.py", "A = (1, {2})", "1 state A"),
    ("policies.py", "import collections\nA = B = collections.defaultdict(int)", "2 state A; 2 state B"),
    ("types.py", "import torch\nZERO = torch.zeros(1)", "2 state ZERO"),
    ("study/recall.py", "count = 0\ndef f():\n    global count\n    count += 1", "3 state count"),
)
CLEAN = (
    ("cost.py", "from __future__ import annotations\nimport dataclasses, math\nfrom . import cost"),
    ("types.py", "import torch.nn.functional as F\nfrom torch import Tensor"),
    ("formats/latent.py", "from . import index\nfrom tilesieve import types\nfrom ..types import Rows"),
    ("ops/__init__.py", "def __getattr__(name):\n    from . import catalogue, run\n    from .gate import op"),
    (
        "ops/catalogue.py",
        "from importlib import import_module\nfrom tilesieve.cost import Cost\n"
        "def f(n, q):\n    import_module(f'tilesieve.ops.{n}.{q}'), import_module(n)",
    ),
    (
        "ops/run.py",
        "import torch\nfrom . import catalogue\n_OBSERVERS: list[int] = []\n"
        "_LIB = torch.library.Library('a', 'DEF')\ndef f():\n    from .gate.cpu import gate",
    ),
    ("ops/gate/__init__.py", "from .cost import cost\ndef __getattr__(name):\n    from . import op"),
    (
        "ops/gate/op.py",
        "from . import cost, reference, runs\nfrom ..run import call\n"
        "from .cases import CASES\ndef f():\n    from .kernel import build",
    ),
    ("ops/gate/cpu.py", "from . import reference, runs\nfrom ..topk.reference import topk"),
    ("ops/gate/kernel.py", "import tilelang\nfrom .. import device\nfrom .kernel_split import build"),
    ("ops/brand_new/cost.py", "from tilesieve.cost import Cost"),
    ("layers/moe.py", "from tilesieve.ops import gate, run\nfrom tilesieve.ops.gate.op import gate"),
    ("hf/load.py", "import transformers\nfrom ..layers import moe\nfrom safetensors.torch import load_file"),
    ("ledger/ledger.py", "from . import tables\nfrom ..ops import catalogue\nfrom ..ops.gate import cost"),
    ("ledger/tables.py", "from rich.table import Table\nimport logging\nlog = logging.getLogger(__name__)"),
    (
        "study/recall.py",
        "from importlib.util import find_spec\nfrom ..ledger import tables\nfind_spec('torch')",
    ),
    ("report/page.py", "import matplotlib.pyplot as plt\nfrom . import chart\n__all__ = ['chart']"),
    (
        "cli/main.py",
        "import typer\nfrom tilesieve.cli import doctor\napp = typer.Typer()\n"
        "def f():\n    import torch, tilesieve\n    from tilesieve.study import recall",
    ),
    ("__main__.py", "from tilesieve.cli import main\nmain()"),
    (
        "__init__.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .types import Rows\n"
        "def __getattr__(name):\n    import torch\n    from .ops.gate import op",
    ),
    (
        "policies.py",
        "from types import MappingProxyType as M\nA = M({'a': 1})\nB = frozenset({1})\n"
        "C = tuple([1])\ndef f(x=()):\n    y = []\nclass D:\n    __slots__ = ['a']",
    ),
    (
        "hf/load.py",
        "'import torch in a docstring'\ntext = 'from tilesieve.cli import x'\nclass A:\n    keys = ['a']",
    ),
)

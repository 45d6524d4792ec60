"""The walls of rooms_table.py, enforced by reading every import, and proven on violations seeded here."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rooms_table import (
    BAD,
    CLEAN,
    HEAVY,
    MUTABLE_CALLS,
    ROOMS,
    STATE_ALLOWED,
    TORCH_FREE,
    op_folder,
    permits,
    room_of,
)

PACKAGE = "tilesieve"
COMPUTED = "a computed name"
WHERE = {"module": "", "typing": " under TYPE_CHECKING", "function": " inside a function"}
DISPLAYS = (
    *(ast.List, ast.Dict, ast.Set),
    *(ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp),
)
Sources = Mapping[str, str]
Edges = dict[str, dict[str, "Import"]]


@dataclass(frozen=True)
class Import:
    path: str
    line: int
    name: str  # dotted, absolute
    place: str  # a key of WHERE
    target: str = ""  # path below tilesieve/ without .py, "" for other packages


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    rule: str  # wall, late, computed, cycle, state, room
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def read_tree(root: Path) -> dict[str, str]:
    files = sorted((root / PACKAGE).rglob("*.py"))
    return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}


def inside(path: str) -> str:
    return path.removeprefix(f"{PACKAGE}/").removesuffix(".py")


def spelled(node: ast.expr) -> str | None:
    """The text of a string expression, "x" for each part that is not spelled out; None where nothing is."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    parts: list[ast.expr] = []
    if isinstance(node, ast.JoinedStr):
        parts = node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    texts = [spelled(part) for part in parts]
    if not texts or texts[0] is None:
        return None
    return "".join("x" if text is None else text for text in texts)


class Reader(ast.NodeVisitor):
    """Collects the imports of one file, in whatever form they are written."""

    def __init__(self, path: str, files: Sources) -> None:
        self.path, self.files, self.place = path, files, "module"
        self.package = path.removesuffix(".py").split("/")[:-1]
        self.loaders = {"import_module", "__import__"}
        self.found: list[Import] = []

    def add(self, node: ast.expr | ast.stmt, name: str, member: str = "") -> None:
        target = ""
        if name.split(".")[0] == PACKAGE:
            full = f"{name}.{member}"
            target = self.file_of(full if member and self.is_module(full) else name)
            name = full if member else name
        self.found.append(Import(self.path, node.lineno, name, self.place, target))

    def is_module(self, name: str) -> bool:
        """Whether `from a import b` means the module a.b: its file exists, or a row of the table names it."""
        base = name.replace(".", "/")
        room = room_of(inside(base))
        named = room is not None and fnmatchcase(base.split("/")[-1], room.name.split("/")[-1])
        known = f"{base}.py" in self.files or f"{base}/__init__.py" in self.files
        return known or (named and room is not None and not room.name.endswith("/*"))

    def file_of(self, name: str) -> str:
        base = name.replace(".", "/")
        module = "" if base == PACKAGE else inside(base)
        package = f"{base}/__init__.py" in self.files or room_of(module) is None and module.count("/") < 2
        return f"{module}/__init__".lstrip("/") if package and f"{base}.py" not in self.files else module

    def resolve(self, level: int, module: str, package: list[str] | None = None) -> str:
        if level == 0:
            return module
        package = self.package if package is None else package
        kept = package[: max(0, len(package) - level + 1)]
        return ".".join([*kept, *([module] if module else [])]) if kept else COMPUTED

    def within(self, place: str, nodes: list[ast.stmt] | list[ast.expr]) -> None:
        before, self.place = self.place, place
        for node in nodes:
            self.visit(node)
        self.place = before

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.resolve(node.level, node.module or "")
        for alias in node.names:
            self.add(node, base, "" if alias.name == "*" else alias.name)
            if base == "importlib" and alias.name == "import_module":
                self.loaders.add(alias.asname or alias.name)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called not in self.loaders:
            return
        words = {word.arg: word.value for word in node.keywords}
        first = node.args[0] if node.args else words.get("name")
        name = spelled(first) if first is not None else None
        if name is None:
            self.add(node, COMPUTED)
            return
        module = name.lstrip(".")
        anchor = node.args[1] if len(node.args) > 1 else words.get("package")
        literal = spelled(anchor) if anchor is not None else None
        self.add(node, self.resolve(len(name) - len(module), module, literal.split(".") if literal else None))

    def visit_If(self, node: ast.If) -> None:
        typing = ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING" and self.place == "module"
        self.within("typing" if typing else self.place, node.body)
        self.within(self.place, node.orelse)
        self.visit(node.test)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.within(self.place, node.decorator_list)
        self.visit(node.args)
        self.within("function", node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.within("function", [node.body])


def read_imports(files: Sources) -> list[Import]:
    found: list[Import] = []
    for path, source in files.items():
        reader = Reader(path, files)
        reader.visit(ast.parse(source, path))
        found += reader.found
    return found


def judge(one: Import) -> Violation | None:
    """The violation an import is, if it is one."""
    source = inside(one.path)
    room = room_of(source)
    if room is None:
        return None  # reported once, by check()
    said = f"imports {one.name}{WHERE[one.place]}"
    if one.name == COMPUTED:
        text = f"imports {COMPUTED}; {room.name} spells its imports out"
        return None if room.computed else Violation(one.path, one.line, "computed", one.name, text)
    top = one.name.split(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if one.target:
        target = room_of(one.target)
        if target is None:
            text = f"{said}, which is in no room of rooms_table.py"
            return Violation(one.path, one.line, "room", one.name, text)
        if target.house == room.house != "ops":
            return None
        now, later = permits(room.ours, source, one.target), permits(room.late, source, one.target)
    else:
        now, later = top in room.third, top in room.late_third or "*" in room.late_third
    if now or (later and one.place != "module"):
        return None
    if later:
        text = f"{said} at module level; {room.name} may import it inside functions only"
        return Violation(one.path, one.line, "late", one.name, text)
    allowed = ", ".join(("the standard library", *room.third, *room.ours))
    text = f"{said}; {room.name} may import {allowed}"
    if room.late:
        text += f", and inside functions {', '.join(room.late)}"
    return Violation(one.path, one.line, "wall", one.name, text)


def reach(edges: Edges, start: str) -> dict[str, list[str]]:
    """A shortest path to every node that can be reached, start itself included only if it can."""
    paths: dict[str, list[str]] = {}
    queue = [[start]]
    while queue:
        path = queue.pop(0)
        for following in sorted(edges.get(path[-1], {})):
            if following not in paths:
                paths[following] = [*path, following]
                queue.append(paths[following])
    return paths


def cycles(edges: Edges) -> Iterator[list[str]]:
    """One cycle for every knot of nodes that reach each other."""
    done: set[str] = set()
    for start in sorted(edges):
        paths = reach(edges, start)
        if start in paths and start not in done:
            done |= {node for node in paths if start in reach(edges, node)}
            yield paths[start]


def find_cycles(imports: list[Import]) -> Iterator[Violation]:
    """Between rooms and operators every import counts, between files of a room those at module level."""
    rooms: Edges = {}
    files: Edges = {}
    for one in imports:
        source = inside(one.path)
        here, there = room_of(source), room_of(one.target) if one.target else None
        if here is None or there is None or source == one.target:
            continue
        if here.house != there.house:
            rooms.setdefault(here.house, {}).setdefault(there.house, one)
        elif one.place == "module" or (op_folder(source) and op_folder(one.target)):
            files.setdefault(source, {}).setdefault(one.target, one)
    for edges in (rooms, files):
        for cycle in cycles(edges):
            steps = [edges[here][there] for here, there in pairwise(cycle)]
            places = ", ".join(f"{one.path}:{one.line}" for one in steps)
            text = f"imports {steps[0].name}, part of the cycle {' -> '.join(cycle)} ({places})"
            yield Violation(steps[0].path, steps[0].line, "cycle", steps[0].name, text)


def mutable(node: ast.expr | None) -> str:
    """What makes a value mutable ("dict", "list", "deque"...), or ""."""
    if isinstance(node, DISPLAYS):
        return type(node).__name__.removesuffix("Comp").lower()
    if isinstance(node, ast.Call):
        full = ast.unparse(node.func)
        last = full.split(".")[-1]
        return last if full in MUTABLE_CALLS or last in MUTABLE_CALLS else ""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Tuple):
        parts = node.elts
    elif isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.NamedExpr | ast.Starred):
        parts = [node.value]
    return next(filter(None, map(mutable, parts)), "")


def module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from module_level(getattr(node, field, []))


def find_state(path: str, source: str) -> Iterator[Violation]:
    tree, room = ast.parse(source, path), room_of(inside(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names = ", ".join(node.names)
            yield Violation(path, node.lineno, "state", names, f"`global {names}`: no module state")
    for node in module_level(tree.body):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        kind = mutable(node.value)
        patterns = [p for row, p, what in STATE_ALLOWED if room and (row, what) == (room.name, kind)]
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            name = ast.unparse(target)
            excused = any(fnmatchcase(name, pattern) for pattern in patterns)
            if kind and isinstance(target, ast.Name) and not excused and not name.startswith("__"):
                text = f"module state `{name}` is a {kind}; use a tuple, MappingProxyType or @cache"
                yield Violation(path, node.lineno, "state", name, text)


def check(files: Sources) -> list[Violation]:
    imports = read_imports(files)
    found = [violation for one in imports if (violation := judge(one)) is not None]
    found += find_cycles(imports)
    for path, source in files.items():
        found += find_state(path, source)
        if room_of(inside(path)) is None:
            text = "belongs to no room: give it a row in tests/rooms_table.py"
            found.append(Violation(path, 1, "room", path, text))
    return sorted(found, key=lambda one: (one.path, one.line, one.rule))


EMPTY = ("ops/gate/op.py", "ops/gate/runs.py", "ops/topk/cpu.py", "cli/main.py")
STAGE = {f"{PACKAGE}/{path}": "" for path in EMPTY}
STAGE |= {
    f"{PACKAGE}/hf/load.py": "from tilesieve.layers import moe",
    f"{PACKAGE}/ops/gate/reference.py": "from ..topk.reference import topk",
}


def seeded(path: str, source: str, stage: Sources) -> list[Violation]:
    """What `source` at `path` adds to the violations of `stage`."""
    before = set(check(stage))
    return [one for one in check({**stage, f"{PACKAGE}/{path}": source}) if one not in before]


def test_the_tree_keeps_its_walls() -> None:
    files = read_tree(Path(__file__).parents[1])
    assert f"{PACKAGE}/__init__.py" in files
    found = check(files)
    assert not found, "\n" + "\n".join(map(str, found))


@pytest.mark.parametrize(("path", "source", "expected"), BAD)
def test_a_seeded_violation_is_reported(path: str, source: str, expected: str) -> None:
    found = seeded(path, source, STAGE)
    assert "; ".join(f"{one.line} {one.rule} {one.name}" for one in found) == expected
    for one in found:
        assert str(one).startswith(f"{one.path}:{one.line}: ") and one.name in str(one)


@pytest.mark.parametrize(("path", "source"), CLEAN)
def test_a_clean_counterpart_is_not(path: str, source: str) -> None:
    assert [str(one) for one in seeded(path, source, STAGE)] == []


def test_every_room_has_a_seed() -> None:
    """A row without a violation in BAD would be a wall that nothing has tried."""
    rooms = [room_of(inside(path)) for path, _, report in BAD if " state " not in report]
    tried = {room.name for room in rooms if room is not None}
    assert [room.name for room in ROOMS if room.name not in tried] == []


def test_a_violation_written_to_disk_is_found(tmp_path: Path) -> None:
    file = tmp_path / PACKAGE / "ops" / "gate" / "cost.py"
    file.parent.mkdir(parents=True)
    file.write_text("import math\nimport torch\n")
    assert [str(one) for one in check(read_tree(tmp_path))] == [
        "tilesieve/ops/gate/cost.py:2: imports torch; ops/*/cost may import the standard library, cost"
    ]


def test_the_table_keeps_torch_out() -> None:
    """What a torch-free room imports at module level is torch-free in turn."""
    for room in ROOMS:
        if room.name in TORCH_FREE:
            free = [name.replace("own/", "ops/*/") for name in room.ours]
            assert not set(room.third) & set(HEAVY), room.name
            assert set(free) <= set(TORCH_FREE), room.name


def test_the_table_has_no_cycle_and_no_unknown_name() -> None:
    houses = {room.name: room.house for room in ROOMS}
    edges: Edges = {}
    for room in ROOMS:
        for name in (*room.ours, *room.late):
            there = houses[name.replace("own/", "ops/*/")]
            if there != room.house:
                edges.setdefault(room.house, {})[there] = Import("", 0, name, "module")
    assert list(cycles(edges)) == []

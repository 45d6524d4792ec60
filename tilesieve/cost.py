"""Cost: what one operator call must do, in integers, known before anything runs.

flops        multiplications and additions of the mathematics (2 for a multiply-add)
bytes_min    every input read once and every output written once
bytes_moved  what our implementation moves when it differs (passes over the same data, buffers)
bytes_padded bytes_moved including rows and columns that exist only because of padding
workspace    bytes of scratch memory alive at once
launches     kernels launched on a GPU
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType


@dataclass(frozen=True)
class Cost:
    flops: int = 0
    bytes_min: int = 0
    bytes_moved: int = 0
    bytes_padded: int = 0
    workspace: int = 0
    launches: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"Cost.{field.name} is {value!r}; it must be an integer >= 0")
        # A cost file that states only the minimum moves exactly the minimum.
        if self.bytes_moved == 0:
            object.__setattr__(self, "bytes_moved", self.bytes_min)
        if self.bytes_padded == 0:
            object.__setattr__(self, "bytes_padded", self.bytes_moved)

    def __add__(self, other: "Cost") -> "Cost":
        """Two calls one after the other: everything adds, scratch memory is reused."""
        return Cost(
            self.flops + other.flops,
            self.bytes_min + other.bytes_min,
            self.bytes_moved + other.bytes_moved,
            self.bytes_padded + other.bytes_padded,
            max(self.workspace, other.workspace),
            self.launches + other.launches,
        )

    def __mul__(self, calls: int) -> "Cost":
        return Cost(
            self.flops * calls,
            self.bytes_min * calls,
            self.bytes_moved * calls,
            self.bytes_padded * calls,
            self.workspace,
            self.launches * calls,
        )

    @property
    def intensity(self) -> float:
        """FLOPs per byte of the minimum traffic; 0 where no byte moves."""
        return self.flops / self.bytes_min if self.bytes_min else 0.0


ZERO = Cost(launches=0)

# Bytes of one element, by the dtype names torch prints without its prefix.
ITEMSIZE: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1,
        "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1,
    }
)  # fmt: skip

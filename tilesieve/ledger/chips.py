"""What a chip can do at best: peaks by dtype, memory bandwidth, the price of a launch."""

from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("datasheet", "measured")
# bf16 holds these numbers exactly: a chip without a peak for them multiplies them as bf16.
AS_BF16 = ("int8", "float8_e4m3fn")


@dataclass(frozen=True)
class Chip:
    """flops: (dtype, multiplications and additions a second), dense. kind says where peaks and bandwidth come from.

    launch_eager and launch_graph are the seconds one kernel launch takes from Python and in a CUDA graph's replay;
    `launch_source` says where those come from.
    """

    name: str
    flops: tuple[tuple[str, float], ...]
    bytes_per_second: float
    launch_eager: float
    launch_graph: float
    source: str
    kind: str
    launch_source: str = "assumed"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; allowed: {', '.join(KINDS)}")
        if not self.flops or self.bytes_per_second <= 0 or any(peak <= 0 for _, peak in self.flops):
            raise ValueError(f"{self.name}: flops is {self.flops} and bytes_per_second {self.bytes_per_second}; "
                             "allowed: numbers > 0")  # fmt: skip
        if self.launch_eager < 0 or self.launch_graph < 0:
            raise ValueError(f"{self.name}: a launch takes {self.launch_eager} or {self.launch_graph} s; allowed: >= 0")

    def peak(self, dtype: str) -> float:
        """FLOPs a second on numbers of `dtype`; int8 and fp8 without a peak of their own have that of bf16."""
        peaks = dict(self.flops)
        if dtype in AS_BF16:
            dtype = dtype if dtype in peaks else "bfloat16"
        if dtype not in peaks:
            raise ValueError(f"dtype is {dtype!r}; {self.name} has peaks for {', '.join(peaks)}")
        return peaks[dtype]

    def balance(self, dtype: str = "bfloat16") -> float:
        """FLOPs per byte above which work sits under the arithmetic roof."""
        return self.peak(dtype) / self.bytes_per_second


H200 = Chip(
    name="H200",
    # Dense peaks; the sheet prints the doubled ones of 2:4 sparsity.
    flops=(
        ("bfloat16", 989e12),
        ("float16", 989e12),
        ("float8_e4m3fn", 1979e12),
        ("int8", 1979e12),
        ("float32", 67e12),
    ),
    bytes_per_second=4.8e12,
    launch_eager=5e-6,
    launch_graph=1e-6,
    source="NVIDIA H200 SXM datasheet, dense",
    kind="datasheet",
)

H200_MEASURED = Chip(
    name="H200-measured",
    flops=(("bfloat16", 685.5e12), ("float8_e4m3fn", 1252.5e12)),
    bytes_per_second=4281e9,
    launch_eager=5e-6,
    launch_graph=1e-6,
    source="one H200, 2026-11-30, torch 2.11 on CUDA 13.0: products 8192^3 of random data (bf16; fp8 per tensor) and "
    "a device copy counting reads and writes; median with the L2 flushed, mean of the start and the end of one run",
    kind="measured",
)

CHIPS = (H200, H200_MEASURED)


def chip(name: str) -> Chip:
    """A chip by its name, upper or lower case."""
    for known in CHIPS:
        if known.name.lower() == name.lower():
            return known
    raise ValueError(f"chip is {name!r}; allowed: {', '.join(known.name for known in CHIPS)}")


def cpu(name: str, *, flops: Mapping[str, float], bytes_per_second: float, source: str,
        launch: float = 0.0) -> Chip:  # fmt: skip
    """A CPU from numbers that were measured elsewhere; `source` says how and when."""
    return Chip(
        name=name,
        flops=tuple(sorted(flops.items())),
        bytes_per_second=bytes_per_second,
        launch_eager=launch,
        launch_graph=launch,
        source=source,
        kind="measured",
        launch_source=source,
    )

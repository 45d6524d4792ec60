"""What gate_bias_update must cost. Terms: an addition per load for the sum, and per expert one comparison with
the mean (a subtraction), a product with the rate and an addition."""

from tilesieve.cost import Cost


def hand(*, layers: int, experts: int, **_: int) -> int:
    """FLOPs that are no matrix product."""
    return 4 * layers * experts


def cost(*, layers: int = 1, experts: int, loads_itemsize: int = 8) -> Cost:
    """layers L, experts E."""
    return Cost(
        flops=hand(layers=layers, experts=experts),
        bytes_min=layers * experts * (4 + loads_itemsize + 4),
        workspace=layers * experts * 32,
    )

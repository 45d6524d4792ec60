"""What gate must cost. The router's own product x [T,D] @ w [D,E] is a linear before it (ledger/dense.py).

Terms, an exponential, a logarithm, a root being one FLOP each: a sigmoid 3 (exp, add, divide), a
softmax 4 (subtract, exp, add, divide), a sqrt_softplus 4 (exp, add, log, root); a bias 1; a group
score of two 1; a pick 2 where renormalised (its place in the sum, a division) and 1 for the scale.
Comparisons none. There are no matrix products.
"""

from tilesieve.cost import Cost

# The CPU form's bounds (cpu.py): bytes of one pass, one token where that is more, and bytes per logit.
SCRATCH = 8 << 20
LOGIT = 48


def hand(*, tokens: int, experts: int, picks: int, live: int | None = None, scored: int | None = None,
         picked: int | None = None, softmax: int = 0, sqrt_softplus: int = 0, bias: int = 0, pair_groups: int = 0,
         renormalise: int = 1, **_: int) -> int:  # fmt: skip
    """FLOPs that are no matrix product."""
    live = tokens if live is None else live
    scored = live * experts if scored is None else scored
    picked = live * picks if picked is None else picked
    per_token = bias * experts + pair_groups
    return scored * (3 + softmax + sqrt_softplus) + live * per_token + picked * (1 + 2 * renormalise)


def cost(*, tokens: int, experts: int, picks: int, live: int | None = None, scored: int | None = None,
         picked: int | None = None, softmax: int = 0, sqrt_softplus: int = 0, bias: int = 0, pair_groups: int = 0,
         renormalise: int = 1, mask: int = 0, ids_itemsize: int = 0, itemsize: int = 4) -> Cost:  # fmt: skip
    """tokens T, experts E, picks K; live = tokens that are not masked; scored = logits that are read;
    picked = picks that are not -1. softmax, sqrt_softplus, bias, renormalise, mask: 1 where it is so;
    pair_groups = groups whose score is the sum of two; ids_itemsize = bytes of a given id, 0 without ids."""
    live = tokens if live is None else live
    scored = live * experts if scored is None else scored
    read = scored * itemsize + tokens * mask + live * picks * ids_itemsize + 4 * experts * (bias if live else 0)
    one = LOGIT * max(1, experts)
    return Cost(
        flops=hand(
            tokens=tokens, experts=experts, picks=picks, live=live, scored=scored, picked=picked, softmax=softmax,
            sqrt_softplus=sqrt_softplus, bias=bias, pair_groups=pair_groups, renormalise=renormalise,
        ),
        bytes_min=read + tokens * (8 * picks + 4),
        workspace=min(tokens, max(1, SCRATCH // one)) * one,
    )  # fmt: skip

"""permute: token rows ordered by expert, as a pass of its own."""

import torch
from torch import Tensor

from tilesieve.ops import expect
from tilesieve.ops.permute.gradient import backward, setup
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import Groups

# fp64 is for checking gradients.
FLOATS = (*expect.FLOATS, torch.float64)


def _outputs(x: Tensor, token: Tensor, offsets: Tensor, row: Tensor | None) -> tuple[Spec, ...]:
    return (((len(token), x.shape[1]), x.dtype),)


def _sizes(x: Tensor, token: Tensor, offsets: Tensor, row: Tensor | None) -> dict[str, int]:
    live = token[: max(0, int(offsets[-1]))]
    live = live[(live >= 0) & (live < len(x))]
    return {
        "tokens": len(live.unique()), "width": x.shape[1], "rows": len(live), "listed": len(token),
        "itemsize": x.element_size(),
    }  # fmt: skip


def _check(x: Tensor, token: Tensor, offsets: Tensor, row: Tensor | None) -> None:
    if bool((offsets[1:] < offsets[:-1]).any()) or int(offsets[-1]) > len(token):
        raise ValueError(f"groups.offsets is {offsets.tolist()}; allowed: ascending, at most {len(token)}")
    live = token[: int(offsets[-1])]
    if bool((live >= len(x)).any()):
        raise ValueError(f"groups.token names {int(live.max())}; x has {len(x)} tokens")


OP = define(
    Op(
        name="permute",
        schema="Tensor x, Tensor token, Tensor offsets, Tensor? row",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        check=_check,
        gradient=(backward, setup),
    )
)


def permute(x: Tensor, groups: Groups, *, keep: int | None = None, drop: int | None = None,
            out: Tensor | None = None, impl: str | None = None) -> Tensor:  # fmt: skip
    """Copy each token to its rows: out[n] = x[groups.token[n]].

    x       fp32, bf16, fp16 or fp64 [T,D]
    groups  token int32 [N], offsets int32 [E+1]. Rows past offsets[-1], and rows whose token is < 0
            or >= T, come out 0
    keep    only the first `keep` rows (all where there are fewer); None: all
    drop    all but the last `drop` rows (none where there are fewer). Not both keep and drop

    keep and drop cut the buffer of N rows, padding and rows past offsets[-1] included, as a slice
    does (of npu_moe_token_permute's num_out_tokens: 0 is neither, n > 0 is keep=n, n < 0 drop=-n;
    its padded_mode is the Groups of group_rows.layouts.expert_lists). `group_rows.layouts.truncate`
    gives the Groups of the rows kept, for the operators that follow; unpermute takes either.

    Returns [N,D] in x's dtype, or fewer rows. Differentiable in x: a token's gradient is the sum of
    those of its rows in fp32 (fp64 of fp64), in ascending choice, rounded once; gradients of
    padding rows are not read. It needs groups.row.

    Raises ValueError naming the argument for a wrong shape, dtype or device, a negative keep or drop,
    or both.
    """
    dims: dict[str, int] = {}
    expect.shape(dims, "x", x, "T D", FLOATS)
    expect.noun("groups", groups, Groups)
    expect.shape(dims, "groups.token", groups.token, "N", expect.INT32)
    expect.shape(dims, "groups.offsets", groups.offsets, "_", expect.INT32)
    if groups.offsets.shape[0] < 1:
        raise ValueError("groups.offsets is empty; allowed: [E + 1]")
    row = groups.row
    if row is not None:
        expect.shape(dims, "groups.row", row, "T K", expect.INT32)
    elif x.requires_grad and torch.is_grad_enabled():
        raise ValueError("groups.row is None and x requires grad; allowed: int32 [T, K], as group_rows gives it")
    expect.same_device("x", x, **{"groups.token": groups.token, "groups.offsets": groups.offsets, "groups.row": row})
    if keep is not None and drop is not None:
        raise ValueError(f"keep is {keep} and drop is {drop}; allowed: one of them")
    kept = dims["N"]
    if keep is not None:
        expect.at_least("keep", keep, 0)
        kept = min(keep, kept)
    elif drop is not None:
        expect.at_least("drop", drop, 0)
        kept = max(0, kept - drop)
    token, offsets = groups.token, groups.offsets
    if kept < dims["N"]:
        token, offsets = token[:kept], offsets.clamp(max=kept)
    return call(OP, x, token, offsets, row, out=None if out is None else (out,), impl=impl)[0]

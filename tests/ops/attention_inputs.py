"""Small inputs of the attention operators that their tests share, and an oracle written another way."""

import torch

from tilesieve.formats.kv import kv_dtype, new_kv, token_views
from tilesieve.types import KVCache, Pages, Rows, Selection, Slots


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def at(seq, position) -> Rows:
    return Rows(torch.tensor(seq, dtype=torch.int32), torch.tensor(position, dtype=torch.int32))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def paged(keys, values, format="kv_fp32.token", page_size=4, seed=0) -> tuple[KVCache, Pages]:
    """Sequences ([n,G,D] and [n,G,E] each) in a cache: pages anywhere, NaN wherever no token lies."""
    most = max(1, max(-(-len(key) // page_size) for key in keys))
    total = len(keys) * most + 2
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    table = order[: len(keys) * most].view(len(keys), most).int()
    cache = new_kv(format, total, page_size, keys[0].shape[1], keys[0].shape[2], values[0].shape[2])
    cache.key.fill_(torch.nan)
    cache.value.fill_(torch.nan)
    for view, rows in zip(token_views(cache), (keys, values), strict=True):
        for b, row in enumerate(rows):
            p = torch.arange(len(row))
            view[table[b, p // page_size].long(), p % page_size] = row.to(kv_dtype(format))
    length = torch.tensor([len(key) for key in keys], dtype=torch.int32)
    return cache, Pages(table, length, page_size, max(int(n) for n in length))


def one(length=37, kv_heads=2, width=8, value_width=None, seed=0, **how):
    """One sequence: keys, values, cache, pages."""
    key = normal(length, kv_heads, width, seed=seed)
    value = normal(length, kv_heads, value_width or width, seed=seed + 1)
    return key, value, *paged([key], [value], **how)


def counted(entries, count):
    """Entries and counts (all by default); one list [R,1,K] is written [R,K]."""
    entries = torch.as_tensor(entries)
    count = torch.full(entries.shape[:-1], entries.shape[-1]) if count is None else torch.as_tensor(count)
    if entries.dim() == 3 and entries.shape[1] == 1:
        entries, count = entries[:, 0], count[:, 0]
    return entries, count.int()


def listed(slot, count=None) -> Slots:
    return Slots(*counted(slot, count))


def chosen(index, count=None, space="position") -> Selection:
    index, count = counted(index, count)
    return Selection(index.int(), count, None, space)


def slots_of(pages: Pages, index, seq=0):
    """int64 slots of positions of one sequence; -1 stays."""
    index = torch.as_tensor(index).long()
    page = pages.table[seq].long()[index.clamp(min=0) // pages.page_size]
    return torch.where(index < 0, -1, page * pages.page_size + index % pages.page_size)


def exact(q, keys, values, scale, sink=None):
    """One row in fp64, the sink as one more column: q [H,D], keys [n,G,D] -> out [H,E], lse [H]."""
    share = q.shape[0] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(share, 1) for x in (keys, values))
    scores = torch.einsum("hd,nhd->hn", q.double(), keys) * scale
    columns = scores if sink is None else torch.cat([scores, sink.double()[:, None]], 1)
    weights = torch.softmax(columns, -1)[:, : len(keys)]
    return torch.einsum("hn,nhe->he", weights, values), torch.logsumexp(scores, -1)


def near(got, out, lse, error=3e-6):
    """fp32 results against fp64 ones of the size of one; 3e-6: fp32 sums, largest seen 3.2e-7."""
    assert torch.allclose(got.out.double(), out, rtol=0, atol=error * max(1.0, float(out.abs().max())))
    assert torch.allclose(got.lse.double(), lse, rtol=0, atol=error * max(1.0, float(lse.abs().max())))
    return True

"""Shared settings: one thread count, so that timings and bits do not depend on the machine's load."""

import os
import zlib

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def seed(request):
    """Each test draws from its own seed, derived from its name."""
    import torch

    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))

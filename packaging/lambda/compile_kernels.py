"""Compile, while the image is built, the kernels that every cold instance would compile anew."""

import torch

from siafu.ops import DrawKey, dropout_rows


def main() -> None:
    """Run each kernel once, so that it is in NUMBA_CACHE_DIR."""
    for dtype in (torch.float32, torch.float64):
        x_ND, ids_N = torch.ones(4, 8, dtype=dtype), torch.arange(4)
        dropout_rows(x_ND, ids_N, DrawKey(seed=0, epoch=0, purpose=0), 0.5)


if __name__ == "__main__":
    main()

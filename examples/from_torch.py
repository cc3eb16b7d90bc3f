"""From a PyTorch module to kuiper in one call.

    pip install torch pnnx
    python examples/from_torch.py                                     # a small built-in network
    python examples/from_torch.py torchvision.models:resnet18 --save resnet18.pnnx.param

kuiper.from_torch traces the module with torch, converts the trace with pnnx, and loads the result.
Running the model needs neither: save it and copy the two files.

With a second example input, the extents that differ become variable, even if the network reshapes
to extents of its input.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence

import numpy as np

import kuiper


def small_network(torch):
    """Return a network that reshapes, so that frozen sizes would fail."""

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.mix = torch.nn.Linear(8, 8)

        def forward(self, x):
            x = torch.nn.functional.silu(self.conv(x))
            n, c, h, w = x.shape
            x = self.mix(x.reshape(n, c, h * w).permute(0, 2, 1))
            return x.permute(0, 2, 1).reshape(n, c, h, w).mean(dim=(2, 3))

    torch.manual_seed(0)
    return Small()


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="from_torch.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("module", nargs="?", metavar="PACKAGE:FUNCTION", help="returns an nn.Module")
    add("--size", type=int, default=224, metavar="N", help="side of the input (default: 224)")
    add("--save", metavar="FILE.pnnx.param", help="write the model's two files")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = parse_arguments(argv)
    try:
        import torch
    except ImportError:
        print("from_torch.py: needs PyTorch: pip install torch pnnx", file=sys.stderr)
        return 1
    if options.module:
        path, _, name = options.module.rpartition(":")
        module = getattr(importlib.import_module(path), name)()
    else:
        module = small_network(torch)
    module.eval()
    x = torch.rand(1, 3, options.size, options.size)
    other = torch.rand(2, 3, options.size + 32, options.size + 64)
    start = time.perf_counter()
    try:
        model = kuiper.from_torch(module, x, example_inputs2=other)
    except kuiper.KuiperError as error:
        print(f"from_torch.py: {error}", file=sys.stderr)
        return 1
    print(f"{model}\nconverted in {time.perf_counter() - start:.1f} s")
    worst = 0.0
    for example in (x, other):
        with torch.no_grad():
            expected = module(example).numpy()
        y = model(example)  # tensors are accepted too
        worst = max(worst, float(np.abs(y - expected).max() / np.abs(expected).max()))
        print(f"{tuple(example.shape)} -> {y.shape}")
    print(f"largest difference to PyTorch, relative: {worst:.1e}")
    if options.save:
        kuiper.save(model, options.save)
        print(f"saved to {options.save}")
    return int(worst > 1e-4)


if __name__ == "__main__":
    sys.exit(main())

"""Make the models of the benchmark: one seeded torch module, exported for every runtime.

Needs ``benchmarks/requirements.txt``. Usage::

    python benchmarks export                          # all models, batch 1 (some also 8)
    python benchmarks export --models resnet18,unet --batch 1,8 --cache DIR

:func:`common.model_folder` describes the files in the cache.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from common import default_cache, images, model_folder, split_names, variation

# Batch 8 is made for one network of each kind; any other comes with --models and --batch.
BATCH_8 = ("resnet18", "resnet50", "mobilenet_v2", "vit_b_16")


def run_pnnx(trace: Path, folder: Path, shape: tuple[int, ...]) -> None:
    """Convert a traced module into ``model.pnnx.*`` and ``model.ncnn.*`` of `folder`."""
    import pnnx

    extents = ",".join(str(extent) for extent in shape)
    with tempfile.TemporaryDirectory() as scrap:
        command = [
            pnnx.EXEC_PATH,
            str(trace),
            f"inputshape=[{extents}]f32",
            "fp16=0",
            f"pnnxparam={folder}/model.pnnx.param",
            f"pnnxbin={folder}/model.pnnx.bin",
            f"ncnnparam={folder}/model.ncnn.param",
            f"ncnnbin={folder}/model.ncnn.bin",
            f"pnnxpy={scrap}/pnnx.py",
            f"pnnxonnx={scrap}/pnnx.onnx",
            f"ncnnpy={scrap}/ncnn.py",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=scrap)
    missing = [
        suffix
        for suffix in ("pnnx.param", "pnnx.bin", "ncnn.param", "ncnn.bin")
        if not (folder / f"model.{suffix}").exists()
    ]
    if done.returncode or missing:
        tail = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"pnnx ended with {done.returncode}, missing {missing}:\n{tail}")


def export_onnx(module, x, path: Path) -> None:
    """Write `module` as ONNX with fixed shapes, batch norms folded, weights in one file."""
    import torch

    # PyTorch's fused operator for attention has no translation to ONNX.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                (x,),
                str(path),
                dynamo=True,
                external_data=False,
                input_names=["input"],
                verbose=False,
            )
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def export_torch(module, x, folder: Path) -> Path:
    """Write a frozen TorchScript for PyTorch, and return a plain trace for pnnx.

    They differ: without gradients the trace of an attention has PyTorch's fused operator, which
    PyTorch should be measured with but pnnx cannot read.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.no_grad():
            frozen = torch.jit.freeze(torch.jit.trace(module, x, check_trace=False))
        frozen.save(str(folder / "model.torchscript.pt"))
        trace = folder / "trace.pt"
        torch.jit.trace(module, x, check_trace=False).save(str(trace))
    return trace


def export(name: str, batches: list[int], cache: Path) -> None:
    """Export the model `name` at each of `batches` into `cache`.

    Raises
    ------
    RuntimeError
        The network's output is not finite or hardly depends on its input, or pnnx failed.
    """
    import torch

    from networks import models
    from networks.weights import outputs

    spec = models.spec_of(name)
    module = models.build(name)
    with torch.no_grad():
        first, second = (
            [
                y.numpy()
                for y in outputs(module(torch.from_numpy(images((1, *spec.input_shape), seed))))
            ]
            for seed in (1, 2)
        )
    if not all(np.isfinite(y).all() for y in first):
        raise RuntimeError(f"{name}: the output is not finite")
    difference = variation(first, second)
    if difference < 0.02:
        raise RuntimeError(f"{name}: two inputs give outputs only {difference:.1%} apart")

    home = Path(cache) / name
    home.mkdir(parents=True, exist_ok=True)
    torch.save(module.state_dict(), home / "weights.pt")
    (home / "input_shape.txt").write_text(" ".join(str(extent) for extent in spec.input_shape))
    print(f"{name}: outputs of two inputs are {difference:.0%} apart", flush=True)
    for batch in batches:
        started = time.perf_counter()
        folder = model_folder(cache, name, batch)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "complete").unlink(missing_ok=True)
        shape = (batch, *spec.input_shape)
        x = torch.from_numpy(images(shape, 1))
        trace = export_torch(module, x, folder)
        run_pnnx(trace, folder, shape)
        trace.unlink()
        export_onnx(module, x, folder / "model.onnx")
        (folder / "complete").touch()
        print(f"  batch {batch}: {time.perf_counter() - started:.1f} s", flush=True)


def main() -> int:
    """Export the models of the command line; a failing model does not stop the others."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models",
        default="",
        help="names, comma-separated; all of models.MODELS by default; others for models.OTHERS, "
        "kinds for kinds.KINDS",
    )
    parser.add_argument(
        "--batch",
        default="",
        help=f"batch sizes, comma-separated; by default 1, and 8 for {', '.join(BATCH_8)}",
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help="%(default)s")
    options = parser.parse_args()

    from networks import kinds, models

    names = split_names(options.models) or list(models.MODELS)
    if names == ["others"]:
        names = list(models.OTHERS)
    if names == ["kinds"]:
        names = list(kinds.KINDS)
    known = {**models.MODELS, **kinds.KINDS}
    unknown = [name for name in names if name not in known and name[:5] != "timm:"]
    if unknown:
        listed = ", ".join(known)
        parser.error(f"unknown models {unknown}; there are {listed}, timm:NAME, others and kinds")
    failed = []
    for name in names:
        batches = [int(b) for b in split_names(options.batch)]
        if not batches:
            batches = [1, 8] if name in BATCH_8 else [1]
        try:
            export(name, batches, options.cache)
        except Exception as error:
            failed.append(name)
            print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
        gc.collect()
    if failed:
        print(f"not exported: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0

"""Export whole families of networks, run them and compare with PyTorch; write docs/models.md.

Each network gets seeded weights (see ``models.keep_alive``), goes through pnnx, and its output is
compared with PyTorch's on other images than those of the export. Where they differ, the Python
module that pnnx writes beside the model tells whose fault it is.

Every network runs in a process of its own, so that a crash, or a large network's memory, ends with
it. What is known is kept in ``zoo.json`` of the cache; a network runs again only when asked for.

Usage, with torch, torchvision, timm, pnnx and kuiper installed::

    python benchmarks/zoo.py                              # all of torchvision's classifiers
    python benchmarks/zoo.py --family timm
    python benchmarks/zoo.py --models resnet18,swin_t     # again, whatever the cache says
    python benchmarks/zoo.py --failed                     # those again that failed
    python benchmarks/zoo.py --write                      # only the page
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from common import HERE, REPOSITORY, default_cache, images, relative_error, split_names, variation

PAGE = REPOSITORY / "docs" / "models.md"
TOLERANCE = 1e-4
# How long one network may take, all told.
SECONDS = 900

# One or two architectures of each of timm's families, in their smaller sizes; a name per line.
TIMM = HERE / "zoo_timm.txt"


def names_of(family: str) -> list[str]:
    """Return the names of a family, smallest network first where that is known."""
    if family == "timm":
        import timm

        known = set(timm.list_models())
        return [name for name in TIMM.read_text().split() if name in known]
    from models import import_torchvision

    models = import_torchvision().models
    names = models.list_models(module=models)

    def size(name: str) -> int:
        weights = list(models.get_model_weights(name))
        return min((w.meta["num_params"] for w in weights), default=0)

    return sorted(names, key=size)


def build(family: str, name: str):
    """Return the network with seeded weights and the shape of one image."""
    import torch
    from models import SEED, import_torchvision, keep_alive

    if family == "timm":
        import timm

        module = timm.create_model(name, pretrained=False)
        shape = tuple(module.default_cfg["input_size"])
    else:
        models = import_torchvision().models
        options = {}
        if name in ("googlenet", "inception_v3"):
            # The auxiliary classifiers belong to training.
            options = {"aux_logits": False, "init_weights": False, "transform_input": False}
        module = models.get_model(name, weights=None, **options)
        extent = {"inception_v3": 299}.get(name, 224)
        shape = (3, extent, extent)
        if name.startswith("swin_v2"):
            shape = (3, 256, 256)
    keep_alive(module, torch.from_numpy(images((2, *shape), SEED)), SEED)
    return module, shape


def examine(family: str, name: str) -> dict:
    """Export one network, run it and return what is to be known of it."""
    import torch
    from models import outputs

    module, shape = build(family, name)
    facts = {"parameters": sum(p.numel() for p in module.parameters()), "shape": shape}
    first, second = (torch.from_numpy(images((1, *shape), seed)) for seed in (1, 2))
    with torch.no_grad():
        expected = [[y.numpy() for y in outputs(module(x))] for x in (first, second)]
    if not all(np.isfinite(y).all() for y in expected[1]):
        return facts | {"status": "no test", "reason": "its seeded output is not finite"}
    if variation(*expected) < 0.01:
        return facts | {"status": "no test", "reason": "its seeded output hardly varies"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            export(module, first, Path(folder))
        except Exception as error:
            return facts | {"status": "no export", "reason": _first_line(error)}
        facts |= counts(Path(folder) / "graph.pnnx.param")
        del module
        try:
            actual = run(Path(folder), second.numpy())
        except Exception as error:
            return facts | {"status": "refused", "reason": _first_line(error)}
        error = relative_error(actual, expected[1])
        facts |= {"error": error if np.isfinite(error) else None}
        if error <= TOLERANCE:
            return facts | {"status": "equal"}
        return facts | blame(Path(folder), second, expected[1], error)


def export(module, x, folder: Path) -> None:
    """Trace a network and convert it."""
    import pnnx
    import torch

    # With its fast path PyTorch traces an attention as one operator that pnnx does not know.
    torch.backends.mha.set_fastpath_enabled(False)
    torch.jit.trace(module, x, check_trace=False).save(str(folder / "graph.pt"))
    extents = ",".join(map(str, x.shape))
    done = subprocess.run(
        [pnnx.EXEC_PATH, "graph.pt", f"inputshape=[{extents}]f32", "fp16=0"],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=SECONDS,
    )
    if not (folder / "graph.pnnx.bin").exists():
        lines = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"pnnx ended with {done.returncode}: {lines[-1]}")


def counts(param: Path) -> dict:
    """Return how many operators a model has, and of which types."""
    lines = param.read_text().splitlines()[2:]
    types = Counter(line.split()[0] for line in lines if line.strip())
    for plumbing in ("pnnx.Input", "pnnx.Output", "pnnx.Attribute"):
        types.pop(plumbing, None)
    return {"operators": sum(types.values()), "types": sorted(types)}


def run(folder: Path, x: np.ndarray) -> list[np.ndarray]:
    """Run an exported model with kuiper."""
    import kuiper

    result = kuiper.load(folder / "graph.pnnx.param")(x)
    return list(result) if isinstance(result, tuple) else [result]


def blame(folder: Path, x, expected: list[np.ndarray], error: float) -> dict:
    """Tell whether a difference from PyTorch is the exporter's or kuiper's own."""
    import torch
    from models import outputs

    found = f"{error:.1e} from PyTorch"
    try:
        os.chdir(folder)  # the module looks for its weights here
        spec = importlib.util.spec_from_file_location("exported", folder / "graph_pnnx.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with torch.no_grad():
            theirs = [y.numpy() for y in outputs(module.Model().eval()(x))]
        other = relative_error(theirs, expected)
    except Exception as error:
        other, found = np.inf, f"{found}; pnnx's own module fails: {_first_line(error)}"
    finally:
        os.chdir(REPOSITORY)
    if other > TOLERANCE:
        return {"status": "export differs", "reason": f"{found}; pnnx's own module {other:.1e}"}
    return {"status": "differs", "reason": f"{found}; pnnx's own module {other:.1e}"}


def _first_line(error: Exception) -> str:
    text = str(error).strip() or "without a word"
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}"


def examine_apart(family: str, name: str) -> dict:
    """Examine a network in a process of its own."""
    command = [sys.executable, __file__, "--family", family, "--examine", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"status": "no export", "reason": f"took longer than {SECONDS} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"status": "no export", "reason": f"ended with {done.returncode}: {said[:300]}"}
    return json.loads(lines[-1])


HEAD = """\
# Models

Whole networks with seeded weights, exported by pnnx and compared with PyTorch: max |a - b| over
max |b|, at batch 1. This page is written by `benchmarks/zoo.py`; do not edit it.

- *equal*: at most {tolerance:.0e} apart
- *differs*: further apart; *refused*: kuiper cannot run the file
- *export differs*: the Python module that pnnx writes beside the model differs from PyTorch as well
- *no export*: pnnx does not convert it; *no test*: seeded weights make it put out nothing of use
"""


def page(results: dict) -> str:
    """Return the text of docs/models.md."""
    parts = [HEAD.format(tolerance=TOLERANCE)]
    for family, title in (("torchvision", "torchvision"), ("timm", "timm")):
        found = results.get(family, {})
        if not found:
            continue
        sums = Counter(facts["status"] for facts in found.values())
        line = ", ".join(f"{count} {status}" for status, count in sums.most_common())
        parts.append(f"## {title}\n\n{len(found)} networks: {line}.\n")
        parts.append(
            "| model | input | operators | types | error | |\n| --- | --- | --: | --: | --: | --- |"
        )
        for name, facts in sorted(found.items()):
            shape = "x".join(map(str, facts.get("shape", ()))) or "-"
            error = facts.get("error")
            note = facts["status"]
            if facts.get("reason"):
                note += ": " + facts["reason"].replace("|", "\\|")
            cells = [
                name,
                shape,
                str(facts.get("operators", "-")),
                str(len(facts.get("types", ())) or "-"),
                "-" if error is None else f"{error:.1e}",
                note,
            ]
            parts.append("| " + " | ".join(cells) + " |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Examine what the command line asks for and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=("torchvision", "timm"), default="torchvision")
    parser.add_argument("--models", default="", help="names, comma-separated; all by default")
    parser.add_argument("--failed", action="store_true", help="those again that failed")
    parser.add_argument("--write", action="store_true", help="only write the page")
    parser.add_argument("--seconds", type=float, default=np.inf, help="start none after this time")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="%(default)s")
    parser.add_argument("--examine", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.examine:
        print(json.dumps(examine(options.family, options.examine)))
        return 0
    store = options.cache / "zoo.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    found = results.setdefault(options.family, {})
    started = time.monotonic()
    if not options.write:
        asked = split_names(options.models)
        for name in asked or names_of(options.family):
            known = found.get(name)
            again = options.failed and known and known["status"] != "equal"
            if time.monotonic() - started > options.seconds or (known and not asked and not again):
                continue
            found[name] = facts = examine_apart(options.family, name)
            print(
                f"{name}: {facts['status']} {facts.get('error') or ''} {facts.get('reason', '')}",
                flush=True,
            )
            options.cache.mkdir(parents=True, exist_ok=True)
            store.write_text(json.dumps(results, indent=1))
    PAGE.write_text(page(results))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(main())

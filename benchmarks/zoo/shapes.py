"""Run the networks of the zoo at other batches and image sizes than those of their export.

Each is exported once, from one image, and runs with 1, 2 and 8 images, and with images of two
other sizes if PyTorch accepts them: one that differs by 32, one odd. If the plain export contains
the size, the network is exported again with a second ``inputshape2``; if it runs at no size, by
``kuiper.from_torch``. Results are kept in ``shapes.json`` of the cache; ``python benchmarks zoo
--write`` puts them into docs/models.md.

Usage, with what ``survey.py`` needs::

    python benchmarks zoo-shapes --family torchvision,timm --seconds 1800
    python benchmarks zoo-shapes --models swin_t,vit_b_16
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from common import default_cache, split_names
from zoo import survey

FAMILIES = ("torchvision", "timm")
BATCHES = (1, 2, 8)


def sizes(extent: int) -> tuple[tuple[int, int], ...]:
    """Return the other sizes to try for a network for square images of an extent."""
    return (extent + 32, extent - 32), (extent - 23, extent + 11)


def examine(family: str, name: str) -> dict:
    """Return the results of one network by shape: {"2x3x224x224": {"status": ..., ...}}."""
    import torch

    from networks.weights import SEED, keep_alive, outputs
    from zoo.nets import pictures

    network = survey.FAMILIES[family][2](name)
    module = network.build()

    def call(inputs) -> list[np.ndarray] | Exception:
        try:
            with torch.no_grad():
                return [y.numpy() for y in survey.leaves(outputs(module(*inputs)))]
        except Exception as error:
            return error

    keep_alive(module, survey.draw(network.draw, 2, SEED), SEED)
    first = survey.draw(network.draw, 1, 1)
    extent = first[0].shape[-1]
    shapes = [(network.draw, batch) for batch in BATCHES]
    shapes += [(pictures(3, *size), 2) for size in sizes(extent)]
    found, wanted = {}, {}
    for source, batch in shapes:
        inputs = survey.draw(source, batch, 3)
        label = "x".join(map(str, inputs[0].shape))
        result = call(inputs)
        if isinstance(result, Exception):
            found[label] = {"status": "not in PyTorch"}
        else:
            wanted[label] = inputs, result
    ways = [("plain", None)]
    # A size that PyTorch accepts: some networks only allow multiples of 32.
    second = survey.draw(pictures(3, extent + 64, extent + 32), 2, 4)
    if len(wanted) > len(BATCHES):
        ways.append(("inputshape2", second))
    for way, other in (*ways, ("from_torch", None)):
        left = [label for label in wanted if found.get(label, {}).get("status") != "equal"]
        # from_torch restores what pnnx lost; it does not free sizes that a plain export refuses.
        lost = any(
            label.endswith(f"x{extent}x{extent}") or found[label]["status"] == "differs"
            for label in left
            if label in found
        )
        if not left or (way == "from_torch" and not lost):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                model = converted(module, first, other, way, Path(folder))
            except Exception as error:
                for label in left:
                    found.setdefault(label, {"status": "no export"})
                    found[label]["again"] = str(error).splitlines()[0][:200]
                continue
            for label in left:
                facts = tried(model, *wanted[label])
                if facts["status"] == "equal" or label not in found:
                    found[label] = facts | {"way": way}
                else:
                    found[label]["again"] = facts
    if any(facts["status"] == "differs" for facts in found.values()):
        # With these weights rounding errors may grow until no two runtimes agree.
        expected = call(first)
        module.double()
        exact = call(tuple(x.double() for x in first))
        if not isinstance(exact, Exception):
            rounding = survey.relative_error(expected, exact)
            if rounding > survey.TOLERANCE / 5:
                return {"failed": f"PyTorch's own float32 is {rounding:.1e} from its float64"}
    return found


def converted(module, first, other, way: str, folder: Path):
    """Return a folder with the files of a network, or a model of kuiper's."""
    if way == "from_torch":
        import kuiper

        return kuiper.from_torch(module, first, example_inputs2=other)
    survey.export(module, first, other, (), folder)
    return folder


def tried(model, inputs, wanted) -> dict:
    """Return the result of a model for inputs of one shape."""
    if isinstance(model, Path):
        return survey.compare(model, inputs, wanted)
    try:
        return survey.judge(model, inputs, wanted)
    except Exception as error:
        return {"status": "refused", "reason": str(error)[:300]}


def main() -> int:
    """Examine the models of the command line."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default=",".join(FAMILIES), help="%(default)s")
    parser.add_argument("--models", default="", help="in the order given; all by default")
    parser.add_argument("--every", type=int, default=1, help="only every so many of a family")
    parser.add_argument("--seconds", type=float, default=np.inf, help="start none after this time")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="%(default)s")
    options = parser.parse_args()
    store = options.cache / "shapes.json"
    started = time.monotonic()
    asked = split_names(options.models)
    for family in split_names(options.family):
        names = survey.names_of(family)
        chosen = [name for name in asked if name in names] if asked else names[:: options.every]
        for name in chosen:
            if not asked and name in survey._load(store).get(family, {}):
                continue
            if time.monotonic() - started > options.seconds:
                return 0
            work = functools.partial(examine, family, name)
            found = survey.run_apart(work, lambda reason: {"failed": reason})
            survey.save(store, family, name, found)
            print(family, name, found, flush=True)
    return 0

"""Export whole families of networks, run them and compare with PyTorch; write docs/models.md.

Each network gets seeded weights (see ``networks/weights.py``) and is exported by pnnx. Its output
is compared with PyTorch's on other inputs than those of the export, then again for three inputs at
once, from the same file. If a result differs, or kuiper refuses the file, the Python module that
pnnx writes beside the model tells whether pnnx or kuiper is at fault.

Every network runs in a separate process, which contains crashes and frees the memory of large
networks. Results are kept in ``zoo.json`` of the cache; a network runs again only if requested.

Usage, with torch, torchvision, timm, pnnx and kuiper installed (ultralytics and transformers for
their families)::

    python benchmarks zoo                              # all of torchvision's classifiers
    python benchmarks zoo --family timm,text,audio
    python benchmarks zoo --models resnet18,swin_t     # again, whatever the cache says
    python benchmarks zoo --failed                     # those that failed, again
    python benchmarks zoo --write                      # only the page
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common import REPOSITORY, default_cache, relative_error, split_names, variation

PAGE = REPOSITORY / "docs" / "models.md"
TOLERANCE = 1e-4
# Time limit of one network, in total.
SECONDS = 900
# Batch size of the second comparison; the file was exported with one input.
BATCH = 3

# One or two small architectures of each of timm's families; a name per line.
TIMM = Path(__file__).with_name("timm.txt")

# Networks that ultralytics builds from its configuration files, by task.
ULTRALYTICS = (
    *(f"yolov8n{task}" for task in ("", "-seg", "-pose", "-cls", "-obb")),
    *(f"yolo11n{task}" for task in ("", "-seg", "-pose", "-cls", "-obb")),
    "yolov5n",
    "yolov3-tiny",
    "yolov9t",
    "yolov10n",
    "yolo12n",
    "yolo26n",
    "rtdetr-l",
)

SEGMENTATION = (
    "lraspp_mobilenet_v3_large",
    "deeplabv3_mobilenet_v3_large",
    "fcn_resnet50",
    "deeplabv3_resnet50",
    "fcn_resnet101",
    "deeplabv3_resnet101",
)

# Networks that are exported in other ways too: see `forms`.
TRANSFORMERS = ("vit_b_16", "swin_t")


# -- networks ----------------------------------------------------------------------------------


def _torchvision_names() -> list[str]:
    from networks.spec import import_torchvision

    models = import_torchvision().models

    def size(name: str) -> int:
        weights = list(models.get_model_weights(name))
        return min((w.meta["num_params"] for w in weights), default=0)

    return sorted(models.list_models(module=models), key=size)


def _torchvision(name: str):
    from networks.spec import import_torchvision
    from zoo.nets import Network, pictures

    models = import_torchvision().models
    options = {}
    if name in ("googlenet", "inception_v3"):
        # The auxiliary classifiers belong to training.
        options = {"aux_logits": False, "init_weights": False, "transform_input": False}
    extent = 256 if name.startswith("swin_v2") else {"inception_v3": 299}.get(name, 224)
    return Network(
        lambda: models.get_model(name, weights=None, **options), pictures(3, extent, extent)
    )


def _timm_names() -> list[str]:
    import timm

    known = set(timm.list_models())
    return [name for name in TIMM.read_text().split() if name in known]


def _timm(name: str):
    import timm

    from zoo.nets import Network, pictures

    module = timm.create_model(name, pretrained=False)
    return Network(lambda: module, pictures(*module.default_cfg["input_size"]))


def _segmentation(name: str):
    import torch

    from networks.spec import import_torchvision
    from zoo.nets import UNETS, Network, pictures

    if name in UNETS:
        return UNETS[name]

    class Out(torch.nn.Module):
        """The map alone, out of the dictionary."""

        def __init__(self, body):
            super().__init__()
            self.body = body

        def forward(self, x):
            return self.body(x)["out"]

    models = import_torchvision().models
    return Network(
        lambda: Out(models.get_model(name, weights=None, weights_backbone=None)),
        pictures(3, 224, 224),
    )


def _ultralytics(name: str):
    from ultralytics import RTDETR, YOLO
    from ultralytics.nn import modules

    from zoo.nets import Network, pictures

    def build():
        network = (RTDETR if name.startswith("rtdetr") else YOLO)(f"{name}.yaml").model.float()
        # What ultralytics' own exporter sets.
        for module in network.modules():
            if isinstance(module, modules.Classify | modules.Detect | modules.RTDETRDecoder):
                module.export, module.dynamic, module.format = True, False, "torchscript"
            elif isinstance(module, modules.C2f):
                module.forward = module.forward_split
        return network

    # The sizes that the tasks are trained for; boxes are checked at half of that.
    extent = 224 if name.endswith("-cls") else 320
    return Network(build, pictures(3, extent, extent))


def _form_names() -> list[str]:
    return [*_forms()]


def _forms() -> dict[str, Callable]:
    """Return networks whose export is not pnnx's plain one."""
    from dataclasses import replace

    from zoo.nets import AUDIO, TEXT, UNETS, Network, pictures, sound, tokens

    level1 = ("optlevel=1",)

    def raw(network: Network) -> Network:
        return replace(network, options=level1)

    def open_sizes(network, second, *others) -> Network:
        return replace(network, second=second, others=others)

    def open_images(network: Network) -> Network:
        return open_sizes(
            network,
            lambda batch, seed: pictures(3, 160, 256)(batch + 1, seed),
            ("1x3x224x224", network.draw),
            ("5x3x192x320", lambda batch, seed: pictures(3, 192, 320)(5, seed)),
        )

    def three(draw):
        return (f"batch {BATCH}", lambda batch, seed: draw(BATCH, seed))

    forms = {
        f"{name} (optlevel=1)": (lambda name=name: raw(_torchvision(name)))
        for name in ("resnet18", "mobilenet_v3_small", "densenet121", "vit_b_16", "swin_t")
    }
    forms |= {
        f"{name} (optlevel=1)": (lambda n=n: raw(n))
        for name, n in (
            ("unet_bilinear_odd", UNETS["unet_bilinear_odd"]),
            ("bert", TEXT["bert"]),
            ("llama_by_hand", TEXT["llama_by_hand"]),
            ("conv_tasnet", AUDIO["conv_tasnet"]),
        )
    }
    forms |= {
        f"{name} (sizes open)": (lambda name=name: open_images(_torchvision(name)))
        for name in ("resnet18", "mobilenet_v2", "densenet121", "convnext_tiny", "swin_t")
    }
    forms |= {
        f"{name} (batch open)": (
            lambda name=name: open_sizes(
                _torchvision(name),
                lambda batch, seed: pictures(3, 224, 224)(2, seed),
                three(pictures(3, 224, 224)),
            )
        )
        for name in TRANSFORMERS
    }
    for name, make in (
        ("vit_b_16", _torchvision),
        ("swin_t", _torchvision),
        ("vit_tiny_patch16_224", _timm),
        ("swin_tiny_patch4_window7_224", _timm),
        ("tf_efficientnet_lite0", _timm),
    ):
        forms[f"{name} (batch 8)"] = lambda name=name, make=make: replace(
            make(name),
            others=(
                ("batch 8", lambda batch, seed: pictures(3, 224, 224)(8, seed)),
                ("batch 1", lambda batch, seed: pictures(3, 224, 224)(1, seed)),
            ),
        )
    forms |= {
        f"{name} (optlevel=1)": (lambda name=name: raw(_timm(name)))
        for name in ("ghostnet_100", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224")
    }
    for name in ("unet_transposed", "unet_transposed_odd", "unet_bilinear_odd", "unet_attention"):
        forms[f"{name} (sizes open)"] = lambda n=UNETS[name]: open_sizes(
            n,
            lambda batch, seed: pictures(3, 64, 96)(2, seed),
            ("2x3x80x112", lambda batch, seed: pictures(3, 80, 112)(2, seed)),
        )
    for name in ("bert", "gpt2", "gpt2_by_hand", "llama", "llama_by_hand", "lstm_tagger"):
        forms[f"{name} (length open)"] = lambda n=TEXT[name]: open_sizes(
            n,
            lambda batch, seed: tokens(17)(2, seed),
            ("3x31", lambda batch, seed: tokens(31)(3, seed)),
        )
    forms["conv_tasnet (length open)"] = lambda: open_sizes(
        AUDIO["conv_tasnet"],
        lambda batch, seed: sound(1, 3200)(2, seed),
        ("3x1x4800", lambda batch, seed: sound(1, 4800)(3, seed)),
    )
    return forms


def _own(family: str) -> dict:
    from zoo import nets

    if family == "transformers":
        from zoo.transformers import TRANSFORMERS as NETWORKS

        return NETWORKS
    if family == "modern":
        from zoo.modern import MODERN
        from zoo.tasks import TASKS

        return MODERN | TASKS
    if family in ("vision", "diffusers", "torchaudio"):
        from zoo import packages

        return getattr(packages, family.upper())
    own = {"text": nets.TEXT, "audio": nets.AUDIO, "yolov5": nets.YOLOS, "segmentation": nets.UNETS}
    return own[family]


# Title, names and networks of each family, in the order of the page.
FAMILIES: dict[str, tuple[str, Callable[[], list[str]], Callable]] = {
    "torchvision": ("torchvision: classification", _torchvision_names, _torchvision),
    "segmentation": (
        "Segmentation: torchvision and U-Nets",
        lambda: [*_own("segmentation"), *SEGMENTATION],
        _segmentation,
    ),
    "yolov5": ("YOLOv5", lambda: [*_own("yolov5")], lambda name: _own("yolov5")[name]),
    "ultralytics": ("ultralytics", lambda: list(ULTRALYTICS), _ultralytics),
    "timm": ("timm", _timm_names, _timm),
    "text": ("Text", lambda: [*_own("text")], lambda name: _own("text")[name]),
    "audio": ("Audio", lambda: [*_own("audio")], lambda name: _own("audio")[name]),
    "modern": ("Other kinds", lambda: [*_own("modern")], lambda name: _own("modern")[name]),
    "vision": (
        "torchvision: video, detection, optical flow",
        lambda: [*_own("vision")],
        lambda name: _own("vision")[name],
    ),
    "diffusers": (
        "diffusers",
        lambda: [*_own("diffusers")],
        lambda name: _own("diffusers")[name],
    ),
    "torchaudio": (
        "torchaudio",
        lambda: [*_own("torchaudio")],
        lambda name: _own("torchaudio")[name],
    ),
    "transformers": (
        "transformers",
        lambda: [*_own("transformers")],
        lambda name: _own("transformers")[name],
    ),
    "forms": ("Other ways to export", _form_names, lambda name: _forms()[name]()),
}

# -- one network -------------------------------------------------------------------------------


def draw(source: Callable, batch: int, seed: int) -> tuple:
    """Return drawn inputs as tensors."""
    import torch

    return tuple(torch.from_numpy(array) for array in source(batch, seed))


def examine(family: str, name: str, calm: bool = False) -> dict:
    """Export one network, run it and return the results."""
    import torch

    from networks.weights import SEED, keep_alive, outputs

    network = FAMILIES[family][2](name)
    module = network.build()

    def call(inputs) -> list[np.ndarray]:
        with torch.no_grad():
            return [y.numpy() for y in leaves(outputs(module(*inputs)))]

    keep_alive(module, draw(network.draw, 12 if calm else 2, SEED), SEED, calm)
    first, second = (draw(network.draw, 1, seed) for seed in (1, 2))
    expected = [call(first), call(second)]
    facts = {
        "parameters": sum(p.numel() for p in module.parameters()),
        "shapes": [list(x.shape[1:]) for x in first],
        "when": time.strftime("%Y-%m-%d"),
        "torch": ".".join(torch.__version__.split(".")[:2]),
    }
    if not all(np.isfinite(y).all() for y in expected[1]):
        return facts | {"status": "no test", "reason": "its seeded output is not finite"}
    if relative_error(call(second), expected[1]) > TOLERANCE:
        return facts | {"status": "no test", "reason": "PyTorch itself draws lots in it"}
    if variation(*expected) < 0.01:
        if not calm:
            return examine(family, name, calm=True)
        return facts | {"status": "no test", "reason": "its seeded output hardly varies"}
    others = {}
    for label, source in network.others or ((f"batch {BATCH}", network.draw),):
        inputs = draw(source, BATCH, 3)
        try:
            others[label] = inputs, call(inputs)
        except Exception as error:
            others[label] = inputs, error
    with tempfile.TemporaryDirectory() as folder:
        opened = draw(network.second, 1, 4) if network.second else None
        try:
            export(module, first, opened, network.options, Path(folder))
        except Exception as error:
            return facts | {"status": "no export", "reason": _first_line(error)}
        facts |= counts(Path(folder) / "graph.pnnx.param")
        module = None  # frees its memory
        try:
            actual, facts["ms"] = run(Path(folder), second, timed=True)
        except Exception as error:
            reason = _first_line(error).replace(f"{folder}/", "")
            blamed = blame(Path(folder), second, expected[1], "")
            facts |= {"status": "refused", "reason": reason}
            unsupported = type(error).__name__ == "UnsupportedOperatorError"
            if blamed["status"] == "export differs" and not unsupported:
                facts |= {"status": "no use", "reason": f"{reason}{blamed['reason']}"}
            return facts
        error = relative_error(actual, expected[1])
        facts |= {"error": error if np.isfinite(error) else None}
        facts["others"] = {
            label: compare(Path(folder), inputs, wanted)
            for label, (inputs, wanted) in others.items()
        }
        if error <= TOLERANCE:
            return facts | {"status": "equal"}
        rounding = rounding_of(Path(folder), second)
        if rounding > TOLERANCE / 5:
            if not calm:
                return examine(family, name, calm=True)
            reason = f"PyTorch's own float32 is {rounding:.1e} from its float64, kuiper {error:.1e}"
            return facts | {"status": "no test", "reason": reason}
        return facts | blame(Path(folder), second, expected[1], f"{error:.1e} from PyTorch")


def examine_whole(family: str, name: str) -> dict:
    """Return the results of a network that `kuiper.from_torch` has traced and converted."""
    import torch

    import kuiper
    from networks.weights import SEED, keep_alive, outputs

    network = FAMILIES[family][2](name)
    module = network.build()

    def call(inputs) -> list[np.ndarray]:
        with torch.no_grad():
            return [y.numpy() for y in leaves(outputs(module(*inputs)))]

    keep_alive(module, draw(network.draw, 2, SEED), SEED)
    opened = draw(network.second, 1, 4) if network.second else None
    try:
        model = kuiper.from_torch(module, draw(network.draw, 1, 1), example_inputs2=opened)
    except Exception as error:
        return {"status": "no export", "reason": _first_line(error)}
    others = network.others or ((f"batch {BATCH}", network.draw),)
    results = {}
    for label, inputs in (
        ("", draw(network.draw, 1, 2)),
        *((label, draw(source, BATCH, 3)) for label, source in others),
    ):
        try:
            results[label] = judge(model, inputs, call(inputs))
        except Exception as error:
            results[label] = {"status": "refused", "reason": _first_line(error)}
    return results.pop("") | {"others": results}


def judge(model, inputs, wanted: list[np.ndarray]) -> dict:
    """Run a model and compare its results."""
    result = model(*(x.numpy() for x in inputs))
    error = relative_error(list(result) if isinstance(result, tuple) else [result], wanted)
    return {"status": "equal" if error <= TOLERANCE else "differs", "error": error}


def leaves(values) -> list:
    """Return the tensors of nested lists and tuples, in order."""
    found = []
    for value in values:
        found.extend(leaves(value) if isinstance(value, list | tuple) else [value])
    return found


def export(module, first, second, options, folder: Path) -> None:
    """Trace a network and convert it; stop pnnx once the files of its own format are complete."""
    import pnnx
    import torch

    # With its fast path PyTorch traces an attention as one operator that pnnx does not know.
    torch.backends.mha.set_fastpath_enabled(False)
    torch.jit.trace(module, first, check_trace=False).save(str(folder / "graph.pt"))
    command = [pnnx.EXEC_PATH, "graph.pt", f"inputshape={_shapes(first)}", "fp16=0", *options]
    if second is not None:
        command.append(f"inputshape2={_shapes(second)}")
    log = folder / "log.txt"
    with log.open("w") as stream:
        converter = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, cwd=folder, text=True
        )
        started = time.monotonic()
        later = (folder / "graph.pnnx.onnx", folder / "graph.ncnn.param")
        while converter.poll() is None:
            if any(path.exists() for path in later) or time.monotonic() - started > SECONDS:
                converter.kill()
                converter.wait()
            time.sleep(0.05)
    # It may crash once the model is complete: the files tell, not the exit code.
    if not (folder / "graph.pnnx.bin").exists():
        lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"pnnx ended with {converter.returncode}: {lines[-1]}")
    (folder / "graph.pt").unlink()


def _shapes(inputs) -> str:
    names = {"torch.float32": "f32", "torch.int64": "i64", "torch.bool": "bool"}
    return ",".join(f"[{','.join(map(str, x.shape))}]{names[str(x.dtype)]}" for x in inputs)


def counts(param: Path) -> dict:
    """Return the number of operators of a model, and their types."""
    lines = param.read_text().splitlines()[2:]
    types = Counter(line.split()[0] for line in lines if line.strip())
    for plumbing in ("pnnx.Input", "pnnx.Output", "pnnx.Attribute", "prim::Constant"):
        types.pop(plumbing, None)
    return {"operators": sum(types.values()), "types": sorted(types)}


def run(folder: Path, inputs, timed: bool = False) -> tuple[list[np.ndarray], float]:
    """Run an exported model with kuiper; return its outputs and the time of a second run in ms."""
    import kuiper

    model = kuiper.load(folder / "graph.pnnx.param")
    arrays = [x.numpy() for x in inputs]
    result = model(*arrays)
    started = time.perf_counter()
    if timed:
        model(*arrays)
    milliseconds = (time.perf_counter() - started) * 1e3
    return list(result) if isinstance(result, tuple) else [result], milliseconds


def compare(folder: Path, inputs, wanted) -> dict:
    """Run a model on inputs of another shape and return the result of the comparison."""
    if isinstance(wanted, Exception):
        return {"status": "no test", "reason": f"PyTorch: {_first_line(wanted)}"}
    try:
        actual, _ = run(folder, inputs)
    except Exception as error:
        return {"status": "refused", "reason": _first_line(error).replace(f"{folder}/", "")}
    error = relative_error(actual, wanted)
    if not np.isfinite(error):
        shapes = ", ".join(str(y.shape) for y in actual), ", ".join(str(y.shape) for y in wanted)
        return {"status": "differs", "reason": f"{shapes[0]} instead of {shapes[1]}"}
    return {"status": "equal" if error <= TOLERANCE else "differs", "error": error}


def exported(folder: Path):
    """Return the network as the module that pnnx writes beside its files."""
    os.chdir(folder)  # it looks for its weights here
    try:
        spec = importlib.util.spec_from_file_location("exported", folder / "graph_pnnx.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Model().eval()
    finally:
        os.chdir(REPOSITORY)


def rounding_of(folder: Path, inputs) -> float:
    """Return the error of PyTorch's float32 result against its float64 result; 0 if unknown."""
    import torch

    from networks.weights import outputs

    try:
        module = exported(folder)
        with torch.no_grad():
            single = [y.numpy() for y in leaves(outputs(module(*inputs)))]
            wide = [x.double() if x.is_floating_point() else x for x in inputs]
            double = [y.numpy() for y in leaves(outputs(module.double()(*wide)))]
        return relative_error(single, double)
    except (Exception, SystemExit):
        return 0.0


def blame(folder: Path, inputs, expected: list[np.ndarray], found: str) -> dict:
    """Tell whether the exporter or kuiper causes a difference from PyTorch."""
    import torch

    from networks.weights import outputs

    try:
        with torch.no_grad():
            theirs = [y.numpy() for y in leaves(outputs(exported(folder)(*inputs)))]
        other = relative_error(theirs, expected)
        found += f"; pnnx's own module {other:.1e}"
    except (Exception, SystemExit) as error:
        other = np.inf
        found += f"; pnnx's own module fails: {_first_line(error)}"
    return {"status": "export differs" if other > TOLERANCE else "differs", "reason": found}


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or "without a word"
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}"


def run_apart(work: Callable[[], dict], failed: Callable[[str], dict]) -> dict:
    """Return the result of `work` in a separate process, or ``failed(reason)``."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def send() -> None:
        try:
            sending.send(work())
        except Exception as error:
            sending.send(failed(_first_line(error)))

    child = context.Process(target=send)
    child.start()
    sending.close()
    try:
        if receiving.poll(SECONDS):
            return receiving.recv()
        child.kill()
        return failed(f"took longer than {SECONDS} s")
    except EOFError:
        child.join()
        return failed(f"its process ended with {child.exitcode}")
    finally:
        child.join()


def examine_apart(family: str, name: str) -> dict:
    """Examine a network in a separate process."""

    def work() -> dict:
        facts = examine(family, name)
        if facts["status"] in ("export differs", "no use", "no export"):
            facts["whole"] = examine_whole(family, name)
        return facts

    return run_apart(work, lambda reason: {"status": "no export", "reason": reason})


def save(store: Path, family: str, name: str, facts: dict) -> None:
    """Add the results of a network to a file that other runs may be writing to."""
    results = _load(store)
    results.setdefault(family, {})[name] = facts
    temporary = store.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(results, indent=1))
    temporary.replace(store)


def main() -> int:
    """Examine the models of the command line and write the page."""
    from zoo import page  # which reads FAMILIES

    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--family", default="torchvision", help=f"some of {', '.join(FAMILIES)}; comma-separated"
    )
    parser.add_argument("--models", default="", help="names, comma-separated; all by default")
    parser.add_argument("--failed", action="store_true", help="repeat those that failed")
    parser.add_argument("--frozen", action="store_true", help="repeat those that failed at batch 3")
    parser.add_argument("--write", action="store_true", help="only write the page")
    parser.add_argument("--seconds", type=float, default=np.inf, help="start none after this time")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="%(default)s")
    options = parser.parse_args()
    families = split_names(options.family)
    unknown = [family for family in families if family not in FAMILIES]
    if unknown:
        parser.error(f"unknown families: {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    store = options.cache / "zoo.json"
    options.cache.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    asked = split_names(options.models)
    for family in () if options.write else families:
        known = _load(store).get(family, {})
        for name in names_of(family):
            facts = known.get(name)
            again = facts and (
                (options.failed and facts["status"] != "equal")
                or (options.frozen and facts.get("others") and page.outcome(facts) != "equal")
            )
            chosen = name in asked if asked else not (facts or options.failed or options.frozen)
            if not (chosen or again):
                continue
            if time.monotonic() - started > options.seconds:
                break
            facts = examine_apart(family, name)
            save(store, family, name, facts)
            print(
                f"{family} {name}: {facts['status']} {facts.get('error') or ''} "
                f"{facts.get('reason', '')} {facts.get('others', '')}",
                flush=True,
            )
    shapes, detectors = (_load(store.with_name(name)) for name in ("shapes.json", "detectors.json"))
    PAGE.write_text(
        page.page(_load(store)) + page.detectors_page(detectors) + page.shapes_page(shapes)
    )
    return 0


def names_of(family: str) -> list[str]:
    """Return the names of a family, the smallest networks first if their sizes are known."""
    from networks.spec import import_torchvision

    import_torchvision()  # before timm and ultralytics do
    return FAMILIES[family][1]()


def _load(store: Path) -> dict:
    return json.loads(store.read_text()) if store.exists() else {}

"""Find and load models, also the bundled ones, which the wheels of kuiper do not contain.

The bundled models are searched for in

1. the folder that the environment variable ``KUIPER_MODELS`` names;
2. the data package ``kuiper-runtime-models`` (built from ``examples/models`` of the repository);
3. ``examples/models`` beside the package, in a clone.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import kuiper

__all__ = ["BUNDLED", "TASKS", "find_labels", "find_model", "load_network", "models_folder"]

# Name -> file in the folder of models.
BUNDLED = {
    "mobilenet_v2": "mobilenet_v2.f16.pnnx.param",
    "squeezenet": "squeezenet_v1.1.f16.pnnx.param",
    "nanodet_m": "nanodet_m.f16.pnnx.param",
    "u2netp": "u2netp.f16.pnnx.param",
    "selfie": "selfie_segmentation.f16.pnnx.param",
}

# Command -> its bundled models; the first one is the default.
TASKS = {
    "classify": ("mobilenet_v2", "squeezenet"),
    "detect": ("nanodet_m",),
    "segment": ("u2netp", "selfie"),
}


def models_folder(file: str = BUNDLED["mobilenet_v2"]) -> Path:
    """Return the folder that holds the bundled models.

    Parameters
    ----------
    file : str
        A file that the folder must contain.

    Raises
    ------
    FileNotFoundError
        If there is no such folder; the message says what to do.
    """
    named = os.environ.get("KUIPER_MODELS")
    if named:
        if not (Path(named) / file).exists():
            raise FileNotFoundError(
                2, f"KUIPER_MODELS names this folder, but it has no {file}", named
            )
        return Path(named)
    spec = importlib.util.find_spec("kuiper_models")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    folders.append(Path(kuiper.__file__).resolve().parent.parent / "examples" / "models")
    for folder in folders:
        if (folder / file).exists():
            return folder
    raise FileNotFoundError(
        2,
        "the bundled models are not installed (no wheel of kuiper holds weights). They are in the "
        "folder examples/models of kuiper's repository: `pip install CLONE/examples/models`, where "
        "CLONE is the repository's folder, or set KUIPER_MODELS=CLONE/examples/models. Or give the "
        "path of a .pnnx.param file instead of the name",
        file,
    )


def find_model(name: str) -> Path:
    """Return the ``.param`` file of a bundled model, or a given path unchanged.

    Parameters
    ----------
    name : str
        One of :data:`BUNDLED`, or a path.

    Returns
    -------
    Path

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    if name in BUNDLED:
        return models_folder(BUNDLED[name]) / BUNDLED[name]
    path = Path(name)
    if not path.exists():
        raise FileNotFoundError(2, f"no such model file, and not one of {', '.join(BUNDLED)}", name)
    return path


def find_labels(file: str) -> Path | None:
    """Return a file of class names in the folder of models, or None if there is none.

    Parameters
    ----------
    file : str
        For example ``"coco80_classes.txt"``.

    Returns
    -------
    Path or None
    """
    try:
        return models_folder(file) / file
    except FileNotFoundError:
        return None


def load_network(
    model: str | Path | kuiper.Model, kind: str, one_output: bool = False
) -> kuiper.Model:
    """Load a network on pictures and check its inputs and outputs.

    Parameters
    ----------
    model : str, Path or kuiper.Model
        The name of a bundled model, a ``.param`` file, or a model.
    kind : str
        What the model must be, for the message.
    one_output : bool, default=False
        Whether the network must have exactly one output.

    Raises
    ------
    ValueError
        If the inputs or outputs do not fit.
    """
    name = str(model)
    if not isinstance(model, kuiper.Model):
        model = kuiper.load(find_model(name))
    inputs, outputs = [x.shape for x in model.inputs], [y.shape for y in model.outputs]
    fits = len(inputs) == 1 and len(inputs[0] or (0,) * 4) == 4
    if not fits or (one_output and len(outputs) != 1):
        listed = f"inputs {', '.join(map(str, inputs))}"
        wanted = "one input (batch, 3, height, width)"
        if one_output:
            listed += f", outputs {', '.join(map(str, outputs))}"
            wanted += " and one output"
        raise ValueError(f"{name}: not {kind}: {listed}, expected {wanted}")
    return model

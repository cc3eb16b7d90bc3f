"""Where the example models are: weights are in no wheel of kuiper.

They are looked for, in this order:

1. the folder that the environment variable ``KUIPER_MODELS`` names;
2. the data package ``kuiper-models`` (built from ``examples/models`` of the repository);
3. ``examples/models`` beside the package, which is there in a clone.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import kuiper

__all__ = ["BUNDLED", "TASKS", "find_labels", "find_model", "models_folder"]

# name -> file in the folder of models
BUNDLED = {
    "mobilenet_v2": "mobilenet_v2.f16.pnnx.param",
    "squeezenet": "squeezenet_v1.1.f16.pnnx.param",
    "nanodet_m": "nanodet_m.f16.pnnx.param",
    "u2netp": "u2netp.f16.pnnx.param",
    "selfie": "selfie_segmentation.f16.pnnx.param",
}

# command -> what it runs of these, first the one that it takes by itself
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
        The one that has to be there.

    Raises
    ------
    FileNotFoundError
        If there is none; the message says what to do.
    """
    named = os.environ.get("KUIPER_MODELS")
    if named:
        if not (Path(named) / file).exists():
            raise FileNotFoundError(
                2, f"KUIPER_MODELS names this folder, but it has no {file}", named
            )
        return Path(named)
    spec = importlib.util.find_spec("kuiper_models")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    places.append(Path(kuiper.__file__).resolve().parent.parent / "examples" / "models")
    for place in places:
        if (place / file).exists():
            return place
    raise FileNotFoundError(
        2,
        "the bundled models are not installed (no wheel of kuiper holds weights). They are in the "
        "folder examples/models of kuiper's repository: `pip install CLONE/examples/models`, where "
        "CLONE is the repository's folder, or set KUIPER_MODELS=CLONE/examples/models. Or give the "
        "path of a .pnnx.param file instead of the name",
        file,
    )


def find_model(name: str) -> Path:
    """Return the ``.param`` file of a bundled model by its name, or a path as it is.

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
    """Return a list of class names that lies beside the models, None where there is none.

    Parameters
    ----------
    file : str
        Such as ``"coco80_classes.txt"``.

    Returns
    -------
    Path or None
    """
    try:
        return models_folder(file) / file
    except FileNotFoundError:
        return None

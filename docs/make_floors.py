"""The floors of the package, and the drawing of them in docs/design.md.

python docs/make_floors.py

A module imports only from its own room and from rooms on lower floors.  A room is a module or a
folder of `kuiper/`; the rooms of `ops/` and of `_kernels/` are divided into floors as well.
tests/unit/test_floors.py checks all imports against this list.
"""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).with_name("design.md")

# From the top floor down; rooms on one floor do not import each other.
FLOORS = {
    "": [
        ("__main__", "python -m kuiper"),
        ("cli", "the command line"),
        ("serving", "an inference server"),
        ("batch", "data of any size: columns in, columns out, on processes or a cluster"),
        ("report vision", "a page of HTML about a model; photos in, labels, boxes, masks out"),
        ("__init__", "the public names"),
        ("buckets", "sequences of any length, padded to a few lengths"),
        ("quantization", "weights and products in bytes"),
        ("export", "PyTorch or ONNX -> PNNX files"),
        ("loading", "load, save"),
        ("model onnx", "Model; ONNX files -> graph"),
        ("planning", "graph and input shapes -> plan"),
        ("passes", "graph -> graph"),
        ("ops", "one record per operator"),
        ("expression pnnx", "text -> tree -> program; files -> graph"),
        ("_kernels", "compiled code"),
        ("_runtime", "executor, threads, memory, packed weights"),
        ("ir", "the graph; strided views; element types"),
        ("_support", "threads and memory of the process, logging"),
        ("errors _version", "the exceptions"),
    ],
    "ops": [
        ("index nn", "gather, scatter, select; the layers of torch.nn"),
        ("math", "arithmetic, reductions, sorting, linear algebra"),
        ("product", "convolution and matrix product, by several algorithms"),
        ("tensor", "shapes, views, copies"),
        ("__init__", "the public names of the folder"),
        ("core", "schema, registry, binder: what a record is made of"),
    ],
    "_kernels": [
        ("linear", "matrix products, attention, recurrent layers"),
        ("conv rows spatial", "convolution; rows; pooling and resizing"),
        ("elementwise", "elementwise programs"),
        ("data", "moving, indexing, sorting"),
        ("micro", "micro-kernels, the table of them, packing"),
        ("simd", "vector types"),
        ("__init__", "how kernels work"),
    ],
}


NAMES = {"__init__": "kuiper", "errors _version": "errors"}


def floor_of(folder: str) -> dict[str, int]:
    """Return the floor number of each room in a folder of the package, counted from the bottom."""
    rows = FLOORS[folder]
    return {room: len(rows) - i for i, (rooms, _) in enumerate(rows) for room in rooms.split()}


def drawing() -> str:
    """Return the drawing: one line per floor, followed by the floors within its folder."""
    lines = []
    for rooms, what in FLOORS[""]:
        lines.append(f"{NAMES.get(rooms, rooms):<20}{what}")
        for inner, detail in FLOORS.get(rooms, ()):
            if inner != "__init__":
                lines.append(f"    {inner:<20}{detail}")
    return "```\n" + "\n".join(line.rstrip() for line in lines) + "\n```"


def page(text: str) -> str:
    """Return the text of design.md with the drawing between its markers."""
    head, _, rest = text.partition("<!-- floors -->\n")
    _, _, tail = rest.partition("<!-- /floors -->")
    return f"{head}<!-- floors -->\n{drawing()}\n<!-- /floors -->{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), encoding="utf-8")

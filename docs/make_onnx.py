"""Write docs/onnx.md from the table of ONNX's operators.

python docs/make_onnx.py
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from kuiper.onnx import operators
from kuiper.onnx.registry import FOLDS, ONNX, OPERATORS

PAGE = Path(__file__).with_name("onnx.md")

HEAD = """\
# ONNX files

```python
import kuiper

model = kuiper.load("model.onnx")
model = kuiper.load("model.onnx", shapes={{"images": (1, 3, 640, 640)}})  # fix open extents
graph = kuiper.load_graph("model.onnx")
kuiper.save(model, "model.pnnx.param")  # the same model as a PNNX file
```

`kuiper.load` reads an ONNX file, which it knows by its name or its first bytes, into the same graph
of the same operators as a PNNX file. Nothing else is needed: neither the `onnx` package nor a
converter. Inputs and outputs have the names of the file.

- **Versions.** ai.onnx opsets 7 to 24, and later ones as far as the operators of the model did not
  change; older ones where the operator means the same. Functions of the file are written out.
- **Shapes.** Arithmetic on shapes is computed while loading. Extents that the file leaves open stay
  open: the model runs at any, and arithmetic on them becomes expressions such as `size(@0,0)`.
  `shapes=` fixes them, or keeps one open by a name or None. A model whose structure depends on an
  open extent is refused with the name of the node, and loads with `shapes=`.
- **Types.** float16 and bfloat16 are computed as float32. Inputs and outputs keep their types;
  those of bfloat16, which numpy lacks, are float32 arrays.
- **Weights.** They are read when they are packed, from files of any size, or from other files in
  the folder of the model (or of what the model links to); any other location is refused.
- **Errors.** One error names all operators that are missing, how often they occur, and the first
  node of each. An error of a node has its name, its operator and what was expected.
- **Not supported**: training, random numbers, strings, sequences, maps and optional values;
  float8 and 4-bit elements, and unsigned integers of 16 to 64 bits, except in shapes and
  indices.

The commands of `kuiper` that take a model take an `.onnx` file: `info`, `graph`, `run`, `bench`,
`profile`, `check`, `quantize`, `serve`, `run-dataset`, `classify`, `detect`, `segment`.
`kuiper export model.onnx` writes a PNNX model, which gives the same bits. Code that used another
runtime: [coming from onnxruntime](howto/onnxruntime.md).

## How a file is read

```
model.onnx ── wire ──> messages ── nodes in order ──> functions ── restore ──> graph
                          └── tensors: where their bytes are, read when they are packed
```

1. **Messages.** An ONNX file is a protobuf message. A reader of 500 lines knows the fields that
   matter and skips the others. It compares each length with the bytes that are left before it uses
   it, counts the memory that messages take against `max_memory`, and takes time in proportion to
   the file. The elements of tensors are not read: their offsets are noted.
2. **Nodes.** Each operator is a function with ONNX's signature, whose inputs are known arrays,
   tensors of a run, or left out. Numpy computes nodes whose inputs are known. An extent that the
   file leaves open is a symbol in such arrays; it reaches the graph as an expression, in front of
   an operator that needs it. Functions of the file and branches are translated where they are
   called, and the body of a loop once per iteration: up to 10,000 nodes, and 50 per node of the
   file.
3. **Shapes.** The records that infer shapes for a run infer the shapes and dtypes of all results,
   so a wrong file is refused with the name of the node. A file with open extents is inferred at two
   sizes, which tells the open extents from the others.
4. **Layers.** Exporters write out biases, SiLU, GELU, normalisation and attention as arithmetic.
   The restore passes put them together, so that a model takes the steps that its PNNX export takes.

The result is a graph of [the operators of PNNX files](operators.md): `kuiper.load_graph`,
`kuiper graph` and `kuiper.save` show it, and all passes, plans and kernels are the same.

## Operators

{count} operators. *versions:* the first opset of each meaning that kuiper tells apart; the
others follow from arguments. *constants:* computed while loading if all inputs are known.

`docs/make_onnx.py` writes this page from the functions in `kuiper/onnx/`; do not edit it.
"""


def page() -> str:
    """Return the text of onnx.md."""
    families: dict[str, list[str]] = {}
    for (domain, type_), versions in sorted(OPERATORS.items()):
        module = versions[-1].function.__module__
        name = f"{domain}::{type_}" if domain != ONNX else type_
        since = ", ".join(str(version.since) for version in versions)
        constants = "yes" if domain == ONNX and type_ in FOLDS else ""
        families.setdefault(module, []).append(f"| `{name}` | {since} | {constants} |")
    lines = []
    for name in operators.__all__:
        module = f"{operators.__package__}.{name}"
        if module not in families:
            continue
        title = (inspect.getdoc(sys.modules[module]) or name).partition("\n")[0].rstrip(".")
        lines += ["", f"### {title}", "", "| operator | versions | constants |", "|---|---|---|"]
        lines += families[module]
    return HEAD.format(count=len(OPERATORS)) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(OPERATORS)} operators")

"""Commands that inspect a model: info, check, expr, graph."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import kuiper
from kuiper.cli._arguments import (
    Commands,
    add_model,
    add_output,
    add_plugin,
    add_shape,
    fraction,
    new_command,
    shape,
)
from kuiper.cli._console import Console, bytes_text, count_text
from kuiper.cli._inputs import (
    input_shapes,
    load_graph,
    load_model,
    model_title,
    random_inputs,
    read_array,
    read_arrays,
    run_plugins,
)
from kuiper.ir.dtypes import from_numpy
from kuiper.ir.view import BufferKind
from kuiper.planning.names import names_at, tensors_at
from kuiper.planning.profile import algorithms_text, count_algorithms

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the commands of this module to the parser."""
    parser = new_command(
        commands,
        info,
        "show the inputs, outputs, operators and costs of a model",
        "example: kuiper info resnet18.pnnx.param --shape 8x3x224x224",
    )
    add_model(parser)
    add_shape(parser)
    parser.add_argument("--operators", action="store_true", help="also list all operators")
    add_output(parser)

    parser = new_command(
        commands,
        check,
        "compare a model with results of PyTorch in a file",
        """\
GOLDEN is a .npz file.  The names of its arrays tell their roles:
  an input's name, x, input, x_CASE, input_K, in_K      input
  an output's name, y, output, y_CASE, output_K, out_K  expected output
  the name of any other operand or operator             intermediate result
Each CASE of x_CASE and y_CASE is a separate run.  The first intermediate result, in graph order,
that differs is reported.  A number that names both an operator and an operand, as in a
torch.nn.Sequential, means the operator if the input is called x instead of 0.
example: kuiper check model.pnnx.param golden.npz --rtol 1e-4""",
    )
    add_model(parser)
    parser.add_argument("golden", metavar="GOLDEN", help="a .npz file of inputs and results")
    parser.add_argument(
        "--rtol",
        type=fraction,
        default=1e-4,
        metavar="X",
        help="tolerance of max |a - b| / max |b| (default: 1e-4)",
    )
    add_output(parser)

    parser = new_command(
        commands,
        expr,
        "analyse an expression: tokens, tree, postfix, infix, value",
        """\
VALUE is a number, a list such as [1,2,3] for a float32 array, or a .npy file, for @0, @1, ...
With --ncnn, it is the shape of input 0, 1, ... without the batch.
example: kuiper expr "add(@0,mul(@1,2))" 1 [2,3]
         kuiper expr --ncnn "-1,*(0h,2),+(1c,2)" 3x8x8 5x4x4""",
    )
    # Not only -1 and -.5 but also -1e3, -inf, ncnn's -1,0w and -(0w,1), and -@0 are no options.
    parser._negative_number_matcher = re.compile(r"-(?:[^A-Za-z-]|inf|nan)")
    parser.add_argument("expression", metavar="EXPR", help="as in a .param file, such as add(@0,1)")
    add = parser.add_argument
    add("values", nargs="*", default=[], metavar="VALUE", help="values of the operands")
    parser.add_argument("--ncnn", action="store_true", help="EXPR is in ncnn's language of shapes")
    add_plugin(parser)
    parser.add_argument("--svg", metavar="FILE", help="write a picture of the tree")
    parser.add_argument("--dot", metavar="FILE", help="write the tree for Graphviz")
    add_output(parser, threads=False)

    parser = new_command(
        commands,
        graph,
        "print or draw the graph of a model",
        """\
The suffix of FILE selects the format: .html is an interactive page (zoom, search, details of each
operator), .svg a picture, .txt the text that is printed without -o.
example: kuiper graph resnet18.pnnx.param -o resnet18.html""",
    )
    add_model(parser)
    add_shape(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="an .html, .svg or .txt file")
    parser.add_argument(
        "--as-run",
        action="store_true",
        help="show the graph after the passes instead of that of the file (.svg and text)",
    )
    add_output(parser)


# -- info ----------------------------------------------------------------------------------


def describe_model(graph: kuiper.ir.Graph) -> dict[str, Any]:
    """Return the facts about a graph that need no plan."""
    known = set(kuiper.supported_operators())
    counts = dict(graph.type_counts().most_common())
    attributes = [a for op in graph for a in op.attributes.values()]

    def tensors(names: Sequence[str], operands: Sequence[kuiper.ir.Operand]) -> list[Any]:
        return [
            {"name": name, "shape": operand.shape, "dtype": operand.dtype}
            for name, operand in zip(names, operands, strict=True)
        ]

    return {
        "inputs": tensors(names_at(graph, "pnnx.Input"), graph.inputs),
        "outputs": tensors([operand.name for operand in graph.outputs], graph.outputs),
        "operators": counts,
        "unsupported": {type: n for type, n in counts.items() if type not in known},
        "parameters": sum(a.size for a in attributes),
        "weight_bytes": sum(a.nbytes for a in attributes),
        "weight_dtypes": sorted({a.dtype for a in attributes}),
    }


def describe_plan(model: kuiper.Model, shapes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Return the costs of the plan for these shapes."""
    plan = model.plan(*shapes)
    arena = [
        b for b in plan.buffers if b.kind in (BufferKind.ARENA, BufferKind.SCRATCH) and b.last >= 0
    ]
    return {
        "shapes": [list(shape) for shape in shapes],
        "outputs": [
            list(np.shape(spec)) if not hasattr(spec, "shape") else list(spec.shape)
            for spec in plan.outputs
        ],
        "steps": len(plan.steps),
        "kernels": dict(Counter(step.kind for step in plan.steps).most_common()),
        "algorithms": count_algorithms(
            {s.name: s.algorithm.name for s in plan.steps if s.algorithm is not None}
        ),
        "flops": sum(step.flops + step.saved_flops for step in plan.steps),
        "arena_bytes": plan.arena_bytes,
        "unshared_bytes": sum(b.n_bytes for b in arena),
        "passes": [str(report) for report in model.passes if any(report[1:])],
    }


def info(options: argparse.Namespace, console: Console) -> int:
    """Print the inputs, outputs, operators and costs of a model."""
    graph = load_graph(options)
    facts = {"model": options.model, **describe_model(graph)}
    trouble = None
    missing = _missing_weights(graph)
    facts["weights_missing"] = missing and str(missing)
    if missing:
        return _report_info(facts, graph, options, console, None)
    try:
        # Raises the error that lists unsupported operators.
        model = kuiper.Model(graph, optimize=not options.no_optimize)
        plan = facts["plan"] = describe_plan(model, input_shapes(model, options.shape))
        # The tensors that a call returns; the graph itself may end in one tuple.
        facts["outputs"] = [
            {
                "name": info.name,
                "shape": planned if info.shape is None else info.shape,
                "dtype": from_numpy(info.dtype).name,
            }
            for info, planned in zip(model.outputs, plan["outputs"], strict=True)
        ]
    except kuiper.KuiperError as error:
        trouble = error  # raised after printing the known facts
        facts["trouble"] = str(error)
    return _report_info(facts, graph, options, console, trouble)


def _missing_weights(graph: kuiper.ir.Graph) -> Exception | None:
    """Return the error of the first weight whose archive was not found."""
    errors = (a.missing for op in graph for a in op.attributes.values())
    return next((error for error in errors if error), None)


def _report_info(
    facts: dict[str, Any],
    graph: kuiper.ir.Graph,
    options: argparse.Namespace,
    console: Console,
    trouble: Exception | None,
) -> int:
    """Print the facts; raise the error that kept the model from being planned."""
    if options.operators:
        facts["listing"] = [
            {
                **_described(op),
                "params": op.params,
                "attributes": {key: [*a.shape, a.dtype] for key, a in op.attributes.items()},
            }
            for op in graph
        ]
    console.data(facts)
    if not console.as_json:
        _print_info(facts, graph, console, options.operators)
    if trouble is not None:
        raise trouble
    return 0


def _print_info(
    facts: dict[Any, Any], graph: kuiper.ir.Graph, console: Console, listing: bool
) -> None:
    def tensors(items: Any) -> Any:
        return ", ".join(
            f"{t['name']} {_shape_text(t['shape'])} {t['dtype'] or ''}".rstrip() for t in items
        )

    dtypes = ", ".join(facts["weight_dtypes"]) or "none"
    rows = [
        ("model", facts["model"]),
        ("inputs", tensors(facts["inputs"])),
        ("outputs", tensors(facts["outputs"])),
        (
            "parameters",
            f"{count_text(facts['parameters'])} ({bytes_text(facts['weight_bytes'])} as {dtypes})",
        ),
    ]
    if facts["weights_missing"]:
        rows.append(("weights", "not found, so nothing is planned; --bin gives their path"))
    plan = facts.get("plan")
    if plan:
        arena, unshared = plan["arena_bytes"], plan["unshared_bytes"]
        memory = f"{bytes_text(arena)} for intermediate results"
        if unshared > arena:  # not for a few small buffers, which round up to cache lines
            memory += (
                f"; without sharing {bytes_text(unshared)}, {unshared / arena:.1f} times as much"
            )
        rows += [
            ("planned for", " ".join(_shape_text(s) for s in plan["shapes"])),
            ("operations", f"{count_text(plan['flops'], 'FLOP')} per run"),
            ("memory", memory),
            (
                "steps",
                f"{plan['steps']}: "
                + ", ".join(f"{n} {kind}" for kind, n in plan["kernels"].items()),
            ),
        ]
        if plan["algorithms"]:
            rows.append(("convolutions", algorithms_text(plan["algorithms"])))
    console.facts(rows)
    console.heading(f"{sum(facts['operators'].values())} operators")
    console.table(
        ["type", ">count", ""],
        [
            (type, n, "not supported" if type in facts["unsupported"] else "")
            for type, n in facts["operators"].items()
        ],
    )
    if plan and plan["passes"]:
        console.heading("effects of the passes")
        for line in plan["passes"]:
            console.text(f"  {line}")
    if listing:
        console.heading("operators in order")
        for op in graph:
            console.text(f"  {op.name}: {op}")


def _described(op: kuiper.ir.Operator) -> dict[str, Any]:
    return {
        "name": op.name,
        "type": op.type,
        "inputs": [o.name for o in op.inputs],
        "outputs": [o.name for o in op.outputs],
    }


def _shape_text(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "(unknown shape)"
    return "(" + ",".join("?" if n is None else str(n) for n in shape) + ")"


# -- check ---------------------------------------------------------------------------------

_INPUT = re.compile(r"(?:x|input|in)(?:_(.+))?")
_OUTPUT = re.compile(r"(?:y|output|out)(?:_(.+))?")


def _cases(
    model: kuiper.Model, arrays: Mapping[str, np.ndarray]
) -> tuple[list[tuple[str, list[np.ndarray], list[np.ndarray]]], dict[str, np.ndarray]]:
    """Sort the arrays of a golden file into cases (name, inputs, outputs) and intermediates."""
    inputs = [info.name for info in model.inputs]
    outputs = [info.name for info in model.outputs]
    # The names of the operands are understood as well.
    ends = [
        {
            **{operand.name: str(n) for n, operand in enumerate(operands)},
            **{name: str(n) for n, name in enumerate(names)},
        }
        for names, operands in (
            (inputs, model.graph.inputs),
            (outputs, [t for _, part in tensors_at(model.graph, "pnnx.Output") for t in part]),
        )
    ]
    groups: dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = {}
    named: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
    others = {}

    def is_generic(name: str, pattern: re.Pattern[str]) -> bool:
        known = model.graph.has_operand(name) or model.graph.has_operator(name)
        return pattern.fullmatch(name) is not None and not known

    # Modules of a Sequential are named 0, 1, 2, like operands; if the input is x, 0 is a module.
    numbers_are_modules = any(is_generic(name, _INPUT) for name in arrays)
    for name, array in arrays.items():
        if numbers_are_modules and model.graph.has_operator(name):
            others[name] = array
            continue
        end = next((side for side in (0, 1) if name in ends[side]), None)
        if end is not None:
            named[end][ends[end][name]] = array
            continue
        for side, pattern in enumerate((_INPUT, _OUTPUT)):
            match = pattern.fullmatch(name)
            if match and is_generic(name, pattern):
                key = match[1] or "0"
                if key.isdecimal():  # a number is an index; a word names a case
                    named[side][key] = array
                else:
                    groups.setdefault(key, ({}, {}))[side]["0"] = array
                break
        else:
            others[name] = array
    if named[0] or named[1]:
        groups[""] = named
    cases = []
    for case, (given, expected) in groups.items():
        if len(given) != len(inputs):
            raise kuiper.InputError(
                f"case '{case}': {len(given)} inputs in the file, the model has {len(inputs)}: "
                f"{', '.join(inputs)}; see `kuiper check --help` for how arrays are named"
            )
        if expected and len(expected) != len(outputs):
            raise kuiper.InputError(
                f"case '{case}': {len(expected)} results in the file, the model has {len(outputs)}"
            )
        ordered = [[side[key] for key in sorted(side, key=int)] for side in (given, expected)]
        cases.append((case, ordered[0], ordered[1]))
    if not cases:
        raise kuiper.InputError(
            f"no inputs among the arrays {', '.join(arrays) or '(none)'}; "
            "see `kuiper check --help` for how they are named"
        )
    return cases, others


def difference(actual: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """Return the error of an array: relative and absolute maximum, and its position."""
    if actual.shape != expected.shape:
        return {"error": None, "shape": list(actual.shape), "expected_shape": list(expected.shape)}
    a, b = (
        np.asarray(x, np.complex128 if x.dtype.kind == "c" else np.float64)
        for x in (actual, expected)
    )
    odd = np.isnan(a) | np.isnan(b) | np.isinf(a) | np.isinf(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    distance = np.abs(np.where(odd, 0, a) - np.where(odd, 0, b))
    scale = float(np.abs(np.where(odd, 0, b)).max(initial=0))
    worst = float(distance.max(initial=0))
    relative = worst / scale if scale else (0.0 if worst == 0 else float("inf"))
    if (odd & ~same).any():
        relative = float("inf")
    result: dict[str, Any] = {"error": relative, "max_abs": worst, "scale": scale}
    if distance.size:
        index = int(np.where(odd & ~same, np.inf, distance).argmax())
        result["at"] = [int(i) for i in np.unravel_index(index, distance.shape)]
        result["got"], result["expected"] = actual.flat[index], expected.flat[index]
    return result


def check(options: argparse.Namespace, console: Console) -> int:
    """Compare a model with a golden file; return 1 if they differ."""
    model = load_model(options)
    arrays = read_arrays(options.golden)
    cases, others = _cases(model, arrays)
    position = {op.name: i for i, op in enumerate(model.graph.topological_order())}
    wanted, ignored = {}, []
    for name, array in others.items():
        if model.graph.has_operand(name) or model.graph.has_operator(name):
            op = _owner(model.graph, name)
            by_operator = model.graph.has_operator(name)
            operand = (op.outputs or op.inputs)[0].name if by_operator else name
            wanted[name] = (position[op.name], operand, array)
        else:
            ignored.append(name)
    results: list[dict[str, Any]] = []

    def compare(case: str, kind: str, name: str, actual: np.ndarray, golden: np.ndarray) -> None:
        result = {"case": case, "kind": kind, "name": name, **difference(actual, golden)}
        result["good"] = result["error"] is not None and result["error"] <= options.rtol
        results.append(result)

    for case, inputs, expected in cases:
        given = model(*inputs)
        given = given if isinstance(given, tuple) else (given,)
        for info, y, golden in zip(model.outputs, given, expected, strict=False):
            compare(case, "output", info.name, y, golden)
    if wanted:
        names = sorted(wanted, key=lambda name: wanted[name][0])
        traced = model.trace(cases[-1][1], [wanted[name][1] for name in names])
        for name in names:
            value = traced[wanted[name][1]]
            value = value[0] if isinstance(value, tuple) else value
            compare(cases[-1][0], "intermediate", name, value, wanted[name][2])
    good = bool(results) and all(result["good"] for result in results)
    first = next(
        (r["name"] for r in results if r["kind"] == "intermediate" and not r["good"]), None
    )
    console.data(
        {
            "model": options.model,
            "golden": options.golden,
            "good": good,
            "rtol": options.rtol,
            "first_divergence": first,
            "ignored": ignored,
            "results": results,
        }
    )
    console.table(
        ["case", "what", "name", ">max |a-b| / max |b|", "", "worst element"],
        [
            (
                r["case"],
                r["kind"],
                r["name"],
                f"{r['error']:.2e}"
                if r["error"] is not None
                else f"shape {_shape_text(r['shape'])}",
                "good" if r["good"] else "DIFFERS",
                _worst(r),
            )
            for r in results
        ],
    )
    if first is not None:
        console.text(f"first operator that diverges: {_owner(model.graph, first).label}")
    if ignored:
        console.text(f"ignored names, which the model does not have: {', '.join(ignored)}")
    if not results:
        raise kuiper.InputError(
            f"{options.golden}: no result to compare with among {', '.join(arrays)}"
        )
    return 0 if good else 1


def _owner(graph: kuiper.ir.Graph, name: str) -> kuiper.ir.Operator:
    """Return the operator of that name, or the producer of the operand of that name."""
    if graph.has_operator(name):
        return graph.operator(name)
    producer = graph.operand(name).producer
    assert producer is not None  # a loaded graph is verified
    return producer


def _worst(result: dict[str, Any]) -> str:
    if result["error"] is None:
        return f"expected shape {_shape_text(result['expected_shape'])}"
    if result["good"] or "at" not in result:
        return ""
    return f"{result['at']}: got {result['got']:.6g}, expected {result['expected']:.6g}"


# -- expr ----------------------------------------------------------------------------------


def _value(text: str) -> Any:
    """Parse an operand: a number, a list of numbers or the path of an array."""
    import ast

    if text.endswith(".npy"):
        return read_array(text)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if text.lstrip("+-") in ("inf", "nan"):
            return float(text)
        raise kuiper.InputError(f"'{text}' is no number, list of numbers or .npy file") from None
    return np.array(value, np.float32) if isinstance(value, list | tuple) else value


def expr(options: argparse.Namespace, console: Console) -> int:
    """Print the parts and the value of an expression."""
    from kuiper import expression

    run_plugins(options)
    if options.ncnn:
        return _ncnn(options, console)
    parser = expression.ExpressionParser(options.expression, extended=True)
    tree = parser.parse()
    word = tree.value if isinstance(tree, expression.Literal) else None
    # Without operands, a file may hold a word, such as the mode of a padding.
    if isinstance(word, str) and (options.values or "@" in word):
        raise tree.error(f"{word!r} is no operator, reference or number")
    facts: dict[str, Any] = {
        "expression": str(tree),
        "tokens": [token.text for token in parser.tokens if token.text],
        "postfix": [node.text for node in tree.postorder()],
        "infix": expression.infix(tree),
        "operands": max(tree.references(), default=-1) + 1,
    }
    if options.values or not facts["operands"]:
        values = [_value(text) for text in options.values]
        result = expression.CompiledExpression(tree)(*values)
        facts["value"] = result
    _draw(options, tree)
    console.data(facts)
    console.facts(
        [
            ("tokens", " ".join(facts["tokens"])),
            ("postfix", " ".join(facts["postfix"])),
            ("infix", facts["infix"]),
        ]
    )
    console.text()
    console.text(expression.outline(tree))
    if "value" in facts:
        console.text(f"\nvalue  {facts['value']}")
    return 0


def _ncnn(options: argparse.Namespace, console: Console) -> int:
    """Print the parts and the value of an expression in ncnn's language."""
    from kuiper import expression
    from kuiper.expression import ncnn

    tree = ncnn.parse(options.expression)
    facts: dict[str, Any] = {
        "expression": ncnn.to_text(tree),
        "items": [str(item) for item in tree.children],
        "operands": ncnn.count_blobs(options.expression),
    }
    if options.values or not facts["operands"]:
        try:
            shapes = [shape(text) for text in options.values]
        except argparse.ArgumentTypeError as error:
            raise kuiper.InputError(str(error)) from None
        facts["value"] = ncnn.eval_list(tree, shapes)
    _draw(options, tree)
    console.data(facts)
    console.text(expression.outline(tree))
    if "value" in facts:
        console.text(f"\nvalue  {facts['value']}")
    return 0


def _draw(options: argparse.Namespace, tree: Any) -> None:
    """Write the pictures of a tree that the options name."""
    from kuiper import expression

    for path, draw in ((options.svg, expression.to_svg), (options.dot, expression.to_dot)):
        if path:
            Path(path).write_text(draw(tree) + "\n", encoding="utf-8")


# -- graph ---------------------------------------------------------------------------------


def graph(options: argparse.Namespace, console: Console) -> int:
    """Print the graph of a model, or write it as a page or picture."""
    from kuiper import report

    if options.output is None or options.output.endswith(".txt"):
        shown = load_graph(options)
        if options.as_run:
            model = kuiper.Model(shown, optimize=not options.no_optimize)
            shown = model.planned_graph(*input_shapes(model, options.shape))
        if options.output is None:
            console.text(str(shown))
        else:
            Path(options.output).write_text(f"{shown}\n", encoding="utf-8")
        console.data({"model": options.model, "operators": [_described(op) for op in shown]})
        return 0
    suffix = Path(options.output).suffix.lower()
    if suffix not in (".html", ".svg"):
        options.parser.error(f"-o: '{options.output}' is neither .html nor .svg nor .txt")
    shown = load_graph(options)
    if suffix == ".html" or options.as_run:
        model = kuiper.Model(shown, optimize=not options.no_optimize)
        shapes = input_shapes(model, options.shape)
    if suffix == ".html":
        inputs = random_inputs(model, shapes)
        text = report.page(model, inputs, title=model_title(options), runs=3)
    else:
        text = report.svg(model.planned_graph(*shapes) if options.as_run else shown)
    Path(options.output).write_text(text, encoding="utf-8")
    console.data({"model": options.model, "file": options.output, "bytes": len(text.encode())})
    console.text(f"{options.output}: {len(shown)} operators, {bytes_text(len(text.encode()))}")
    return 0

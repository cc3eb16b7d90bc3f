"""Target ``model``: both files, loaded and run.

Starts from graphs that pnnx exported for the tests and damages parameters, weights (shape, type,
values), names, wiring, operator types, expressions, annotations, and the shapes and values of the
inputs.  A model that still runs must

* give the same bits whatever its arena and the caller's output arrays contained before;
* give the same bits on two threads;
* give the same results with and without optimization, up to rounding;
* with ``--reference``, give the results of the numpy references.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from random import Random

import numpy as np

import kuiper
from kuiper.errors import KuiperError
from kuiper.ir import Attribute

from ...reference import REFERENCES, read_graph, run_graph
from ...support import Case, load_cases
from .byte_networks import ByteNetwork, byte_networks
from .chance import INTEGERS, edit_bytes, edit_words, often, pick, value_text
from .files import ITEM_BYTES, Line, archive_bytes, read_lines, read_members, write_lines

__all__ = ["SPLIT", "check", "make", "mutate", "pack", "unpack"]

SPLIT = b"\n"

MAX_MEMORY = 1 << 26  # bytes that a model may take for its operands
MAX_FILL = 1 << 20  # bytes of a mutated weight
MAX_INPUT = 1 << 18  # elements of an input
BYTE_NETWORK_WEIGHT = 20  # of a network in bytes, where a case has the weight 1
RTOL = 1e-3  # between two ways to compute a result, relative to the largest value

_TENSOR = re.compile(r"\(([^)]*)\)(\w*)")


# -- one input: a line of JSON, the text, the archive -------------------------------------------


def pack(head: dict, param: bytes, archive: bytes) -> bytes:
    """Return the parts of an input as one string of bytes."""
    head = {**head, "param": len(param)}
    return json.dumps(head).encode() + b"\n" + param + archive


def unpack(data: bytes) -> tuple[dict, bytes, bytes]:
    """Return the parts that :func:`pack` joined."""
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    count = head["param"]
    return head, rest[:count], rest[count:]


# -- damage -------------------------------------------------------------------------------------


@cache
def _cases() -> tuple[Case | ByteNetwork, ...]:
    cases = tuple(
        case for case in load_cases("operators") if len(case.param) + len(case.bin) < 40_000
    )
    return cases + BYTE_NETWORK_WEIGHT * byte_networks()


@cache
def _types() -> tuple[str, ...]:
    return tuple(kuiper.supported_operators())


def make(random: Random) -> bytes:
    """Return a damaged model."""
    case = pick(random, _cases())
    inputs = case.index["inputs"]
    head = {
        "seed": random.randrange(1 << 30),
        "ranges": [[entry.get("low", -2.0), entry.get("high", 2.0)] for entry in inputs],
    }
    return mutate(pack(head, case.param, case.bin), random)


def mutate(data: bytes, random: Random) -> bytes:
    """Apply one to four damages to a model."""
    head, param, archive = unpack(data)
    if often(random, 0.03):
        return pack(head, edit_bytes(random, param), archive)
    if often(random, 0.02):
        return pack(head, param, edit_bytes(random, archive))
    try:
        lines, members = read_lines(param), read_members(archive)
    except Exception:  # already damaged: edit bytes
        return pack(head, edit_bytes(random, param), archive)
    for _ in range(pick(random, (1, 1, 1, 2, 2, 3, 4))):
        if lines:
            _damage(random, lines, members, head)
    return pack(head, write_lines(lines), archive_bytes(members))


def _damage(random: Random, lines: list[Line], members: dict[str, bytes], head: dict) -> None:
    """Damage one thing."""
    inner = [line for line in lines if not line.type.startswith(("pnnx.Input", "pnnx.Output"))]
    line = pick(random, inner if inner and often(random, 0.85) else lines)
    params = [pair for pair in line.fields if pair[0][:1] not in "@#$"]
    weights = [pair for pair in line.fields if pair[0].startswith("@")]
    kind = random.randrange(20)
    if kind < 7 and params:
        pair = pick(random, params)
        if pair[0] == "expr":
            pair[1] = _expression(random, pair[1])
        else:
            pair[1] = value_text(random, pair[1])
    elif kind < 10 and weights:
        _damage_weight(random, line, pick(random, weights), members)
    elif kind == 10:
        head["shapes"] = _shapes(random, lines)
    elif kind == 11:
        _damage_annotation(random, pick(random, lines))
    elif kind < 15:
        _rewire(random, line, lines)
    elif kind == 15:
        line.type = pick(random, _types())
    elif kind == 16 and line.fields:
        _damage_fields(random, line, lines)
    elif kind == 17:
        _damage_lines(random, line, lines)
    elif kind == 18:
        head["values"] = pick(random, ("special", "integers", "huge", "zeros"))
    else:
        _rename(random, line, lines)


def _expression(random: Random, text: str) -> str:
    from .expressions import VOCABULARY

    words = re.findall(r"[^(),\[\]]+|[(),\[\]]", text)
    return "".join(edit_words(random, words, VOCABULARY)).replace(" ", "") or "@0"


def _damage_weight(random: Random, line: Line, pair: list[str], members: dict[str, bytes]) -> None:
    """Change shape, type or values of a weight; the archive mostly follows."""
    match = _TENSOR.fullmatch(pair[1])
    if match is None:
        return
    extents = [n for n in match.group(1).split(",") if n]
    dtype = match.group(2)
    member = f"{line.name}.{pair[0][1:]}"
    old = members.get(member, b"")
    kind = random.randrange(7)
    if kind == 0:
        dtype = pick(random, tuple(ITEM_BYTES))
    elif kind == 1 and extents:
        extents[random.randrange(len(extents))] = str(pick(random, INTEGERS))
    elif kind == 2 and extents:
        at = random.randrange(len(extents))
        near = extents[at].isdigit()
        extents[at] = str(int(extents[at]) + pick(random, (-1, 1)) if near else 1)
    elif kind == 3:
        extents.insert(random.randrange(len(extents) + 1), pick(random, ("0", "1", "2", "3")))
    elif kind == 4 and extents:
        del extents[random.randrange(len(extents))]
    elif kind == 5:
        random.shuffle(extents)
    else:
        old = _odd_values(random, dtype, len(old))
    pair[1] = f"({','.join(extents)}){dtype}"
    try:
        count = math.prod(map(int, extents)) * ITEM_BYTES.get(dtype, 4)
    except ValueError:
        return
    if 0 <= count <= MAX_FILL and not often(random, 0.03):
        filler = old or b"\0"
        members[member] = (filler * (count // len(filler) + 1))[:count]


def _odd_values(random: Random, dtype: str, count: int) -> bytes:
    """Return bytes of unusual values."""
    kind = random.randrange(4)
    if kind == 0:
        return bytes(count)
    if kind == 1:
        return b"\xff" * count
    if kind == 2:
        return random.randbytes(count) if hasattr(random, "randbytes") else b"\x7f" * count
    floats = {"f32": "<f4", "f64": "<f8", "f16": "<f2"}.get(dtype)
    if floats:
        some = [pick(random, (np.nan, np.inf, -np.inf, 1e30, -0.0, 1e-40)) for _ in range(5)]
        with np.errstate(all="ignore"):
            raw = np.array(some).astype(floats).tobytes()
    else:
        raw = b"".join(
            (pick(random, INTEGERS) % 2**64).to_bytes(8, "little")[: ITEM_BYTES.get(dtype, 4)]
            for _ in range(5)
        )
    return (raw * (count // len(raw) + 1))[:count]


def _shapes(random: Random, lines: list[Line]) -> list[list[int]]:
    """Return shapes for the inputs that differ from those of the file."""
    shapes = []
    for line in lines:
        if line.type != "pnnx.Input" or not line.outputs:
            continue
        noted = [v for k, v in line.fields if k == f"#{line.outputs[0]}"]
        match = _TENSOR.fullmatch(noted[0]) if noted else None
        extents = [n for n in match.group(1).split(",") if n] if match else ["2", "3"]
        shape = [int(n) if n.isdigit() else 2 for n in extents]
        for _ in range(random.randrange(3)):
            if shape:
                at = random.randrange(len(shape))
                shape[at] = max(0, pick(random, (0, 1, 2, 3, 5, 8, 17, shape[at] + 1)))
        shapes.append(shape)
    return shapes


def _damage_annotation(random: Random, line: Line) -> None:
    notes = [pair for pair in line.fields if pair[0].startswith("#")]
    if not notes:
        return
    pair = pick(random, notes)
    match = _TENSOR.fullmatch(pair[1])
    if match is None:
        return
    extents, dtype = [n for n in match.group(1).split(",") if n], match.group(2)
    kind = random.randrange(4)
    if kind == 0:
        dtype = pick(random, (*ITEM_BYTES, "null"))
    elif kind == 1 and extents:
        extents[random.randrange(len(extents))] = pick(
            random, ("?", "0", "1", "2", "7", "1099511627776")
        )
    elif kind == 2:
        extents.insert(random.randrange(len(extents) + 1), pick(random, ("1", "2", "?")))
    elif extents:
        del extents[random.randrange(len(extents))]
    pair[1] = f"({','.join(extents)}){dtype}"


def _rewire(random: Random, line: Line, lines: list[Line]) -> None:
    """Change, add or remove an input of an operator."""
    known = [name for other in lines for name in other.outputs]
    kind = random.randrange(6)
    if kind < 3 and line.inputs and known:
        at = random.randrange(len(line.inputs))
        old, new = line.inputs[at], pick(random, known)
        line.inputs[at] = new
        for pair in line.fields:
            if pair[0].startswith("$") and pair[1] == old:
                pair[1] = new
    elif kind == 3 and known:
        line.inputs.insert(random.randrange(len(line.inputs) + 1), pick(random, known))
    elif kind == 4 and line.inputs:
        gone = line.inputs.pop(random.randrange(len(line.inputs)))
        line.fields = [p for p in line.fields if not (p[0].startswith("$") and p[1] == gone)]
    elif len(line.inputs) > 1:
        random.shuffle(line.inputs)


def _damage_fields(random: Random, line: Line, lines: list[Line]) -> None:
    at = random.randrange(len(line.fields))
    kind = random.randrange(4)
    if kind == 0:
        del line.fields[at]
    elif kind == 1:
        line.fields[at][0] += "_"
    elif kind == 2:
        other = pick(random, lines)
        if other.fields:
            line.fields.append(list(pick(random, other.fields)))
    elif line.inputs:
        line.fields.append(
            [f"${pick(random, ('input', 'weight', 'dim'))}", pick(random, line.inputs)]
        )


def _damage_lines(random: Random, line: Line, lines: list[Line]) -> None:
    at = lines.index(line)
    kind = random.randrange(4)
    if kind == 0:
        lines.remove(line)
    elif kind == 1:
        copy = Line(line.type, line.name + "_", list(line.inputs), [n + "_" for n in line.outputs])
        copy.fields = [list(pair) for pair in line.fields if not pair[0].startswith("@")]
        lines.insert(at + 1, copy)
    elif kind == 2:
        known = [name for other in lines for name in other.outputs]
        if known:
            lines.append(Line("pnnx.Output", f"more_{len(lines)}", [pick(random, known)], []))
    else:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]


def _rename(random: Random, line: Line, lines: list[Line]) -> None:
    other = pick(random, lines)
    kind = random.randrange(3)
    if kind == 0:
        line.name = other.name
    elif kind == 1 and line.outputs:
        line.outputs.append(f"more_{random.randrange(9)}")
    elif line.outputs:
        line.outputs.pop()


# -- the check ----------------------------------------------------------------------------------


def check(data: bytes, reference: bool = False) -> str:
    """Load and run a model in several ways and compare the results."""
    head, param, archive = unpack(data)
    options = {"threads": 1, "max_memory": MAX_MEMORY}
    try:
        plain = kuiper.load(param, archive, optimize=False, **options)
    except KuiperError:
        return "refused by load"
    model = kuiper.Model(plain.graph, **options)
    inputs = _inputs(model, head)
    if inputs is None:
        return "loaded, its inputs are too large"
    kept = [array.copy() for array in inputs]
    expected = _outcome(plain, inputs)
    found = _outcome(model, inputs)
    if isinstance(expected, KuiperError) or isinstance(found, KuiperError):
        if isinstance(expected, KuiperError) and isinstance(found, KuiperError):
            return "refused by the run"
        refused, error = (
            ("plain", expected) if isinstance(expected, KuiperError) else ("fast", found)
        )
        if "max_memory" in str(error):
            return "refused by the run"
        raise AssertionError(f"only one of plain and fast runs; the {refused} one: {error}")
    for runner, first in ((plain, expected), (model, found)):
        _check_garbage(runner, inputs, first)
    if head["seed"] % 4 == 0:  # the slowest of the checks
        parallel = kuiper.Model(plain.graph, threads=2, max_memory=MAX_MEMORY)
        _same_bits(_outcome(parallel, inputs), found, "two threads against one")
    for array, copy in zip(inputs, kept, strict=True):
        assert array.tobytes() == copy.tobytes(), "the run changed its input"
    if (
        not _close(expected, found)
        and not _sums_filters_at_infinity(model, inputs, expected, found)
        and not _is_unsteady(plain, inputs, expected, found)
    ):
        raise AssertionError(f"with and without optimisation: {_difference(expected, found)}")
    if reference and not _agrees_with_reference(param, archive, inputs, plain, expected):
        return "ran, has no reference"
    return "ran"


def _outcome(model: kuiper.Model, inputs) -> list[np.ndarray] | KuiperError:
    try:
        results = model(*inputs)
    except KuiperError as error:
        _raise_unforeseen(error)
        return error
    return list(results) if isinstance(results, tuple) else [results]


def _raise_unforeseen(error: KuiperError) -> None:
    """Raise the cause of an error that the planner raises only as a last resort."""
    if "cannot be computed with its arguments" in str(error) and error.__cause__ is not None:
        raise error.__cause__


def _inputs(model: kuiper.Model, head: dict) -> list[np.ndarray] | None:
    """Make the inputs; return None if they would be too large."""
    random = np.random.default_rng(head["seed"])
    arrays = []
    for number, info in enumerate(model.inputs):
        shape = info.shape
        shapes = head.get("shapes") or []
        if shape is None:
            shape = (2, 3)
        if number < len(shapes) and len(shapes[number]) == len(shape):
            shape = shapes[number]
        shape = tuple(2 if n is None else n for n in shape)
        if math.prod(shape) > MAX_INPUT or max(shape, default=0) > 1 << 40:
            return None
        ranges = head["ranges"]
        low, high = ranges[number] if number < len(ranges) else (-2.0, 2.0)
        arrays.append(_array(random, shape, info.dtype, low, high, head.get("values", "")))
    return arrays


def _array(random, shape, dtype, low, high, values: str) -> np.ndarray:
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        if values in ("huge", "special"):
            return random.choice(np.array([ends.min, ends.max, 0, 1, 7], dtype), shape)
        low, high = max(int(low), ends.min), min(max(int(high), int(low) + 1), ends.max)
        return random.integers(low, max(high, low + 1), shape).astype(dtype)
    x = random.uniform(low, high, shape)
    if values == "special":
        odd = random.choice(np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40]), shape)
        x = np.where(random.random(shape) < 0.2, odd, x)
    elif values == "integers":
        x = np.round(x)
    elif values == "huge":
        x = x * 1e30
    elif values == "zeros":
        x = x * 0.0
    if dtype.kind == "c":
        x = x + 1j * random.uniform(low, high, shape)
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(dtype)


def _check_garbage(model: kuiper.Model, inputs, first: list[np.ndarray]) -> None:
    """Run twice more, each time on memory filled with other values."""
    for byte in (0xFF, 0x41):
        arena = model._plans.arenas.take(1)
        arena.memory[...] = byte
        model._plans.arenas.give(arena)
        outs = []
        for result in first:
            raw = bytearray([byte]) * result.nbytes
            if result.dtype.kind in "OU":  # None or a string, which no kernel writes
                outs.append(np.empty(result.shape, result.dtype))
            elif result.dtype.kind == "b":
                outs.append(np.full(result.shape, byte == 0xFF))
            else:
                outs.append(np.frombuffer(raw, result.dtype).reshape(result.shape))
        model(*inputs, out=outs)
        _same_bits(outs, first, f"on memory full of 0x{byte:02x}")


def _same_bits(found, expected, what: str) -> None:
    if isinstance(found, KuiperError):
        raise AssertionError(f"{what}: {found}")
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape, f"{what}: output {number} has shape {a.shape}, not {b.shape}"
        assert a.dtype == b.dtype, f"{what}: output {number} is {a.dtype}, not {b.dtype}"
        if a.tobytes() == b.tobytes():
            continue
        # NaN may have any payload.
        same = (a == b) | ((a != a) & (b != b))
        assert same.all(), f"{what}: output {number}: {int((~same).sum())} of {a.size} differ"


def _close(expected, found) -> bool:
    return not _difference(expected, found)


def _difference(expected, found) -> str:
    """Describe how two results differ, or return an empty string."""
    if len(expected) != len(found):
        return f"{len(found)} outputs, expected {len(expected)}"
    for number, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {number} is {b.dtype} {b.shape}, expected {a.dtype} {a.shape}"
        error = _error(a, b)
        if error > RTOL:
            return f"output {number} is off by {error:.3g} of the largest value"
    return ""


def _error(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference relative to the largest finite value; inf if classes differ."""
    if a.shape != b.shape:
        return math.inf
    if a.size == 0:
        return 0.0
    if a.dtype.kind not in "fc":
        return 0.0 if np.array_equal(a, b) else math.inf
    if a.dtype.kind == "c":
        a, b = (np.stack([x.real, x.imag], -1) for x in (a, b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a)
    same = finite & np.isfinite(b) | (~finite & ((a == b) | (np.isnan(a) & np.isnan(b))))
    if not same.all():
        return math.inf
    if not finite.any():
        return 0.0
    scale = float(np.abs(a[finite]).max())
    return float(np.abs(a[finite] - b[finite]).max()) / (scale or 1.0)


def _sums_filters_at_infinity(model: kuiper.Model, inputs, expected, found) -> bool:
    """Tell whether convolutions were merged that read an infinity or overflow.

    Separately they give infinities of both signs, whose sum is NaN; their summed filter does not.
    """
    if not any(key[0] == "fuse_branches" for key in model.graph.derived):
        return False
    weights = [a.numpy() for op in model.graph for a in op.attributes.values()]
    floats = [a for a in (*inputs, *weights, *expected, *found) if a.dtype.kind in "fc"]
    return not all(np.isfinite(a).all() for a in floats)


def _is_unsteady(plain: kuiper.Model, inputs, expected, found) -> bool:
    """Tell whether the results depend on the last bits of inputs and weights.

    Then they may also depend on the order of sums: a threshold that is just met, a difference of
    nearly equal numbers, an overflow.
    """
    if [a.shape for a in expected] != [b.shape for b in found]:
        return False
    off = [_error(a, b) for a, b in zip(expected, found, strict=True)]
    for seed in range(8):
        random = np.random.default_rng(seed)
        graph = plain.graph.copy()
        for op in graph:
            for key, attribute in op.attributes.items():
                if attribute.dtype in ("f32", "f64", "f16"):
                    op.attributes[key] = Attribute.from_array(_shaken(random, attribute.numpy()))
        shaken = kuiper.Model(graph, optimize=False, threads=1, max_memory=MAX_MEMORY)
        results = _outcome(shaken, [_shaken(random, x) for x in inputs])
        if isinstance(results, KuiperError):
            return True
        if any(
            a.shape != b.shape or (limit > RTOL and _error(a, b) * 100 > min(limit, 1e30))
            for a, b, limit in zip(expected, results, off, strict=True)
        ):
            return True
    return False


def _shaken(random, array: np.ndarray) -> np.ndarray:
    """Perturb floats in their last bits, and zeros by tiny numbers."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(all="ignore"):
        steps = 16 * np.finfo(array.dtype).eps * random.uniform(-1, 1, array.shape)
        return np.asarray(array * (1 + steps), array.dtype)


def _is_extreme(arrays) -> bool:
    """Tell whether float32 may overflow or underflow."""
    for array in arrays:
        if array.dtype.kind in "fc" and array.size:
            with np.errstate(all="ignore"):
                largest = float(np.abs(array).max())
            if not largest < 1e6:
                return True
    return False


def _agrees_with_reference(param, archive, inputs, plain, expected) -> bool:
    """Compare with the numpy references; return False if they cannot compute the graph."""
    if _is_extreme(
        [*expected, *inputs]
    ):  # the references compute in float64, which does not overflow here
        return False
    types = {op.type for op in plain.graph} - {"pnnx.Input", "pnnx.Output", "pnnx.Attribute"}
    # A recurrent module has only the outputs that are read, identified by their annotations.
    if not types <= REFERENCES.keys() - {"nn.LSTM", "nn.GRU", "nn.RNN", "nn.MultiheadAttention"}:
        return False
    for op in plain.graph:
        if _is_extreme([a.numpy() for a in op.attributes.values()]):
            return False
    try:
        with np.errstate(all="ignore"):
            theirs = [np.asarray(y) for y in run_graph(read_graph(param, archive), inputs)]
    except Exception:  # the references check nothing
        return False
    if len(theirs) != len(expected):
        return False
    ours = []
    for y, result in zip(theirs, expected, strict=True):
        if y.shape != result.shape:
            if y.size == result.size == 1:  # a list of one number
                return False
            raise AssertionError(f"the reference gives shape {y.shape}, the run {result.shape}")
        with np.errstate(all="ignore"):
            ours.append(y.astype(result.dtype))
    if not _close(ours, expected) and not _is_unsteady(plain, inputs, expected, ours):
        raise AssertionError(f"against the reference: {_difference(ours, expected)}")
    return True

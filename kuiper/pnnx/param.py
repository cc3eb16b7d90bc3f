"""The ``.param`` text: parse it into lines, build a graph from them, write a graph back.

The file has a magic number, the counts of operators and operands, then one line per operator ::

    type name n_in n_out in_1 ... in_n out_1 ... out_m [field ...]

where a field is ``key=value`` (a parameter), ``@key=(2,3)f32`` (an attribute, whose bytes are
in the archive), ``$key=operand`` (the keyword of an input) or ``#operand=(1,?)f32`` (shape and
element type in the trace).

The parser trusts nothing: no number in the text sizes an allocation, and every violation raises
:class:`~kuiper.errors.ModelFormatError` with file, line and column.  This module does not open
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from kuiper._support.struct import Struct
from kuiper.errors import GraphError, ModelFormatError
from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ir.attribute import Shape
from kuiper.ir.dtypes import DTYPES
from kuiper.pnnx import values
from kuiper.pnnx._messages import plural, recognise, show

__all__ = ["AttributeSpec", "OperatorLine", "ParsedParam", "build", "format", "parse"]

MAGIC = b"7767517"
MAX_AXES = 32  # limit of numpy 1
MAX_BYTES = 2**63 - 1


class AttributeSpec(Struct):
    """An attribute as a ``.param`` file declares it.

    Attributes
    ----------
    member : str
        Name of the archive entry that holds the bytes.
    shape : tuple of int
    dtype : str
        PNNX name of the element type.
    nbytes : int
        Bytes that shape and type take.
    """

    member: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class OperatorLine(Struct):
    """One operator line; the fields are those of :class:`kuiper.ir.Operator`."""

    line: int
    type: str
    name: str
    inputs: list[str]
    outputs: list[str]
    input_keys: list[str | None]
    params: dict[str, Any]
    attributes: dict[str, AttributeSpec]


class ParsedParam(Struct):
    """A parsed ``.param`` file.

    Attributes
    ----------
    filename : str
        Name in messages.
    operators : list of OperatorLine
        In file order.
    annotations : dict of str to (shape, dtype)
        By operand name; the first annotation of an operand counts.
    """

    filename: str
    operators: list[OperatorLine]
    annotations: dict[str, tuple[Shape, str | None]]

    def attributes(self) -> dict[str, tuple[OperatorLine, AttributeSpec]]:
        """Map the archive entry of each attribute to its operator and declaration.

        Raises
        ------
        ModelFormatError
            If two attributes share an entry (``a`` + ``b.c`` and ``a.b`` + ``c``).
        """
        found: dict[str, tuple[OperatorLine, AttributeSpec]] = {}
        for operator in self.operators:
            for spec in operator.attributes.values():
                if spec.member in found:
                    first = found[spec.member][0]
                    raise ModelFormatError(
                        f"{self.filename}:{operator.line}: operator '{operator.name}' "
                        f"({operator.type}): the archive entry '{spec.member}' already belongs "
                        f"to operator '{first.name}' of line {first.line}; rename one of them"
                    )
                found[spec.member] = operator, spec
        return found


def parse(text: str | bytes, filename: str = "<bytes>") -> ParsedParam:
    """Parse the text of a ``.param`` file.

    Parameters
    ----------
    text : str or bytes-like
        The whole file, UTF-8.
    filename : str, default="<bytes>"
        Name in messages.

    Raises
    ------
    ModelFormatError
        If the text is not a PNNX graph or breaks a rule of the format; the message gives the
        location, what was found and what was expected.
    """
    if isinstance(text, str):
        data = text.encode("utf-8", "surrogatepass")
    else:
        data = text if isinstance(text, bytes) else bytes(memoryview(text))
    return _Parser(data, filename).parse()


def build(parsed: ParsedParam, attributes: Mapping[str, Attribute]) -> Graph:
    """Build the graph of a parsed file.

    Parameters
    ----------
    parsed : ParsedParam
    attributes : mapping of str to Attribute
        By the name of the archive entry.
    """
    graph = Graph()
    unknown = None, None
    for line in parsed.operators:
        operator = Operator(line.type, line.name)
        operator.params = dict(line.params)
        operator.attributes = {
            key: attributes[spec.member] for key, spec in line.attributes.items()
        }
        operator.location = f"{parsed.filename}:{line.line}"
        outputs = {name: parsed.annotations.get(name, unknown) for name in line.outputs}
        graph.add_parsed(operator, line.inputs, line.input_keys, outputs)
    return graph


class _Parser:
    """The state of parsing one file.

    Lines are split as bytes, since `str.split` also splits names at Unicode spaces.
    """

    def __init__(self, data: bytes, filename: str) -> None:
        self.data = data
        self.filename = filename
        self.line = 0  # number of the current line, from 1
        self.raw = b""  # the current line
        self.tokens: list[str] = []
        # Operand -> input indices of the current operator without a key, in descending order.
        self.unkeyed: dict[str, list[int]] | None = None
        self.operator_lines: dict[str, int] = {}
        self.operand_lines: dict[str, int] = {}
        self.annotations: dict[str, tuple[Shape, str | None]] = {}
        # Caches: most values, shapes and annotations of a file repeat a few texts.
        self.values: dict[str, Any] = {}
        self.tensors: dict[str, tuple[Shape, str]] = {}

    # -- messages --------------------------------------------------------------------------

    def fail(self, message: str, token: int | None = None, offset: int = 0) -> NoReturn:
        """Raise an error about the current line, at character `offset` of a token."""
        where = f"{self.filename}:{self.line}"
        if token is not None:
            where += f":{self.column(token) + offset}"
        ends = self.data.rstrip(b"\r\n")
        if ends == self.data and self.data.endswith(self.raw) and self.line > 2:
            message += "; the file does not end with a newline and may be truncated"
        raise ModelFormatError(f"{where}: {message}")

    def column(self, token: int) -> int:
        """Return the column, from 1, of token number `token`, or of the end of the line."""
        position = 0
        for text in self.tokens[:token]:
            raw = text.encode()
            position = self.raw.index(raw, position) + len(raw)
        if token < len(self.tokens):
            position = self.raw.index(self.tokens[token].encode(), position)
        return len(self.raw[:position].decode()) + 1

    def operator_error(self, message: str, token: int | None, offset: int = 0) -> NoReturn:
        self.fail(f"operator '{self.tokens[1]}' ({self.tokens[0]}): {message}", token, offset)

    # -- the file --------------------------------------------------------------------------

    def parse(self) -> ParsedParam:
        data = self.data.removeprefix(b"\xef\xbb\xbf")
        self.check_text(data)
        lines = data.split(b"\n")
        self.enter(lines[0])
        if self.tokens != [MAGIC.decode()]:
            found = show(lines[0].decode())
            self.fail(f"not a PNNX file: expected the number 7767517 alone, found {found}", 0)
        operator_count, operand_count = self.header(lines)
        operators: list[OperatorLine] = []
        for raw in lines[2:]:
            self.enter(raw)
            if not self.tokens:
                continue
            if len(operators) == operator_count:
                self.line = 2
                actual = sum(1 for other in lines[2:] if other.split())
                self.fail(
                    f"the header promises {plural(operator_count, 'operator')}, but there are "
                    f"{actual}; correct the first number"
                )
            if not operators:
                self.check_flavour()
            operators.append(self.operator())
        if len(operators) < operator_count:
            self.line = max(self.line - (not lines[-1]), 2)
            raise ModelFormatError(
                f"{self.filename}:{self.line}: the file ends after "
                f"{plural(len(operators), 'operator')}, the header promises {operator_count}; "
                "the file is truncated, copy or export it again"
            )
        # Fewer are legal: pnnx also counts operands that are no longer in use.
        if len(self.operand_lines) > operand_count:
            self.line = 2
            self.fail(
                f"the header promises {plural(operand_count, 'operand')}, but the operators "
                f"produce {len(self.operand_lines)}; correct the second number"
            )
        return ParsedParam(self.filename, operators, self.annotations)

    def check_text(self, data: bytes) -> None:
        """Refuse data that is not PNNX text; say what it is if recognised."""
        name = self.filename
        if not data.strip():
            raise ModelFormatError(f"{name}: the file is empty, expected a PNNX .param file")
        hint = recognise(data)
        if hint is None and not data.startswith(MAGIC):
            from kuiper.pnnx._foreign import next_step  # only for a message

            hint = next_step(data, name)
        if hint is None and data.startswith(b"PK"):
            hint = "it is a ZIP archive; is it the .bin file, or a PyTorch file?"
        if hint:
            raise ModelFormatError(f"{name}: not a PNNX .param file: {hint}")
        try:
            data.decode()
        except UnicodeDecodeError as error:
            if not data.startswith(MAGIC):
                raise ModelFormatError(
                    f"{name}: not a PNNX .param file: expected text that starts with 7767517, "
                    f"found the bytes {data[:8]!r}"
                ) from None
            line = data.count(b"\n", 0, error.start) + 1
            start = data.rfind(b"\n", 0, error.start) + 1
            raise ModelFormatError(
                f"{name}:{line}:{len(data[start : error.start].decode()) + 1}: byte "
                f"0x{data[error.start]:02x} is not UTF-8; the file is damaged or binary"
            ) from None
        zero = data.find(b"\0")
        if zero >= 0:
            line = data.count(b"\n", 0, zero) + 1
            raise ModelFormatError(f"{name}:{line}: zero byte in the text; the file is damaged")

    def enter(self, raw: bytes) -> None:
        self.line += 1
        self.raw = raw
        self.tokens = [token.decode() for token in raw.split()]

    def header(self, lines: list[bytes]) -> tuple[int, int]:
        if len(lines) < 2 or not lines[1].split():
            raise ModelFormatError(
                f"{self.filename}:2: expected the counts of operators and operands, found "
                "nothing; the file is truncated, copy or export it again"
            )
        self.enter(lines[1])
        if len(self.tokens) != 2:
            self.fail(
                f"expected two counts (operators, operands), found {show(lines[1].decode())}", 0
            )
        return self.count(0, "operators", self.fail), self.count(1, "operands", self.fail)

    def count(self, token: int, what: str, fail: Callable[[str, int], NoReturn]) -> int:
        count = _parse_count(self.tokens[token])
        if count is None:
            fail(f"expected the number of {what}, found {show(self.tokens[token])}", token)
        return count

    def check_flavour(self) -> None:
        """Refuse ncnn files, which begin with the same magic number."""
        if self.tokens[0] == "Input" or any(
            field.partition("=")[0].lstrip("-").isdigit()
            for field in self.tokens[4:]
            if "=" in field
        ):
            self.fail(
                f"this is an ncnn file (first layer {show(self.tokens[0])}), not a PNNX one; "
                "pnnx writes both, load the one that ends in .pnnx.param",
                0,
            )

    # -- one operator ----------------------------------------------------------------------

    def operator(self) -> OperatorLine:
        tokens = self.tokens
        if len(tokens) < 4:
            self.fail(
                f"expected 'type name inputs outputs ...', found {show(self.raw.decode())}",
                len(tokens),
            )
        type, name = tokens[:2]
        if name in self.operator_lines:
            self.fail(
                f"operator name '{name}' is already taken in line {self.operator_lines[name]}", 1
            )
        n_inputs = self.count(2, "inputs", self.operator_error)
        n_outputs = self.count(3, "outputs", self.operator_error)
        first_output = 4 + n_inputs
        first_field = first_output + n_outputs
        if first_field > len(tokens):
            self.operator_error(
                f"{plural(n_inputs, 'input')} and {plural(n_outputs, 'output')} are announced, "
                f"but the line ends after {len(tokens) - 4} of these names",
                len(tokens),
            )
        inputs, outputs = tokens[4:first_output], tokens[first_output:first_field]
        for token in range(4, first_field):
            operand = tokens[token]
            if "=" in operand and operand not in self.operand_lines:
                self.operator_error(
                    f"expected the name of an operand, found the field {show(operand)}; do the "
                    f"counts {n_inputs} {n_outputs} fit the line?",
                    token,
                )
            if token < first_output:
                if operand not in self.operand_lines:
                    self.unknown_operand(operand, token)
            elif operand in self.operand_lines:
                self.operator_error(
                    f"operand '{operand}' is already produced in line "
                    f"{self.operand_lines[operand]}",
                    token,
                )
            else:
                self.operand_lines[operand] = self.line
        self.operator_lines[name] = self.line
        self.unkeyed = None
        line = OperatorLine(self.line, type, name, inputs, outputs, [None] * len(inputs), {}, {})
        for token in range(first_field, len(tokens)):
            self.field(line, token)
        return line

    def unknown_operand(self, operand: str, token: int) -> NoReturn:
        """Raise the error of an undefined operand; name the later line that produces it, if any."""
        later = self.data.split(b"\n")[self.line - 1 :]
        wanted = operand.encode()
        for number, raw in enumerate(later, self.line):
            tokens = raw.split()
            found = [_parse_count(t.decode(errors="replace")) for t in tokens[2:4]]
            counts = [count for count in found if count is not None]
            if len(counts) < 2:
                continue
            if wanted in tokens[4 + counts[0] : 4 + counts[0] + counts[1]]:
                self.operator_error(
                    f"operand '{operand}' is used here but produced only in line {number}"
                    f"{', this one' if number == self.line else ''}; producers must come first",
                    token,
                )
        self.operator_error(f"no operator produces operand '{operand}'", token)

    def field(self, line: OperatorLine, token: int) -> None:
        text = self.tokens[token]
        key, equals, value = text.partition("=")
        if not equals or not key or key in ("@", "$", "#"):
            self.operator_error(
                f"expected a field 'key=value', found {show(text)}; do the counts "
                f"{len(line.inputs)} {len(line.outputs)} fit the line?",
                token,
            )
        if key[0] == "#":
            self.annotation(line, key[1:], value, token)
        elif key[0] == "@":
            self.attribute(line, key[1:], value, token)
        elif key[0] == "$":
            self.input_key(line, key[1:], value, token)
        elif key in line.params:
            self.operator_error(f"parameter '{key}' is given twice", token)
        elif key == "expr":
            line.params[key] = value
        else:
            line.params[key] = self.value(key, value, token)

    def value(self, key: str, text: str, token: int) -> Any:
        if text not in self.values:
            try:
                self.values[text] = values.parse(text)
            except ValueError as error:
                self.operator_error(
                    f"parameter '{key}' is {show(text)}: {error}", token, len(key) + 1
                )
        return self.values[text]

    def attribute(self, line: OperatorLine, key: str, value: str, token: int) -> None:
        if key in line.attributes:
            self.operator_error(f"attribute '{key}' is given twice", token)
        shape, dtype = self.tensor(f"attribute '{key}'", value, token, len(key) + 2)
        problem = None
        extents = tuple(-1 if n is None else n for n in shape)
        if dtype not in DTYPES:
            problem = f"the element type '{dtype}' is unknown; expected {', '.join(DTYPES)}"
        elif any(n < 0 for n in extents):
            problem = "an extent is negative or '?'; the shape of a stored tensor is known"
        elif len(shape) > MAX_AXES:
            problem = f"{len(shape)} axes; at most {MAX_AXES} are possible"
        else:
            # Empty axes count as one, since numpy computes strides for them, too.
            bound = nbytes = DTYPES[dtype].itemsize
            for extent in extents:
                bound *= max(extent, 1)
                nbytes *= extent
            if bound > MAX_BYTES:
                problem = "more bytes than any memory holds"
        if problem:
            self.operator_error(
                f"attribute '{key}' is {show(value)}: {problem}", token, len(key) + 2
            )
        line.attributes[key] = AttributeSpec(f"{line.name}.{key}", extents, dtype, nbytes)

    def input_key(self, line: OperatorLine, key: str, operand: str, token: int) -> None:
        """Assign the key to the next input that is `operand` and has no key yet."""
        if self.unkeyed is None:
            self.unkeyed = {}
            for slot in reversed(range(len(line.inputs))):
                self.unkeyed.setdefault(line.inputs[slot], []).append(slot)
        slots = self.unkeyed.get(operand)
        if slots:
            line.input_keys[slots.pop()] = key
            return
        if slots is not None:
            self.operator_error(
                f"key '{key}' is one too many: each input '{operand}' has a key already", token
            )
        self.operator_error(
            f"key '{key}' is for operand '{operand}', which is not among the inputs "
            f"({', '.join(line.inputs) or 'none'})",
            token,
            len(key) + 2,
        )

    def annotation(self, line: OperatorLine, operand: str, value: str, token: int) -> None:
        shape, dtype = self.tensor(f"annotation of '{operand}'", value, token, len(operand) + 2)
        if dtype not in DTYPES and dtype != "null":
            self.operator_error(
                f"annotation of '{operand}' is {show(value)}: the element type '{dtype}' is "
                f"unknown; expected {', '.join(DTYPES)}",
                token,
                len(operand) + 2,
            )
        # Hand-edited files annotate operands of other lines, or differ between lines.  Annotations
        # only describe the traced run, so neither is an error.
        if operand in self.operand_lines and operand not in self.annotations:
            dims = tuple(None if n is None or n < 0 else n for n in shape)
            self.annotations[operand] = dims, None if dtype == "null" else dtype

    def tensor(self, what: str, text: str, token: int, offset: int) -> tuple[Shape, str]:
        """Split ``(1,?,3)f32`` into shape and element type."""
        if text in self.tensors:
            return self.tensors[text]
        inner, closed, dtype = text[1:].partition(")")
        if text[:1] != "(" or not closed or not dtype:
            self.operator_error(
                f"{what} is {show(text)}, expected a shape and an element type such as '(1,3)f32'",
                token,
                offset,
            )
        shape = []
        for extent in inner.split(",") if inner else ():
            number = _parse_count(extent.removeprefix("-"))
            if number is None and extent != "?":
                self.operator_error(
                    f"{what} is {show(text)}: the extent {show(extent)} is not a number below "
                    "2**63",
                    token,
                    offset,
                )
            shape.append(-number if number and extent[0] == "-" else number)
        self.tensors[text] = tuple(shape), dtype
        return self.tensors[text]


def _parse_count(text: str) -> int | None:
    """Return the non-negative decimal number below 2**63, or None."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        return None
    number = int(text)
    return number if number <= MAX_BYTES else None


def format(graph: Graph) -> str:
    """Return the ``.param`` text of a graph, as current pnnx writes it.

    Operators come in topological order, parameters and attributes in alphabetical order.

    Raises
    ------
    GraphError
        If the graph breaks a rule (see :meth:`kuiper.ir.Graph.verify`), or contains what the
        format cannot express: post-ops, names with blanks, strings that read as numbers.
    """
    graph.verify()
    lines = [MAGIC.decode(), f"{len(graph)} {len(graph.operands)}"]
    lines += [_format_operator(operator) for operator in graph.topological_order()]
    return "\n".join(lines) + "\n"


def _format_operator(operator: Operator) -> str:
    def check(kind: str, text: str, forbidden: str = "") -> str:
        if not isinstance(text, str) or not text or values.has_blank(text):
            raise GraphError(
                f"{operator.label}: the {kind} {text!r} cannot be written; it must be a string "
                "without blanks"
            )
        if any(char in text for char in forbidden):
            raise GraphError(
                f"{operator.label}: the {kind} {text!r} cannot be written; it must not have "
                f"any of {' '.join(forbidden)}"
            )
        return text

    if operator.post_ops:
        raise GraphError(
            f"{operator.label}: fused steps cannot be written; save the graph as it was loaded"
        )
    inputs, outputs = operator.inputs, operator.outputs
    # The padding is that of pnnx; readers split at blanks.
    words = [
        f"{check('type', operator.type):<24} {check('name', operator.name):<24} "
        f"{len(inputs)} {len(outputs)}"
    ]
    words += [check("operand name", operand.name, "=") for operand in (*inputs, *outputs)]
    for key, value in sorted(operator.params.items()):
        check("parameter name", key, "=@$#")
        if key == "expr":
            words.append(f"expr={check('expression', value)}")
            continue
        try:
            words.append(f"{key}={values.format(value)}")
        except (TypeError, ValueError) as error:
            raise GraphError(f"{operator.label}: parameter '{key}': {error}") from None
    for key, attribute in sorted(operator.attributes.items()):
        words.append(f"@{check('attribute name', key, '=')}={format_tensor(attribute)}")
    unkeyed: set[Operand] = set()
    for input_key, operand in zip(operator.input_keys, inputs, strict=True):
        if input_key is None:
            unkeyed.add(operand)
            continue
        if operand in unkeyed:
            raise GraphError(
                f"{operator.label}: the input key '{input_key}' cannot be written; a reader would "
                f"give it to the earlier input that also is operand '{operand.name}'"
            )
        words.append(f"${check('input key', input_key, '=')}={operand.name}")
    for operand in (*inputs, *outputs):
        if operand.shape is not None:
            words.append(f"#{operand.name}={format_tensor(operand)}")
    return " ".join(words)


def format_tensor(tensor: Operand | Attribute | AttributeSpec) -> str:
    """Return shape and element type as the format writes them: ``(1,?,3)f32``."""
    assert tensor.shape is not None  # checked by the callers
    extents = ",".join("?" if n is None else str(n) for n in tensor.shape)
    return f"({extents}){tensor.dtype or 'null'}"

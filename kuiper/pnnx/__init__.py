"""PNNX files: the ``.param`` text and the ``.bin`` archive, read into a graph and written back.

::

    values.py           one parameter value   <->  Python value
    param.py            the .param text       <->  parsed lines, Graph
    archive.pyx         the .bin ZIP archive   ->  views of its bytes
    archive_writer.py   the .bin ZIP archive  <-   attributes
    __init__.py         both files            <->  Graph with its attributes

Files are checked here, once and completely: a loaded :class:`~kuiper.ir.Graph` obeys every rule of
the format, and each attribute has exactly the bytes that its shape takes.  The meaning of operators
is unknown at this level; nothing here imports :mod:`kuiper.ops` or anything above it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard, Union, cast

from kuiper._support import log
from kuiper._support.memory import check_max_memory, memory_text
from kuiper.errors import GraphError, ModelFormatError
from kuiper.ir import Attribute, Graph
from kuiper.ir.attribute import MissingWeights
from kuiper.pnnx import param as _param
from kuiper.pnnx._messages import listing, plural

if TYPE_CHECKING:
    from kuiper.pnnx.archive import Archive

__all__ = ["load_graph", "save_graph"]

HEAD_BYTES = 4096
# Upper bound of the memory that a graph and a model's copy of it take, in bytes per byte of text:
# an input may have two characters.  Files from pnnx take 20 to 30.
GROWTH = 160
MIN_LIMIT = 1 << 20  # a text of up to so many bytes is always accepted

Source = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, BinaryIO]
Target = Union[str, "os.PathLike[str]", BinaryIO]
Writer = tuple[Target, Callable[[BinaryIO], object]]


def load_graph(
    param: Source,
    bin: Source | None = None,
    *,
    check_crc: bool = False,
    max_memory: int | None = None,
) -> Graph:
    """Load the graph that the files of a PNNX model describe.

    Parameters
    ----------
    param : str, os.PathLike, bytes-like or binary file object
        The ``.param`` text.
    bin : str, os.PathLike, bytes-like or binary file object, optional
        The archive of the attributes.  By default the path of `param` with ``.param`` replaced by
        ``.bin``; if the model has attributes and there is none, ``x.pnnx.bin`` for ``x.param`` and
        ``x.bin`` for ``x.pnnx.param``, as older exports have it.  Without any of these, attributes
        have shapes and dtypes only: such a graph can be inspected but not run, and reading values
        raises FileNotFoundError or ValueError.  A large file stays open, and attributes are read
        from it on first use.  Bytes are used in place.
    check_crc : bool, default=False
        Verify the checksum of every attribute, which reads the whole archive once more.
    max_memory : int, optional
        Bytes that the graph without attributes may take; by default the memory of the machine or
        container.  A text longer than both 1 MiB and 1/160 of `max_memory` is refused.

    Returns
    -------
    kuiper.ir.Graph
        Its attributes keep the archive alive.

    Raises
    ------
    ModelFormatError
        If a file is damaged, truncated or of another format, or the two do not match.
    GraphError
        If the graph might take more than `max_memory`.
    OSError
        If a file cannot be read.
    """
    data, name = _read_text(param, check_max_memory(max_memory))
    parsed = _param.parse(data, name)
    specs = parsed.attributes()
    log.debug("kuiper.pnnx", "read %s: %s", name, plural(len(specs), "weight"))
    archive = _open_archive(param, bin, name, specs)
    if isinstance(archive, MissingWeights):
        if check_crc and specs:
            raise archive.error
        return _param.build(
            parsed,
            {
                member: Attribute(spec.shape, spec.dtype, archive)
                for member, (_, spec) in specs.items()
            },
        )
    _match(archive, parsed.filename, specs)
    if check_crc:
        archive.check_crc()
    attributes = {
        member: Attribute(spec.shape, spec.dtype, archive.source(member, spec.shape))
        for member, (_, spec) in specs.items()
    }
    return _param.build(parsed, attributes)


def _is_path(source: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(source, (str, os.PathLike))


def _read_text(source: Source, max_memory: int) -> tuple[bytes, str]:
    """Return the bytes of a ``.param`` text and its name in messages."""
    limit = max(max_memory // GROWTH, MIN_LIMIT)
    if _is_path(source):
        with open(source, "rb") as file:
            data, name = file.read(HEAD_BYTES), os.fsdecode(source)
            # Without the magic number in its head, the rest of a file is not read.
            if _param.MAGIC in data:
                data += file.read(limit + 1 - len(data))
            size = os.fstat(file.fileno()).st_size
    else:
        data, name = _read(source, "<param>")
        size = len(data)
    if len(data) > limit:
        size = max(size, len(data))
        raise GraphError(
            f"{name}: the text has {memory_text(size)}, its graph may take "
            f"{memory_text(size * GROWTH)}, more than the {memory_text(max_memory)} of max_memory; "
            "pass a larger one if you trust the file"
        )
    return data, name


def _read(source: Source, name: str) -> tuple[bytes, str]:
    """Return the bytes of an open file or of memory, and their name in messages."""
    data: Any = source
    if hasattr(source, "read"):
        found = getattr(source, "name", None)
        name = found if isinstance(found, str) else name
        data = source.read()
    if isinstance(data, str):
        raise TypeError(f"{name}: the file is open in text mode, expected binary mode ('rb')")
    try:
        return data if isinstance(data, bytes) else bytes(memoryview(data)), name
    except TypeError:
        kind = f"{type(data).__module__}.{type(data).__qualname__}".removeprefix("builtins.")
        hint = "; from_torch converts a module" if hasattr(data, "state_dict") else ""
        raise TypeError(
            f"{name}: got {kind}, expected a path, bytes or an open file{hint}"
        ) from None


def _open_archive(
    param: Source, bin: Source | None, name: str, specs: dict[str, Any]
) -> Archive | MissingWeights:
    """Open the archive; without one, return the error of reading an attribute."""
    if bin is None:
        path = os.fsdecode(param) if _is_path(param) else ""
        has_suffix = path.endswith(".param")
        paths = _bin_paths(path) if has_suffix else []
        # The second name is that of a file which may belong to something else.
        bin = next((p for p in (paths if specs else paths[:1]) if os.path.exists(p)), None)
        if bin is None:
            needs = f"{name} has {plural(len(specs), 'attribute')}"
            if specs:
                needs += f" (first '{next(iter(specs))}')"
            if not has_suffix:
                return MissingWeights(
                    ValueError(f"{needs}; pass the archive that holds them as the second argument")
                )
            needs += f", but their archive is missing (nor is there {paths[1]}); pass its path"
            return MissingWeights(FileNotFoundError(errno.ENOENT, needs, paths[0]))
    from kuiper.pnnx.archive import Archive

    if _is_path(bin):
        return Archive(bin)
    if isinstance(bin, bytes | bytearray | memoryview) or not hasattr(bin, "read"):
        return Archive(cast("bytes", bin), "<bin>")
    return Archive(*_read(bin, "<bin>"))


def _bin_paths(param: str) -> list[str]:
    """Return the paths of the archive that belong to a path with the suffix ``.param``."""
    stem = param.removesuffix(".param")
    short = stem.removesuffix(".pnnx")
    return [f"{stem}.bin", f"{short}.bin" if short != stem else f"{stem}.pnnx.bin"]


def _match(archive: Archive, filename: str, specs: dict[str, Any]) -> None:
    """Raise ModelFormatError unless text and archive match; report all differences at once."""
    missing, unequal = [], []
    for member, (operator, spec) in specs.items():
        if member not in archive:
            missing.append(f"'{member}' (line {operator.line})")
        elif archive.n_bytes(member) != spec.nbytes:
            unequal.append(
                f"'{member}' (line {operator.line}) has {archive.n_bytes(member)} bytes, its shape "
                f"{_param.format_tensor(spec)} takes {spec.nbytes}"
            )
    strangers = [f"'{member}'" for member in archive if member not in specs]
    problems = [
        f"{plural(len(members), f'{one} {what}', f'{many} {what}')}: {listing(members, 3)}"
        for members, one, many, what in (
            (missing, "attribute", "attributes", "without entry"),
            (strangers, "entry", "entries", "without attribute"),
            (unequal, "entry", "entries", "of a wrong size"),
        )
        if members
    ]
    if problems:
        raise ModelFormatError(
            f"{archive.filename} does not belong to {filename}\n{'; '.join(problems)}\n"
            "both files must come from the same export; pass the right archive as the second "
            "argument, or export the model again"
        )


def save_graph(graph: Graph, param: Target, bin: Target | None = None) -> None:
    """Write a graph as a PNNX model: the ``.param`` text and the ``.bin`` archive.

    Parameters
    ----------
    graph : kuiper.ir.Graph
    param : str, os.PathLike or binary file object
    bin : str, os.PathLike or binary file object, optional
        By default the path of `param` with ``.param`` replaced by ``.bin``.

    Raises
    ------
    GraphError
        If the graph breaks a rule or contains something that the format cannot express.

    Notes
    -----
    A file is written under a temporary name beside its path and then renamed, the archive first:
    readers never see a partial file, and a failed save changes nothing.

    The output equals that of current pnnx byte for byte, except that an empty list ``()`` is
    written as ``None``.  Models from older versions get the current spelling of floats and the
    current archive format.  Loading a saved model gives an equal graph in each case.
    """
    try:
        text = _param.format(graph).encode()
    except UnicodeEncodeError as error:
        raise GraphError(f"the graph has a name that is no UTF-8 text: {error}") from None
    members: dict[str, Attribute] = {}
    for operator in graph.topological_order():
        for key, attribute in sorted(operator.attributes.items()):
            member = f"{operator.name}.{key}"
            if member in members:
                raise GraphError(f"two attributes are called '{member}'; rename an operator")
            members[member] = attribute
    if bin is None:
        path = os.fsdecode(param) if _is_path(param) else ""
        if path.endswith(".param"):
            bin = path.removesuffix(".param") + ".bin"
        elif members:
            number = plural(len(members), "attribute")
            raise ValueError(f"the graph has {number}; pass the archive's target as `bin`")
    from kuiper.pnnx.archive_writer import write_archive

    writers: list[Writer] = [(param, lambda file: file.write(text))]
    if bin is not None:
        # Lazily, so that the attributes need not all be in memory.
        raw = ((member, attribute.raw) for member, attribute in members.items())
        writers.insert(0, (bin, lambda file: write_archive(file, raw)))
    _write_all(writers)


def _write_all(writers: list[Writer]) -> None:
    """Run each writer on its target; rename all temporary files after the last has succeeded."""
    # Resolve links, so that their targets are replaced.
    paths = [os.path.realpath(os.fsdecode(t)) if _is_path(t) else None for t, _ in writers]
    if len(paths) == 2 and paths[0] is not None and paths[0] == paths[1]:
        raise ValueError(f"both files would be written to {paths[0]}")
    finished: list[tuple[str, str]] = []
    try:
        for path, (target, write) in zip(paths, writers, strict=True):
            if path is None:
                write(cast("BinaryIO", target))
                continue
            temporary = f"{path}.{os.urandom(4).hex()}.tmp"
            with open(temporary, "xb") as file:
                finished.append((temporary, path))
                write(file)
        while finished:
            os.replace(*finished[0])
            del finished[0]
    finally:
        for temporary, _ in finished:
            os.unlink(temporary)

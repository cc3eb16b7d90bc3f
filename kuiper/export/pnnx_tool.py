"""Convert PyTorch and ONNX models with pnnx; torch is imported here only, on first use."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kuiper._support import log
from kuiper.errors import InputError, KuiperError, MissingPackageError
from kuiper.export import naming
from kuiper.export.tracing import kept_whole
from kuiper.loading import load
from kuiper.model import Model
from kuiper.pnnx._messages import recognise

__all__ = [
    "call_by_name",
    "checked",
    "evaluating",
    "example_tensors",
    "export_module",
    "from_torch",
    "in_float32",
    "listed_inputs",
    "run_pnnx",
]

# PyTorch dtype -> element type on the command line of pnnx.
_DTYPES = {
    "torch.float32": "f32", "torch.float64": "f64", "torch.float16": "f16", "torch.int64": "i64",
    "torch.int32": "i32", "torch.int16": "i16", "torch.int8": "i8", "torch.uint8": "u8",
    "torch.bool": "bool", "torch.complex64": "c64",
}  # fmt: skip


def from_torch(
    module: Any,
    example_inputs: Any,
    *misplaced: Any,
    example_inputs2: Any = None,
    moduleop: str | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    via: str = "pnnx",
) -> Model:
    """Trace a PyTorch module with torch, convert the trace with pnnx and load the result.

    Calls that pnnx would convert incompletely are traced in an equivalent form: causal masks of
    ``nn.MultiheadAttention``, ``nn.LayerNorm`` without bias, a written-out tanh GELU, and the
    others that docs/models.md lists.  The results are those of PyTorch.

    Parameters
    ----------
    module : torch.nn.Module
        Set to evaluation mode during the trace.  A module in float16, bfloat16 or float64 is traced
        as a float32 copy, since kuiper computes in float32.  Dicts and nested tuples that it
        returns are flattened in order; None is dropped.
    example_inputs : torch.Tensor, sequence of torch.Tensor, or dict of str to torch.Tensor
        Tensors to trace with; several go into one tuple.  A dict holds keyword arguments; the model
        takes its inputs in the order of the dict.
    *misplaced
        Refused, since a second tensor could mean a second input or a second shape.
    example_inputs2 : as `example_inputs`, optional
        The same inputs with other extents; extents that differ become variable.
    moduleop : str, optional
        Comma-separated classes that pnnx keeps as one operator each; define these operators with
        :func:`kuiper.operator`.
    input_names, output_names : sequence of str, optional
        Names in ``model.inputs`` and ``model.outputs``.  By default the keys of the dict or the
        parameters of the module's `forward`, and the keys or fields of its result joined by dots
        (``past.0.key``).
    via : {"pnnx", "onnx"}, default="pnnx"
        ``"onnx"`` exports the module with ``torch.onnx.export`` instead, which needs the package
        onnxscript, and reads the ONNX model: for modules that pnnx cannot convert, and for extents
        in arithmetic, which stay open where `example_inputs2` has others.  It takes longer.

    Returns
    -------
    Model
        Independent of torch and pnnx; :func:`kuiper.save` writes it to files.

    Raises
    ------
    MissingPackageError
        If torch, pnnx or onnxscript is not installed.
    InputError
        If `module` is not a module, an example input is not a tensor, `example_inputs2` differs in
        more or less than extents, a class of `moduleop` is not used, or names do not fit.
    KuiperError
        If torch cannot trace or export the module or pnnx cannot convert it; the message ends with
        their output.

    Examples
    --------
    >>> import kuiper, torch                                              # doctest: +SKIP
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()) # doctest: +SKIP
    >>> model = kuiper.from_torch(net, torch.rand(1, 4))                  # doctest: +SKIP
    """
    if misplaced:
        raise InputError(
            f"from_torch: got {1 + len(misplaced)} positional arguments after the module, expected "
            "one; for several inputs pass a tuple, from_torch(net, (ids, mask)), for variable "
            "extents from_torch(net, x, example_inputs2=x2)"
        )
    if via not in ("pnnx", "onnx"):
        raise InputError(f"via is {via!r}, expected 'pnnx' or 'onnx'")
    if via == "onnx":
        from kuiper.export.torch_onnx import through_onnx

        if moduleop is not None:
            raise InputError("moduleop keeps classes in an export by pnnx; leave out via='onnx'")
        return through_onnx(module, example_inputs, example_inputs2, input_names, output_names)
    with tempfile.TemporaryDirectory() as folder:
        param = export_module(
            module,
            example_inputs,
            Path(folder, "model.pnnx.param"),
            example_inputs2=example_inputs2,
            moduleop=moduleop,
            input_names=input_names,
            output_names=output_names,
        )
        # From bytes: the folder is deleted on return.
        return load(param.read_bytes(), param.with_suffix(".bin").read_bytes())


def export_module(
    module: Any,
    example_inputs: Any,
    param: str | os.PathLike[str],
    *,
    example_inputs2: Any = None,
    moduleop: str | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Path:
    """Trace a module, convert it to `param` and the ``.bin`` beside it, and return `param`."""
    torch = _torch()
    keywords, inputs, inputs2 = checked(module, example_inputs, example_inputs2, torch)
    name = type(module).__name__
    scripted = isinstance(module, torch.jit.RecursiveScriptModule)
    if not scripted:
        naming.check_classes(module, moduleop, torch)
    names = list(keywords) or naming.parameter_names(module, len(inputs))
    module, inputs = in_float32(module, inputs, torch)
    with evaluating(module), tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "module.pt")
        with naming.results_named(module) as result_names:
            kept = _save_trace(module, inputs, keywords, torch, name, trace)
        try:
            return run_pnnx(
                trace,
                param,
                [tuple(x.shape) for x in inputs],
                [tuple(x.shape) for x in inputs2 or ()],
                [_DTYPES.get(str(x.dtype), "f32") for x in inputs],
                moduleop=moduleop,
                kept=kept,
                name=name,
                input_names=input_names,
                output_names=output_names,
                traced_names=(names, result_names),
            )
        except MissingPackageError:
            raise
        except KuiperError as error:
            if not scripted:
                raise
            raise KuiperError(
                f"{error}\nThe module is a torch.jit.script module, but pnnx reads traces: "
                "pass the module that was scripted"
            ) from error


def checked(
    module: Any, example_inputs: Any, example_inputs2: Any, torch: Any
) -> tuple[tuple[str, ...], tuple[Any, ...], tuple[Any, ...] | None]:
    """Return the keywords of a call, and its first and second tensors.

    Raises
    ------
    InputError
        If the module is none, or the inputs are not tensors or do not fit each other.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(_no_module(module, torch))
    keywords = tuple(example_inputs) if isinstance(example_inputs, Mapping) else ()
    inputs = _as_tuple(example_inputs, torch)
    if example_inputs2 is None:
        return keywords, inputs, None
    return keywords, inputs, _second_inputs(inputs, example_inputs2, keywords, torch)


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Set a module to evaluation mode for a while."""
    modes = [(part, part.training) for part in module.modules()]
    with suppress(NotImplementedError):  # modules of torch.export have one fixed mode
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _no_module(value: Any, torch: Any) -> str:
    """Say what was passed for a module, and what to pass."""
    hint = ""
    if isinstance(value, type):
        hint = f"; pass an instance, {value.__name__}(...)"
    elif isinstance(value, str | os.PathLike):
        hint = "; `kuiper export FILE` converts a file of TorchScript or ONNX"
    elif isinstance(value, Mapping):
        hint = "; make the module and load the weights with module.load_state_dict(...)"
    elif isinstance(value, torch.Tensor):
        hint = "; the module goes first, from_torch(net, x)"
    what = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return f"got {what}, expected a torch.nn.Module{hint}"


def _second_inputs(
    inputs: tuple[Any, ...], example_inputs2: Any, keywords: tuple[str, ...], torch: Any
) -> tuple[Any, ...]:
    """Return the second inputs in the order of the first; only their extents may differ."""
    if keywords:
        found = [*example_inputs2] if isinstance(example_inputs2, Mapping) else None
        if found is None or set(found) != set(keywords):
            raise InputError(
                f"example_inputs2 has {found or 'no keys'}, expected the keys {list(keywords)} of "
                "example_inputs"
            )
        example_inputs2 = {key: example_inputs2[key] for key in keywords}
    inputs2 = _as_tuple(example_inputs2, torch)
    if len(inputs2) != len(inputs):
        raise InputError(
            f"example_inputs2 has {len(inputs2)} tensors, expected {len(inputs)} as in "
            "example_inputs"
        )
    for number, (x, x2) in enumerate(zip(inputs, inputs2, strict=True)):
        floats = x.is_floating_point() and x2.is_floating_point()
        if x.dim() != x2.dim() or not (floats or x.dtype == x2.dtype):
            raise InputError(
                f"example_inputs2: input {number} is {tuple(x2.shape)} {x2.dtype}, expected rank "
                f"{x.dim()} and {x.dtype} as in example_inputs; only extents may differ"
            )
    return inputs2


def _save_trace(
    module: Any,
    inputs: tuple[Any, ...],
    keywords: tuple[str, ...],
    torch: Any,
    name: str,
    path: Path,
) -> tuple[str, ...]:
    """Write the TorchScript trace of a module; return the classes to keep as one operator each."""
    try:
        # Gradients stay enabled: without them attention is traced as operators unknown to pnnx.
        with warnings.catch_warnings(record=True) as caught, kept_whole(module, torch) as kept:
            warnings.simplefilter("always")
            _traced(module, inputs, keywords, torch).save(str(path))
        _log_frozen(name, caught, torch)
    except Exception as error:  # the module's own code may raise anything
        raise KuiperError(
            f"{name}: PyTorch cannot trace it with inputs {listed_inputs(inputs, keywords)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return kept


def listed_inputs(inputs: Sequence[Any], keywords: Sequence[str]) -> str:
    """Return keywords, shapes and types of example inputs for a message."""
    names = [f"{key}=" for key in keywords] or [""] * len(inputs)
    pairs = zip(names, inputs, strict=True)
    return ", ".join(f"{key}{tuple(x.shape)} {x.dtype}" for key, x in pairs) or "(none)"


def _log_frozen(name: str, caught: Sequence[Any], torch: Any) -> None:
    """Log the source lines whose values the trace froze to those of the example inputs."""
    package = os.path.dirname(torch.__file__)
    lines = {
        f"{warning.filename}:{warning.lineno}": str(warning.message).partition(" might cause ")[0]
        for warning in caught
        if issubclass(warning.category, torch.jit.TracerWarning)
        and "might cause the trace to be incorrect" in str(warning.message)
        and not warning.filename.startswith(package)
    }
    for line, what in lines.items():
        logging.getLogger("kuiper.export").warning(
            "%s: %s reads a value (%s); the export is valid for the value of the example inputs",
            name, line, what[:1].lower() + what[1:],
        )  # fmt: skip


def in_float32(module: Any, inputs: tuple[Any, ...], torch: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return module and inputs in float32: a copy of the module if it has other floats."""
    others = (torch.float16, torch.bfloat16, torch.float64)
    inputs = tuple(x.float() if x.dtype in others else x for x in inputs)
    if any(x.dtype in others for x in (*module.parameters(), *module.buffers())):
        module = copy.deepcopy(module).float()
    return module, inputs


def _traced(module: Any, inputs: tuple[Any, ...], keywords: tuple[str, ...], torch: Any) -> Any:
    """Trace a module; wrap it for keyword arguments or for results that torch rejects."""
    if not keywords:
        try:
            return torch.jit.trace(module, inputs, check_trace=False)
        except Exception as first:
            try:
                return torch.jit.trace(_flat(module, (), torch), inputs, check_trace=False)
            except Exception:
                raise first from None
    return torch.jit.trace(_flat(module, keywords, torch), inputs, check_trace=False)


def _flat(module: Any, keywords: tuple[str, ...], torch: Any) -> Any:
    """Wrap a module to take positional tensors and to return a tensor or a tuple of tensors."""

    def tensors(value: Any) -> list[Any]:
        if value is None:
            return []
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list | tuple):
            return [tensor for part in value for tensor in tensors(part)]
        return [value]

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any) -> Any:
            if keywords:
                results = tensors(self.module(**dict(zip(keywords, inputs, strict=True))))
            else:
                results = tensors(self.module(*inputs))
            return results[0] if len(results) == 1 else tuple(results)

    return Flat().eval()


def run_pnnx(
    source: str | os.PathLike[str],
    param: str | os.PathLike[str],
    shapes: Sequence[Sequence[int]] = (),
    shapes2: Sequence[Sequence[int]] = (),
    dtypes: Sequence[str] = (),
    *,
    moduleop: str | None = None,
    kept: Sequence[str] = (),
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    traced_names: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Path:
    """Convert a TorchScript or ONNX file to `param` and the ``.bin`` beside it.

    Parameters
    ----------
    source : str or os.PathLike
    param : str or os.PathLike
        File to write, ``*.param``.
    shapes, shapes2 : sequence of shapes
        Two shapes of each input; extents that differ become variable.
    dtypes : sequence of str
        Element types of the inputs as pnnx names them; float32 if empty.
    moduleop : str, optional
        Classes to keep as one operator each; each must occur.
    kept : sequence of str, optional
        Further classes to keep, which may be unused.
    name : str, optional
        Name of the source in messages; its path by default.
    input_names, output_names : sequence of str, optional
        Names to write into `param`; by default `traced_names` or those of the ONNX file.
    traced_names : (sequence of str, sequence of str), optional
        Names of inputs and outputs; those of an end with another number of tensors are dropped.

    Returns
    -------
    Path
        `param`.

    Raises
    ------
    MissingPackageError
        If pnnx is not installed.
    InputError
        If the source is not such a file, the second shapes do not fit, a class of `moduleop` does
        not occur, or the number of names is wrong.
    KuiperError
        If pnnx fails; the message ends with its output.
    """
    name = name or str(source)
    target = Path(param)
    if target.suffix != ".param":
        raise InputError(f"{param}: the name must end in .param; the weights go to .bin beside it")
    types = [*dtypes] or ["f32"] * len(shapes)
    if shapes2 and len(shapes2) != len(shapes):
        raise InputError(
            f"{name}: {len(shapes2)} second shapes, expected {len(shapes)}, one for each input"
        )
    _check_shapes2(name, shapes, shapes2)
    _check_source(Path(source), name)
    if Path(source).suffix == ".onnx":
        traced_names = naming.onnx_names(Path(source))

    program = _pnnx()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scrap:
        result = Path(scrap, "model.pnnx.param")
        arguments = {
            "inputshape": shapes and _shape_text(shapes, types),
            "inputshape2": shapes2 and _shape_text(shapes2, types),
            "moduleop": ",".join((*naming.classes(moduleop), *kept)),
            "fp16": "0",
            "pnnxparam": result,
            "pnnxbin": result.with_suffix(".bin"),
        }
        for unused in ("pnnxpy", "pnnxonnx", "ncnnparam", "ncnnbin", "ncnnpy"):
            arguments[unused] = Path(scrap, unused)
        command = [program, str(_linked(_with_weights_inside(Path(source), Path(scrap)), scrap))]
        command += [f"{key}={value}" for key, value in arguments.items() if value]
        log.info("kuiper.export", "%s", " ".join(command))
        done = subprocess.run(command, capture_output=True, text=True, cwd=scrap)
        log.debug("kuiper.export", "output of pnnx: %s", _gist(done.stdout + done.stderr))
        _check_result(done, result, name)
        naming.finish(result, name, moduleop, (input_names, output_names), traced_names)
        for suffix in (".bin", ".param"):
            target.with_suffix(suffix).write_bytes(result.with_suffix(suffix).read_bytes())
    return target


def _check_shapes2(
    name: str, shapes: Sequence[Sequence[int]], shapes2: Sequence[Sequence[int]]
) -> None:
    """Raise InputError unless second shapes have the same ranks and other extents."""
    for number, (shape, shape2) in enumerate(zip(shapes, shapes2, strict=False)):
        if len(shape) != len(shape2):
            raise InputError(
                f"{name}: the second shape of input {number} is {tuple(shape2)}, expected rank "
                f"{len(shape)} as in {tuple(shape)}"
            )
    if shapes2 and [*map(tuple, shapes)] == [*map(tuple, shapes2)]:
        raise InputError(
            f"{name}: the second shapes equal the first ones, so no extent would become variable; "
            "give at least one other extent. Further inputs go with the first ones: "
            "from_torch(net, (ids, mask)), or --shape once per input"
        )


def _shape_text(shapes: Sequence[Sequence[int]], types: Sequence[str]) -> str:
    """Format shapes and element types for pnnx: ``[1,3,224,224]f32,[1,8]i64``."""
    return ",".join(
        f"[{','.join(map(str, shape))}]{type}" for shape, type in zip(shapes, types, strict=True)
    )


def _check_result(done: subprocess.CompletedProcess[str], param: Path, name: str) -> None:
    """Raise KuiperError unless pnnx wrote both model files completely."""
    # pnnx writes its Python module last: if that exists, a crash left the model intact.
    written = param.exists() and param.with_suffix(".bin").exists()
    if written and (not done.returncode or param.with_name("pnnxpy").exists()):
        return
    gist = _gist(done.stdout + done.stderr)
    hint = ""
    if done.returncode < 0 and gist.endswith("pass_level1"):
        hint = (
            "\npnnx crashes there if a module is called more than once and one result is unused: "
            "remove that call"
        )
    raise KuiperError(
        f"{name}: pnnx {_end(done.returncode)} and wrote no model; it said:\n{gist}{hint}"
    )


def _check_source(path: Path, name: str) -> None:
    """Raise InputError for a file that would crash pnnx; say what it is and what to do."""
    with open(path, "rb") as file:
        head = file.read(256)
    what = recognise(head)
    if not head:
        what = "it is empty"
    elif what is None and path.suffix != ".onnx":
        if head.startswith(b"\x80") or _is_torch_pickle(path):
            what = (
                "it was written by torch.save: weights or a pickled module, not TorchScript. "
                "Give `kuiper export` the function that makes the module (package.module:function) "
                "or trace it: torch.jit.trace(module.eval(), x).save('model.pt')"
            )
        elif not zipfile.is_zipfile(path):
            what = "it is not a complete ZIP archive, as TorchScript files are"
    elif what is None and head.startswith(b"PK\3\4"):
        what = "it is a ZIP archive; if it is a TorchScript file, rename it to .pt"
    if what:
        raise InputError(f"{name}: not a model that pnnx can read: {what}")


def _is_torch_pickle(path: Path) -> bool:
    """Tell whether torch.save wrote a file; TorchScript archives also hold code."""
    try:
        with zipfile.ZipFile(path) as archive:
            inner = [entry.partition("/")[2] for entry in archive.namelist()]
    except (zipfile.BadZipFile, OSError):
        return False
    return "data.pkl" in inner and not any(entry.startswith("code/") for entry in inner)


def _with_weights_inside(source: Path, folder: Path) -> Path:
    """Return the source, or a copy of an ONNX file with its external weights embedded."""
    beside = Path(f"{source}.data")  # the name that torch.onnx.export chooses
    if source.suffix != ".onnx" or not beside.exists():
        return source
    try:
        import onnx
    except ImportError as error:
        raise MissingPackageError(
            f"{source}: its weights are in {beside.name}, but pnnx reads one file; to join them, "
            "pip install onnx, or export with torch.onnx.export(..., external_data=False)"
        ) from error
    joined = folder / "joined.onnx"
    onnx.save(onnx.load(str(source)), str(joined))
    return joined


def _linked(source: Path, folder: str) -> Path:
    """Return a link to the source, or a copy: pnnx writes beside its source.

    A simplified ONNX file and the constants of a trace stay there, at least if pnnx fails.
    """
    if source.parent == Path(folder):
        return source
    link = Path(folder, "source", source.name)
    link.parent.mkdir()
    try:
        link.symlink_to(source.absolute())
    except OSError:  # Windows without the right to make links
        shutil.copyfile(source, link)
    return link


def _end(code: int) -> str:
    """Describe the exit code of a program."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"crashed ({signal.Signals(-code).name})"
    except ValueError:
        return f"crashed (signal {-code})"


def _gist(output: str) -> str:
    """Return the output of pnnx without colours, echoed options and stack addresses."""
    output = re.sub(r"\x1b\[[0-9;]*m", "", output)
    output = output.partition("\nPlease export model to torchscript as follows")[0]
    noise = re.compile(
        r"\w+ = (?:/.*)?|(?:fp16|optlevel|device) = .*|frame #\d+: .*|.*\.py\(\d+\): \S+"
        r"|<\S+ \S+>\(\d+\): \S+|-+|\s*"
    )
    lines = [line for line in output.splitlines() if not noise.fullmatch(line)]
    return "\n".join(lines)[-2000:] or "(nothing)"


def call_by_name(name: str, arguments: Mapping[str, Any]) -> Any:
    """Call ``package.module:function`` or ``path/file.py:function``; return its nn.Module.

    Parameters
    ----------
    name : str
    arguments : mapping of str to object
        Keyword arguments of the function.

    Raises
    ------
    MissingPackageError
        If the module, or a module that it imports, is not installed.
    InputError
        If importing or calling fails, or the result is not a module.
    """
    torch = _torch()
    path, _, function_name = name.rpartition(":")
    try:
        found = _run_file(path) if path.endswith(".py") else importlib.import_module(path)
    except ModuleNotFoundError as error:
        if path == error.name or path.startswith(f"{error.name}."):
            raise MissingPackageError(f"{name}: no module named '{error.name}'") from error
        raise MissingPackageError(
            f"{name}: '{path}' imports '{error.name}', which is not installed"
        ) from error
    except OSError:
        raise
    except Exception as error:  # user code may raise anything
        raise InputError(
            f"{name}: '{path}' cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(found, function_name):
        raise InputError(f"{name}: module '{path}' has no '{function_name}'")
    function: Callable[..., Any] = getattr(found, function_name)
    try:
        module = function(**arguments)
    except Exception as error:  # user code may raise anything
        hint = "; --arg KEY=VALUE passes an argument" if isinstance(error, TypeError) else ""
        raise InputError(f"{name} failed with {type(error).__name__}: {error}{hint}") from error
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{name} returned {type(module).__name__}, expected a torch.nn.Module")
    return module


def _run_file(path: str) -> Any:
    """Import a Python file as a module in `sys.modules`, so that its classes can be traced."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).exists():
        raise FileNotFoundError(2, "No such file or directory", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def example_tensors(shapes: Sequence[Sequence[int]], dtypes: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return tensors of the given shapes to trace with: noise, or zeros for integers."""
    torch = _torch()
    kinds = {short: getattr(torch, name.partition(".")[2]) for name, short in _DTYPES.items()}
    types = [kinds[dtype] for dtype in dtypes] or [torch.float32] * len(shapes)
    return tuple(
        torch.rand(*shape, dtype=dtype)
        if dtype.is_floating_point or dtype.is_complex
        else torch.zeros(*shape, dtype=dtype)
        for shape, dtype in zip(shapes, types, strict=True)
    )


def _as_tuple(inputs: Any, torch: Any) -> tuple[Any, ...]:
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    named = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    for key, value in [*named]:
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"example input {key!r} is {type(value).__name__}, expected a torch.Tensor"
            )
    return tuple(inputs.values() if isinstance(inputs, Mapping) else inputs)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            "tracing a module needs PyTorch: pip install torch pnnx"
        ) from error
    return torch


def _pnnx() -> str:
    """Return the path of the pnnx program, without importing its package, which needs torch."""
    spec = importlib.util.find_spec("pnnx")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "pnnx.exe" if sys.platform == "win32" else "pnnx")
        if path.is_file():
            return str(path)
    found = shutil.which("pnnx")
    if found is None:
        raise MissingPackageError(
            "converting a model needs pnnx, which is not installed: pip install pnnx"
        )
    return found

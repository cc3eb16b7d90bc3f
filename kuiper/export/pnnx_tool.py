"""From PyTorch to kuiper, by pnnx; torch and pnnx are imported here only, and only when used."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kuiper._support import log
from kuiper.errors import InputError, KuiperError, MissingPackageError
from kuiper.export.tracing import kept_whole
from kuiper.loading import load
from kuiper.model import Model
from kuiper.pnnx._messages import recognise

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

__all__ = ["call_by_name", "example_tensors", "export_module", "from_torch", "run_pnnx"]

# PyTorch's name of a dtype -> what pnnx calls it on its command line.
_DTYPES = {
    "torch.float32": "f32", "torch.float64": "f64", "torch.float16": "f16", "torch.int64": "i64",
    "torch.int32": "i32", "torch.int16": "i16", "torch.int8": "i8", "torch.uint8": "u8",
    "torch.bool": "bool", "torch.complex64": "c64",
}  # fmt: skip


def from_torch(
    module: Any, example_inputs: Any, example_inputs2: Any = None, *, moduleop: str | None = None
) -> Model:
    """Turn a PyTorch module into a model: traced by torch, converted by pnnx, loaded.

    A few calls are traced in another way than for a plain export, since pnnx loses a part of them:
    causal masks of ``nn.MultiheadAttention``, weights of ``nn.LayerNorm`` without bias, a GELU of
    tanh that is written out, and what else docs/models.md lists.  The numbers are PyTorch's.

    Parameters
    ----------
    module : torch.nn.Module
        Put into evaluation mode for the trace.  One in float16, bfloat16 or float64 is traced as a
        copy in float32, in which kuiper computes.  Of dicts and nested tuples that it returns, the
        tensors become results in their order; None is left out.
    example_inputs : torch.Tensor, sequence of torch.Tensor, or dict of str to torch.Tensor
        What the module is traced with; a dict stands for keyword arguments, and the inputs of the
        model are in its order.
    example_inputs2 : as `example_inputs`, optional
        The same with other extents; those that differ become variable.
    moduleop : str, optional
        Classes, with commas between, that pnnx shall keep as one operator each; teach kuiper those
        with :func:`kuiper.operator`.

    Returns
    -------
    Model
        It needs neither torch nor pnnx any more; :func:`kuiper.save` writes it to files.

    Raises
    ------
    MissingPackageError
        If torch or pnnx is not installed.
    InputError
        If `module` is no module, or an example input no tensor.
    KuiperError
        If torch cannot trace the module or pnnx cannot convert it; the message ends in what they
        said.

    Examples
    --------
    >>> import kuiper, torch                                              # doctest: +SKIP
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()) # doctest: +SKIP
    >>> model = kuiper.from_torch(net, torch.rand(1, 4))                  # doctest: +SKIP
    """
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        param = export_module(
            module,
            example_inputs,
            Path(folder, "model.pnnx.param"),
            example_inputs2=example_inputs2,
            moduleop=moduleop,
        )
        # From bytes, since the folder is about to go.
        return load(param.read_bytes(), param.with_suffix(".bin").read_bytes())


def export_module(
    module: Any,
    example_inputs: Any,
    param: str | os.PathLike[str],
    *,
    example_inputs2: Any = None,
    moduleop: str | None = None,
) -> Path:
    """Trace a module and convert it into `param` and the ``.bin`` beside it; return `param`."""
    import tempfile
    import warnings
    from pathlib import Path

    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"got {type(module).__name__}, expected a torch.nn.Module")
    keywords = tuple(example_inputs) if isinstance(example_inputs, Mapping) else ()
    inputs = _as_tuple(example_inputs, torch)
    inputs2 = None if example_inputs2 is None else _as_tuple(example_inputs2, torch)
    if inputs2 is not None and len(inputs2) != len(inputs):
        raise InputError(
            f"example_inputs2 has {len(inputs2)} tensors, expected {len(inputs)} as in "
            "example_inputs"
        )
    name = type(module).__name__
    scripted = isinstance(module, torch.jit.RecursiveScriptModule)
    module, inputs = _in_float32(module, inputs, torch)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        # With gradients on, attention is traced as the operators that pnnx knows.
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "module.pt")
            try:
                with (
                    warnings.catch_warnings(record=True) as said,
                    kept_whole(module, torch) as kept,
                ):
                    warnings.simplefilter("always")
                    _traced(module, inputs, keywords, torch).save(str(trace))
                _tell_frozen(name, said, torch)
            except Exception as error:  # whatever the module's own code may raise
                names = [f"{key}=" for key in keywords] or [""] * len(inputs)
                shapes = ", ".join(
                    f"{key}{tuple(x.shape)} {x.dtype}" for key, x in zip(names, inputs, strict=True)
                )
                raise KuiperError(
                    f"{name}: PyTorch cannot trace it with inputs {shapes or '(none)'}: "
                    f"{type(error).__name__}: {error}"
                ) from error
            try:
                return run_pnnx(
                    trace,
                    param,
                    [tuple(x.shape) for x in inputs],
                    [tuple(x.shape) for x in inputs2 or ()],
                    [_DTYPES.get(str(x.dtype), "f32") for x in inputs],
                    moduleop=",".join((*((moduleop,) if moduleop else ()), *kept)) or None,
                    name=name,
                )
            except MissingPackageError:
                raise
            except KuiperError as error:
                if not scripted:
                    raise
                raise KuiperError(
                    f"{error}\nIt was made by torch.jit.script, and pnnx reads what was traced: "
                    "give the module that was scripted"
                ) from error
    finally:
        for part, training in modes:
            part.training = training


def _tell_frozen(name: str, said: Sequence[Any], torch: Any) -> None:
    """Log where a trace holds what was true of the example inputs only."""
    import logging

    package = os.path.dirname(torch.__file__)
    places = {
        f"{warning.filename}:{warning.lineno}": str(warning.message).partition(" might cause ")[0]
        for warning in said
        if issubclass(warning.category, torch.jit.TracerWarning)
        and "might cause the trace to be incorrect" in str(warning.message)
        and not warning.filename.startswith(package)
    }
    for place, what in places.items():
        logging.getLogger("kuiper.export").warning(
            "%s: %s asks for a value (%s); the export keeps what came of it for the example inputs",
            name, place, what[:1].lower() + what[1:],
        )  # fmt: skip


def _in_float32(module: Any, inputs: tuple[Any, ...], torch: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a copy of a module of other floats, and its inputs, in float32; others as they are."""
    import copy

    others = (torch.float16, torch.bfloat16, torch.float64)
    inputs = tuple(x.float() if x.dtype in others else x for x in inputs)
    if any(x.dtype in others for x in (*module.parameters(), *module.buffers())):
        module = copy.deepcopy(module).float()
    return module, inputs


def _traced(module: Any, inputs: tuple[Any, ...], keywords: tuple[str, ...], torch: Any) -> Any:
    """Trace a module; with keywords, or with results that torch refuses, as a part of another."""
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
    """Return a module that takes tensors by place and returns nothing but tensors."""

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
    name: str | None = None,
) -> Path:
    """Convert a TorchScript or ONNX file into `param` and the ``.bin`` beside it.

    Parameters
    ----------
    source : str or os.PathLike
    param : str or os.PathLike
        What to write, ``*.param``.
    shapes, shapes2 : sequence of shapes
        Of the inputs; extents that differ between the two become variable.
    dtypes : sequence of str
        pnnx's names of the inputs' element types, float32 where left out.
    moduleop : str, optional
        Classes to keep as one operator.
    name : str, optional
        What messages call the source, by default its path.

    Returns
    -------
    Path
        `param`.

    Raises
    ------
    MissingPackageError
        If pnnx is not installed.
    InputError
        If the source is no file of these kinds, or the shapes are not those of one set of inputs.
    KuiperError
        If it fails; the message ends in what it said.
    """
    import subprocess
    import tempfile
    from pathlib import Path

    name = name or str(source)
    target = Path(param)
    if target.suffix != ".param":
        raise InputError(
            f"{param}: the name has to end in .param; the weights go to .bin beside it"
        )
    types = [*dtypes] or ["f32"] * len(shapes)
    if shapes2 and len(shapes2) != len(shapes):
        raise InputError(
            f"{name}: {len(shapes2)} second shapes, expected {len(shapes)}, one for each input"
        )
    _check_source(Path(source), name)

    program = _pnnx()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scrap:
        made = Path(scrap, "model.pnnx.param")
        command = [program, str(_with_weights_inside(Path(source), Path(scrap)).absolute())]
        command += [f"inputshape={_shape_text(shapes, types)}"] if shapes else []
        command += [f"inputshape2={_shape_text(shapes2, types)}"] if shapes2 else []
        command += [f"moduleop={moduleop}"] if moduleop else []
        command += [
            "fp16=0",
            f"pnnxparam={made}",
            f"pnnxbin={made.with_suffix('.bin')}",
            *(
                f"{key}={scrap}/{key}"
                for key in ("pnnxpy", "pnnxonnx", "ncnnparam", "ncnnbin", "ncnnpy")
            ),
        ]
        log.info("kuiper.export", "%s", " ".join(command))
        done = subprocess.run(command, capture_output=True, text=True, cwd=scrap)
        log.debug("kuiper.export", "pnnx said: %s", _gist(done.stdout + done.stderr))
        _check_result(done, made, name)
        for suffix in (".bin", ".param"):
            target.with_suffix(suffix).write_bytes(made.with_suffix(suffix).read_bytes())
    return target


def _shape_text(shapes: Sequence[Sequence[int]], types: Sequence[str]) -> str:
    """Return shapes and element types as pnnx reads them: ``[1,3,224,224]f32,[1,8]i64``."""
    return ",".join(
        f"[{','.join(map(str, shape))}]{type}" for shape, type in zip(shapes, types, strict=True)
    )


def _check_result(done: subprocess.CompletedProcess[str], param: Path, name: str) -> None:
    """Raise KuiperError unless pnnx wrote both files of the model completely."""
    # pnnx writes its Python module after the model, so a later crash leaves the model intact.
    written = param.exists() and param.with_suffix(".bin").exists()
    if written and (not done.returncode or param.with_name("pnnxpy").exists()):
        return
    gist = _gist(done.stdout + done.stderr)
    hint = ""
    if done.returncode < 0 and gist.endswith("pass_level1"):
        hint = (
            "\npnnx crashes there if one module is called more than once and one result is unused: "
            "leave that call out"
        )
    raise KuiperError(
        f"{name}: pnnx {_end(done.returncode)} and wrote no model; it said:\n{gist}{hint}"
    )


def _check_source(path: Path, name: str) -> None:
    """Refuse a file that pnnx would crash on, and say what it is and what to do."""
    import zipfile

    with open(path, "rb") as file:
        head = file.read(256)
    what = recognise(head)
    if not head:
        what = "it is empty"
    elif what is None and path.suffix != ".onnx":
        if head.startswith(b"\x80") or _is_torch_pickle(path):
            what = (
                "it was written by torch.save: weights or a pickled module, not a TorchScript. "
                "Give `kuiper export` the function that makes the module (package.module:function) "
                "or trace it: torch.jit.trace(module.eval(), x).save('model.pt')"
            )
        elif not zipfile.is_zipfile(path):
            what = "it is no ZIP archive, as TorchScript files are, or only a part of one"
    elif what is None and head.startswith(b"PK\3\4"):
        what = "it is a ZIP archive; if it is a TorchScript file, call it .pt"
    if what:
        raise InputError(f"{name}: this is no model that pnnx reads: {what}")


def _is_torch_pickle(path: Path) -> bool:
    """Tell whether torch.save wrote a file; a TorchScript holds code beside its data."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            inner = [entry.partition("/")[2] for entry in archive.namelist()]
    except (zipfile.BadZipFile, OSError):
        return False
    return "data.pkl" in inner and not any(entry.startswith("code/") for entry in inner)


def _with_weights_inside(source: Path, folder: Path) -> Path:
    """Return an ONNX file that pnnx can read: one without its weights in a file of their own."""
    from pathlib import Path

    beside = Path(f"{source}.data")  # where torch.onnx.export puts them
    if source.suffix != ".onnx" or not beside.exists():
        return source
    try:
        import onnx
    except ImportError as error:
        raise MissingPackageError(
            f"{source}: its weights lie in {beside.name}, and pnnx reads one file; to join them, "
            "pip install onnx, or export with torch.onnx.export(..., external_data=False)"
        ) from error
    joined = folder / "joined.onnx"
    onnx.save(onnx.load(str(source)), str(joined))
    return joined


def _end(code: int) -> str:
    """Say how a program ended."""
    import signal

    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"crashed ({signal.Signals(-code).name})"
    except ValueError:
        return f"crashed (signal {-code})"


def _gist(said: str) -> str:
    """Return what pnnx said without its echo of options, its colours and lists of addresses."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", said)
    said = said.partition("\nPlease export model to torchscript as follows")[0]
    dull = re.compile(
        r"\w+ = (?:/.*)?|(?:fp16|optlevel|device) = .*|frame #\d+: .*|.*\.py\(\d+\): \S+"
        r"|<\S+ \S+>\(\d+\): \S+|-+|\s*"
    )
    lines = [line for line in said.splitlines() if not dull.fullmatch(line)]
    return "\n".join(lines)[-2000:] or "(nothing)"


def call_by_name(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return what ``package.module:function`` gives for keyword arguments; must be a module.

    ``path/file.py:function`` will do, too.
    """
    from importlib import import_module

    torch = _torch()
    path, _, function_name = name.rpartition(":")
    try:
        found = _run_file(path) if path.endswith(".py") else import_module(path)
    except ModuleNotFoundError as error:
        if path == error.name or path.startswith(f"{error.name}."):
            raise MissingPackageError(f"{name}: no module named '{error.name}'") from error
        raise MissingPackageError(
            f"{name}: '{path}' imports '{error.name}', which is not installed"
        ) from error
    except OSError:
        raise
    except Exception as error:  # whatever that module does when it is imported
        raise InputError(
            f"{name}: '{path}' cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(found, function_name):
        raise InputError(f"{name}: module '{path}' has no '{function_name}'")
    function: Callable[..., Any] = getattr(found, function_name)
    try:
        module = function(**arguments)
    except Exception as error:  # whatever that function may raise
        hint = "; --arg KEY=VALUE gives it arguments" if isinstance(error, TypeError) else ""
        raise InputError(f"{name} failed with {type(error).__name__}: {error}{hint}") from error
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{name} returned {type(module).__name__}, expected a torch.nn.Module")
    return module


def _run_file(path: str) -> Any:
    """Return a Python file as a module; classes in it can be pickled and traced."""
    import sys
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).exists():
        raise FileNotFoundError(2, "No such file or directory", path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def example_tensors(shapes: Sequence[Sequence[int]], dtypes: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return tensors of the given shapes to trace with: noise, and zeros where whole numbers."""
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
    """Return the path of the program; the package would import torch, which it does not need."""
    import shutil
    import sys
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("pnnx")
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

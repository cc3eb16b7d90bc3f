"""From PyTorch to kuiper, by pnnx; torch and pnnx are imported here only, and only when used."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kuiper.errors import InputError, KuiperError, MissingPackageError
from kuiper.model import Model, load

if TYPE_CHECKING:
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

    Parameters
    ----------
    module : torch.nn.Module
        Put into evaluation mode for the trace.
    example_inputs : torch.Tensor or sequence of torch.Tensor
        What the module is traced with.
    example_inputs2 : torch.Tensor or sequence of torch.Tensor, optional
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
    KuiperError
        If pnnx cannot convert the module; the message ends in what pnnx said.

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
    inputs = _as_tuple(example_inputs, torch)
    inputs2 = None if example_inputs2 is None else _as_tuple(example_inputs2, torch)
    if inputs2 is not None and len(inputs2) != len(inputs):
        raise InputError(
            f"example_inputs2 has {len(inputs2)} tensors, expected {len(inputs)} as in "
            "example_inputs"
        )
    was_training = module.training
    module.eval()
    try:
        # With gradients on, attention is traced as the operators that pnnx knows.
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = Path(folder, "module.pt")
            torch.jit.trace(module, inputs, check_trace=False).save(str(trace))
            return run_pnnx(
                trace,
                param,
                [tuple(x.shape) for x in inputs],
                [tuple(x.shape) for x in inputs2 or ()],
                [_DTYPES.get(str(x.dtype), "f32") for x in inputs],
                moduleop=moduleop,
            )
    finally:
        module.train(was_training)


def run_pnnx(
    source: str | os.PathLike[str],
    param: str | os.PathLike[str],
    shapes: Sequence[Sequence[int]] = (),
    shapes2: Sequence[Sequence[int]] = (),
    dtypes: Sequence[str] = (),
    *,
    moduleop: str | None = None,
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

    Returns
    -------
    Path
        `param`.

    Raises
    ------
    MissingPackageError
        If pnnx is not installed.
    KuiperError
        If it fails; the message ends in what it said.
    """
    import subprocess
    import tempfile
    from pathlib import Path

    target = Path(param).absolute()
    if target.suffix != ".param":
        raise InputError(
            f"{param}: the name has to end in .param; the weights go to .bin beside it"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    names = [*dtypes] or ["f32"] * len(shapes)

    def described(items: Sequence[Sequence[int]]) -> str:
        return ",".join(
            f"[{','.join(map(str, shape))}]{name}" for shape, name in zip(items, names, strict=True)
        )

    with tempfile.TemporaryDirectory() as scrap:
        made = Path(scrap, "model.pnnx.param")
        command = [_pnnx(), str(Path(source).absolute())]
        command += [f"inputshape={described(shapes)}"] if shapes else []
        command += [f"inputshape2={described(shapes2)}"] if shapes2 else []
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
        done = subprocess.run(command, capture_output=True, text=True, cwd=scrap)
        if done.returncode or not made.exists() or not made.with_suffix(".bin").exists():
            said = (done.stdout + done.stderr).strip()[-1500:]
            raise KuiperError(
                f"{source}: pnnx ended with code {done.returncode} and wrote no model; it said:\n"
                f"{said}"
            )
        for suffix in (".bin", ".param"):
            target.with_suffix(suffix).write_bytes(made.with_suffix(suffix).read_bytes())
    return target


def call_by_name(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return what ``package.module:function`` gives for keyword arguments; must be a module."""
    from importlib import import_module

    torch = _torch()
    path, _, function_name = name.rpartition(":")
    try:
        function: Callable[..., Any] = getattr(import_module(path), function_name)
    except ModuleNotFoundError as error:
        if path == error.name or path.startswith(f"{error.name}."):
            raise MissingPackageError(f"{name}: no module named '{error.name}'") from error
        raise
    except AttributeError:
        raise InputError(f"{name}: module '{path}' has no '{function_name}'") from None
    module = function(**arguments)
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{name} returned {type(module).__name__}, expected a torch.nn.Module")
    return module


def example_tensors(shapes: Sequence[Sequence[int]]) -> tuple[Any, ...]:
    """Return noise of the given shapes to trace with."""
    torch = _torch()
    return tuple(torch.rand(*shape) for shape in shapes)


def _as_tuple(inputs: Any, torch: Any) -> tuple[Any, ...]:
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    for number, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"example input {number} is {type(value).__name__}, expected a torch.Tensor"
            )
    return inputs


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            "tracing a module needs PyTorch: pip install torch pnnx"
        ) from error
    return torch


def _pnnx() -> str:
    try:
        import pnnx
    except ImportError as error:
        raise MissingPackageError(
            "converting a model needs pnnx, which is not installed: pip install pnnx"
        ) from error
    return pnnx.EXEC_PATH

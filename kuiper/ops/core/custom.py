"""User-defined operators: :func:`operator` makes a record of a function of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from kuiper.errors import InputError, KuiperError, OperatorError, ShapeError
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import Record, T, record, record_or_none
from kuiper.ops.core.schema import Argument, StaticValue, Tensors, ValuesNeeded, field

__all__ = ["operator"]

Function = TypeVar("Function", bound=Callable[..., Any])


def operator(
    type: str, n_outputs: int = 1, *, data_dependent: bool = False, replace: bool = False
) -> Callable[[Function], Function]:
    """Define an operator by a function of numpy arrays.

    Parameters
    ----------
    type : str
        The operator type in the ``.param`` file.
    n_outputs : int, default=1
    data_dependent : bool, default=False
        Whether the shapes of its results depend on the values of its arguments.  The operators
        after it are then planned while the model runs.
    replace : bool, default=False
        Whether it may replace another function of the same type, as when a cell of a notebook runs
        again.  Models loaded before use the new function in the plans that they make from then on.

    Returns
    -------
    callable
        A decorator for a function ``f(*arrays, **params)`` that returns one array, or a tuple of
        `n_outputs`.  `params` are the literal parameters, the attributes and the inputs with a
        keyword.  It must not write to its arguments.  Unless it is data-dependent, planning calls
        the function on arrays of zeros to learn the shapes and types of its results.  An exception
        that it raises is the cause of an OperatorError that names the operator.

    Raises
    ------
    InputError
        If `type` is no operator type, or `n_outputs` is less than 1.
    KuiperError
        From the decorator, if kuiper has a record for the type, or if another function has been
        registered for it and `replace` is false.

    Examples
    --------
    >>> import kuiper
    >>> @kuiper.operator("docs.Scale")
    ... def scale(x, factor):
    ...     return x * factor
    """
    _check_type(type, n_outputs)

    def register(function: Function) -> Function:
        class Custom(Record[T]):
            __doc__ = function.__doc__ or f"A user-defined operator: {type}."
            inputs: list[Any] = Tensors()
            keywords: dict[str, Any] = field(_Keywords)()
            users_function = staticmethod(function)
            replaceable = True
            is_pure = False

            def infer(self: Custom[TensorSpec]) -> tuple[TensorSpec, ...]:
                call = _Call(function, self.inputs, self.keywords)
                if self.data_dependent and not call.is_known:
                    raise ValuesNeeded("the shapes of its results depend on values")
                results = call(*call.examples())
                results = results if isinstance(results, tuple) else (results,)
                if not len(results) == n_outputs == self.n_outputs:
                    raise ShapeError(
                        f"its function returned {len(results)} arrays, expected {n_outputs}; the "
                        f"graph has {self.n_outputs} outputs"
                    )
                results = [_as_array(r) for r in results]
                return tuple(
                    TensorSpec(r.shape, r.dtype, r if self.data_dependent else None)
                    for r in results
                )

            def bind(self: Custom[TensorView], b: Binder) -> None:
                if self.data_dependent:  # its inputs are known, and so are its results
                    for index in range(self.n_outputs):
                        constant = b.output_spec(index).constant
                        assert constant is not None  # `infer` has computed it
                        b.alias(b.constant(constant), index)
                    return
                outputs = [b.output(i) for i in range(self.n_outputs)]
                call = _Call(function, self.inputs, self.keywords, b.operator.label)
                tensors = [t for t in call.tensors if isinstance(t, TensorView)]
                b.python(call, tensors, outputs, quiet=False)

        Custom.data_dependent = data_dependent
        first = record_or_none(type)  # imports a built-in record, so that `record` refuses it
        if first is not None and first.replaceable and not replace:
            _check_is_same(type, getattr(first, "users_function", None), function)
        record(type)(Custom)
        return function

    return register


def _check_type(type: Any, n_outputs: Any) -> None:
    """Refuse what no line of a file could name."""
    if not isinstance(type, str):
        hint = f"; write @kuiper.operator('type') above {type.__name__}" if callable(type) else ""
        raise InputError(f"the operator type is {type!r}, expected a string{hint}")
    if type in ("pnnx.Input", "pnnx.Output") or type.split() != [type]:
        raise InputError(
            f"the operator type is {type!r}, expected one word other than pnnx.Input and "
            "pnnx.Output"
        )
    if isinstance(n_outputs, bool) or not hasattr(n_outputs, "__index__") or n_outputs < 1:
        raise InputError(f"n_outputs is {n_outputs!r}, expected an integer of at least 1")


def _as_array(result: Any) -> np.ndarray:
    """Return a result as an array; refuse None and what holds no numbers."""
    array = np.asarray(result)
    if array.dtype.kind not in "biufc":
        kind = result.__class__.__name__
        raise ShapeError(f"its function returned a value of type {kind}, expected an array")
    return array


def _check_is_same(type: str, first: Callable[..., Any] | None, second: Callable[..., Any]) -> None:
    """Refuse to replace a function, or kuiper's own record, by a second one."""
    if first is second:
        return
    owner = "kuiper has a record" if first is None else f"{_location(first)} is the function"
    raise KuiperError(
        f"{owner} for the operator type {type!r}: {_location(second)} would replace it; pass "
        f"kuiper.operator({type!r}, replace=True) if it shall, or choose another type"
    )


def _location(function: Callable[..., Any]) -> str:
    """Return the name of a function, and its file and line if it is written in Python."""
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(function, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


class _Call:
    """A call of a user's function; some of its arguments are tensors.

    Parameters
    ----------
    function : callable
    inputs : list
    keywords : dict
        Its arguments, with TensorSpec or TensorView for tensors.
    label : str, optional
        The operator's label for messages; without it, the caller adds one.

    Attributes
    ----------
    tensors : list of (TensorSpec or TensorView)
        The tensors among the arguments; calling it takes an array for each.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        keywords: Mapping[str, Any],
        label: str | None = None,
    ) -> None:
        self.label = label
        self.function, self.inputs, self.keywords = function, inputs, keywords
        arguments = (*inputs, *keywords.values())
        self.tensors = [v for v in arguments if isinstance(v, TensorSpec | TensorView)]

    def __call__(self, *arrays: np.ndarray) -> Any:
        given = iter(arrays)

        def argument(value: Any) -> Any:
            if isinstance(value, TensorSpec | TensorView):
                return next(given)
            return value.value if isinstance(value, StaticValue) else value

        where = f"{self.label}: " if self.label else ""
        positional = [argument(value) for value in self.inputs]
        named = {key: argument(value) for key, value in self.keywords.items()}
        try:
            return self.function(*positional, **named)
        except OperatorError as error:  # keep the type of kuiper's own errors
            raise type(error)(f"{where}{error}") from error
        except Exception as error:
            raise OperatorError(
                f"{where}its function raised {type(error).__name__}: {error}"
            ) from error

    @property
    def is_known(self) -> bool:
        """Whether the values of all tensors are known."""
        return all(tensor.is_constant for tensor in self.tensors)

    def examples(self) -> list[np.ndarray]:
        """Return arrays for a trial call: constants, and zeros for tensors not known yet."""
        return [
            np.zeros(t.shape, t.dtype) if t.constant is None else np.array(t.constant, t.dtype)
            for t in self.tensors
        ]


class _Keywords(Argument):
    """All keyword arguments of an operator whose arguments are not declared, as a dict."""

    catches_all = True

    def __init__(self) -> None:
        super().__init__({})

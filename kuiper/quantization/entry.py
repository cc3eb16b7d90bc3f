"""The public function: a model in, a quantized model out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kuiper.errors import InputError
from kuiper.model import Model
from kuiper.quantization.dynamic import quantizable, quantize_layers

__all__ = ["quantize"]


def quantize(
    model: Model,
    calibration: Iterable[Any] | None = None,
    *,
    keep: Iterable[str] = (),
    method: str = "mse",
    percentile: float = 99.99,
    bias_correction: bool = True,
    min_sqnr: float | None = None,
) -> Model:
    """Return a model whose layers compute with bytes.

    With calibration data, static quantization: convolutions and Linear layers read bytes, whose
    scales are measured once on this data, and tensors between them stay in bytes where that saves
    memory traffic.  Batch normalisation is folded into convolutions first, attention is split into
    its layers, and large channels of normalised tensors are moved into the weights that read them.

    Without calibration data, dynamic quantization: Linear layers and those of
    ``nn.MultiheadAttention`` divide each row of their input by 1/127 of its largest magnitude in
    each run.  Models whose time is in Linear layers gain most, such as those for text: on a
    processor with AVX-512 VNNI such a layer takes 0.27 of the time.  Where no instruction sums four
    products of bytes, a layer takes about as long as in float32, and less only if it has few rows,
    when reading the weights takes most of the time.

    Weights become signed bytes with a scale per output feature or channel, a quarter of their size.
    Sums of products are exact, so results have the same bits for any number of threads and any
    instruction set, as far as those of the operators between them have.

    Parameters
    ----------
    model : Model
        It is not changed.
    calibration : iterable, optional
        Inputs of the model as a call takes them: an array, a tuple of arrays, or a mapping from
        names to arrays.  A hundred typical ones suffice.  They are read once, one at a time; the
        first 32, up to 256 MB, are kept while this function runs.
    keep : iterable of str
        Names of operators to leave as they are; ``*``, ``?`` and ``[abc]`` are wildcards.
        Linear layers with fewer than 4,096 weights are left in any case.
    method : str, default="mse"
        How calibration data gives the range of a tensor: ``"mse"``: the range with the least sum of
        squares of errors; ``"entropy"``: that with the least Kullback-Leibler divergence;
        ``"percentile"``: all but a share at each end; ``"minmax"``: all values.
    percentile : float, default=99.99
        For that method: the share of the values at each end that is within, in percent.
    bias_correction : bool, default=True
        Correct the biases so that the mean of each output channel over the kept calibration inputs
        is that of the float model.
    min_sqnr : float, optional
        Leave so many of the most sensitive operators in float that the outputs have this
        signal-to-noise ratio on the first calibration inputs, in dB.

    Returns
    -------
    Model
        With the settings of `model`.  :func:`save` writes its bytes, scales and zero points; it
        loads without calibration data.

    Raises
    ------
    InputError
        If there is no layer to quantize, a pattern of `keep` matches none, a weight, a calibration
        input or a tensor computed from it contains an infinity or NaN, calibration is empty, or an
        input does not fit the model.
    ShapeError
        If the model does not support the shapes of an input.

    Examples
    --------
    >>> import kuiper                                                      # doctest: +SKIP
    >>> model = kuiper.load("resnet18.pnnx.param")                         # doctest: +SKIP
    >>> quantized = kuiper.quantize(model, images)                         # doctest: +SKIP
    >>> kuiper.save(quantized, "resnet18.int8.pnnx.param")                 # doctest: +SKIP
    """
    if not isinstance(model, Model):
        raise InputError(f"model is {type(model).__name__}, expected a kuiper.Model")
    if calibration is None:
        if min_sqnr is not None or method != "mse":
            raise InputError("method and min_sqnr need calibration data")
        graph = model.graph.copy()
        for _ in quantize_layers(graph, quantizable(graph, keep)):
            pass
        return model.with_graph(graph)
    from kuiper.quantization.static import Calibrated

    calibrated = Calibrated(model, calibration, keep, method, percentile)
    kept: list[str] = []
    if min_sqnr is not None:
        from kuiper.quantization.sensitivity import most_sensitive, sensitivities

        kept = most_sensitive(calibrated, sensitivities(calibrated), min_sqnr, bias_correction)
    return model.with_graph(calibrated.graph(kept, bias_correction))

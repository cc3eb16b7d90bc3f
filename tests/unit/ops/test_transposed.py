"""Transposed convolutions: which packed weights they keep, and for whom."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper

from ...support import assert_same_bits
from ...support.textgraph import model_of, values

# With a kernel of 3, a stride of 2 and a padding of 1, an axis of one input pixel has one output
# pixel, which sees the middle tap; an axis of two has pixels that see taps 0 and 2 as well.
MODEL = """
    pnnx.Input in 0 1 x
    nn.ConvTranspose2d up 1 1 x y bias=True dilation=(1,1) groups=1 in_channels={inputs} \
kernel_size=(3,3) out_channels={outputs} output_padding=(0,0) padding=(1,1) stride=(2,2) \
@bias=({outputs})f32 @weight=({inputs},{outputs},3,3)f32
    pnnx.Output out 1 0 y
    """

# Both read `w`; the padding changes the order of the taps, not the size of the packed weights.
SHARED = """
    pnnx.Input in 0 1 x
    pnnx.Attribute w 0 1 w @data=({inputs},{outputs},2,2)f32
    F.conv_transpose2d up 2 1 x w y dilation=(1,1) groups=1 output_padding=(0,0) padding=(0,0) \
stride=(2,2) $input=x $weight=w
    F.conv_transpose2d crop 2 1 x w z dilation=(1,1) groups=1 output_padding=(0,0) padding=(1,0) \
stride=(2,2) $input=x $weight=w
    pnnx.Output end 2 0 y z
    """


def algorithms_of(model: kuiper.Model, x: np.ndarray) -> set[str]:
    return {step.algorithm.name for step in model.plan(x.shape).steps if step.algorithm}


each_algorithm = pytest.mark.parametrize(
    ("algorithm", "inputs", "outputs"), [("gemm", 5, 40), ("few_outputs", 64, 1)]
)


@each_algorithm
def test_plans_of_other_taps_do_not_share_packed_weights(algorithm, inputs, outputs):
    text = MODEL.format(inputs=inputs, outputs=outputs)
    model = model_of(text)
    for extents in ((1, 2), (2, 1), (1, 1), (2, 2), (1, 2)):
        x = values(1, inputs, *extents)
        assert_same_bits([model(x)], [model_of(text)(x)], f"input of {extents}")
        assert algorithms_of(model, x) == {algorithm}


@each_algorithm
def test_operators_of_other_taps_do_not_share_packed_weights(algorithm, inputs, outputs):
    lines = SHARED.format(inputs=inputs, outputs=outputs).strip().splitlines()
    x = values(1, inputs, 3, 4)
    results = model_of("\n".join(lines))(x)
    for other, result, kept in (("crop", results[0], "1 0 y"), ("up", results[1], "1 0 z")):
        own = [line for line in lines if line.split()[1] not in (other, "end")]
        model = model_of("\n".join([*own, f"pnnx.Output end {kept}"]))
        assert_same_bits([result], [model(x)], f"without {other}")
        assert algorithms_of(model, x) == {algorithm}

"""Every stored operator case on every instruction set, against the numpy references and PyTorch."""

import pytest

import kuiper

from ..reference import REFERENCES
from ..support import assert_outputs, assert_same_bits, load_cases
from ..support.engine import n_threads, run
from ..support.workbench import ISAS, isa

# Before any test registers operators.
SUPPORTED = set(kuiper.supported_operators())

# Of ONNX alone; pnnx writes no case of them.
OF_ONNX = {
    "kuiper.Determinant", "kuiper.MelWeightMatrix", "kuiper.NonMaxSuppression", "kuiper.Resize",
    "kuiper.RoiAlignMax", "kuiper.RoiMaxPool",
}  # fmt: skip

# Cases of unsupported operators are left out; FLOOR lists those that must be supported.
CASES = [case for case in load_cases("operators") if case.types <= SUPPORTED]

FLOOR = (
    "pnnx.Input pnnx.Output pnnx.Attribute pnnx.Expression prim::TupleConstruct",
    "nn.Conv2d F.conv2d nn.ConvTranspose2d F.conv_transpose2d nn.Linear F.linear torch.matmul",
    "nn.MaxPool2d F.max_pool2d nn.AvgPool2d F.avg_pool2d",
    "nn.AdaptiveAvgPool2d F.adaptive_avg_pool2d nn.AdaptiveMaxPool2d F.adaptive_max_pool2d",
    "nn.BatchNorm2d F.batch_norm nn.LayerNorm F.layer_norm",
    "nn.ReLU F.relu nn.ReLU6 F.relu6 nn.LeakyReLU F.leaky_relu nn.PReLU F.prelu nn.ELU F.elu",
    "nn.Sigmoid F.sigmoid nn.Hardsigmoid F.hardsigmoid nn.Hardswish F.hardswish nn.SiLU F.silu",
    "nn.Tanh F.tanh nn.GELU F.gelu nn.Hardtanh F.hardtanh nn.Mish F.mish nn.Softplus F.softplus",
    "nn.Softmax F.softmax nn.LogSoftmax F.log_softmax torch.clamp",
    "torch.flatten nn.Flatten Tensor.reshape Tensor.view Tensor.permute torch.permute",
    "torch.transpose torch.squeeze torch.unsqueeze torch.cat torch.stack torch.chunk torch.split",
    "Tensor.slice Tensor.select pnnx.SliceIndexes",
    "nn.Upsample F.upsample F.interpolate F.upsample_nearest F.upsample_bilinear",
    "nn.UpsamplingNearest2d nn.UpsamplingBilinear2d",
    "nn.ZeroPad2d nn.ConstantPad2d nn.ReflectionPad2d nn.ReplicationPad2d F.pad",
    "torch.mean torch.sum torch.amax",
    "nn.Dropout F.dropout nn.ChannelShuffle nn.PixelShuffle F.pixel_shuffle",
)


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operator(case, variant):
    with isa(variant):
        model = kuiper.load(case.param, case.bin)
        with n_threads(1):
            outputs = run(model, case.inputs)
        with n_threads(2):
            parallel = run(model, case.inputs)
    case.assert_dtypes(outputs)
    case.assert_matches(outputs)
    assert_outputs(outputs, case.reference, case.rtol, f"{case.id} against numpy")
    assert_same_bits(parallel, outputs, f"{case.id}: two threads against one")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_caller_owns_the_results(case):
    """Inputs are not changed, and a second run does not write into the first one's results."""
    model = kuiper.load(case.param, case.bin)
    inputs = [x.copy() for x in case.inputs]
    first = run(model, inputs)
    kept = [y.copy() for y in first]
    assert_same_bits(inputs, case.inputs, f"{case.id}: the inputs changed")
    for x in inputs:
        x[...] = 0
    run(model, inputs)
    assert_same_bits(first, kept, f"{case.id}: a second run wrote into the first one's results")


def test_every_operator_has_a_case():
    used = set().union(*(case.types for case in CASES))
    assert SUPPORTED - used == OF_ONNX


def test_every_operator_has_a_reference():
    # These carry values into, out of and within a graph, which run_graph does.
    plumbing = {"pnnx.Input", "pnnx.Output", "pnnx.Attribute"}
    assert SUPPORTED - REFERENCES.keys() - plumbing == set()


def test_the_floor_is_supported():
    floor = {name for line in FLOOR for name in line.split()}
    assert floor - SUPPORTED == set()

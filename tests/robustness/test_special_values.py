"""NaN, infinities, zeros of both signs, denormals and huge numbers in every operator.

The reference is PyTorch (see ``support/special.py``).  Deliberate differences are listed with their
reasons in `DIFFERENCES`, and for users in ``docs/numerics.md``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

import kuiper
from kuiper.errors import OperatorError
from kuiper.ops import record_or_none
from kuiper.ops.product.algorithms.winograd import Winograd

from ..support.algorithms import always_winograd
from ..support.engine import n_threads, run
from ..support.special import RUNS, Kept, classes, kept_indices, salt, special_cases
from ..support.textgraph import model_of, user_operator
from ..support.workbench import ISAS, isa

# numpy's covariance warns, as PyTorch's does, if the weights leave no degrees of freedom.
pytestmark = pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")

STORED = list(special_cases())


@dataclass(frozen=True)
class Difference:
    """Cases that may differ from PyTorch.

    Attributes
    ----------
    cases : str
        A regular expression that matches their names.
    why : str
    runs : tuple of str
    pairs : str
        Pairs of kuiper's and PyTorch's class, in the letters of ``special.CLASSES``.
    zeros : bool
        Whether zeros may have either sign.
    whole : bool
        Whether only the shape is compared.
    """

    cases: str
    why: str
    runs: tuple[str, ...] = RUNS
    pairs: str = ""
    zeros: bool = False
    whole: bool = False


INFINITE = ("inf", "minus_inf", "mixed")
NOT_FINITE = ("nan", *INFINITE)

DIFFERENCES = (
    # Signs of zeros.
    Difference(
        r"(attention|conv_\w+|dynamic|einsum|linear|matmul|normalization|recurrent|resize|sampling"
        r"|softmax|spectral|transformer|leftover_(distances|matrices|statistics))/.*"
        r"|pattern/up_and_skip|padding/same_.*|reduce/(sum|mean|cumsum).*|.*(lp_?|avg_|Avg)[pP]ool.*"
        r"|pooling/avg_.*|.*upsample_bilinear|.*/grid_sampler_2d",
        "the sign of a sum of zeros depends on the initial value of the sum",
        zeros=True,
    ),
    Difference(
        r"casts/clamp_.*|pooling/.*[mM]ax.*|pattern/pad_pool|leftover_arithmetic/f(max|min)"
        r"|reduce/(amax|amin|max|min).*|indexing/scatter_reduce_a(max|min).*|expression/.*(max|min).*"
        r"|selection/unique_floats|leftover_sorting/(nanmedian|(nan)?quantile).*|leftover_statistics/aminmax.*",
        "0 and -0 are equal, so either may be the maximum",
        zeros=True,
    ),
    Difference(
        r"creation/.*|selection/slice_indexes",
        "0 + x and 0 * x are simplified, which loses only the sign of a zero",
        zeros=True,
    ),
    Difference(
        r"activation/(F_)?(gelu|GELU|softshrink|Softshrink).*|pattern/.*_gelu|dynamic/linear",
        "the sign of the zero at the far end is unspecified; PyTorch's depends on the vector width",
        zeros=True,
    ),
    Difference(
        r"leftover_arithmetic/lerp\.3",
        "PyTorch starts from the nearer end, also for a weight that is a tensor",
        runs=("zeros", *INFINITE),
        pairs="-n n- +n n+",
        zeros=True,
    ),
    # Indices of equal elements.
    Difference(
        r"reduce/topk_.*|leftover_sorting/kthvalue.*",
        "any of several equal elements may be chosen",
        runs=("zeros",),
        whole=True,
    ),
    Difference(
        r"leftover_sorting/(searchsorted|bucketize).*",
        "boundaries with NaN are not sorted",
        runs=("nan",),
        whole=True,
    ),
    Difference(
        r"leftover_sorting/histc\.2",
        "the width of a bin is not representable",
        runs=("mixed", "denormal"),
        whole=True,
    ),
    # kuiper gives a number where PyTorch's intermediate results are NaN or infinite.
    Difference(
        r"activation/(F_)?(gelu|GELU).*|pattern/.*_gelu|dynamic/linear",
        "PyTorch's vectorised gelu of infinity is NaN, its scalar gelu is infinity, the limit",
        runs=INFINITE,
        pairs="+n",
    ),
    Difference(
        r"pattern/two_convs_add",
        "the filters of added convolutions are added, so infinities of both signs do not meet",
        runs=INFINITE,
        pairs="+n -n 0n",
    ),
    Difference(
        r"attention/(causal|mask|module_weights_mask).*",
        "masked keys are skipped; PyTorch multiplies their values by 0",
        runs=NOT_FINITE,
        pairs=".n 0n dn +n -n",
    ),
    Difference(
        r"attention/large",
        "a weight below exp(-87) is 0, and 0 times infinity is NaN",
        runs=INFINITE,
        pairs="n+ n-",
    ),
    Difference(
        r"leftover_statistics/(std|var)_mean.*",
        "the mean with an infinity is infinite; PyTorch updates a running mean by differences",
        runs=INFINITE,
        pairs="+n -n",
    ),
    Difference(
        r"leftover_statistics/trapezoid.*",
        "an infinite height makes an infinite area; PyTorch takes differences of sums",
        runs=INFINITE,
        pairs="+n -n",
    ),
    Difference(
        r"leftover_(statistics/(corrcoef|cov)|rare/cov).*",
        "products of denormals vanish in float32; kuiper's are float64",
        runs=("denormal",),
        pairs=".n",
        zeros=True,
    ),
    Difference(
        r".*([lL][pP]_?[pP]ool|norm\.5|linalg_vector_norm|cdist\.5|pairwise_p15|dist\.2).*",
        "powers are summed in float64, without overflow or underflow",
        runs=("huge", "mixed", "denormal"),
        pairs=".+ .- d0",
    ),
    Difference(
        r"pattern/(conv|deconv|pad_conv).*|recurrent/.*|detection/.*",
        "huge numbers that cancel leave rounding errors, which fused multiply-add reduces",
        runs=("huge", "mixed"),
        pairs=".0 .z 0z z0",
    ),
    Difference(
        r"leftover_quantized/fake_quantize_per_channel_affine",
        "PyTorch converts to integers, which wrap around; kuiper clamps floats",
        runs=("mixed",),
        whole=True,
    ),
    # kuiper keeps NaN.
    Difference(
        r"attention/.*",
        "PyTorch treats a row of scores with NaN as one without keys and returns 0",
        runs=NOT_FINITE,
        pairs="n0",
    ),
    Difference(
        r"leftover_quantized/.*",
        "NaN stays NaN; PyTorch converts it to an integer",
        runs=("nan", "mixed"),
        pairs="n. n0",
    ),
    Difference(
        r"leftover_distances/cdist\.3",
        "NaN stays NaN; PyTorch's maximum difference ignores it",
        runs=("nan", "mixed"),
        pairs="n.",
    ),
    # NaN and infinities spread further than in PyTorch.
    Difference(
        r"conv_.*functional.*|leftover_rare/conv_tbc.*",
        "a weight that is not finite times the zeros of the padding is NaN; PyTorch skips padding",
        runs=NOT_FINITE,
        pairs="n. n+ n- n0",
    ),
    Difference(
        r"resize/antialiased_.*",
        "resizing multiplies by a matrix of weights, most of which are 0",
        runs=NOT_FINITE,
        pairs="n. n+ n- n0 nd +n -n",
    ),
    Difference(
        r"spectral/.*fft.*",
        "another FFT sums in another order; a line with NaN or infinity is meaningless",
        runs=NOT_FINITE,
        pairs="n+ n- n. n0 nz +n -n",
    ),
    Difference(
        r"sampling/affine_plane_align|spectral/number_conj",
        "whether infinity meets 0 depends on the order of the products",
        runs=INFINITE,
        pairs="n- n+ +n -n",
    ),
    Difference(
        r"normalization/(batch_functional|F_group_norm).*|leftover_matrices/linalg_multi_dot.*",
        "products of more than two numbers, some infinite, in another order",
        runs=INFINITE,
        pairs="+n -n n+ n-",
    ),
    Difference(
        r"(reduce|leftover_statistics)/std_.*",
        "squares of denormals vanish in float32; PyTorch sums them in float64",
        runs=("denormal",),
        whole=True,
    ),
)


def differences(case: str, run_name: str) -> tuple[set[str], bool]:
    rows = [d for d in DIFFERENCES if run_name in d.runs and re.fullmatch(d.cases, case)]
    pairs = {pair for row in rows for pair in row.pairs.split()}
    if any(row.whole for row in rows):
        pairs.add("whole")
    return pairs, not any(row.zeros for row in rows)


def faults(case, runs: dict[str, list[Kept]], variant: str, optimize: bool) -> list[str]:
    """Return descriptions of how the results of a case differ from PyTorch's."""
    found = []
    with isa(variant), n_threads(1):
        model = kuiper.load(case.param, case.bin, optimize=optimize)
        for name, kept in runs.items():
            inputs = [salt(x, name, f"{case.id}/{i}") for i, x in enumerate(case.inputs)]
            allowed, signed_zeros = differences(case.id, name)
            outputs = run(model, inputs)
            for number, (y, expected) in enumerate(zip(outputs, kept, strict=True)):
                fault = expected.difference(y, case.rtol, allowed, signed_zeros)
                if fault:
                    found.append(f"{case.id} {name}, output {number}: {fault}")
    return found


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize(("case", "runs"), STORED, ids=lambda x: getattr(x, "id", ""))
def test_special_values(case, runs, variant):
    assert faults(case, runs, variant, optimize=True) == []


@pytest.mark.parametrize(("case", "runs"), STORED, ids=lambda x: getattr(x, "id", ""))
def test_special_values_without_passes(case, runs):
    assert faults(case, runs, ISAS[-1], optimize=False) == []


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("is_blocked", [False, True], ids=["staged", "blocked"])
@pytest.mark.parametrize("tile", [4, 2])
def test_special_values_by_winograd(tile, is_blocked, variant, monkeypatch):
    """Every 3x3 convolution that Winograd can compute, alone and with fused post-ops.

    Huge numbers are excluded: they raise the error of every element of their tile to their scale.
    """
    taken = []

    always_winograd(monkeypatch, tile, is_blocked)
    refusal = Winograd.refusal

    def noted(self) -> str:
        reason = refusal(self)
        taken.append(not reason)
        return reason

    monkeypatch.setattr(Winograd, "refusal", noted)
    found, tried = [], 0
    for case, runs in STORED:
        if re.match("conv_|pattern/|structure/", case.id) and b"3,3)" in case.param:
            taken.clear()
            runs = {name: kept for name, kept in runs.items() if name not in ("huge", "mixed")}
            found += faults(case, runs, variant, optimize=True)
            tried += any(taken)
    assert found == []
    assert tried > 60


# Operators whose inputs are integers or booleans in every case.
WITHOUT_FLOATS = {
    *("aten::gcd", "aten::lcm", "aten::mode", "aten::one_hot"),
    *("aten::unique_consecutive", "aten::unique_dim", "nn.Embedding"),
    *("torch.bitwise_and", "torch.bitwise_or", "torch.bitwise_xor"),
    *("torch.bitwise_left_shift", "torch.bitwise_right_shift"),
    *("nn.quantized.Conv2d", "nn.quantized.Linear"),
}

OTHERS = ("torchvision", "pnnx", "kuiper", "nn.quantized.dynamic", "aten::fused_moving_avg")


def test_every_operator_is_covered():
    """All operators with floats, except those of torchvision, pnnx and kuiper.

    kuiper alone has the dynamically quantized layers; their own tests have such values.  The
    integer that a NaN becomes in observed fake quantization differs by processor in PyTorch.
    """
    tried = set().union(*(case.types for case, _ in STORED))
    supported = {
        name
        for name in kuiper.supported_operators()
        if not getattr(record_or_none(name), "replaceable", False)  # registered by other tests
    }
    missing = {name for name in supported - tried if not name.startswith(OTHERS)}
    assert missing == WITHOUT_FLOATS


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row.why)
def test_every_difference_matches_a_case(row):
    assert any(re.fullmatch(row.cases, case.id) for case, _ in STORED)


# -- numpy's warnings --------------------------------------------------------------------------


def test_a_users_operator_may_warn():
    """It warns as the caller has set numpy up; kuiper's own operators are silent."""
    text = """pnnx.Input in 0 1 x #x=(3)f32
        my.Sqrt op 1 1 x y
        torch.lgamma own 1 1 x z
        pnnx.Output a 1 0 y
        pnnx.Output b 1 0 z"""
    with user_operator("my.Sqrt", np.sqrt):
        model = model_of(text)
        x = np.full(3, -1, np.float32)
        with pytest.warns(RuntimeWarning, match="in sqrt") as caught:
            y, z = model(x)
        assert len(caught) == 1
        with np.errstate(all="raise"), pytest.raises(OperatorError, match="FloatingPointError"):
            model(x)
    assert np.isnan(y).all()
    assert np.isposinf(z).all()


# -- the comparison ----------------------------------------------------------------------------


def kept(values) -> Kept:
    array = np.array(values, np.float32)
    found = classes(array)
    return Kept(array.shape, array.dtype.str, found, array[kept_indices(found)])


ROW = [1.5, np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -2.0]


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, np.nan, "has nan at 0, expected a finite number; 1 of 8 differ, n."),
        (0, 0.0, "has 0.0 at 0, expected about 1.5"),
        (0, 1.52, "expected about 1.5"),
        (1, 1.0, "has 1.0 at 1, expected NaN"),
        (2, -np.inf, "has -inf at 2, expected infinity"),
        (3, -3e38, "expected -infinity"),
        (4, -0.0, "has -0.0 at 4, expected 0"),
        (5, 0.0, "has 0.0 at 5, expected -0"),
        (6, 0.0, None),  # negligible beside numbers around 1
    ],
)
def test_a_wrong_value_is_detected(index, value, message):
    wrong = np.array(ROW, np.float32)
    assert kept(ROW).difference(wrong, 1e-5) is None
    wrong[index] = value
    fault = kept(ROW).difference(wrong, 1e-5)
    assert (fault is None) if message is None else (message in fault)


def test_a_flushed_denormal_is_detected():
    tiny = np.array([1e-40, -2e-40, 3e-39], np.float32)
    assert kept(tiny).difference(tiny, 1e-5) is None
    assert "has 0.0 at 0, expected about 9.99" in kept(tiny).difference(tiny * 0, 1e-5)
    flushed = np.where(np.arange(3) < 1, 0, tiny).astype(np.float32)
    assert "has 0.0 at 0" in kept(tiny).difference(flushed, 1e-5)


def test_only_allowed_classes_may_differ():
    wrong = np.array(ROW, np.float32)
    wrong[1] = 1.0
    assert kept(ROW).difference(wrong, 1e-5, {".n"}) is None
    assert kept(ROW).difference(wrong, 1e-5, {"n.", "+n"}) is not None
    wrong[1], wrong[4] = np.nan, -0.0
    assert kept(ROW).difference(wrong, 1e-5, signed_zeros=False) is None


@pytest.mark.parametrize("name", RUNS)
def test_salt_is_spread_over_the_input(name):
    x = np.linspace(-2, 2, 640, dtype=np.float32)
    salted = salt(x, name, "key")
    assert not np.array_equal(salted, x, equal_nan=True)
    assert salted.dtype == x.dtype
    assert np.array_equal(salted, salt(x, name, "key"), equal_nan=True)
    integers = np.arange(5)
    assert np.array_equal(salt(integers, name, "key"), integers)
    if name in ("zeros", "mixed"):
        assert {*classes(salt(x, "mixed", "key"))} == {*range(7)}

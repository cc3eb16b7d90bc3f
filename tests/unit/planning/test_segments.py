"""Models with data-dependent shapes, which run in segments, against numpy and unsegmented plans."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import kuiper
from kuiper.errors import InputError, OperatorError, ShapeError
from kuiper.ir import Graph
from kuiper.ir.view import TensorSpec
from kuiper.passes.restore.refine_shapes import refine_shapes
from kuiper.planning.plan import Plan
from kuiper.planning.segments import SegmentedPlan

from ...support import assert_close, assert_same_bits
from ...support.engine import n_threads
from ...support.textgraph import files_of, model_of, user_operator, values

# The rows whose first column is positive, through a Linear; and their indices.
ROWS = """
pnnx.Input    in     0 1 x
Tensor.select first  1 1 x s dim=1 index=0 $input=x
torch.gt      above  1 1 s m other=0 $input=s
pnnx.Expression list 1 1 m l expr=[@0]
Tensor.index  picked 2 1 x l p $input=x $expr=l
nn.Linear     fc     1 1 p q in_features=4 out_features=3 bias=True @bias=(3)f32 @weight=(3,4)f32
F.relu        act    1 1 q y $input=q
aten::nonzero nonzero 1 1 m z
prim::TupleConstruct out 2 1 y z t
pnnx.Output   end    1 0 t
"""

# Two data-dependent operators in a row, and a number.
TWICE = """
pnnx.Input    in    0 1 x
pnnx.Input    ends  0 1 n #n=(?)i64
F.relu        act   1 1 x r $input=x
torch.masked_select a 2 1 x r p $input=x $mask=r
torch.gt      big   1 1 p b other=1 $input=p
torch.masked_select c 2 1 p b q $input=p $mask=b
torch.max     last  1 1 n k $input=n
Tensor.slice  cut   2 1 q k y dim=0 start=0 step=1 $input=q $end=k
pnnx.Expression e   1 1 y z expr=mul(@0,2)
pnnx.Output   end   1 0 z
"""


def rows(count: int, total: int = 12) -> np.ndarray:
    """Return an input of ROWS of which `count` rows are selected."""
    x = values(total, 4, seed=count)
    x[:, 0] = -1
    x[np.random.default_rng(count).permutation(total)[:count], 0] = 1
    return x


def expected(model, x) -> tuple[np.ndarray, np.ndarray]:
    weights = model.graph.operator("fc").attributes
    picked = x[x[:, 0] > 0].astype(np.float64)
    y = picked @ weights["weight"].numpy().T + weights["bias"].numpy()
    return np.maximum(y, 0).astype(np.float32), np.argwhere(x[:, 0] > 0)


def check(model, x) -> None:
    y, z = model(x)
    want_y, want_z = expected(model, x)
    assert y.shape == want_y.shape
    assert_close(y, want_y, 1e-5)
    assert z.dtype == np.int64
    np.testing.assert_array_equal(z, want_z)


def segmented(model, *inputs) -> SegmentedPlan:
    plan = model._plans.find(list(inputs), model._n_threads)
    assert isinstance(plan, SegmentedPlan)
    return plan


def test_every_number_of_rows():
    model = model_of(ROWS)
    for count in (5, 0, 12, 1, 5, 0):
        check(model, rows(count))
    check(model, rows(3, total=7))
    check(model, values(0, 4))


def test_later_plans_are_cached_by_shape():
    model = model_of(ROWS)
    check(model, rows(5))
    plan = segmented(model, rows(5))
    (segment,) = plan._later.values()
    check(model, np.flip(rows(5), 0))  # other rows, but as many
    assert list(plan._later.values()) == [segment]
    check(model, rows(6))
    assert len(plan._later) == 2
    assert model.plan((12, 4)) is plan.first_plan


def test_a_plan_in_segments_describes_itself():
    model = model_of(ROWS)
    check(model, rows(5))
    plan = segmented(model, rows(5))
    assert repr(plan) == f"<kuiper plan in segments: 2 planned, the first {plan.first_plan!r}>"
    assert "(12, 4)" in repr(plan)
    with plan._lock:  # a debugger may ask at any time
        assert "2 planned" in repr(plan)


def test_models_without_data_dependent_operators_have_no_segments():
    model = model_of("pnnx.Input i 0 1 x\nF.relu a 1 1 x y $input=x\npnnx.Output o 1 0 y")
    assert type(model._plans.find([values(3)], model._n_threads)) is Plan


def test_dead_data_dependent_operators_make_no_segments():
    text = ROWS.replace("prim::TupleConstruct out 2 1 y z t", "aten::numel count 1 1 x t")
    for optimize in (True, False):
        model = kuiper.Model(model_of(text).graph, optimize=optimize)
        assert model(rows(3)) == 48
        plan = model._plans.find([rows(3)], model._n_threads)
        assert type(plan) is Plan or not plan._later


@pytest.mark.parametrize("optimize", [True, False])
def test_several_data_dependent_operators(optimize):
    param, archive = files_of(TWICE)
    model = kuiper.load(param, archive, optimize=optimize)
    for seed in range(12):
        x = values(3, 7, seed=seed)
        n = np.array([0, seed % 4, 1])
        picked = x[x > 0]
        picked = picked[picked > 1]
        assert_same_bits([model(x, n)], [picked[: max(n)] * np.float32(2)], f"seed {seed}")


def test_a_number_is_planned_by_value():
    model = model_of(TWICE)
    x = np.full((3, 7), 2, np.float32)
    for last in (3, 5, 3):
        assert model(x, np.array([last])).shape == (last,)
    # One plan after each of the two masks, and one for each value of the number.
    assert len(segmented(model, x, np.array([3]))._later) == 4


def test_the_number_of_cached_plans_is_bounded(monkeypatch):
    monkeypatch.setattr(SegmentedPlan, "SEGMENTS_KEPT", 32)
    model = model_of(ROWS)
    total = 3 * SegmentedPlan.SEGMENTS_KEPT
    plan = segmented(model, rows(0, total))
    gone = None
    for count in range(total):
        check(model, rows(count, total))
        if gone is None:
            gone = weakref.ref(next(iter(plan._later.values())))
        assert len(plan._later) <= SegmentedPlan.SEGMENTS_KEPT
    gc.collect()
    assert gone() is None
    recent = list(plan._later.values())
    check(model, rows(total - 1, total))
    assert list(plan._later.values()) == recent


def test_memory_does_not_grow_over_hundreds_of_shapes(monkeypatch):
    monkeypatch.setattr(SegmentedPlan, "SEGMENTS_KEPT", 64)
    model = model_of(ROWS)
    total = 4 * SegmentedPlan.SEGMENTS_KEPT  # two plans per shape: twice as many as are kept

    def run_all() -> int:
        for count in range(0, total, 2):
            model(rows(count, total))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    run_all()
    tracemalloc.start()
    try:
        sizes = [run_all() for _ in range(5)]
    finally:
        tracemalloc.stop()
    # The median, since a table of the interpreter may happen to grow during one round.
    assert np.median(np.diff(sizes[1:])) < 20_000


def test_the_caller_owns_the_results():
    text = """
    pnnx.Input in 0 1 x
    torch.gt above 1 1 x m other=0 $input=x
    torch.masked_select a 2 1 x m p $input=x $mask=m
    pnnx.Attribute c 0 1 w @data=(3)f32
    aten::numel count 1 1 x n
    prim::TupleConstruct out 6 1 x p p w n m t
    pnnx.Output end 1 0 t
    """
    model = model_of(text)
    x = values(9)
    kept = x.copy()
    results = model(x)
    np.testing.assert_array_equal(results[1], x[x > 0])
    assert results[4] == 9
    copies = [y.copy() for y in results]
    for number, y in enumerate(results):
        assert y.flags.writeable
        assert y.flags.owndata
        y[...] = 0
        for other, copied in list(zip(results, copies, strict=True))[number + 1 :]:
            np.testing.assert_array_equal(other, copied)
    np.testing.assert_array_equal(x, kept)
    assert_same_bits(model(x), copies, "a second run")


def test_results_in_the_callers_arrays():
    model = model_of(ROWS)
    x = rows(5)
    y, z = model(x)
    out = (np.zeros_like(y), np.zeros_like(z))
    got = model(x, out=out)
    assert got[0] is out[0]
    assert got[1] is out[1]
    assert_same_bits(got, (y, z), "out=")
    with pytest.raises(InputError, match=r"result 0: got float32 \(4, 3\), expected .*\(5, 3\)"):
        model(x, out=(np.zeros((4, 3), np.float32), out[1]))
    with pytest.raises(InputError, match="shares memory with input 'x'"):
        model(x, out=(x.reshape(-1)[:15].reshape(5, 3), out[1]))
    with pytest.raises(InputError, match="got 1 arrays for results, expected 2"):
        model(x, out=[out[0]])


def test_trace_before_at_and_after_a_segment_boundary():
    model = model_of(ROWS)
    x = rows(4)
    traced = model.trace(x, ["m", "picked", "act", "l", "z", "in"])
    np.testing.assert_array_equal(traced["m"], x[:, 0] > 0)
    np.testing.assert_array_equal(traced["l"], x[:, 0] > 0)
    np.testing.assert_array_equal(traced["picked"], x[x[:, 0] > 0])
    assert_close(traced["act"], expected(model, x)[0], 1e-5)
    np.testing.assert_array_equal(traced["z"], expected(model, x)[1])
    np.testing.assert_array_equal(traced["in"], x)


def test_profile():
    model = model_of(ROWS)
    profile = model.profile(rows(4), runs=3)
    names = [row["name"] for row in profile.rows]
    assert {"above", "picked", "nonzero", "fc"} <= set(names)
    assert names.index("above") < names.index("picked") < names.index("fc")
    assert profile.total > 0
    assert "picked" in str(profile)


def test_any_number_of_threads_gives_the_same_bits():
    model = model_of(ROWS)
    for count in (0, 1, 11):
        with n_threads(1):
            one = model(rows(count))
        with n_threads(2):
            assert_same_bits(model(rows(count)), one, f"{count} rows")


def test_many_callers_at_once():
    model = model_of(ROWS)
    alone = {count: model(rows(count, 60)) for count in range(60)}
    model = model_of(ROWS)
    faults = []

    def call(seed: int) -> None:
        for count in np.random.default_rng(seed).integers(0, 60, 40):
            for got, want in zip(model(rows(count, 60)), alone[count], strict=True):
                if got.tobytes() != want.tobytes():
                    faults.append(count)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert faults == []


def test_copies():
    model = model_of(ROWS)
    x = rows(5)
    want = model(x)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert_same_bits(other(x), want, "a copy")


def test_an_error_in_a_later_segment_names_the_operator():
    text = ROWS.replace(
        "F.relu        act    1 1 q y $input=q",
        "Tensor.reshape act    1 1 q y shape=(3,3) $input=q",
    )
    model = model_of(text)
    assert model(rows(3))[0].shape == (3, 3)
    with pytest.raises(ShapeError, match=r"operator 'act' \(Tensor.reshape\): cannot give"):
        model(rows(2))
    assert model(rows(3))[0].shape == (3, 3)


def test_an_error_of_a_data_dependent_operator_names_it():
    text = """
    pnnx.Input in 0 1 x
    aten::bincount count 1 1 x y
    pnnx.Output end 1 0 y
    """
    model = model_of(text.replace("in 0 1 x", "in 0 1 x #x=(3)i64"))
    np.testing.assert_array_equal(model(np.array([0, 2, 2])), [1, 0, 2])
    with pytest.raises(ShapeError, match=r"operator 'count' \(aten::bincount\): .* holds -1"):
        model(np.array([0, -1, 2]))


USER = """
pnnx.Input in 0 1 x
test.Longest pick 1 2 x a b count=3
F.relu act 1 1 a y $input=a
prim::TupleConstruct out 2 1 y b t
pnnx.Output end 1 0 t
"""


def test_data_dependent_operators_of_the_user():
    calls = []

    def above(x, count):
        calls.append(x.shape)
        found = np.flatnonzero(x > 0)[:count]
        return x[found], found

    with user_operator("test.Longest", above, 2, data_dependent=True):
        model = model_of(USER)
        x = np.array([-1, 2, -3, 4], np.float32)
        y, found = model(x)
        np.testing.assert_array_equal(y, [2, 4])
        np.testing.assert_array_equal(found, [1, 3])
        assert calls == [(4,)]  # not called with zeros while planning
        y, found = model(np.abs(x))
        np.testing.assert_array_equal(found, [0, 1, 2])


@pytest.mark.parametrize("data_dependent", [True, False])
def test_exceptions_of_a_users_operator(data_dependent):
    def fails(x, count):
        if data_dependent or x.any():
            raise KeyError("lost")
        return x, x

    with user_operator("test.Longest", fails, 2, data_dependent=data_dependent):
        model = model_of(USER)
        with pytest.raises(OperatorError) as caught:
            model(values(4))
    assert "operator 'pick' (test.Longest): its function raised KeyError: 'lost'" in str(
        caught.value
    )
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_planned_graph_has_the_shapes_known_before_the_first_run():
    model = model_of(ROWS)
    graph = model.planned_graph((12, 4))
    assert graph.operand("m").shape == (12,)
    assert graph.operand("m").dtype == "bool"
    assert graph.operand("q").shape is None
    assert {op.name for op in graph} == {op.name for op in model.graph}


# -- refining traced shapes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "target", "traced", "actual", "refined"),
    [
        ("Tensor.reshape", (1, 1, 20), (20,), (13,), (1, 1, 13)),
        ("Tensor.reshape", (1, 1, 20), (20,), (0,), (1, 1, 0)),
        ("Tensor.reshape", (0, 2, 2), (0, 4), (7, 4), (7, 2, 2)),
        ("Tensor.view", (2, 10, 3), (20, 3), (13, 3), (2, 10, 3)),  # a split axis: which part?
        ("Tensor.reshape", (3, 20), (3, 20), (3, 5), (3, 5)),
        ("Tensor.reshape", (20, 3), (3, 20), (3, 5), (20, 3)),
        ("Tensor.reshape", (4, 5, 6), (4, 5, 6), (7, 5, 8), (7, 5, 8)),
        ("Tensor.reshape", (-1, 4), (20, 4), (13, 4), (-1, 4)),
        ("Tensor.reshape", (1, 1, 4), (1, 4), (3, 4), (1, 1, 4)),  # the first or the second 1?
        ("Tensor.reshape", (20, 1), (20,), (20,), (20, 1)),
        ("Tensor.reshape", (60, 4), (20, 3, 4), (13, 3, 4), (39, 4)),
        ("Tensor.reshape", (2, 60), (2, 3, 20), (2, 3, 13), (2, 39)),
        ("Tensor.reshape", (60,), (20, 3), (0, 3), (0,)),
        ("Tensor.reshape", (6, 20), (3, 2, 20), (5, 2, 13), (10, 13)),
        ("Tensor.reshape", (60,), (20, 3), (13, 4), (60,)),  # two changed axes in one
        ("Tensor.reshape", (3, 20), (20, 3), (13, 3), (3, 20)),  # neither axis is the rows
        ("Tensor.expand", (2, 20, 3), (20, 1), (13, 1), (2, 13, 3)),
        ("Tensor.expand", (2, 20, 3), (1, 3), (13, 3), (2, 20, 3)),
        ("torch.split", (20,), (20, 3), (13, 3), (13,)),
        ("torch.split", (12, 8), (20, 3), (13, 3), (12, 8)),  # how many in each piece?
        ("torch.split", (8,), (20, 3), (13, 3), (8,)),
        ("F.pad", (1, 20), (20,), (13,), (1, 20)),
    ],
)
def test_refine_shapes(type, target, traced, actual, refined):
    graph = Graph()
    graph.add_operand("x", traced, "f32")
    keys = {"Tensor.expand": "sizes", "torch.split": "split_size_or_sections"}
    key = keys.get(type, "shape")
    params = {key: target, "dim": 0}
    operator = graph.add_operator(type, "r", ["x"], ["y"], params=params)
    refine_shapes(operator, {graph.operand("x"): TensorSpec(actual)})
    assert operator.params == {key: refined, "dim": 0}
    assert params == {key: target, "dim": 0}


def test_a_reshape_to_a_traced_shape_runs_with_the_actual_one():
    model = model_of(
        """
        pnnx.Input in 0 1 x #x=(3,4)f32
        torch.gt above 1 1 x m other=0 $input=x #m=(3,4)bool
        torch.masked_select a 2 1 x m p $input=x $mask=m #p=(12)f32
        Tensor.reshape r 1 1 p q shape=(1,1,12) $input=p #p=(12)f32 #q=(1,1,12)f32
        nn.Conv1d c 1 1 q y bias=False dilation=(1) groups=1 in_channels=1 kernel_size=(1) out_channels=2 padding=(0) padding_mode=zeros stride=(1) @weight=(2,1,1)f32
        pnnx.Output end 1 0 y
        """  # noqa: E501
    )
    weight = model.graph.operator("c").attributes["weight"].numpy().reshape(2, 1)
    for seed in range(6):
        x = values(3, 4, seed=seed)
        assert_close(model(x), (weight * x[x > 0])[None], 1e-5)


def test_the_batch_is_unfrozen_before_a_data_dependent_operator():
    model = model_of(
        """
        pnnx.Input in 0 1 x #x=(1,3,4)f32
        Tensor.reshape r 1 1 x f shape=(1,12) $input=x #x=(1,3,4)f32 #f=(1,12)f32
        torch.gt above 1 1 f m other=0 $input=f #m=(1,12)bool
        torch.masked_select a 2 1 f m y $input=f $mask=m #y=(12)f32
        pnnx.Output end 1 0 y
        """
    )
    x = values(5, 3, 4)
    np.testing.assert_array_equal(model(x), x[x > 0])


# -- boxes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_suppression_of_many_boxes(dtype):
    from kuiper._kernels.spatial.boxes import suppress

    generator = np.random.default_rng(0)
    corners = generator.random((500, 2)) * 10
    boxes = np.concatenate([corners, corners + generator.random((500, 2)) * 3], 1).astype(dtype)
    kept = []
    for number, box in enumerate(boxes):
        others = boxes[kept]
        sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
        shared = np.maximum(sides, 0).prod(1)
        areas = (others[:, 2:] - others[:, :2]).prod(1) + (box[2:] - box[:2]).prod()
        if not (shared / (areas - shared) > 0.3).any():
            kept.append(number)
    assert 20 < len(kept) < 480
    assert np.flatnonzero(suppress(boxes, 0.3)).tolist() == kept


def test_suppression_of_edge_cases():
    from kuiper._kernels.spatial.boxes import suppress

    box = [0, 0, 2, 2]
    half = [0, 0, 1, 2]  # overlaps by exactly one half
    point = [5, 5, 5, 5]  # without area, repeated
    boxes = np.array([box, box, half, point, point, [np.nan, 0, 1, 1]], np.float32)
    assert suppress(boxes, 0.5).tolist() == [True, False, True, True, True, True]
    assert suppress(boxes, 0.49).tolist() == [True, False, False, True, True, True]
    assert suppress(boxes[:0], 0.5).tolist() == []

"""Functions that users define, in expressions and in models."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import kuiper
from kuiper.errors import ExpressionError, KuiperError, OperatorError, ShapeError
from kuiper.expression import (
    CustomCall,
    compile,
    evaluate,
    fold,
    forget_parsed,
    function,
    infix,
    ncnn,
    outline,
    parse,
)
from kuiper.expression.functions import CUSTOM
from kuiper.model import Model

from ...support.textgraph import conv, files_of, graph_of, lines_of, text, values


def swish(x, beta=1.0):
    return x / (1 + np.exp(-beta * x))


def expression(expr, inputs=("x",), notes=""):
    operands = " ".join(inputs)
    line = f"pnnx.Expression e {len(inputs)} 1 {operands} y expr={expr} {notes}"
    return files_of(text(line, inputs=inputs))


# -- registration ------------------------------------------------------------------------------


def test_the_decorator_returns_the_function():
    assert function("t.swish")(swish) is swish
    tree = parse("add(t.swish(@0,2),t.swish(@1))")
    assert str(tree) == "add(t.swish(@0,2),t.swish(@1))"
    assert infix(tree) == "t.swish(@0, 2) + t.swish(@1)"
    assert [type(node) for node in tree.children] == [CustomCall, CustomCall]
    assert outline(tree).splitlines()[1] == "├── t.swish"
    assert [node.text for node in tree.postorder()] == [
        "@0", "2", "t.swish", "@1", "t.swish", "add",
    ]  # fmt: skip


def test_a_second_function_of_a_name_needs_replace():
    function("t.f")(swish)
    function("t.f")(swish)  # the same
    with pytest.raises(KuiperError, match=r"swish \(.*test_custom.py:\d+\) is the function 't.f'"):
        function("t.f")(np.tanh)
    function("t.f", replace=True)(np.tanh)
    assert evaluate(parse("t.f(@0)"), [np.float32([1])]) == np.tanh(np.float32(1))


@pytest.mark.parametrize("name", ["add", "relu"])
def test_a_built_in_function_needs_replace(name):
    with pytest.raises(KuiperError, match=rf"of expressions has a function '{name}'.*replace=True"):
        function(name)(lambda x, y=0: x)
    function(name, replace=True)(lambda x, y=0: x - y)
    assert compile(f"{name}(@0,3)")(np.float32([1])) == -2
    assert isinstance(parse(f"{name}(@0,3)"), CustomCall)


@pytest.mark.parametrize(
    "name",
    ["", "2x", "a b", "a(b", "@0", "f,g", "a.", ".a", "inf", "nanj", "nan.0", "1e5", "é", None, 3],
)
def test_what_is_no_name(name):
    with pytest.raises(KuiperError, match="is no name of an expression function; expected letters"):
        function(name)


@pytest.mark.parametrize("name", ["int", "size", "torch.float", "torch.bool", "True", "None"])
def test_a_word_of_the_language_cannot_be_replaced(name):
    with pytest.raises(KuiperError, match="is a word of the language"):
        function(name, replace=True)


def test_a_function_without_positional_arguments_is_refused():
    for wrong, message in (
        (lambda: 1, "takes no arguments"),
        (lambda *, x: x, "needs the keyword 'x'"),
        (lambda x, *, y: x, "needs the keyword 'y'"),
        (3, "3 is no function"),
    ):
        with pytest.raises(KuiperError, match=message):
            function("t.f")(wrong)
        assert "t.f" not in CUSTOM


@pytest.mark.parametrize(
    ("defined", "accepted", "arity"),
    [
        (lambda x: x, (1, 1), "takes 1 argument, got"),
        (lambda x, y, z=0: x, (2, 3), "takes 2 to 3 arguments, got"),
        (lambda x, *rest: x, (1, 20), "takes at least 1 argument, got"),
        (lambda x, /, y, *, out=None: x, (2, 2), "takes 2 arguments, got"),
        (np.hypot, (2, 2), "takes 2 arguments, got"),
    ],
)
def test_the_number_of_arguments_follows_the_signature(defined, accepted, arity):
    function("t.f")(defined)
    least, most = accepted
    for count in range(1, 6):
        call = f"t.f({','.join(['@0'] * count)})"
        if least <= count <= most:
            parse(call)
        else:
            with pytest.raises(ExpressionError, match=arity):
                parse(call)
    with pytest.raises(ExpressionError, match=arity):
        parse("t.f()")


def test_a_name_without_brackets_is_a_word():
    function("ij")(swish)
    assert parse("ij", 0).value == "ij"
    assert str(parse("log1p,ij(@0,2)")) == "log1p(ij(@0,2))"  # read without brackets


def test_an_unknown_function_is_named_with_the_nearest_one():
    function("t.swish")(swish)
    with pytest.raises(ExpressionError, match=r"mean 't.swish'\? \(@kuiper.expression.function"):
        parse("t.swich(@0)")
    with pytest.raises(ExpressionError, match=r"'zzz' \(@kuiper.expression.function adds one of"):
        parse("zzz(@0)")


# -- values ------------------------------------------------------------------------------------


def test_values_of_numbers_and_arrays():
    function("half")(lambda x: x // 2)
    assert evaluate(parse("[half(size(@0,1)),half(7)]"), [np.zeros((2, 9))]) == [4, 3]
    assert fold(parse("half(9)"), []) == 4
    x = np.int32([4, 9])
    np.testing.assert_array_equal(compile("half(@0)")(x), [2, 4])
    assert compile("half(@0)")(x).dtype == np.int32


def test_arguments_are_arrays_and_numbers():
    seen = []
    function("look")(lambda *v: seen.append(v) or v[0])
    compile("look(@0,2,1.5,True,@1)")(np.ones(2, np.float32), np.float32(3))
    (x, *numbers, last) = seen[-1]
    assert type(x) is np.ndarray
    assert numbers == [2, 1.5, True]
    assert last == 3
    with pytest.raises(ExpressionError, match="look takes numbers and arrays, got a list of 1"):
        evaluate(parse("look([@0])"), [x])
    with pytest.raises(ExpressionError, match="'word' is no operator, reference or number that"):
        parse("look(word)")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returned None, expected an array"),
        ([1.0], "returned a list, expected an array"),
        (3.0, "returned a float, expected an array"),
        (np.array(["a"]), "returned an array of <U1, which no tensor has"),
        (np.array([object()]), "returned an array of object, which no tensor has"),
    ],
)
def test_a_result_that_is_no_tensor(result, message):
    function("t.f")(lambda x: result)
    x = np.ones(2, np.float32)
    with pytest.raises(ExpressionError, match=f"the function t.f {message}") as caught:
        compile("add(@0,t.f(@0))")(x)
    assert str(caught.value).splitlines()[-1].index("^") == len("  add(@0,")
    model = kuiper.load(*expression("add(@0,t.f(@0))"))
    with pytest.raises(ShapeError, match=rf"<param>:4: operator 'e' \(pnnx.*{message}"):
        model(x)


def test_ncnn_has_no_such_function():
    function("t.f")(swish)
    with pytest.raises(ExpressionError, match=r"ncnn has no operator t\.f"):
        ncnn.to_ncnn(parse("[t.f(3)]"), [], data="x")


# -- models ------------------------------------------------------------------------------------


def test_a_function_in_a_model():
    function("swish")(swish)
    model = kuiper.load(*expression("add(swish(@0),mul(swish(@1,2),3))", ("x", "z")))
    for shape in ((2, 3), (4, 3)):
        x, z = values(*shape), values(3)
        np.testing.assert_allclose(model(x, z), swish(x) + 3 * swish(z, 2), rtol=1e-6)
    assert "python" in [row["kind"] for row in model.profile(x, z, runs=1).rows]
    np.testing.assert_array_equal(Model(model.graph, optimize=False)(x, z), model(x, z))


def test_a_result_of_another_shape_and_type():
    function("top")(lambda x: np.argmax(x, axis=-1))
    model = kuiper.load(*expression("add(top(@0),1)"))
    x = values(2, 3, 5)
    y = model(x)
    assert y.dtype == np.int64
    np.testing.assert_array_equal(y, x.argmax(-1) + 1)
    assert model(values(4, 7)).shape == (4,)


def test_float16_and_integers():
    function("twice")(lambda x: x + x)
    for dtype in (np.int64, np.float64, np.bool_):
        x = np.array([0, 1, 1], dtype)
        word = {"int64": "i64", "float64": "f64", "bool": "bool"}[np.dtype(dtype).name]
        y = kuiper.load(*expression("twice(@0)", notes=f"#x=(3){word} #y=(3){word}"))(x)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, x + x)


def test_a_target_of_a_reshape():
    function("half")(lambda n: n // 2)
    lines = (
        "pnnx.Expression s 1 1 x s expr=[half(size(@0,0)),2,-1]",
        "Tensor.reshape r 2 1 x s y $input=x $shape=s",
    )
    assert Model(graph_of(text(*lines)))(values(6, 5)).shape == (3, 2, 5)


def test_compiled_operators_around_it_stay_compiled():
    """The passes neither inline it nor fuse operators into it."""
    function("swish")(swish)
    lines = (
        "pnnx.Expression a 1 1 x p expr=mul(@0,2)",
        "pnnx.Expression e 1 1 p q expr=swish(@0)",
        "nn.ReLU r 1 1 q y",
    )
    model = Model(graph_of(text(*lines)))
    x = values(3, 4)
    np.testing.assert_allclose(model(x), np.maximum(swish(x * 2), 0), rtol=1e-6)
    assert "swish(@0) p -> q" in lines_of(model.planned_graph(x.shape))


def test_an_unknown_function_is_refused_by_load():
    with pytest.raises(OperatorError, match=r"<param>:4: .*@kuiper.expression.function adds one"):
        kuiper.load(*expression("zzz(@0)"))
    function("zzz")(swish)
    with pytest.raises(OperatorError, match="zzz takes 1 to 2 arguments, got 3"):
        kuiper.load(*expression("zzz(@0,1,2)"))
    with pytest.raises(OperatorError, match="@1 refers to none of the 1 operands"):
        kuiper.load(*expression("zzz(@1)"))


def test_an_exception_names_the_operator_and_is_its_cause():
    def wrong(x):
        if x.any():
            raise IndexError("no such thing")
        return x

    function("wrong")(wrong)
    model = kuiper.load(*expression("add(@0,wrong(@0))"))
    with pytest.raises(OperatorError) as caught:
        model(values(3))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(
        "<param>:4: operator 'e' (pnnx.Expression): the function wrong raised IndexError: no such"
    )
    assert isinstance(caught.value.__cause__, IndexError)
    function("wrong", replace=True)(lambda x: x.no_such_attribute)
    with pytest.raises(ShapeError, match=r"'e' .*raised AttributeError") as caught:
        kuiper.load(*expression("wrong(@0)"))(values(3))
    assert isinstance(caught.value.__cause__, AttributeError)


@pytest.mark.parametrize(
    ("changed", "got"),
    [
        (lambda x: x[x > 0], r"returned float32 \(2,\), but float32 \(0,\) for zeros"),
        (lambda x: np.float64(x) if x.any() else x, r"returned float64 \(3,\), but float32 \(3,\)"),
        (lambda x: x.sum() if x.any() else x, r"returned float32 \(\), but float32 \(3,\)"),
        (lambda x: list(x) if x.any() else x, "returned a list, expected an array"),
    ],
)
def test_a_result_that_is_not_the_planned_one(changed, got):
    function("t.f")(changed)
    model = kuiper.load(*expression("t.f(@0)"))
    with pytest.raises(OperatorError, match=rf"'e' .*the function t.f {got}"):
        model(np.float32([1, -1, 2]))


def test_its_arguments_cannot_be_written_to():
    def write(x):
        x += 1
        return x

    function("write")(write)
    model = kuiper.load(*expression("write(@0)"))
    x = values(3)
    before = x.copy()
    with pytest.raises(OperatorError, match=r"raised ValueError: .*read-only"):
        model(x)
    np.testing.assert_array_equal(x, before)


def test_it_may_return_its_argument():
    function("same")(lambda x: x)
    function("turned")(lambda x: x.T)
    x = values(3, 4)
    np.testing.assert_array_equal(kuiper.load(*expression("same(@0)"))(x), x)
    np.testing.assert_array_equal(kuiper.load(*expression("turned(@0)"))(x), x.T)


def test_later_plans_use_the_new_function():
    function("t.f")(lambda x: x + 1)
    model = kuiper.load(*expression("t.f(@0)"))
    assert model(np.zeros(2, np.float32))[0] == 1
    function("t.f", replace=True)(lambda x: x + 2)
    assert model(np.zeros(2, np.float32))[0] == 1
    assert model(np.zeros(3, np.float32))[0] == 2


def test_a_replaced_built_in_function_counts_in_files_alone():
    """The sums of kuiper itself, such as those of a batch normalisation, keep theirs."""
    function("add", replace=True)(lambda x, y: x - y)
    function("mul", replace=True)(lambda x, y: x + y)
    function("relu", replace=True)(lambda x: -x)
    x = np.abs(values(1, 4, 5, 5))
    norm = (
        "nn.BatchNorm2d n 1 1 p y affine=True eps=1e-02 num_features=4 @bias=(4)f32 "
        "@running_mean=(4)f32 @running_var=(4)f32 @weight=(4)f32"
    )
    lines = ("pnnx.Expression e 2 1 x x q expr=add(@0,@0)", "nn.ReLU r 1 1 x p", norm)
    graph = graph_of(text(*lines, outputs=("y", "q")))
    y, q = Model(graph)(x)
    assert not q.any()
    CUSTOM.clear()
    forget_parsed()
    expected, _ = Model(graph)(x)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["add", "mul"])
def test_a_replaced_sum_or_product_is_not_fused(name):
    function(name, replace=True)(lambda x, y: x - y)
    lines = (
        conv("c", "x", "p", c=4, o=4),
        f"pnnx.Expression e 2 1 p x y expr={name}(@0,@1)",
    )
    graph = graph_of(text(*lines))
    x = values(1, 4, 5, 5)
    y = Model(graph)(x)
    alone = Model(graph_of(text(lines[0].replace(" x p ", " x y "))))(x)
    np.testing.assert_allclose(y, alone - x, atol=1e-5)


def test_another_batch_than_that_of_the_file_is_refused():
    """The function may mix the members of a batch."""
    function("centre")(lambda x: x - x.mean(0))
    lines = (
        "pnnx.Expression e 1 1 x p expr=centre(@0) #x=(2,6)f32 #p=(2,6)f32",
        "Tensor.reshape r 1 1 p y shape=(2,2,3) #y=(2,2,3)f32",
    )
    model = Model(graph_of(text(*lines)))
    assert model(values(2, 6)).shape == (2, 2, 3)
    with pytest.raises(KuiperError):
        model(values(4, 6))


def test_pickling_and_copying():
    function("swish")(swish)
    model = kuiper.load(*expression("swish(@0)"))
    x = values(2, 3)
    expected = model(x)
    for other in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
        np.testing.assert_array_equal(other(x), expected)
    tree = parse("add(@0,swish(@0,3))")
    assert pickle.loads(pickle.dumps(tree)) == tree == copy.deepcopy(tree)
    packed, packed_tree = pickle.dumps(model), pickle.dumps(tree)
    CUSTOM.clear()
    forget_parsed()
    with pytest.raises(KuiperError, match="'swish' is not defined in this process"):
        pickle.loads(packed_tree)
    with pytest.raises(KuiperError, match=r"'swish'; did you mean 'sinh'\? \(@kuiper"):
        pickle.loads(packed)(x)


def test_threads():
    function("swish")(swish)
    model = kuiper.load(*expression("add(swish(@0),1)"))
    errors = []

    def work(seed):
        try:
            for n in range(20):
                x = values(2, 3 + n % 4, seed=seed)
                np.testing.assert_allclose(model(x), swish(x) + 1, rtol=1e-6)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_names_of_operands():
    function("add", replace=True)(lambda x, y: x - y)
    assert infix(parse("mul(add(@0,@1),2)"), ["a", "b"]) == "add(a, b) * 2"

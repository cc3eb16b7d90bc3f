"""The tokenizer and parser of PNNX expressions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kuiper.errors import ExpressionError
from kuiper.expression import (
    MAX_DEPTH,
    Call,
    ExpressionParser,
    List,
    Literal,
    Ref,
    Tokenizer,
    TokenType,
    parse,
)
from kuiper.expression.functions import CAST, EXTENDED, PNNX
from kuiper.expression.promotion import CASTS

PNNX = PNNX | dict.fromkeys(CASTS, CAST)

# Tokens ----------------------------------------------------------------------------------------


def test_tokens_have_positions():
    text = "add( @0,\tmul(@12,-1.5e-3))"
    tokens = ExpressionParser(text).tokens
    assert " ".join(token.text for token in tokens) == "add ( @0 , mul ( @12 , -1.5e-3 ) )"
    assert all(text[token.start : token.end] == token.text for token in tokens)
    assert [token.start for token in tokens[:4]] == [0, 3, 5, 7]
    assert tokens[0].type is TokenType.NAME
    assert tokens[1].type is TokenType.LEFT_PARENTHESIS
    assert tokens[2].type is TokenType.REFERENCE
    assert tokens[8].type is TokenType.FLOAT


@pytest.mark.parametrize(
    ("text", "type", "value"),
    [
        ("0", TokenType.INTEGER, 0),
        ("-1", TokenType.INTEGER, -1),
        ("+7", TokenType.INTEGER, 7),
        ("9223372036854775807", TokenType.INTEGER, 2**63 - 1),
        ("-9223372036854775808", TokenType.INTEGER, -(2**63)),
        ("2.0", TokenType.FLOAT, 2.0),
        (".5", TokenType.FLOAT, 0.5),
        ("5.", TokenType.FLOAT, 5.0),
        ("1e3", TokenType.FLOAT, 1000.0),
        ("1.000000e-5", TokenType.FLOAT, 1e-5),
        ("1.000000e+00", TokenType.FLOAT, 1.0),
        ("-3.40282347e38", TokenType.FLOAT, -3.40282347e38),
        ("inf", TokenType.FLOAT, float("inf")),
        ("-inf", TokenType.FLOAT, float("-inf")),
        ("1.200000e+00-9.000000e-01j", TokenType.COMPLEX, 1.2 - 0.9j),
        ("1.0e+00+-2.0e+00j", TokenType.COMPLEX, 1 - 2j),
        ("-2.5j", TokenType.COMPLEX, complex(0, -2.5)),
        ("1+infj", TokenType.COMPLEX, complex(1, float("inf"))),
        ("True", TokenType.NAME, True),
        ("False", TokenType.NAME, False),
        ("None", TokenType.NAME, None),
        ("torch.float", TokenType.NAME, "torch.float"),
        ("ij", TokenType.NAME, "ij"),
        ("2d", TokenType.NAME, "2d"),
        ("1_000", TokenType.NAME, "1_000"),
        ("1e", TokenType.NAME, "1e"),
        ("-", TokenType.NAME, "-"),
        ("infinite", TokenType.NAME, "infinite"),
        ("٣", TokenType.NAME, "٣"),
        ("a->b", TokenType.NAME, "a->b"),
    ],
)
def test_literals(text, type, value):
    (token,) = Tokenizer(text).tokens
    assert token.type is type
    tree = parse(text)
    assert repr(tree.value) == repr(value)
    assert str(tree) == text


@pytest.mark.parametrize("text", ["nan", "nan.0", "-nan.0", "-nan"])
def test_every_spelling_of_nan(text):
    value = parse(text).value
    assert value != value


# Trees -----------------------------------------------------------------------------------------


def test_parse_builds_the_tree_with_positions():
    text = "add(mul(@0, @1), [2.5,None])"
    tree = ExpressionParser(text).parse()
    assert tree == Call("add", [Call("mul", [Ref(0), Ref(1)]), List([Literal(2.5), Literal(None)])])
    assert [text[node.start : node.end] for node in tree.preorder()] == [
        text,
        "mul(@0, @1)",
        "@0",
        "@1",
        "[2.5,None]",
        "2.5",
        "None",
    ]


def test_listings_of_one_tree():
    def joined(nodes):
        return " ".join(node.text for node in nodes)

    parser = ExpressionParser("add(add(add(@0,@1),@1),add(@0,sqrt(@1)))")
    tree = parser.parse()
    assert joined(tree.inorder()) == "@0 add @1 add @1 add @0 add @1 sqrt"
    assert joined(parser.to_rpn()) == "@0 @1 add @1 add @0 @1 sqrt add add"
    assert joined(tree.preorder()) == "add add add @0 @1 @1 add @0 sqrt @1"
    assert (tree.size, tree.depth) == (10, 4)
    assert tree.references() == (0, 1)


def test_size_takes_one_or_two_arguments():
    assert parse("size(@0)") == Call("size", [Ref(0)])
    assert parse("[size(@0,1),size(@1)]").children[0].children[1].value == 1


def test_a_dtype_is_a_cast_only_with_brackets():
    assert parse("torch.float(@0)") == Call("torch.float", [Ref(0)])
    assert parse("[torch.float,1]").children[0].value == "torch.float"


@pytest.mark.parametrize("name", sorted(PNNX))
def test_every_operator_is_known(name):
    arity = PNNX[name].max_arity
    text = f"{name}({','.join(f'@{k}' for k in range(arity))})"
    assert str(parse(text)) == text
    assert parse(text) == Call(name, [Ref(k) for k in range(arity)])


@pytest.mark.parametrize("name", sorted(EXTENDED.keys() - PNNX.keys()))
def test_activations_are_known_only_on_request(name):
    text = f"{name}({','.join('@0' for _ in range(EXTENDED[name].min_arity))})"
    assert str(parse(text, extended=True)) == text
    with pytest.raises(ExpressionError, match="unknown operator"):
        parse(text)


# Text that pnnx writes without brackets --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("log1p,@0", "log1p(@0)"),
        ("expm1,sub(@0,0.5)", "expm1(sub(@0,0.5))"),
        ("sub(add(log1p,@0),1),mul(@1,2)", "sub(add(log1p(@0),1),mul(@1,2))"),
        ("sub(3,log1p),@0", "sub(3,log1p(@0))"),
        ("div(log1p,@0),expm1,@1", "div(log1p(@0),expm1(@1))"),
        ("[log1p,@0,mul(@0,2)]", "[log1p(@0),mul(@0,2)]"),
        ("[[log1p,@0],[1,2],size(@0)]", "[[log1p(@0)],[1,2],size(@0)]"),
        ("[size(@0,1),log1p,size(@0,add(1,1))]", "[size(@0,1),log1p(size(@0,add(1,1)))]"),
        ("mul(torch.float(1),log1p),@0", "mul(torch.float(1),log1p(@0))"),
        ("add(@0,,mul(@1,2))", "add(@0,mul(@1,2))"),
        ("[1,,,2]", "[1,2]"),
    ],
)
def test_text_without_brackets_is_read_as_pnnx_means_it(text, meaning):
    assert parse(text) == parse(meaning)


# Errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        ("", "the expression is empty", 0),
        ("  ", "the expression is empty", 0),
        ("add(@0", "'(' is never closed", 3),
        ("[1,2", "'[' is never closed", 0),
        ("add(@0,@1))", "')' closes nothing", 10),
        ("add(@0,@1]", "']' does not close the '(' at column 4", 9),
        ("add(@0, @1, @2)", "add takes 2 arguments, got 3", 0),
        ("mul(1,add(@0))", "add takes 2 arguments, got 1", 6),
        ("add()", "add takes 2 arguments, got 0", 0),
        ("size()", "size takes 1 to 2 arguments, got 0", 0),
        ("neg", "neg takes 1 argument, got 0", 0),
        ("log1p,@0,@1", "2 values are left side by side", 9),
        ("[add,@0],@1", "add takes 2 arguments, got 1", 1),
        ("foo(@0)", "unknown operator 'foo'", 0),
        ("log1p,foo(@0)", "unknown operator 'foo'", 6),
        ("add(1,sqr(@0))", "did you mean 'sqrt'?", 6),
        ("3(@0)", "'(' without the name of an operator", 1),
        ("(@0)", "'(' without the name of an operator", 0),
        ("@0(@1)", "'(' without the name of an operator", 2),
        ("add(@0 @1)", "a comma is missing before '@1'", 7),
        ("[1][2]", "a comma is missing before '['", 3),
        ("1,2", "2 values side by side", 2),
        ("1,", "an item is missing after the last ','", 1),
        (",1", "an item is missing before ','", 0),
        ("add(,@0)", "an item is missing before ','", 4),
        ("add(@0,)", "an item is missing before ')'", 7),
        ("[1,]", "an item is missing before ']'", 3),
        ("@", "malformed reference", 0),
        ("add(1,@x)", "malformed reference '@x'", 6),
        ("@-1", "malformed reference", 0),
        ("@99999999999999999999", "no operator has that many operands", 0),
        ("9223372036854775808", "does not fit 64 bits", 0),
        ("add(1," + "9" * 10000 + ")", "does not fit 64 bits", 6),
        ("add(@0,word)", "'word' is no operator, reference or number", 7),
    ],
)
def test_errors_have_the_position_in_the_original_text(text, message, position):
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert message in caught.value.message
    assert caught.value.position == position
    assert caught.value.text == text
    caret = str(caught.value).splitlines()[-1]
    assert caret.strip() == "^"


def test_references_are_checked_against_the_number_of_operands():
    assert parse("add(@0,@1)", 2).references() == (0, 1)
    with pytest.raises(ExpressionError, match="@2 refers to none of the 2 operands") as caught:
        parse("add(@0,@2)", 2)
    assert caught.value.position == 7


def test_a_single_word_without_operands_is_a_string():
    assert parse("max", 0).value == "max"
    with pytest.raises(ExpressionError, match="max takes 2 arguments"):
        parse("max")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "neg(" * 100_000 + "@0" + ")" * 100_000,
        "neg," * 100_000 + "@0",
        "add(1," * 100_000 + "1" + ")" * 100_000,
        "add(" * 100_000,
        ")" * 100_000,
    ],
    ids=lambda text: text[:6],
)
def test_hostile_nesting_is_an_error(text):
    with pytest.raises(ExpressionError):
        parse(text)


def test_the_deepest_allowed_text_parses_prints_and_compares():
    text = "neg(" * (MAX_DEPTH - 1) + "@0" + ")" * (MAX_DEPTH - 1)
    tree = parse(text)
    assert tree.depth == MAX_DEPTH
    assert str(tree) == text
    assert tree == parse(text)
    assert hash(tree) == hash(parse(text))


def test_a_wide_text():
    text = "[" + ",".join(["size(@0,1)"] * 20_000) + "]"
    assert len(parse(text).children) == 20_000


# Properties ------------------------------------------------------------------------------------

words = st.sampled_from(["ij", "cpu", "torch.float", "a->b", "zeros"])
literals = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.complex_numbers(allow_nan=False),
    st.booleans(),
    st.none(),
).map(Literal)
leaves = st.one_of(st.integers(0, 999).map(Ref), literals)
names = st.sampled_from(sorted(PNNX))


@st.composite
def calls(draw, arguments):
    name = draw(names)
    signature = PNNX[name]
    count = draw(st.integers(signature.min_arity, signature.max_arity))
    return Call(name, [draw(arguments) for _ in range(count)])


arithmetic = st.recursive(leaves, calls, max_leaves=20)
trees = st.one_of(
    arithmetic,
    st.recursive(
        st.one_of(arithmetic, words.map(Literal)),
        lambda items: st.lists(items, max_size=4).map(List),
        max_leaves=6,
    ),
)


@settings(derandomize=True, database=None, deadline=None)
@given(trees)
def test_printing_and_parsing_is_the_identity(tree):
    text = str(tree)
    again = parse(text)
    assert again == tree
    assert str(again) == text
    assert hash(again) == hash(tree)


@settings(derandomize=True, database=None, deadline=None)
@given(trees)
def test_positions_cover_the_text_of_each_node(tree):
    text = str(tree)
    for node in parse(text).preorder():
        assert text[node.start : node.end] == str(node)


def without_brackets(tree):
    """Write a tree in pnnx's worst form: only the brackets that carry meaning."""
    if isinstance(tree, List):
        return f"[{','.join(map(without_brackets, tree.children))}]"
    if not isinstance(tree, Call):
        return str(tree)
    arguments = ",".join(map(without_brackets, tree.children))
    if tree.name == "size" or tree.name in CASTS:
        return f"{tree.name}({arguments})"
    return f"{tree.name},{arguments}"


def is_flat_inside(tree):
    """Tell whether the brackets of size contain complete arguments, as in real files."""
    return all(
        node.name != "size" or not any(child.children for child in node.children)
        for node in tree.preorder()
        if isinstance(node, Call)
    )


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(trees.filter(is_flat_inside))
def test_both_readings_agree(tree):
    assert parse(without_brackets(tree)) == parse(str(tree)) == tree


@settings(derandomize=True, database=None, deadline=None)
@given(st.text("@0123456789()[],.- eaddmulinfjsz", max_size=40))
def test_any_text_parses_or_is_an_error_with_a_position(text):
    try:
        tree = parse(text)
    except ExpressionError as caught:
        error = caught
    else:
        assert parse(str(tree)) == tree
        return
    assert error.text == text
    assert 0 <= error.position <= len(text)


def test_only_trees_of_short_texts_are_cached():
    short = "add(@0,mul(@1,2))"
    assert parse(short, 2) is parse(short, 2)
    long = "neg(" * 100 + "@0" + ")" * 100
    assert parse(long, 1) is not parse(long, 1)
    with pytest.raises(ExpressionError, match="refers to none"):
        parse(short, 1)

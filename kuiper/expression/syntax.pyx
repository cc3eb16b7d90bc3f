"""Tokenizer and parser of PNNX expressions.

There are two parsers.  Well-formed text is parsed by its brackets; every deviation is an error with
its position.  pnnx also writes text in which an operator has lost its brackets, such as
``sub(add(log1p,@0),1),mul(@1,2)``: the order of the tokens is correct, the brackets are not.  Such
text is parsed as prefix notation, in which each operator takes as many values as it has arguments.

Both parsers are loops with an explicit stack; nesting is limited to `MAX_DEPTH`.
"""

from kuiper.errors import ExpressionError
from kuiper.expression.functions import CAST, CUSTOM, EXTENDED, PNNX
from kuiper.expression.promotion import CASTS
from kuiper.expression.tokens import Token, TokenType
from kuiper.expression.tree import Call, CustomCall, List, Literal, Ref

MAX_DEPTH = 1000

cdef enum:
    MAX_REFERENCE_DIGITS = 9

cdef object REFERENCE = TokenType.REFERENCE
cdef object INTEGER = TokenType.INTEGER
cdef object FLOAT = TokenType.FLOAT
cdef object COMPLEX = TokenType.COMPLEX
cdef object NAME = TokenType.NAME
cdef object COMMA = TokenType.COMMA
cdef object LEFT_PARENTHESIS = TokenType.LEFT_PARENTHESIS
cdef object RIGHT_PARENTHESIS = TokenType.RIGHT_PARENTHESIS
cdef object LEFT_BRACKET = TokenType.LEFT_BRACKET
cdef object RIGHT_BRACKET = TokenType.RIGHT_BRACKET

cdef dict PUNCTUATION = {
    type.value: type
    for type in (COMMA, LEFT_PARENTHESIS, RIGHT_PARENTHESIS, LEFT_BRACKET, RIGHT_BRACKET)
}

cdef dict PNNX_VOCABULARY = PNNX | dict.fromkeys(CASTS, CAST)
cdef dict EXTENDED_VOCABULARY = EXTENDED | PNNX_VOCABULARY

cdef dict WORDS = {"None": None, "True": True, "False": False}


cdef inline bint is_blank(Py_UCS4 c) noexcept:
    return c == u" " or c == u"\t" or c == u"\n" or c == u"\r"


cdef inline bint is_punctuation(Py_UCS4 c) noexcept:
    return c == u"," or c == u"(" or c == u")" or c == u"[" or c == u"]"


cdef inline bint is_digit(Py_UCS4 c) noexcept:
    return u"0" <= c <= u"9"


cdef Py_ssize_t skip_digits(str text, Py_ssize_t i, Py_ssize_t end):
    while i < end and is_digit(text[i]):
        i += 1
    return i


cdef Py_ssize_t skip_number(str text, Py_ssize_t i, Py_ssize_t end, bint* is_float):
    """Return the end of the number at `i`, or -1 if there is none."""
    cdef Py_ssize_t start, digits, exponent
    is_float[0] = False
    if i < end and text[i] in u"+-":
        i += 1
    if end - i >= 3 and text[i:i + 3] in ("inf", "nan"):
        is_float[0] = True
        i += 3
        # pnnx appends ".0" to everything that does not look like a float, NaN included.
        return i + 2 if text[i:i + 2] == ".0" else i
    start = i
    i = skip_digits(text, i, end)
    digits = i - start
    if i < end and text[i] == u".":
        is_float[0] = True
        start = i + 1
        i = skip_digits(text, start, end)
        digits += i - start
    if digits == 0:
        return -1
    if i < end and text[i] in u"eE":
        start = i + 1
        if start < end and text[start] in u"+-":
            start += 1
        exponent = skip_digits(text, start, end)
        if exponent > start:
            is_float[0] = True
            i = exponent
    return i


cdef object classify(str text, Py_ssize_t start, Py_ssize_t end):
    """Return the type of a token: a number or a name."""
    cdef bint is_float = False
    cdef Py_ssize_t i = skip_number(text, start, end, &is_float)
    if i == end:
        return FLOAT if is_float else INTEGER
    if i < 0:
        return NAME
    if i == end - 1 and text[i] == u"j":
        return COMPLEX
    if text[i] in u"+-":
        # A negative imaginary part is written as "+-2.0j" in parameters and "-2.0j" here.
        if text[i] == u"+" and i + 1 < end and text[i + 1] == u"-":
            i += 1
        i = skip_number(text, i, end, &is_float)
        if i == end - 1 and text[i] == u"j":
            return COMPLEX
    return NAME


cdef class Tokenizer:
    """Splits an expression into tokens.

    Parameters
    ----------
    text : str
        Blanks between tokens are skipped; positions refer to the text as given.

    Examples
    --------
    >>> [token.text for token in Tokenizer("add(@0, 1e-5)").tokens]
    ['add', '(', '@0', ',', '1e-5', ')']
    """

    cdef readonly str text
    cdef readonly tuple tokens

    def __init__(self, str text not None):
        self.text = text
        self.tokens = tuple(self.cut())

    cdef list cut(self):
        cdef str text = self.text
        cdef Py_ssize_t i = 0, start, length = len(text)
        cdef Py_UCS4 c
        cdef list tokens = []
        while i < length:
            c = text[i]
            if is_blank(c):
                i += 1
                continue
            if is_punctuation(c):
                tokens.append(Token(PUNCTUATION[text[i]], i, i + 1, text[i]))
                i += 1
                continue
            start = i
            while i < length and not is_punctuation(text[i]) and not is_blank(text[i]):
                i += 1
            if c == u"@":
                self.check_reference(start, i)
                tokens.append(Token(REFERENCE, start, i, text[start:i]))
            else:
                tokens.append(Token(classify(text, start, i), start, i, text[start:i]))
        return tokens

    cdef check_reference(self, Py_ssize_t start, Py_ssize_t end):
        if end == start + 1 or skip_digits(self.text, start + 1, end) != end:
            raise ExpressionError(
                f"malformed reference {self.text[start:min(end, start + 20)]!r}, expected '@' and "
                "the number of an operand", self.text, start,
            )
        if end - start - 1 > MAX_REFERENCE_DIGITS:
            raise ExpressionError("no operator has that many operands", self.text, start)


cdef class Frame:
    """An open bracket: the token before it, and its items so far."""

    cdef object token      # the operator's name, "[" for a list, None for the whole text
    cdef bint is_call
    cdef bint wants_item   # an item must follow: at the start or after a comma
    cdef list items

    def __cinit__(self, token, bint is_call):
        self.token = token
        self.is_call = is_call
        self.wants_item = True
        self.items = []


cdef class ExpressionParser:
    """Parses one PNNX expression.

    Parameters
    ----------
    text : str
    extended : bool, default False
        Accept the activations that graph passes fuse into expressions; files contain none.
    custom : bool, default True
        Accept the functions that users have defined.

    Attributes
    ----------
    text : str
    tokens : tuple of Token

    Raises
    ------
    ExpressionError
        By the constructor for text that cannot be split into tokens, by :meth:`parse` and
        :meth:`to_rpn` for tokens that do not form an expression.

    Examples
    --------
    >>> parser = ExpressionParser("add(mul(@0,@1),@2)")
    >>> parser.parse()
    Call('add(mul(@0,@1),@2)')
    >>> [node.text for node in parser.to_rpn()]
    ['@0', '@1', 'mul', '@2', 'add']
    """

    cdef readonly str text
    cdef readonly tuple tokens
    cdef dict vocabulary
    cdef dict custom
    cdef object tree

    def __init__(self, str text not None, *, bint extended=False, bint custom=True):
        self.text = text
        self.custom = CUSTOM if custom else {}
        self.vocabulary = EXTENDED_VOCABULARY if extended else PNNX_VOCABULARY
        self.tokens = Tokenizer(text).tokens
        self.tree = None

    def parse(self):
        """Return the syntax tree.

        Returns
        -------
        Node
        """
        if self.tree is None:
            if not self.tokens:
                raise self.error("the expression is empty", 0)
            self.check_brackets()
            if self.has_bare_operator():
                self.tree = self.parse_by_arity()
            else:
                self.tree = self.parse_by_brackets()
        return self.tree

    def to_rpn(self):
        """Return the nodes in reverse Polish order: each operator after its arguments.

        Returns
        -------
        list of Node
        """
        return list(self.parse().postorder())

    cdef error(self, str message, Py_ssize_t position):
        return ExpressionError(message, self.text, position)

    cdef check_brackets(self):
        cdef list stack = []
        cdef object opening
        for token in self.tokens:
            if token.type is LEFT_PARENTHESIS or token.type is LEFT_BRACKET:
                if len(stack) == MAX_DEPTH:
                    raise self.error(f"brackets are nested more than {MAX_DEPTH} deep", token.start)
                stack.append(token)
            elif token.type is RIGHT_PARENTHESIS or token.type is RIGHT_BRACKET:
                if not stack:
                    raise self.error(f"{token.text!r} closes nothing", token.start)
                opening = stack.pop()
                if (opening.type is LEFT_BRACKET) != (token.type is RIGHT_BRACKET):
                    raise self.error(
                        f"{token.text!r} does not close the {opening.text!r} at column "
                        f"{opening.start + 1}", token.start,
                    )
        if stack:
            raise self.error(f"{stack[-1].text!r} is never closed", stack[-1].start)

    cdef bint is_called(self, Py_ssize_t i):
        return i + 1 < len(self.tokens) and self.tokens[i + 1].type is LEFT_PARENTHESIS

    cdef bint is_operator(self, Py_ssize_t i):
        """Tell whether token `i` is an operator; the name of a dtype without brackets is not."""
        cdef object token = self.tokens[i]
        if token.type is not NAME:
            return False
        if token.text in self.custom and self.is_called(i):
            return True
        if token.text not in self.vocabulary:
            return False
        return self.is_called(i) or token.text not in CASTS

    cdef bint has_bare_operator(self):
        cdef Py_ssize_t i
        for i in range(len(self.tokens)):
            if self.is_operator(i) and not self.is_called(i):
                return True
        return False

    # Leaves ------------------------------------------------------------------------------------

    cpdef object leaf(self, object token):
        """Return the node of a token that is neither an operator nor punctuation."""
        cdef str text = token.text
        cdef object value
        span = (self.text, token.start, token.end)
        if token.type is REFERENCE:
            return Ref(int(text[1:]), *span)
        if token.type is NAME:
            return Literal(WORDS.get(text, text), text, *span)
        if token.type is INTEGER:
            # int() refuses thousands of digits; 100 exceed 64 bits anyway.
            value = int(text) if len(text) < 100 else 1 << 64
            if not -(1 << 63) <= value < 1 << 63:
                raise self.error("the integer does not fit 64 bits", token.start)
            return Literal(value, text, *span)
        text = text.replace("nan.0", "nan").replace("inf.0", "inf")
        value = float(text) if token.type is FLOAT else complex(text.replace("+-", "-"))
        return Literal(value, token.text, *span)

    cdef object call(self, object token, list arguments, Py_ssize_t end):
        """Return the node of an operator, after checking the number and kind of its arguments."""
        cdef object function = self.function_of(token)
        if not function.min_arity <= len(arguments) <= function.max_arity:
            raise self.error(
                f"{token.text} takes {function.arity}, got {len(arguments)}", token.start
            )
        for argument in arguments:
            if isinstance(argument, Literal) and isinstance(argument.value, str):
                raise self.error(
                    f"{argument.value!r} is no operator, reference or number that {token.text} "
                    "could take", argument.start,
                )
        if token.text in self.custom:
            return CustomCall(function, arguments, self.text, token.start, end)
        return Call(token.text, arguments, self.text, token.start, end)

    cdef object function_of(self, object token):
        """Return the function that a token names: a user's before a built-in one."""
        cdef object function = self.custom.get(token.text)
        return self.vocabulary[token.text] if function is None else function

    cdef unknown_operator(self, object token):
        from difflib import get_close_matches

        close = get_close_matches(token.text, [*self.custom, *self.vocabulary], 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return self.error(
            f"unknown operator {token.text!r}{hint} (@kuiper.expression.function adds one of your "
            "own)", token.start,
        )

    # By brackets -------------------------------------------------------------------------------

    cdef object parse_by_brackets(self):
        """Parse well-formed text, whose brackets match."""
        cdef list stack = []
        cdef Frame frame = Frame(None, False)
        cdef Py_ssize_t i = 0
        cdef object token, node
        while i < len(self.tokens):
            token = self.tokens[i]
            i += 1
            if token.type is COMMA:
                # Commas may repeat between two items: pnnx omits an argument that was removed.
                if frame.wants_item and not frame.items:
                    raise self.error("an item is missing before ','", token.start)
                frame.wants_item = True
                continue
            if token.type is RIGHT_PARENTHESIS or token.type is RIGHT_BRACKET:
                if frame.wants_item and frame.items:
                    raise self.error(f"an item is missing before {token.text!r}", token.start)
                if frame.is_call:
                    node = self.call(frame.token, frame.items, token.end)
                else:
                    node = List(frame.items, self.text, frame.token.start, token.end)
                frame = stack.pop()
                frame.items.append(node)
                continue
            if token.type is LEFT_PARENTHESIS:
                raise self.error("'(' without the name of an operator before it", token.start)
            if not frame.wants_item:
                raise self.error(f"a comma is missing before {token.text!r}", token.start)
            frame.wants_item = False
            if token.type is LEFT_BRACKET:
                stack.append(frame)
                frame = Frame(token, False)
            elif self.is_called(i - 1) and token.type is NAME:
                if token.text not in self.vocabulary and token.text not in self.custom:
                    raise self.unknown_operator(token)
                stack.append(frame)
                frame = Frame(token, True)
                i += 1
            else:
                frame.items.append(self.leaf(token))
        if frame.wants_item and frame.items:
            raise self.error("an item is missing after the last ','", len(self.text) - 1)
        if len(frame.items) > 1:
            raise self.error(
                f"{len(frame.items)} values side by side, expected one", frame.items[1].start
            )
        return frame.items[0]

    # By arity ----------------------------------------------------------------------------------

    cdef object parse_by_arity(self):
        """Parse prefix notation from the right, as pnnx does.

        Parentheses and commas are skipped.  A "]" leaves a mark on the stack, which delimits the
        values of its "[".
        """
        cdef list stack = []  # nodes, and None for each "]"
        cdef list ends = []   # the end of each "]"
        cdef list items
        cdef Py_ssize_t i, wanted
        cdef object token, function
        for i in range(len(self.tokens) - 1, -1, -1):
            token = self.tokens[i]
            if token.type is RIGHT_BRACKET:
                stack.append(None)
                ends.append(token.end)
            elif token.type is LEFT_BRACKET:
                items = []
                while stack[-1] is not None:
                    items.append(stack.pop())
                stack.pop()
                stack.append(List(items, self.text, token.start, ends.pop()))
            elif self.is_operator(i):
                function = self.function_of(token)
                wanted = function.min_arity
                if wanted != function.max_arity:
                    wanted = self.count_arguments(i, wanted)
                items = []
                while len(items) < wanted and stack and stack[-1] is not None:
                    items.append(stack.pop())
                stack.append(self.call(token, items, items[-1].end if items else token.end))
                if stack[-1].depth > MAX_DEPTH:
                    raise self.error(
                        f"operators are nested more than {MAX_DEPTH} deep", token.start
                    )
            elif token.type is NAME and self.is_called(i):
                raise self.unknown_operator(token)
            elif token.type is not COMMA and (
                token.type is not LEFT_PARENTHESIS and token.type is not RIGHT_PARENTHESIS
            ):
                stack.append(self.leaf(token))
        if len(stack) != 1:
            raise self.error(
                f"read without brackets, {len(stack)} values are left side by side, expected one",
                stack[-2].start if stack else 0,
            )
        return stack[0]

    cdef Py_ssize_t count_arguments(self, Py_ssize_t i, Py_ssize_t least) except -1:
        """Count the items in the brackets of operator `i`; `least` if it has no brackets."""
        cdef Py_ssize_t depth = 0, count = 0
        cdef bint wants_item = True
        if not self.is_called(i):
            return least
        i += 1
        while True:
            token = self.tokens[i]
            if token.type is RIGHT_PARENTHESIS or token.type is RIGHT_BRACKET:
                depth -= 1
                if depth == 0:
                    return count
            elif token.type is COMMA:
                if depth == 1:
                    wants_item = True
            else:
                if depth == 1 and wants_item:
                    count += 1
                    wants_item = False
                if token.type is LEFT_PARENTHESIS or token.type is LEFT_BRACKET:
                    depth += 1
            i += 1

from kuiper.expression.tokens import Token
from kuiper.expression.tree import Node

MAX_DEPTH: int

class Tokenizer:
    text: str
    tokens: tuple[Token, ...]
    def __init__(self, text: str) -> None: ...

class ExpressionParser:
    text: str
    tokens: tuple[Token, ...]
    def __init__(self, text: str, *, extended: bool = False, custom: bool = True) -> None: ...
    def parse(self) -> Node: ...
    def to_rpn(self) -> list[Node]: ...
    def leaf(self, token: Token) -> Node: ...

"""Which instructions of an elementwise program run together as one chain.

A chain is a run of cheap operations on one value that stays in registers: ``add``, then ``mul`` by
something else, then ``relu``.  Only what enters from the side is loaded, only the end is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LINKS", "Link", "find_chains"]

# Operators that can be links, and what they are when the running value is the second operand.
LINKS: dict[str, str | None] = {
    "add": "add",
    "sub": "sub_from",
    "mul": "mul",
    "div": "div_into",
    "max": "max",
    "min": "min",
    "prelu": None,
    "neg": None,
    "abs": None,
    "square": None,
    "sqrt": None,
    "rsqrt": None,
    "reciprocal": None,
    "relu": None,
    "leaky_relu": None,
    "clamp": None,
    "hardsigmoid": None,
    "hardswish": None,
}


class Link(NamedTuple):
    """One operation of a chain.

    Attributes
    ----------
    name : str
        ``load`` for the first link.
    operand : Argument or None
        What enters from the side.
    parameters : tuple of float
    """

    name: str
    operand: object
    parameters: tuple[float, ...] = ()


def find_chains(
    instructions: Sequence, varies: Sequence[int], longest: int
) -> list[tuple[int, list[Link] | None]]:
    """Join instructions into chains.

    Parameters
    ----------
    instructions : sequence of Instruction
    varies : sequence of int
        Along what each result varies; a chain runs over one kind of loop.
    longest : int
        The number of links that a chain may have.

    Returns
    -------
    list of (int, list of Link or None)
        What is to run, in order: the number of the instruction whose result it leaves, and the
        chain, or None for an instruction that runs alone.
    """
    uses = Counter(a.value for i in instructions for a in i.arguments if a.kind == "register")
    chains: dict[int, list[Link]] = {}  # by the instruction at the end
    inside: set[int] = set()  # instructions whose results never leave a register
    for number, (name, arguments, parameters) in enumerate(instructions):
        if name not in LINKS:
            continue
        # The running value may be either argument; take the one with the longer past.
        place = None
        for candidate, argument in enumerate(arguments):
            if (
                argument.kind == "register"
                and argument.value in chains
                and (candidate == 0 or LINKS[name] is not None)
                and uses[argument.value] == 1
                and varies[argument.value] == varies[number]
                and len(chains[argument.value]) < longest
                and (place is None or len(chains[argument.value]) > len(chain))
            ):
                place, chain = candidate, chains[argument.value]
        if place is None:
            place, chain = 0, [Link("load", arguments[0])]
        else:
            inside.add(arguments[place].value)
            del chains[arguments[place].value]
        other = arguments[1 - place] if len(arguments) == 2 else None
        chain.append(Link(name if place == 0 else LINKS[name], other, parameters))
        chains[number] = chain
    # One operation is better off in a loop of its own.
    return [
        (number, chains[number] if len(chains.get(number, ())) > 2 else None)
        for number in range(len(instructions))
        if number not in inside
    ]

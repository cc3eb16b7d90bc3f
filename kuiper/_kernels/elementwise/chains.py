"""Groups the instructions of an elementwise program into passes over a chunk.

A *chain* is a sequence of cheap functions of one running value, which stays in registers: ``add``,
``mul`` by a second operand, then ``relu``.  Only the other operands are loaded.  Successive chains
join into one pass, which stores the running value where a later instruction reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["ChainPass", "Link", "find_passes", "insert_copies", "reads_of"]


class Link(NamedTuple):
    """One operation on the running value of a chain.

    Attributes
    ----------
    name : str
        A function, ``load`` at the start of a chain, ``store`` for a value that is read later, or
        ``add_product``.
    operand : ProgramValue or None
        The second operand, or the target of ``store``.
    parameters : tuple of float
    factor : ProgramValue or None
        For ``add_product``, which adds ``operand * factor``.
    """

    name: str
    operand: Any
    parameters: tuple[float, ...] = ()
    factor: Any = None


class ChainPass(NamedTuple):
    """One pass over a chunk.

    Attributes
    ----------
    number : int
        The instruction whose result the pass computes.
    links : tuple of Link
        The links of its chains; empty for a single instruction.
    """

    number: int
    links: tuple[Link, ...]


def find_passes(
    instructions: Sequence[Any],
    varies: Sequence[int],
    swapped: Mapping[str, str | None],
    longest: int,
) -> list[ChainPass]:
    """Join instructions into passes.

    Parameters
    ----------
    instructions : sequence of Instruction
    varies : sequence of int
        The axes along which each result varies.  A chain needs the same axes throughout.
    swapped : mapping of str to (str or None)
        The functions that may be links.  The value is the link that computes the function when the
        running value is the second operand.
    longest : int
        The maximum number of links in a pass.

    Returns
    -------
    list of ChainPass
        In order of execution.
    """
    chains, inside = _chains(instructions, varies, swapped, longest)
    passes: list[ChainPass] = []
    for number in range(len(instructions)):
        if number in inside:
            continue
        links = tuple(chains.get(number, ()))
        if links and passes and passes[-1].links and varies[passes[-1].number] == varies[number]:
            kept = Link("store", instructions[number].arguments[0]._replace(
                kind="register", value=passes[-1].number
            ))  # fmt: skip
            joined = (*passes[-1].links, kept, *links)
            if len(joined) <= longest:
                passes[-1] = ChainPass(number, joined)
                continue
        passes.append(ChainPass(number, links))
    # For a single function its own loop is faster than a chain.
    return [p if len(p.links) > 2 else ChainPass(p.number, ()) for p in passes]


def _chains(
    instructions: Sequence[Any],
    varies: Sequence[int],
    swapped: Mapping[str, str | None],
    longest: int,
) -> tuple[dict[int, list[Link]], set[int]]:
    """Return the chains by their last instruction, and the instructions that a chain absorbed."""
    uses = Counter(a.value for i in instructions for a in i.arguments if a.kind == "register")
    chains: dict[int, list[Link]] = {}
    inside: set[int] = set()
    for number, (name, arguments, parameters) in enumerate(instructions):
        if name not in swapped:
            continue
        # The running value may be either argument; take the one with the longer chain.
        position: int | None = None
        chain: list[Link] = []
        for candidate, argument in enumerate(arguments):
            if (
                argument.kind == "register"
                and argument.value in chains
                and (candidate == 0 or swapped[name] is not None)
                and uses[argument.value] == 1
                and varies[argument.value] == varies[number]
                and len(chain) < len(chains[argument.value]) < longest
            ):
                position, chain = candidate, chains[argument.value]
        if position is None:
            position, chain = 0, [Link("load", arguments[0])]
        else:
            inside.add(arguments[position].value)
            del chains[arguments[position].value]
        other = arguments[1 - position] if len(arguments) == 2 else None
        side = []
        if other is not None and other.kind == "register":
            side = chains.get(other.value, [])
        if (
            name == "add"
            and other is not None
            and [link.name for link in side] == ["load", "mul"]
            and uses[other.value] == 1
            and varies[other.value] == varies[number]
        ):
            # A product with a single reader is not stored.
            chain.append(Link("add_product", side[0].operand, (), side[1].operand))
            inside.add(other.value)
            del chains[other.value]
        else:
            chain.append(Link(name if position == 0 else swapped[name] or name, other, parameters))
        chains[number] = chain
    return chains, inside


def reads_of(one: ChainPass, instructions: Sequence[Any]) -> set[int]:
    """Return the instructions whose results a pass reads or stores."""
    operands = [o for link in one.links for o in (link.operand, link.factor)]
    operands = operands or instructions[one.number].arguments
    return {o.value for o in operands if o is not None and o.kind == "register"}


def insert_copies(
    instructions: Sequence[Any], wanted: Sequence[bool], short: Sequence[Sequence[bool]]
) -> tuple[list[Any], set[int], list[int]]:
    """Copy arguments that instructions would otherwise broadcast for every row.

    Parameters
    ----------
    instructions : sequence of Instruction
    wanted : sequence of bool
        Whether each instruction reads copies.
    short : sequence of sequence of bool
        For each instruction, whether to copy each argument.

    Returns
    -------
    instructions : list of Instruction
        With one copy per argument, before its first use.
    copies : set of int
        The numbers of the copies.
    number : list of int
        The new number of each old instruction.
    """
    result: list[Any] = []
    copies: set[int] = set()
    number: list[int] = []
    known: dict[Any, Any] = {}  # argument -> its copy
    for old, instruction in enumerate(instructions):
        arguments = []
        for argument, is_short in zip(instruction.arguments, short[old], strict=True):
            if argument.kind == "register":
                argument = argument._replace(value=number[argument.value])
            if wanted[old] and is_short:
                if argument not in known:
                    known[argument] = argument._replace(kind="register", value=len(result))
                    copies.add(len(result))
                    result.append(type(instruction)("copy", (argument,)))
                argument = known[argument]
            arguments.append(argument)
        number.append(len(result))
        result.append(instruction._replace(arguments=tuple(arguments)))
    return result, copies, number

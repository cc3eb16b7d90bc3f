"""Which instructions of an elementwise program run together, and in which form.

A *chain* is a run of cheap operations on one value that stays in registers: ``add``, then ``mul``
by something else, then ``relu``.  Only what enters from the side is loaded.  Chains that follow
each other run as one: a value that is wanted again later is stored on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["ChainPass", "Link", "find_passes", "insert_copies", "reads_of"]


class Link(NamedTuple):
    """One operation of a chain.

    Attributes
    ----------
    name : str
        ``load`` starts a chain, ``store`` keeps its value for later.
    operand : Argument or None
        What enters from the side, or where the value is kept.
    parameters : tuple of float
    factor : Argument or None
        What `operand` is multiplied with before ``add_product`` adds it.
    """

    name: str
    operand: Any
    parameters: tuple[float, ...] = ()
    factor: Any = None


class ChainPass(NamedTuple):
    """What runs in one go over a chunk.

    Attributes
    ----------
    number : int
        The instruction whose result it leaves.
    links : tuple of Link
        Of the chains; empty for an instruction that runs alone.
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
        Along what each result varies; a chain runs over one kind of loop.
    swapped : mapping of str to (str or None)
        The functions that may be links, and the link that computes each when the running value is
        the second operand.
    longest : int
        The number of links that a pass may have.

    Returns
    -------
    list of ChainPass
        In the order in which they are to run.
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
    # One operation is better off in a loop of its own.
    return [p if len(p.links) > 2 else ChainPass(p.number, ()) for p in passes]


def _chains(
    instructions: Sequence[Any],
    varies: Sequence[int],
    swapped: Mapping[str, str | None],
    longest: int,
) -> tuple[dict[int, list[Link]], set[int]]:
    """Return the chains by their last instruction, and the instructions that are inside of one."""
    uses = Counter(a.value for i in instructions for a in i.arguments if a.kind == "register")
    chains: dict[int, list[Link]] = {}
    inside: set[int] = set()
    for number, (name, arguments, parameters) in enumerate(instructions):
        if name not in swapped:
            continue
        # The running value may be either argument; take the one with the longer past.
        place: int | None = None
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
                place, chain = candidate, chains[argument.value]
        if place is None:
            place, chain = 0, [Link("load", arguments[0])]
        else:
            inside.add(arguments[place].value)
            del chains[arguments[place].value]
        other = arguments[1 - place] if len(arguments) == 2 else None
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
            # A product that nothing else reads needs no place in memory.
            chain.append(Link("add_product", side[0].operand, (), side[1].operand))
            inside.add(other.value)
            del chains[other.value]
        else:
            chain.append(Link(name if place == 0 else swapped[name] or name, other, parameters))
        chains[number] = chain
    return chains, inside


def reads_of(one: ChainPass, instructions: Sequence[Any]) -> set[int]:
    """Return the instructions whose results a pass reads, or stores on its way."""
    operands = [o for link in one.links for o in (link.operand, link.factor)]
    operands = operands or instructions[one.number].arguments
    return {o.value for o in operands if o is not None and o.kind == "register"}


def insert_copies(
    instructions: Sequence[Any], wanted: Sequence[bool], short: Sequence[Sequence[bool]]
) -> tuple[list[Any], set[int], list[int]]:
    """Let instructions read copies of arguments that would have to be repeated again and again.

    Parameters
    ----------
    instructions : sequence of Instruction
    wanted : sequence of bool
        Which instructions shall read copies.
    short : sequence of sequence of bool
        For each instruction, which arguments are meant.

    Returns
    -------
    instructions : list of Instruction
        With the copies before their first use, one for each argument.
    copies : set of int
        Their numbers.
    number : list of int
        The new numbers of the old instructions.
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

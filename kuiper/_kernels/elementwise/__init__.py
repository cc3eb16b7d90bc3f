"""Drivers of elementwise programs.

A program is a straight line of instructions that runs chunk by chunk in the L1 cache, without
temporaries of a tensor's size.  Cheap instructions form chains, which keep a value in registers.
``typed.pyx`` does the same for any element type: inputs are converted as they are loaded, and a
micro-kernel is a loop over two dense runs of one type.

Tensors of bytes become floats chunk by chunk, as an operand is loaded, and bytes again as a result
is stored.  A function of one tensor of bytes is a table of 256 entries, which the same code
computes: ``vpermi2b`` looks 64 bytes up in two instructions.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the compiled modules have no stubs

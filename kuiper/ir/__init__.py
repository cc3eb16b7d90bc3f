"""The graph in memory: operators, operands and attributes; strided views and element types.

::

    graph.py    Graph, Operator, Operand, Attribute
    view.py     a strided view of a buffer
    dtypes.py   element types and their names
"""

from __future__ import annotations

from kuiper.ir.graph import Attribute, Graph, Operand, Operator, PostOp, Use

__all__ = ["Attribute", "Graph", "Operand", "Operator", "PostOp", "Use"]

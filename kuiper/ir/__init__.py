"""The graph in memory: operators, operands and attributes; strided views and element types.

::

    graph.py      Graph: owns operators and operands, checks every change
    nodes.py      Operator, Operand, PostOp, Use
    attribute.py  Attribute: a weight, in memory or still in a file
    view.py       TensorView: a strided view of a buffer; TensorSpec: shape and dtype
    dtypes.py     element types and their names
"""

from __future__ import annotations

from kuiper.ir.attribute import Attribute
from kuiper.ir.graph import Graph
from kuiper.ir.nodes import Operand, Operator, PostOp, Use

__all__ = ["Attribute", "Graph", "Operand", "Operator", "PostOp", "Use"]

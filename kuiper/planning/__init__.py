"""Graph and input shapes -> plan: shapes, memory, steps."""

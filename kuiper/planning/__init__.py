"""Planning: a graph and the shapes of its inputs become a plan, which runs without decisions.

::

    arrays ─ input_checker ─> plan_cache ─ passes ─> planner ──> plan ── run ──> arrays
                                │ new shapes?         │ infer    shape and dtype of each operand
    graph ── verify ────────────┘                     │ binder   memory and steps, per operator
                                                      │ arena    offset of each buffer

``segments`` plans a graph with data-dependent operators piece by piece; ``profile`` measures the
steps of a plan; ``guard`` checks in tests what each step writes.
"""

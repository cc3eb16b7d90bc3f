# The indices of the elementwise functions in f32_unary and f32_binary of kernels_t.  setup.py
# generates them from the rows of kuiper/expression/functions.py that have a float32 kernel.

include "function_numbers.pxi"

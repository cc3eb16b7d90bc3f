# The numbers of the elementwise functions in the micro-kernels' table, one series for functions of
# one tensor and one for functions of two.  setup.py generates them from the rows of
# kuiper/expression/functions.py that have a float32 kernel.

include "function_numbers.pxi"

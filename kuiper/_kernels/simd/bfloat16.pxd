# bfloat16 as its 16 bits, which are the upper half of a float32.

from libc.stdint cimport uint16_t

ctypedef uint16_t bfloat16_t

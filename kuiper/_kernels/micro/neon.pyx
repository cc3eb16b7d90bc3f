include "all.pxi"

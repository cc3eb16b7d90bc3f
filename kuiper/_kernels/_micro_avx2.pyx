include "_micro.pxi"

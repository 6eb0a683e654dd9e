"""Templates of the CUDA kernels, one a kernel; a leading `_` marks the parts that they share.

Package data only: `strata_kernels.render` renders them.
"""

"""Equality without a tolerance: docs/dev/equality.md.

ring       Triton's FPSan mode, and the form of each kernel that it sees through
table      operators, their workloads, and the classes of what is equal in the reals but not in the ring
run        the digest of each result of a workload: on a GPU, or emulated
stored     the same of every stored config, kernel by kernel
rows       both, as rows of a device
compare    digests with digests; what differs, in words
"""

"""Equality without a tolerance: docs/dev/equality.md.

ring       Triton's FPSan mode, and the form of each kernel that it sees through
table      operators, their workloads, and the classes of what is equal in the reals but not in the ring
run        the digest of each result, with each config: on a GPU, or emulated
compare    digests with digests; what differs, in words
"""

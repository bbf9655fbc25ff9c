"""NVIDIA machine code followed on a CPU with formulas in place of numbers."""

"""An interpreter of gfx942 and gfx950 machine code from Triton, for any CPU: docs/dev/emulation.md.

text       assembler text to a Program: instructions, labels, descriptor, arguments
registers  the registers of many waves, and operands as functions of them
arithmetic, integers, vector, irregular, packed, division, lanes, scalar, matrix
           what each instruction computes
memory, shared     global memory between guard pages; LDS with a race detector
waits, hazards     what must be waited for before a register is used
machine    a Program and its arguments, run
launch     Helion's launcher, with which every operator, config and truth of ci/ is covered
"""

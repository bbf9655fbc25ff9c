"""python -m tritonbench_ops [arguments of tritonbench's run.py]"""

import sys

from tritonbench_ops.launch import run

if __name__ == "__main__":
    run(sys.argv[1:])

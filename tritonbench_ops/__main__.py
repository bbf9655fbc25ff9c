"""python -m tritonbench_ops [arguments of tritonbench's run.py]"""

import os
import sys

from tritonbench_ops import flags
from tritonbench_ops.launch import run

if __name__ == "__main__":
    if os.environ.get(flags.STARTED_BY) == str(os.getppid()):
        # it imports torch, before which arguments are checked
        from helion_sinkhorn.lab.parent import end_with_parent

        end_with_parent()
    run(sys.argv[1:])

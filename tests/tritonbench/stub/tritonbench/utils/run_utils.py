from tritonbench.operators.op import load_opbench_by_name
from tritonbench.utils.parser import get_parser


def tritonbench_run(args):
    """Like the real one, swallows what an operator's run raises."""
    options, extra = get_parser().parse_known_args(args)
    if options.list_metrics or options.list_backends:
        return
    operator = load_opbench_by_name(options.op)(options, extra)
    try:
        operator.run(options.warmup, options.rep)
    except BaseException as error:
        print(f"swallowed: {error!r}")

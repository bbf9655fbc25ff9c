"""The operator as tritonbench imports it: tritonbench.operators.sinkhorn_balance.operator."""

from tritonbench_ops.judged import JudgedByLeaves
from tritonbench_ops.sinkhorn_balance import cases as parts


class Operator(JudgedByLeaves, label="MxN", backends=parts.BACKENDS):
    """An update balanced by the norms of its rows and columns; an input is (update, ())."""

    parts = parts

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.requires_grad = False

    def leaves(self):
        return []

    def upstreams(self):
        return [self.example_inputs[0]]

    def get_bwd_fn(self, forward):
        raise NotImplementedError("sinkhorn_balance has no gradient; use --mode fwd or fwd_no_grad")

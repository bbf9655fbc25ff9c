"""The default configs of sinkhorn_balance as machine code for GPUs that need not be here."""

from __future__ import annotations

import pytest
from targets import BY_NIGHT

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.balance import launch
from helion_sinkhorn.ops.balance.space import BalanceCall
from helion_sinkhorn.runtime.kernel import default_choice

CALLS = (
    (BalanceCall("float32", 256), (launch.COLUMNS,)),
    (BalanceCall("bfloat16", 7168), tuple(launch.KERNELS)),
)


@BY_NIGHT
@pytest.mark.parametrize(("call", "kernels"), CALLS, ids=str)
@pytest.mark.parametrize("key", ["h200", "mi350"])
def test_defaults_make_good_machine_code(key, call, kernels, compile_for):
    jobs = [Job(call, default_choice(KERNELS[name], call, DEVICES[key])) for name in kernels]
    bad = []
    for binary in compile_for(key, jobs):
        found = list(binary.problems)
        if binary.spills:
            found.append(f"{binary.spills} spills")
        # an update moves 16 bytes a thread at a time
        wide = {
            "load 128": binary.job.choice.kernel != launch.COLUMNS,
            "store 128": "finish" in str(binary.job),
        }
        if call.columns % 256 == 0 and any(binary.accesses.get(k, 0) < v for k, v in wide.items()):
            found.append(f"accesses {binary.accesses}")
        bad += [f"{call} {binary.job.choice}: {'; '.join(found)}"] if found else []
    assert not bad, "\n".join(bad)

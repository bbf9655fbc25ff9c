import importlib
from pathlib import Path


def _list_opbench_paths():
    return [str(path.parent) for path in Path(__file__).parent.glob("*/__init__.py")]


def load_opbench_by_name(op_name):
    (name,) = [Path(path).name for path in _list_opbench_paths() if Path(path).name == op_name]
    return importlib.import_module(f"tritonbench.operators.{name}").Operator

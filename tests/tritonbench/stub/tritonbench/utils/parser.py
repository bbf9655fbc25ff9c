import argparse

FLAGS = (
    "--op", "--metrics", "--only", "--skip", "--baseline", "--output-json", "--side-a", "--side-b",
)  # fmt: skip
"""Written out because the launcher reads them from this file."""


def get_parser():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in FLAGS:
        parser.add_argument(flag)
    for flag in ("--rtol", "--atol"):
        parser.add_argument(flag, type=float)
    for flag in ("--rep", "--warmup", "--num-inputs"):
        parser.add_argument(flag, type=int)
    for flag in ("--list-metrics", "--list-backends", "--keep-going", "--csv", "--isolate"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--mode", choices=["fwd", "bwd", "fwd_bwd", "fwd_no_grad"], default="fwd")
    parser.add_argument("--precision", choices=["bypass", "fp32", "bf16", "fp16", "fp8"], default="bypass")
    parser.add_argument("--only-match-mode", choices=["exact", "prefix-with-baseline"], default="exact")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--input-id", type=int, default=0)
    return parser

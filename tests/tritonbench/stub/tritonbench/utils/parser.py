import argparse


def get_parser():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("op", "metrics", "only", "skip", "baseline", "output-json"):
        parser.add_argument(f"--{flag}")
    for flag in ("rtol", "atol"):
        parser.add_argument(f"--{flag}", type=float)
    for flag in ("rep", "warmup", "num-inputs"):
        parser.add_argument(f"--{flag}", type=int)
    for flag in ("list-metrics", "list-backends", "keep-going"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--mode", choices=["fwd", "bwd", "fwd_bwd", "fwd_no_grad"], default="fwd")
    parser.add_argument("--precision", choices=["bypass", "fp32", "bf16", "fp16", "fp8"], default="bypass")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--input-id", type=int, default=0)
    return parser

"""Converts a PyTorch file to safetensors, for those who have PyTorch:

    python scripts/convert.py resnet34.pth resnet34.safetensors

The file holds a state_dict, or a checkpoint with one under "state_dict" or "model"; a prefix "module." of
DataParallel's is taken off.  cf.zoo.load reads the result.
"""

import sys

import torch
from safetensors.torch import save_file

PREFIX = "module."


def state_of(checkpoint):
    for key in ("state_dict", "model"):
        if isinstance(checkpoint.get(key), dict):
            checkpoint = checkpoint[key]
    return checkpoint


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    state = state_of(torch.load(sys.argv[1], map_location="cpu", weights_only=True))
    others = [name for name, t in state.items() if not isinstance(t, torch.Tensor)]
    if others:
        sys.exit(f"{sys.argv[1]}: no state_dict: these are no tensors: {', '.join(map(str, others[:10]))}")
    # copies: two names may share one storage, which the format does not have
    tensors = {name.removeprefix(PREFIX): t.detach().clone().contiguous() for name, t in state.items()}
    save_file(tensors, sys.argv[2], {"format": "pt"})
    print(f"{sys.argv[2]}: {len(tensors)} tensors")


main()

"""The all-reduce of PyTorch's gloo, for comm.lua.

    python3 scripts/bench/peer_gloo.py [RANKS]

Needs torch, which nothing else here does.  For each line "BYTES REPEATS" that it reads it prints the microseconds of an
all-reduce of so many bytes of floats, the mean of REPEATS.
"""
import os
import sys
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    sys.exit(f"peer_gloo: {error}; `pip install torch` brings PyTorch")


def run(rank, size, folder, pipe):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    while True:
        order = [None]
        if rank == 0:
            order = [pipe.recv()]
        dist.broadcast_object_list(order)
        if order[0] is None:
            break
        bytes_each, repeats = order[0]
        x = torch.zeros(bytes_each // 4)
        for _ in range(2):
            dist.all_reduce(x)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            dist.all_reduce(x)
        if rank == 0:
            pipe.send((time.perf_counter() - start) * 1e6 / repeats)
    dist.destroy_process_group()


def main():
    import tempfile

    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory() as folder:
        ranks = multiprocessing.spawn(run, (size, folder, theirs), nprocs=size, join=False)
        for line in sys.stdin:
            ours.send(tuple(int(word) for word in line.split()))
            print(ours.recv(), flush=True)
        ours.send(None)
        ranks.join()


if __name__ == "__main__":
    main()

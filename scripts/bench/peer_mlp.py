"""The steps of mlp.lua in PyTorch: eager, fused Adam, on one process with all cores and with DDP (gloo) on two.

    python3 scripts/bench/peer_mlp.py [threads]

Needs torch, which nothing else here does.  Prints the figures of mlp.lua with the prefix torch_: the median of
15 blocks of 100 steps, of which only the last loss is read.
"""
import argparse
import os
import statistics
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    sys.exit(f"peer_mlp: {error}; `pip install torch` brings PyTorch")

BLOCKS, STEPS = 15, 100

CASES = {
    "mlp16": ([1, 256, 512, 256, 1], nn.Tanh, 16),
    "mlp64": ([784, 512, 256, 10], nn.ReLU, 64),
}


def model_of(sizes, act):
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if i < len(sizes) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


def measure(name, wrap=lambda m: m):
    sizes, act, batch = CASES[name]
    torch.manual_seed(0)
    model = wrap(model_of(sizes, act))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    if name == "mlp16":
        x = torch.rand(batch, 1)
        y = x**2
        loss_of = lambda out: ((out - y) ** 2).sum()
    else:
        x, y = torch.rand(batch, 784), torch.randint(0, 10, (batch,))
        loss_of = lambda out: nn.functional.cross_entropy(out, y)

    def step():
        optimiser.zero_grad()
        loss = loss_of(model(x))
        loss.backward()
        optimiser.step()
        return loss

    times = []
    for block in range(BLOCKS + 1):
        start = time.perf_counter()
        for _ in range(STEPS):
            loss = step()
        loss.item()
        times.append((time.perf_counter() - start) / STEPS * 1e6)
    return statistics.median(times[1:])


def figure(name, devices, us):
    print(f"figure torch_{name}_{devices}dev_us {us:.4g} us", flush=True)


def replica(rank, threads):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.set_num_threads(threads)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    for name in CASES:
        us = measure(name, nn.parallel.DistributedDataParallel)
        if rank == 0:
            figure(name, 2, us)
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("threads", type=int, nargs="?", default=os.cpu_count())
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    for name in CASES:
        figure(name, 1, measure(name))
    torch.multiprocessing.spawn(replica, (max(1, threads // 2),), nprocs=2)


if __name__ == "__main__":
    main()

"""The steps of resnet.lua in PyTorch: ResNet-34, 8 images of 224 x 224, float32, fused SGD with momentum.

    python3 scripts/bench/peer_resnet.py [threads]

Needs torch and torchvision, which nothing else here does.  The rows (eager, channels_last, and compiled channels_last)
run in processes of their own, which take turns, a step each; a figure is the median of 7 steps.  Prints images/s of
each row, of the best one, and of the best in evaluation; and the bytes that the best row's process has grown by at
most, from when torch was imported.
"""
import resource
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torchvision
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    sys.exit(f"peer_resnet: {error}; `pip install torch torchvision` brings them")

STEPS, BATCH, SIZE = 7, 8, 224
ROWS = ("eager", "channels_last", "compiled")


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(row, training):
    """Makes a step for each line that it reads, and answers with its seconds and the bytes so far."""
    before = peak_bytes()
    model, x, y = torchvision.models.resnet34(), torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, 1000, (BATCH,))
    if row != "eager":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    model.train(training)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    run = torch.compile(model) if row == "compiled" else model

    def step():
        if not training:
            with torch.no_grad():
                return float(run(x)[0, 0])
        optimiser.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(run(x), y)
        loss.backward()
        optimiser.step()
        return loss.item()

    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        print(time.perf_counter() - start, peak_bytes() - before, flush=True)


def measure(mode, threads):
    """Images/s and bytes of each row."""
    rows = {row: subprocess.Popen([sys.executable, __file__, str(threads), mode, row], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE) for row in ROWS}
    times, peaks = {row: [] for row in ROWS}, {}
    for turn in range(STEPS + 2):
        for row, process in rows.items():
            process.stdin.write("\n")
            process.stdin.flush()
            seconds, peaks[row] = map(float, process.stdout.readline().split())
            if turn >= 2:  # before, it compiles and warms up
                times[row].append(seconds)
    for process in rows.values():
        process.stdin.close()
        process.wait()
    return {row: (BATCH / statistics.median(times[row]), peaks[row]) for row in ROWS}


def figure(name, value, unit):
    print(f"figure {name} {value:.4g} {unit}" if value % 1 else f"figure {name} {value:.0f} {unit}", flush=True)


def main():
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads()
    torch.set_num_threads(threads)
    if len(sys.argv) > 2:
        return serve(sys.argv[3], sys.argv[2] == "train")
    trained = measure("train", threads)
    for row, (rate, _) in trained.items():
        figure(f"torch_resnet34_{row}_images_per_s", rate, "images/s")
    rate, peak = max(trained.values())
    figure("torch_resnet34_best_images_per_s", rate, "images/s")
    figure("torch_resnet34_best_peak_bytes", peak, "bytes")
    figure("torch_resnet34_eval_best_images_per_s", max(rate for rate, _ in measure("eval", threads).values()),
           "images/s")


main()

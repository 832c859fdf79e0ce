"""The steps of resnet.lua in PyTorch: ResNet-34, 8 images of 224 x 224, float32, fused SGD with momentum.

    python3 scripts/bench/peer_resnet.py [threads [CONFLUX]]

Needs torch and torchvision, which nothing else here does.  The rows (eager, channels_last, and compiled channels_last)
run in processes of their own, which take turns, a step each; a figure is the median of 7 steps.  Prints images/s of
each row, of the best one, and of the best in evaluation; and of the best row's process the bytes that it held at most,
and those by which it had grown since torch was imported.

With CONFLUX, the program (build/bin/conflux), resnet.lua takes turns with them, in evaluation with the folded network.
Its figures follow, and their ratios to the best row's: of a turn each, the median.
"""
import os
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
    """Makes a step for each line that it reads, and answers with its seconds, the bytes so far, and their growth."""
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
        print(time.perf_counter() - start, peak_bytes(), peak_bytes() - before, flush=True)


def measure(mode, threads, conflux):
    """Of each row the seconds of its steps, its bytes, and their growth."""
    commands = {row: [sys.executable, __file__, str(threads), "--serve", mode, row] for row in ROWS}
    if conflux:
        commands["conflux"] = [conflux, os.path.join(os.path.dirname(__file__), "resnet.lua"), "--serve", mode]
    environment = {**os.environ, "CONFLUX_NUM_THREADS": str(threads)}
    rows = {row: subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            for row, command in commands.items()}
    times, bytes_of = {row: [] for row in rows}, {}
    for turn in range(STEPS + 2):
        for row, process in rows.items():
            process.stdin.write("\n")
            process.stdin.flush()
            seconds, *bytes_of[row] = map(float, process.stdout.readline().split())
            if turn >= 2:  # before, it compiles and warms up
                times[row].append(seconds)
    for process in rows.values():
        process.stdin.close()
        process.wait()
    return {row: (times[row], *bytes_of[row]) for row in rows}


def figure(name, value, unit):
    print(f"figure {name} {value:.4g} {unit}" if value % 1 else f"figure {name} {value:.0f} {unit}", flush=True)


def rate(times):
    return BATCH / statistics.median(times)


def beside(ours, best, prefix):
    """Figures of Conflux's row beside those of PyTorch's best."""
    ratios = [theirs / own for own, theirs in zip(ours[0], best[0])]
    figure(f"{prefix}_images_per_s", rate(ours[0]), "images/s")
    figure(f"{prefix}_over_torch", statistics.median(ratios), "ratio")


def main():
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads()
    conflux = sys.argv[2] if len(sys.argv) > 2 else None
    torch.set_num_threads(threads)
    if conflux == "--serve":
        return serve(sys.argv[4], sys.argv[3] == "train")
    trained, evaluated = measure("train", threads, conflux), measure("eval", threads, conflux)
    best, best_eval = (max((rows[row] for row in ROWS), key=lambda row: rate(row[0])) for rows in (trained, evaluated))
    for row in ROWS:
        figure(f"torch_resnet34_{row}_images_per_s", rate(trained[row][0]), "images/s")
    figure("torch_resnet34_best_images_per_s", rate(best[0]), "images/s")
    figure("torch_resnet34_best_process_peak_bytes", best[1], "bytes")
    figure("torch_resnet34_best_process_growth_bytes", best[2], "bytes")
    figure("torch_resnet34_eval_best_images_per_s", rate(best_eval[0]), "images/s")
    if not conflux:
        return
    beside(trained["conflux"], best, "resnet34_1dev")
    for k, what in (1, "peak"), (2, "growth"):
        figure(f"resnet34_1dev_process_{what}_bytes", trained["conflux"][k], "bytes")
        figure(f"resnet34_1dev_process_{what}_over_torch", trained["conflux"][k] / best[k], "ratio")
    beside(evaluated["conflux"], best_eval, "resnet34_folded")


main()

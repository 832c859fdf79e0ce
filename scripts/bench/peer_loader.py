"""The pictures of loader.lua by torchvision: decoded, cut, resized, normalised and put together, on one thread.

    build/bin/conflux scripts/bench/loader.lua FOLDER     # makes the pictures, and measures Conflux
    python3 scripts/bench/peer_loader.py FOLDER

Needs torch, torchvision and Pillow, which nothing else here does.  Each row is a way that torchvision offers:

    pil           Pillow decodes (scaled, by draft, where that leaves enough), and transforms.v2 works on Pillow's images
    pil_tensor    Pillow decodes, and transforms.v2 works on tensors of bytes
    tensor        torchvision.io.decode_jpeg, and transforms.v2 on tensors of bytes
    tensor_batch  likewise, but a batch of 8 is normalised at once

Rows run in processes of their own, which take turns, a round of all pictures each, as training (random resized crop of
224, flip) and evaluation (shorter side to 256, the middle 224); a figure is the median of 15 rounds.
"""
import glob
import os
import statistics
import subprocess
import sys
import time

try:
    import torch
    from PIL import Image
    from torchvision import io
    from torchvision.transforms import v2
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    sys.exit(f"peer_loader: {error}; `pip install torch torchvision pillow` brings them")

ROUNDS, BATCH, SIZE, SHORT = 15, 8, 224, 256
ROWS = ("pil", "pil_tensor", "tensor", "tensor_batch")
MODES = ("train", "eval")


def open_picture(path, mode):
    image = Image.open(path)
    if mode == "eval":  # which part training takes, and so what it needs, is not known yet
        image.draft("RGB", (SHORT, SHORT))
    return image.convert("RGB")


def pipeline(row, mode):
    """From a path to a sample, and from samples to a batch."""
    cut = ([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()] if mode == "train" else
           [v2.Resize(SHORT), v2.CenterCrop(SIZE)])
    normalise = v2.Compose([v2.ToDtype(torch.float32, scale=True),
                            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    if row == "tensor_batch":
        steps = v2.Compose(cut)
        return (lambda path: steps(io.decode_jpeg(io.read_file(path), mode="RGB")),
                lambda samples: normalise(torch.stack(samples)))
    if row == "tensor":
        steps = v2.Compose([*cut, normalise])
        return lambda path: steps(io.decode_jpeg(io.read_file(path), mode="RGB")), torch.stack
    steps = v2.Compose([*cut, v2.ToImage(), normalise] if row == "pil" else [v2.ToImage(), *cut, normalise])
    return lambda path: steps(open_picture(path, mode)), torch.stack


def serve(row, mode, paths):
    """Makes a round for each line that it reads, and answers with its seconds."""
    torch.set_num_threads(1)
    sample, collate = pipeline(row, mode)
    for _ in sys.stdin:
        start = time.perf_counter()
        with torch.inference_mode():
            for i in range(0, len(paths), BATCH):
                batch = collate([sample(path) for path in paths[i:i + BATCH]])
        assert batch.shape[1:] == (3, SIZE, SIZE) and batch.dtype == torch.float32
        print(time.perf_counter() - start, flush=True)


def measure(folder, pictures):
    """Pictures a second of each row in each mode."""
    served = {(row, mode): subprocess.Popen([sys.executable, __file__, folder, row, mode], text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
              for row in ROWS for mode in MODES}
    times = {key: [] for key in served}
    for turn in range(ROUNDS + 1):
        for key, process in served.items():
            process.stdin.write("\n")
            process.stdin.flush()
            seconds = float(process.stdout.readline())
            if turn > 0:  # the first one warms up
                times[key].append(seconds)
    for process in served.values():
        process.stdin.close()
        process.wait()
    return {key: pictures / statistics.median(list) for key, list in times.items()}


def main():
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    if len(sys.argv) < 2:
        sys.exit("peer_loader: expected the folder of loader.lua's pictures")
    paths = sorted(glob.glob(os.path.join(sys.argv[1], "all", "*.jpg")))
    if not paths:
        sys.exit(f"peer_loader: there are no pictures {sys.argv[1]}/all/*.jpg")
    if len(sys.argv) > 2:
        return serve(sys.argv[2], sys.argv[3], paths)
    rates = measure(sys.argv[1], len(paths))
    for (row, mode), rate in rates.items():
        print(f"figure torchvision_{row}_{mode}_images_per_s {rate:.4g} images/s")
    for mode in MODES:
        best = max(rates[row, mode] for row in ROWS)
        print(f"figure torchvision_best_{mode}_images_per_s {best:.4g} images/s")


main()

"""Records torchvision's residual networks: python tests/record/resnet.py, with torch, torchvision and safetensors.

Writes tests/fixtures/resnet.safetensors: of ResNet-18, 34 and 50 in float64, in evaluation and in training, the
logits and the loss; of each gradient and each running statistic of the training step its 2-norm and 32 elements; and
how far PyTorch's own float32 is from its float64.  That is the largest distance of several sets of images: where
rounding takes a number to the other side of a relu, a gradient changes by far more than where it does not.  Weights and images come from formula.py.  The metadata holds the names
in the state of every network of cf.zoo that torchvision has.

    python tests/record/resnet.py --file PATH

writes instead a whole ResNet-34 as torchvision initialises it, to PATH, with the five best classes of one image in
the metadata: tests/spec/vision_spec.lua reads it where CONFLUX_RESNET34 names it.
"""

import json
import pathlib
import sys

import torch
import torchvision
from safetensors.torch import save_file
from torch.nn import functional as F

from formula import values

SIZE, BATCH, CLASSES, ELEMENTS = 64, 2, 10, 32
IMAGE = 1000000  # the seed of the images, behind those of the tensors: 1, 2, 3, ... in the order of the state
SETS = 6  # of images, by which PyTorch's distance is measured


def exponent(fan):
    """The least e with 4**-e <= 6 / fan: uniform on +-2**-e has about the deviation that He et al. (2015) ask for."""
    e = 0
    while 6 * 4**e < fan:
        e += 1
    return e


def fill(model):
    for seed, (name, t) in enumerate(model.state_dict().items(), 1):
        if name.endswith("num_batches_tracked"):
            t.fill_(7)
        elif name.endswith("running_var") or t.ndim == 1 and name.endswith("weight"):
            t.copy_(1 + values(t.shape, seed, 16))
        elif t.ndim == 1:
            t.copy_(values(t.shape, seed, 17))
        else:
            fan = t.numel() // t.shape[1 if t.ndim == 4 else 0]  # out of a convolution, in of a dense layer
            t.copy_(values(t.shape, seed, 15 + exponent(fan)))
    return model


def elements(t):
    """Elements of a tensor that lie evenly in it, at most ELEMENTS."""
    flat, n = t.detach().reshape(-1), t.numel()
    count = min(n, ELEMENTS)
    return flat[torch.arange(count) * n // count]


def step(arch, dtype, training, images=0):
    model = fill(getattr(torchvision.models, arch)(num_classes=CLASSES).to(dtype)).train(training)
    x = values((BATCH, SIZE, SIZE, 3), IMAGE + images).permute(0, 3, 1, 2).to(dtype)
    logits = model(x)
    loss = F.cross_entropy(logits, torch.arange(BATCH) + 3)
    found = {"logits": logits, "loss": loss}
    if training:
        loss.backward()
        found.update((f"{name}.d", p.grad) for name, p in model.named_parameters())
        found.update((name, t) for name, t in model.named_buffers() if "running" in name)
    return found


def summary(found):
    kept = {name: found[name].detach() for name in ("logits", "loss")}
    names = [name for name in found if name not in kept]
    for kind in ("d", "running_mean", "running_var"):
        of_kind = [name for name in names if name.endswith("." + kind)]
        kept[f"{kind}.norms"] = torch.stack([found[name].norm() for name in of_kind])
        kept[f"{kind}.elements"] = torch.cat([elements(found[name]) for name in of_kind])
    return {name: t.double() for name, t in kept.items()}


def distance(a, b):
    return ((a - b).norm() / b.norm()).reshape(())


def record(arch, records):
    kept = step(arch, torch.float64, False)
    records[f"{arch}.eval.logits"], records[f"{arch}.eval.loss"] = kept["logits"].detach(), kept["loss"].detach()
    far = {}
    for images in range(SETS):
        exact, rough = (summary(step(arch, dtype, True, images)) for dtype in (torch.float64, torch.float32))
        for name, t in exact.items():
            if images == 0:
                records[f"{arch}.train.{name}"] = t
            far.setdefault(name, []).append(distance(rough[name], t))
    for name, distances in far.items():
        records[f"{arch}.float32.{name}"] = torch.stack(distances).max()
        print(arch, name, *(f"{float(d):.2g}" for d in distances))


def write_fixture(path):
    records = {}
    for arch in ("resnet18", "resnet34", "resnet50"):
        record(arch, records)
    names = {}
    for arch in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg11", "vgg16", "vgg19"):
        with torch.device("meta"):
            names[arch] = "\n".join(getattr(torchvision.models, arch)().state_dict())
    names["torch"], names["torchvision"] = torch.__version__, torchvision.__version__
    save_file({name: t.contiguous() for name, t in records.items()}, path, names)


def write_file(path):
    torch.manual_seed(1)
    model = torchvision.models.resnet34().eval()
    with torch.no_grad():
        logits = model(values((1, SIZE, SIZE, 3), IMAGE).permute(0, 3, 1, 2).float())
    best = logits.topk(5).indices[0].tolist()
    save_file(model.state_dict(), path, {"format": "pt", "best": json.dumps(best)})


if sys.argv[1:2] == ["--file"]:
    write_file(sys.argv[2])
else:
    write_fixture(pathlib.Path(__file__).parents[1] / "fixtures" / "resnet.safetensors")

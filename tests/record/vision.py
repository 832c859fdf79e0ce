"""Records what PyTorch computes in float64 for the layers of vision: python tests/record/vision.py, with torch and
safetensors installed.

Writes tests/fixtures/vision.safetensors: of every case the result, the gradients of sum(y * c) and the statistics
that the layer leaves.  Inputs, parameters and c come from formula.py.  The file's metadata holds the cases as JSON:
the layer, its arguments as Lua takes them, the shape of x (images NHWC), what the call gets beside x.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from formula import values

X, C, RESIDUAL, WEIGHT, BIAS = 1, 2, 3, 4, 5  # seeds of the formula
ACTS = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu, "leakyrelu": F.leaky_relu}
cases, records = [], {}


def nchw(x):
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def nhwc(x):
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x


def leaf(shape, seed, bits=15):
    return values(shape, seed, bits).requires_grad_()


def record(name, tensor):
    records[name] = tensor.detach().contiguous().clone()


def case(name, layer, args, options, x, f, parameters=(), residual=None, after=None, **more):
    """Records f(x, residual, parameters) and the gradients; `after` gives what the layer holds then."""
    inputs = {"x": leaf(x, X), **dict(parameters)}
    if residual:
        inputs["residual"] = leaf(residual, RESIDUAL)
    y = nhwc(f(nchw(inputs["x"]), *([nchw(inputs["residual"])] if residual else []),
               **{k: inputs[k] for k, _ in parameters}))
    (y * values(y.shape, C)).sum().backward()
    record(f"{name}.y", y)
    for key, t in inputs.items():
        record(f"{name}.d{key}", t.grad)
    for key, t in (after() if after else {}).items():
        record(f"{name}.{key}", t)
    cases.append({"name": name, "layer": layer, "args": args, "options": options, "x": list(x),
                  "residual": bool(residual), **more})


def pair(v):
    return tuple(v) if isinstance(v, (list, tuple)) else (v, v)


def sides(pad):
    """Top, bottom, left, right of a pad as Lua takes it."""
    if isinstance(pad, list) and len(pad) == 4:
        return pad
    h, w = pair(pad)
    return [h, h, w, w]


# ---- convolutions ----------------------------------------------------------------------------------------------


def conv(name, n_in, n_out, kernel, x, act=None, residual=False, **o):
    kh, kw = pair(kernel)
    groups, pad = o.get("groups", 1), o.get("pad", 0)
    parameters = [("weight", leaf((n_out, kh, kw, n_in // groups), WEIGHT))]
    if o.get("bias", True):
        parameters.append(("bias", leaf((n_out,), BIAS)))

    def f(x, r=None, weight=None, bias=None):
        padding = "same" if pad == "same" else 0
        if pad != "same":
            top, bottom, left, right = sides(pad)
            x = F.pad(x, (left, right, top, bottom))
        y = F.conv2d(x, weight.permute(0, 3, 1, 2), bias, pair(o.get("stride", 1)), padding,
                     pair(o.get("dilation", 1)), groups)
        if r is not None:
            y = y + r
        return ACTS[act](y) if act else y

    with torch.no_grad():
        shape = nhwc(f(nchw(values(x, X)), **dict(parameters))).shape
    case(name, "Conv", [n_in, n_out, kernel] + ([act] if act else []), o, x, f, parameters,
         residual=shape if residual else None)


def transposed(name, n_in, n_out, kernel, x, act=None, **o):
    kh, kw = pair(kernel)
    groups = o.get("groups", 1)
    parameters = [("weight", leaf((n_in, kh, kw, n_out // groups), WEIGHT))]
    if o.get("bias", True):
        parameters.append(("bias", leaf((n_out,), BIAS)))

    def f(x, weight, bias=None):
        y = F.conv_transpose2d(x, weight.permute(0, 3, 1, 2), bias, pair(o.get("stride", 1)), pair(o.get("pad", 0)),
                               pair(o.get("output_pad", 0)), groups, pair(o.get("dilation", 1)))
        return ACTS[act](y) if act else y

    case(name, "ConvTranspose", [n_in, n_out, kernel] + ([act] if act else []), o, x, f, parameters)


conv("conv", 3, 4, 3, (2, 6, 5, 3))
conv("conv_nobias", 3, 4, 3, (2, 5, 5, 3), bias=False)
conv("conv_stride", 3, 4, 3, (2, 7, 6, 3), stride=2, pad=1)
conv("conv_strides", 2, 3, [3, 2], (1, 7, 9, 2), stride=[2, 3], pad=[1, 0])
conv("conv_sides", 2, 3, 3, (1, 5, 6, 2), pad=[0, 2, 1, 3], stride=2)
conv("conv_same", 2, 3, 3, (1, 5, 4, 2), pad="same")
conv("conv_same_even", 2, 3, [4, 2], (1, 5, 6, 2), pad="same")
conv("conv_same_dilated", 2, 3, [2, 3], (1, 6, 7, 2), pad="same", dilation=[3, 2])
conv("conv_dilation", 2, 3, 3, (1, 9, 8, 2), dilation=2, pad=2)
conv("conv_groups", 4, 6, 3, (2, 5, 5, 4), groups=2, pad=1)
conv("conv_depthwise", 4, 4, 3, (2, 6, 5, 4), groups=4, pad=1, stride=2)
conv("conv_depthwise_twice", 3, 6, 3, (1, 5, 5, 3), groups=3)
conv("conv_channel", 1, 1, 3, (2, 5, 7, 1), pad=1)
conv("conv_pointwise", 5, 3, 1, (2, 3, 3, 5))
conv("conv_pointwise_stride", 5, 3, 1, (2, 5, 4, 5), stride=2)
conv("conv_whole", 3, 4, [4, 5], (2, 4, 5, 3))
conv("conv_wide", 17, 19, 3, (1, 5, 5, 17), pad=1)
conv("conv_relu", 3, 4, 3, (2, 6, 5, 3), act="relu", pad=1)
conv("conv_gelu", 3, 4, 3, (2, 4, 5, 3), act="gelu")
conv("conv_leakyrelu", 3, 4, 3, (2, 4, 5, 3), act="leakyrelu")
conv("conv_residual", 3, 4, 3, (2, 5, 5, 3), residual=True, pad=1)
conv("conv_residual_relu", 3, 4, 3, (2, 5, 5, 3), act="relu", residual=True, stride=2, bias=False)
conv("conv_empty", 3, 4, 3, (0, 6, 5, 3))

transposed("transposed", 3, 4, 3, (2, 4, 5, 3))
transposed("transposed_stride", 3, 4, 3, (2, 4, 3, 3), stride=2, pad=1)
transposed("transposed_output_pad", 3, 2, 3, (1, 4, 3, 3), stride=2, pad=1, output_pad=1)
transposed("transposed_all", 4, 6, [3, 2], (2, 3, 4, 4), stride=[2, 3], pad=[1, 0], dilation=[1, 2],
           output_pad=[1, 2], groups=2, bias=False)
transposed("transposed_relu", 2, 3, 2, (1, 3, 3, 2), act="relu", stride=2)
transposed("transposed_depthwise", 3, 3, 3, (1, 3, 4, 3), groups=3)
transposed("transposed_empty", 3, 4, 3, (0, 4, 5, 3), stride=2)

# ---- normalisation ---------------------------------------------------------------------------------------------


def batchnorm(name, n, x, act=None, residual=False, mode="train", steps=1, **o):
    """`steps` calls before the recorded one move the statistics: of inputs with the seeds 11, 12, ..."""
    momentum = o.get("momentum", 0.1)
    affine, track = o.get("affine", True), o.get("track", True)
    norm = nn.BatchNorm2d if len(x) == 4 else nn.BatchNorm1d
    layer = norm(n, o.get("eps", 1e-5), None if momentum is False else momentum, affine, track).double()
    parameters = []
    if affine:
        parameters = [("weight", leaf((n,), WEIGHT)), ("bias", leaf((n,), BIAS))]
        with torch.no_grad():
            layer.weight.copy_(parameters[0][1])
            layer.bias.copy_(parameters[1][1])
    with torch.no_grad():
        for step in range(steps - 1):
            layer(nchw(values(x, 11 + step)))
    layer.train(mode == "train")

    def f(x, r=None, **p):
        y = torch.func.functional_call(layer, p, (x,)) if p else layer(x)
        if r is not None:
            y = y + r
        return ACTS[act](y) if act else y

    def after():
        return dict(layer.named_buffers()) if track else {}

    case(name, "BatchNorm", [n] + ([act] if act else []), o, x, f, parameters, residual=x if residual else None,
         after=after, mode=mode, steps=steps)


batchnorm("batchnorm", 3, (2, 4, 5, 3))
batchnorm("batchnorm_wide", 19, (3, 3, 3, 19))
batchnorm("batchnorm_rows", 5, (6, 5))
batchnorm("batchnorm_channel", 1, (2, 3, 4, 1), eps=0.01)
batchnorm("batchnorm_relu", 3, (2, 4, 5, 3), act="relu")
batchnorm("batchnorm_tanh", 3, (2, 3, 3, 3), act="tanh", residual=True)
batchnorm("batchnorm_residual", 3, (2, 3, 3, 3), residual=True)
batchnorm("batchnorm_residual_relu", 3, (2, 4, 5, 3), act="relu", residual=True)
batchnorm("batchnorm_residual_leakyrelu", 3, (2, 3, 3, 3), act="leakyrelu", residual=True)
batchnorm("batchnorm_plain", 3, (2, 4, 5, 3), affine=False)
batchnorm("batchnorm_momentum", 3, (2, 4, 5, 3), momentum=0.3, steps=3)
batchnorm("batchnorm_cumulative", 3, (2, 4, 5, 3), momentum=False, steps=3)
batchnorm("batchnorm_eval", 3, (2, 4, 5, 3), mode="eval", steps=3)
batchnorm("batchnorm_eval_residual_relu", 3, (2, 3, 3, 3), mode="eval", steps=3, act="relu", residual=True)
batchnorm("batchnorm_eval_one", 3, (1, 1, 1, 3), mode="eval")
batchnorm("batchnorm_eval_empty", 3, (0, 2, 2, 3), mode="eval")
batchnorm("batchnorm_untracked", 3, (2, 4, 5, 3), track=False)
batchnorm("batchnorm_untracked_eval", 3, (2, 4, 5, 3), track=False, mode="eval")


def groupnorm(name, groups, n, x, **o):
    parameters = []
    if o.get("affine", True):
        parameters = [("weight", leaf((n,), WEIGHT)), ("bias", leaf((n,), BIAS))]
    case(name, "GroupNorm", [groups, n], o, x,
         lambda x, weight=None, bias=None: F.group_norm(x, groups, weight, bias, o.get("eps", 1e-5)), parameters)


groupnorm("groupnorm", 2, 6, (2, 3, 4, 6))
groupnorm("groupnorm_one", 1, 3, (2, 4, 3, 3), eps=0.01)
groupnorm("groupnorm_each", 3, 3, (2, 4, 3, 3))
groupnorm("groupnorm_plain", 2, 4, (2, 3, 3, 4), affine=False)
groupnorm("groupnorm_rows", 2, 6, (3, 6))
groupnorm("groupnorm_empty", 2, 4, (0, 3, 3, 4))

# ---- pooling ---------------------------------------------------------------------------------------------------


def maxpool(name, kernel, x, **o):
    case(name, "MaxPool", [kernel], o, x,
         lambda x: F.max_pool2d(x, pair(kernel), pair(o.get("stride", kernel)), pair(o.get("pad", 0)),
                                pair(o.get("dilation", 1))))


def meanpool(name, kernel, x, **o):
    case(name, "MeanPool", [kernel], o, x,
         lambda x: F.avg_pool2d(x, pair(kernel), pair(o.get("stride", kernel)), pair(o.get("pad", 0)),
                                count_include_pad=o.get("count_pad", True)))


def adaptive(name, size, x):
    case(name, "AdaptiveMeanPool", [size], {}, x, lambda x: F.adaptive_avg_pool2d(x, pair(size)))


def upsample(name, scale, x, **o):
    mode, size = o.get("mode", "nearest"), o.get("size")
    align = o.get("align_corners", False) if mode == "bilinear" else None
    case(name, "Upsample", [scale] if scale else [], o, x,
         lambda x: F.interpolate(x, pair(size) if size else None, pair(scale) if scale else None, mode, align))


maxpool("maxpool", 2, (2, 6, 5, 3))
maxpool("maxpool_resnet", 3, (2, 7, 8, 3), stride=2, pad=1)
maxpool("maxpool_sides", [3, 2], (1, 7, 6, 2), stride=[1, 2], pad=[1, 0], dilation=[2, 1])
maxpool("maxpool_channel", 2, (1, 4, 4, 1), stride=1)
maxpool("maxpool_empty", 2, (0, 4, 4, 3))
meanpool("meanpool", 2, (2, 6, 5, 3))
meanpool("meanpool_pad", 3, (2, 7, 8, 3), stride=2, pad=1)
meanpool("meanpool_nopad", 3, (2, 7, 8, 3), stride=2, pad=1, count_pad=False)
meanpool("meanpool_sides", [2, 3], (1, 6, 7, 2), stride=[1, 2], pad=[1, 0], count_pad=False)
meanpool("meanpool_empty", 2, (0, 4, 4, 3))
adaptive("adaptive", 3, (2, 7, 8, 3))
adaptive("adaptive_sides", [2, 5], (1, 3, 11, 2))
adaptive("adaptive_larger", 5, (1, 3, 4, 2))
adaptive("adaptive_empty", 2, (0, 4, 4, 3))
case("global", "GlobalMeanPool", [], {}, (2, 5, 4, 3), lambda x: F.adaptive_avg_pool2d(x, 1))
upsample("nearest", 2, (2, 3, 4, 3))
upsample("nearest_uneven", [1.7, 2.5], (1, 5, 4, 2))
upsample("nearest_smaller", 0.6, (1, 7, 6, 2))
upsample("nearest_size", None, (1, 3, 4, 2), size=[5, 7])
upsample("bilinear", 2, (2, 3, 4, 3), mode="bilinear")
upsample("bilinear_uneven", [1.7, 2.5], (1, 5, 4, 2), mode="bilinear")
upsample("bilinear_size", None, (1, 3, 4, 2), size=[5, 7], mode="bilinear")
upsample("bilinear_smaller", None, (1, 7, 6, 2), size=[3, 4], mode="bilinear")
upsample("bilinear_corners", 2, (1, 3, 4, 2), mode="bilinear", align_corners=True)
upsample("bilinear_corners_size", None, (1, 4, 5, 2), size=[1, 9], mode="bilinear", align_corners=True)
upsample("upsample_empty", 2, (0, 3, 4, 3))

path = pathlib.Path(__file__).parents[1] / "fixtures" / "vision.safetensors"
save_file(records, path, {"cases": json.dumps(cases), "torch": torch.__version__})

"""The work of gpu.lua in PyTorch, each part in PyTorch's ways of doing it.

    python3 scripts/bench/peer_gpu.py [--quick] [--device cuda:0] [--only PART,..] [--ways WAY,..] [--limit SECONDS]

Parts: mlp matmul attention elementwise reduce rows optim dispatch transfer.  Ways: eager; compiled (torch.compile of
model and loss); graphs (the whole eager step as one CUDA graph); transfers are pageable and pinned.  Attention is
PyTorch's own fused one; unfused, eager again, it is products and a softmax, as in gpu.lua.  Needs torch, which nothing
else here does.

Prints the figures of gpu.lua under the name peer_NAME_WAY, or peer_NAME where there is one way; sizes, counts, blocks
and medians are those of gpu.lua.  A part that fails, torch.compile among them, is a line `failed NAME: MESSAGE`;
the rest goes on, and the exit status is 1.  A part is given up after --limit seconds (300).  --device cpu is for
trying the script.
"""
import argparse
import faulthandler
import gc
import math
import signal
import statistics
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    sys.exit(f"peer_gpu: {error}; `pip install torch` brings PyTorch")

KIB, MIB, GIB = 2**10, 2**20, 2**30
FLOAT, HALF, ID = 4, 2, 8  # bytes

failed = False


class OutOfTime(BaseException):
    """A part's limit has passed.  No Exception, lest something of PyTorch's takes it for a failure of its own."""


# ---- output and measuring ---------------------------------------------------------------------------------------


def figure(name, value, unit, way=None):
    full = f"peer_{name}_{way}" if way else f"peer_{name}"
    print(f"figure {full} {value:.4g} {unit}", flush=True)


def report(name, problem):
    global failed
    failed = True
    text = " ".join(str(problem).split()) or type(problem).__name__
    print(f"failed peer_{name}: {text[:400]}", flush=True)


class Measure:
    """Functions timed in turns, as gpu/measure.lua does it."""

    def __init__(self, options):
        self.device = torch.device(options.device)
        self.on_gpu = self.device.type == "cuda"
        self.quick = options.quick
        self.ways = options.ways
        self.block_us, self.rounds = (1e3, 3) if options.quick else (20e3, 9)

    def sync(self):
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def item(self, name, f, *arguments):
        gc.collect()
        try:
            f(self, *arguments)
        except Exception as problem:  # whatever it is, the rest goes on
            report(name, problem)

    def can(self, way):
        return way in self.ways and (way != "graphs" or self.on_gpu)

    def block(self, f, calls):
        self.sync()
        start = time.perf_counter()
        for _ in range(calls):
            f()
        self.sync()
        return (time.perf_counter() - start) * 1e6

    def calls(self, f, most):
        self.block(f, 1)
        calls = 1
        while True:
            us = max(self.block(f, calls), 0.1)
            if us >= self.block_us / 4 or calls == most:
                return max(1, min(most, math.ceil(calls * self.block_us / us)))
            calls = min(most, calls * 4)

    def turns(self, functions, most=20000):
        calls = [self.calls(f, most) for f in functions]
        times = [[] for _ in functions]
        for _ in range(self.rounds):
            for k, f in enumerate(functions):
                times[k].append(self.block(f, calls[k]) / calls[k])
        return [statistics.median(t) for t in times]

    def rand(self, *shape, dtype=torch.float32):
        return torch.rand(*shape, device=self.device, dtype=dtype)

    def randint(self, n, *shape):
        return torch.randint(0, n, shape, device=self.device)

    def bandwidth(self, name, size, f, way=None):
        (us,) = self.turns([f])
        figure(f"{name}_gb_per_s", size / us * 1e-3, "GB/s", way)


def graph_of(f):
    """A CUDA graph of what f enqueues: the function that replays it, and what f returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = f()
    return graph.replay, result


# ---- training steps ---------------------------------------------------------------------------------------------


def mlp_cases(m):
    if m.quick:
        return {"mlp16": ([1, 8, 8, 1], nn.Tanh, 4), "mlp64": ([784, 8, 10], nn.ReLU, 4)}
    deep = [784, 512, 256, 10]
    return {
        "mlp16": ([1, 256, 512, 256, 1], nn.Tanh, 16),
        "mlp64": (deep, nn.ReLU, 64),
        "mlp1024": (deep, nn.ReLU, 1024),
        "mlp8192": (deep, nn.ReLU, 8192),
    }


def model_of(sizes, act):
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if i < len(sizes) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


def step_of(m, name, case, way):
    """One training step in a way: the function that enqueues it and returns the loss."""
    sizes, act, batch = case
    torch.manual_seed(0)
    model = model_of(sizes, act).to(m.device)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3, fused=True, **({"capturable": True} if m.on_gpu else {}))
    if name == "mlp16":
        x = m.rand(batch, 1)
        y = x**2
        loss_of = lambda x, y: ((model(x) - y) ** 2).sum()
    else:
        x, y = m.rand(batch, sizes[0]), m.randint(sizes[-1], batch)
        loss_of = lambda x, y: functional.cross_entropy(model(x), y)
    if way == "compiled":
        loss_of = torch.compile(loss_of)

    def step():
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(x, y)
        loss.backward()
        optimiser.step()
        return loss

    if way != "graphs":
        return step
    replay, loss = graph_of(step)

    def again():
        replay()
        return loss

    again.keeps = step  # a graph knows the addresses of model and samples, and does not hold them
    return again


def products(case):
    sizes, _, batch = case
    pairs = list(zip(sizes, sizes[1:]))
    return batch * sum(2 * a * b * (3 if i else 2) for i, (a, b) in enumerate(pairs))


def mlp_case(m, name, case, precision, way):
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if way == "compiled":
        torch._dynamo.reset()
    step = step_of(m, name, case, way)
    us, read_us = m.turns([step, lambda: step().item()])
    prefix = f"{name}_1dev_{precision}_"
    figure(prefix + "us", us, "us", way)
    figure(prefix + "read_us", read_us, "us", way)
    figure(prefix + "tflops", products(case) / us * 1e-6, "TFLOP/s", way)


def mlp(m):
    for name, case in mlp_cases(m).items():
        for precision in ("float32", "tf32"):
            for way in ("eager", "compiled", "graphs"):
                if m.can(way):
                    m.item(f"{name}_1dev_{precision}_{way}", mlp_case, name, case, precision, way)
    torch.set_float32_matmul_precision("highest")


# ---- matrix products --------------------------------------------------------------------------------------------


def matmul_shapes(m):
    """name: n, k, m, and which operands are views of the transposed."""
    shapes = {str(n): (n, n, n, False, False) for n in ((32, 48) if m.quick else (256, 512, 1024, 2048, 4096, 8192))}
    big = 32 if m.quick else 4096
    for ending, a, b in (("nt", False, True), ("tn", True, False), ("tt", True, True)):
        shapes[f"{big}_{ending}"] = (big, big, big, a, b)
    oblong = [(4, 49, 32, "nt")]
    if not m.quick:
        oblong = [(16, 512, 256, "nt"), (64, 784, 512, "nt"), (512, 64, 784, "tn"), (8192, 784, 512, "nt"),
                  (512, 8192, 784, "tn"), (8192, 1024, 4096, "nt"), (128, 8192, 8192, "nt")]
    for n, k, cols, ending in oblong:
        shapes[f"{n}x{k}x{cols}_{ending}"] = (n, k, cols, ending == "tn", ending == "nt")
    return shapes


def product(m, shape, precision):
    n, k, cols, turn_a, turn_b = shape
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a = m.rand(k, n, dtype=dtype).t() if turn_a else m.rand(n, k, dtype=dtype)
    b = m.rand(cols, k, dtype=dtype).t() if turn_b else m.rand(k, cols, dtype=dtype)
    mode = "high" if precision == "tf32" else "highest"

    def multiply():
        torch.matmul(a, b)

    def prepare():
        torch.set_float32_matmul_precision(mode)

    return prepare, multiply


def matmul_shape(m, name, shape, seen):
    for precision in ("float32", "tf32", "bfloat16"):
        prepare, multiply = product(m, shape, precision)
        prepare()
        (us,) = m.turns([multiply])
        speed = 2 * shape[0] * shape[1] * shape[2] / us * 1e-6
        figure(f"matmul_{name}_{precision}_tflops", speed, "TFLOP/s")
        seen[precision] = max(seen.get(precision, 0), speed)


def matmul(m):
    seen = {}
    for name, shape in matmul_shapes(m).items():
        m.item(f"matmul_{name}", matmul_shape, name, shape, seen)
    torch.set_float32_matmul_precision("highest")
    for precision, speed in seen.items():
        figure(f"matmul_peak_{precision}_tflops", speed, "TFLOP/s")


# ---- attention --------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (layer(x).view(batch, length, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v)
        else:
            weights = torch.softmax((q * (self.heads / width) ** 0.5) @ k.transpose(2, 3), -1)
            y = weights @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.attention = Attention(width, heads, fused)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = x + self.attention(self.norm1(x))
        return y + self.narrow(functional.gelu(self.wide(self.norm2(y))))


def attention_sizes(m):
    """Sequences, their length, numbers a position, heads."""
    return (2, 6, 8, 2) if m.quick else (8, 1024, 768, 12)


def attention_products(m, kind):
    batch, length, width, _ = attention_sizes(m)
    dense, scores = 2 * batch * length * width**2, 2 * batch * length**2 * width
    return 3 * ((12 if kind is Block else 4) * dense + 2 * scores)


def attention_step(m, kind, precision, way):
    """The function that enqueues forward and backward: all gradients, that of the input among them."""
    batch, length, width, heads = attention_sizes(m)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    torch.manual_seed(0)
    model = kind(width, heads, way != "unfused").to(m.device, dtype)
    x, dy = (torch.randn(batch, length, width, device=m.device, dtype=dtype) for _ in range(2))
    watched = [x.requires_grad_(), *model.parameters()]
    value_of = lambda x, dy: (model(x) * dy).sum()
    if way == "compiled":
        value_of = torch.compile(value_of)

    def step():
        return torch.autograd.grad(value_of(x, dy), watched)

    if way != "graphs":
        return step
    replay, kept = graph_of(step)

    def again():
        replay()

    again.keeps = step, kept  # a graph knows the addresses of model, samples and gradients, and does not hold them
    return again


def attention_case(m, name, kind, precision, way):
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if way == "compiled":
        torch._dynamo.reset()
    (us,) = m.turns([attention_step(m, kind, precision, way)])
    figure(f"{name}_{precision}_us", us, "us", way)
    figure(f"{name}_{precision}_tflops", attention_products(m, kind) / us * 1e-6, "TFLOP/s", way)


def attention(m):
    for name, kind in (("attention", Attention), ("transformer", Block)):
        for precision in ("float32", "tf32", "bfloat16"):
            for way in ("eager", "unfused", "compiled", "graphs"):
                if m.can(way):
                    m.item(f"{name}_{precision}_{way}", attention_case, name, kind, precision, way)
    torch.set_float32_matmul_precision("highest")


# ---- operations that memory limits ------------------------------------------------------------------------------


def matrix(m):
    return (64, 64) if m.quick else (65536, 1024)


def copies(m, part):
    size = 2**18 if m.quick else 2**28
    a, b = m.rand(size // 4), m.rand(size // 4)
    m.bandwidth(f"{part}_clone", 2 * size, a.clone)
    m.bandwidth(f"{part}_copy", 2 * size, lambda: b.copy_(a))


def elementwise(m):
    m.item("elementwise_copy", copies, "elementwise")
    rows, cols = matrix(m)
    n = rows * cols
    a, b, bias, y = m.rand(rows, cols), m.rand(rows, cols), m.rand(cols), m.rand(rows, cols)
    half_a, half_b, turned = a.bfloat16(), b.bfloat16(), a.t()
    for name, size, f in (
        ("add", 3 * n * FLOAT, lambda: a + b),
        ("add_into", 3 * n * FLOAT, lambda: y.add_(a)),
        ("scale", 2 * n * FLOAT, lambda: a * 2),
        ("tanh", 2 * n * FLOAT, lambda: a.tanh()),
        ("relu", 2 * n * FLOAT, lambda: a.relu()),
        ("bias", 2 * n * FLOAT, lambda: a + bias),
        ("add_bfloat16", 3 * n * HALF, lambda: half_a + half_b),
        ("to_bfloat16", n * (FLOAT + HALF), lambda: a.bfloat16()),
        ("transposed", 2 * n * FLOAT, lambda: turned.contiguous()),
        ("fill", n * FLOAT, lambda: y.fill_(1)),
        ("rand", n * FLOAT, lambda: m.rand(rows, cols)),
    ):
        m.item(name, lambda m, *rest: m.bandwidth(*rest), name, size, f)


def reduce(m):
    m.item("reduce_copy", copies, "reduce")
    rows, cols = matrix(m)
    x = m.rand(rows, cols)
    for name, f in (
        ("sum", x.sum),
        ("sum_of_rows", lambda: x.sum(1)),
        ("sum_of_columns", lambda: x.sum(0)),
        ("max_of_rows", lambda: x.amax(1)),
        ("argmax_of_rows", lambda: x.argmax(1)),
        ("norm", lambda: torch.linalg.vector_norm(x)),
    ):
        m.item(name, lambda m, *rest: m.bandwidth(*rest), name, rows * cols * FLOAT, f)


def row_way(m, name, size, f, way):
    if way == "compiled":
        torch._dynamo.reset()
        f = torch.compile(f)
    m.bandwidth(name, size, f, way)


def gradient_way(m, size, logits, ids, way):
    loss_of = lambda x, ids: functional.cross_entropy(x, ids)
    if way == "compiled":
        torch._dynamo.reset()
        loss_of = torch.compile(loss_of)
    x = logits.clone().requires_grad_()
    m.bandwidth("crossentropy_gradient", size, lambda: torch.autograd.grad(loss_of(x, ids), x), way)


def rows_part(m):
    m.item("rows_copy", copies, "rows")
    rows, cols = matrix(m)
    n, wide = rows * cols, 512 if m.quick else 32768
    x, ids = m.rand(rows, cols), m.randint(cols, rows)
    vocabulary = m.rand(128 if m.quick else 65536, 512)
    words = m.randint(len(vocabulary), 16 if m.quick else 131072)
    x_wide = x.reshape(n // wide, wide)
    gamma, beta = torch.ones(cols, device=m.device), torch.zeros(cols, device=m.device)
    gathered = len(words) * 512 * FLOAT
    for name, size, f in (
        ("softmax", 2 * n * FLOAT, lambda: functional.softmax(x, -1)),
        ("softmax_wide", 2 * n * FLOAT, lambda: functional.softmax(x_wide, -1)),
        ("logsoftmax", 2 * n * FLOAT, lambda: functional.log_softmax(x, -1)),
        ("layernorm", 2 * n * FLOAT, lambda: functional.layer_norm(x, (cols,), gamma, beta)),
        ("crossentropy", n * FLOAT + rows * ID, lambda: functional.cross_entropy(x, ids)),
        ("embedding", 2 * gathered + len(words) * ID, lambda: functional.embedding(words, vocabulary)),
    ):
        for way in ("eager", "compiled"):
            if m.can(way):
                m.item(f"{name}_{way}", row_way, name, size, f, way)
    for way in ("eager", "compiled"):
        if m.can(way):
            m.item(f"crossentropy_gradient_{way}", gradient_way, 3 * n * FLOAT + 2 * rows * ID, x, ids, way)


def update(m, name, make, touched, count=1):
    n = 4096 if m.quick else 64 * MIB
    ws = [nn.Parameter(m.rand(n // count)) for _ in range(count)]
    for w in ws:
        w.grad = m.rand(n // count)
    m.bandwidth(name, touched * n * FLOAT, make(ws).step)


def optim(m):
    m.item("optim_copy", copies, "optim")
    m.item("adam", update, "adam", lambda p: torch.optim.Adam(p, 1e-6, fused=True), 7)
    m.item("adam_of_128", update, "adam_of_128", lambda p: torch.optim.Adam(p, 1e-6, fused=True), 7, 128)
    m.item("momentum", update, "momentum", lambda p: torch.optim.SGD(p, 1e-6, momentum=0.9, fused=True), 5)
    m.item("descent", update, "descent", lambda p: torch.optim.SGD(p, 1e-6, fused=True), 3)


# ---- queues -----------------------------------------------------------------------------------------------------


def dispatch_eager(m):
    n = 100 if m.quick else 8000
    a, b = m.rand(1), m.rand(1)
    enqueued, done = [], []
    for _ in range(4 if m.quick else 22):  # the first warms up
        m.sync()
        start = time.perf_counter()
        for _ in range(n):
            a + b
        enqueued.append((time.perf_counter() - start) / n * 1e6)
        m.sync()
        done.append((time.perf_counter() - start) / n * 1e6)
    figure("dispatch_us", statistics.median(enqueued[1:]), "us", "eager")
    figure("launch_us", statistics.median(done[1:]), "us", "eager")


def dispatch_graphs(m):
    n = 100 if m.quick else 1000
    a, b = m.rand(1), m.rand(1)

    def add_many():
        for _ in range(n):
            a + b

    replay, _ = graph_of(add_many)
    (us,) = m.turns([replay])
    figure("launch_us", us / n, "us", "graphs")


def dispatch(m):
    m.item("dispatch_eager", dispatch_eager)
    if m.can("graphs"):
        m.item("dispatch_graphs", dispatch_graphs)


def transfer_size(m, size):
    name = f"{size // MIB}MiB" if size >= MIB else f"{size // KIB}KiB"
    here = torch.rand(size // 4)
    there = here.to(m.device, copy=True)
    ways = {"pageable": here}
    if m.on_gpu:
        ways["pinned"] = here.pin_memory()
    for way, host in ways.items():
        back = torch.empty_like(host, pin_memory=True) if way == "pinned" else None
        up = lambda: host.to(m.device, non_blocking=way == "pinned", copy=True)
        down = lambda: there.to("cpu", copy=True) if back is None else back.copy_(there, non_blocking=True)
        up_us, down_us = m.turns([up, down], max(1, GIB // size))
        figure(f"transfer_up_{name}_gb_per_s", size / up_us * 1e-3, "GB/s", way)
        figure(f"transfer_down_{name}_gb_per_s", size / down_us * 1e-3, "GB/s", way)


def read_number(m):
    x = m.rand(1)
    us, added_us = m.turns([x.item, lambda: (x + 1).item()])
    figure("read_number_us", us, "us")
    figure("add_and_read_number_us", added_us, "us")


def transfer(m):
    sizes = (4 * KIB, 64 * KIB) if m.quick else (4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
    for size in sizes:
        m.item(f"transfer_{size}", transfer_size, size)
    m.item("read_number", read_number)


# ---- all parts --------------------------------------------------------------------------------------------------

PARTS = {"mlp": mlp, "matmul": matmul, "attention": attention, "elementwise": elementwise, "reduce": reduce,
         "rows": rows_part, "optim": optim, "dispatch": dispatch, "transfer": transfer}
WAYS = ("eager", "unfused", "compiled", "graphs")


def chosen(text, known, what):
    names = text.split(",") if text else list(known)
    for name in names:
        if name not in known:
            raise SystemExit(f"peer_gpu.py: no {what} '{name}'; known: {' '.join(known)}")
    return names


def give_up(_signal, _frame):
    raise OutOfTime()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default="")
    parser.add_argument("--limit", type=int, default=300)
    options = parser.parse_args()
    parts = chosen(options.only, PARTS, "part")
    options.ways = chosen(options.ways, WAYS, "way")
    m = Measure(options)
    if m.on_gpu:
        torch.cuda.set_device(m.device)
    name = torch.cuda.get_device_name(m.device) if m.on_gpu else "the CPU"
    print(f"PyTorch {torch.__version__} on {name}", flush=True)
    signal.signal(signal.SIGALRM, give_up)
    for name in parts:
        start = time.perf_counter()
        signal.alarm(options.limit)
        faulthandler.dump_traceback_later(options.limit + 30, exit=True)  # if it hangs where no signal is seen
        try:
            m.item(name, PARTS[name])
        except OutOfTime:
            report(name, f"not done after {options.limit} s")
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        print(f"part {name}: {time.perf_counter() - start:.1f} s", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

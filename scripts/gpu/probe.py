#!/usr/bin/env python3
"""What a GPU decides before any of our code runs: torch alone, a JSON line a measurement.

    probe.py [--device cuda] [--seconds 25] [--small]

Ceilings of copies and products; products of bfloat16 into float32; attention by flash with cumulative
lengths and by dense cuDNN, in the form in which ours calls them (heads that share keys, rows inside a
wider matrix), right by float64 and timed at 1 to 32 K tokens.  A call that torch refuses is a line
with its error, and the next one follows.  Measurements that would begin after --seconds are left out.
`--small --device cpu` tries the script without a GPU; flash and cuDNN then tell an error each.
Exit code: 0, 1 where a line has an error, 3 where no GPU is seen.
"""
import argparse
import json
import sys
import time

import torch

ATEN = torch.ops.aten
HEADS, KEY_HEADS, WIDTH = 16, 8, 128


class Probe:
    def __init__(self, options):
        self.device = options.device
        self.small = options.small
        self.end = time.monotonic() + options.seconds
        self.errors = 0

    def cuda(self):
        return self.device == "cuda"

    def say(self, **facts):
        print(json.dumps(facts), flush=True)

    def attempt(self, what, measured):
        """A line with what measured() gives, or with its error."""
        if time.monotonic() > self.end:
            self.say(what=what, left_out="no time is left")
            return
        try:
            self.say(what=what, **measured())
        except Exception as error:
            self.errors += 1
            self.say(what=what, error=f"{type(error).__name__}: {str(error)[:300]}")

    def synchronize(self):
        if self.cuda():
            torch.cuda.synchronize()

    def seconds_of(self, body, enough=0.12):
        """Of one call, in the mean over calls in a row."""
        body()
        self.synchronize()
        begin = time.perf_counter()
        body()
        self.synchronize()
        once = time.perf_counter() - begin
        count = max(2, min(200, int(enough / max(once, 1e-6))))
        begin = time.perf_counter()
        for _ in range(count):
            body()
        self.synchronize()
        return (time.perf_counter() - begin) / count

    def normal(self, *sizes):
        return torch.randn(*sizes, device=self.device)

    def narrow(self, *sizes):
        return self.normal(*sizes).bfloat16()


def off(is_, expected):
    """||is - expected|| / ||expected|| in float64; no number is infinitely far."""
    error = ((is_.double() - expected.double()).norm() / expected.double().norm()).item()
    return error if error == error else float("inf")


def expect(error, most):
    if error > most:
        raise ArithmeticError(f"off by {error:.2e} of its length, {most:.0e} is right")
    return error


def device(probe):
    facts = {"device": probe.device, "torch": torch.__version__, "cuda": torch.version.cuda}
    if probe.cuda():
        card = torch.cuda.get_device_properties(0)
        facts.update(device=card.name, processors=card.multi_processor_count,
                     memory_bytes=card.total_memory, free_bytes=torch.cuda.mem_get_info()[0],
                     capability=f"{card.major}.{card.minor}", cudnn=torch.backends.cudnn.version())
    return facts


def copy(probe):
    x = torch.empty(1 << (22 if probe.small else 31), dtype=torch.uint8, device=probe.device)
    y = torch.empty_like(x)
    return {"gb_per_s": 2 * x.numel() / probe.seconds_of(lambda: y.copy_(x)) / 1e9}


def product(probe, rows, inner, cols):
    x, w = probe.narrow(rows, inner), probe.narrow(inner, cols)
    out = torch.empty(rows, cols, device=probe.device, dtype=torch.bfloat16)
    seconds = probe.seconds_of(lambda: torch.mm(x, w, out=out))
    return {"ms": seconds * 1e3, "tflops": 2 * rows * inner * cols / seconds / 1e12}


def wide_product(probe, tokens, rows, cols):
    """The gradient of weights: bfloat16 factors, added to float32 in place, by one call."""
    x, g = probe.narrow(tokens, rows), probe.narrow(tokens, cols)
    before = probe.normal(rows, cols)
    out = before.clone()
    ATEN.addmm.dtype_out(out, x.t(), g, torch.float32, out=out)
    some = min(64, rows)
    expected = before[:some].double() + x.double().t()[:some] @ g.double()
    added = expect(off(out[:some], expected), 1e-5)
    ATEN.mm.dtype_out(x.t(), g, torch.float32, out=out)
    written = expect(off(out[:some], expected - before[:some].double()), 1e-5)
    seconds = probe.seconds_of(
        lambda: ATEN.addmm.dtype_out(out, x.t(), g, torch.float32, out=out))
    return {"ms": seconds * 1e3, "tflops": 2 * tokens * rows * cols / seconds / 1e12,
            "error_added": added, "error_written": written}


def qkv_views(probe, tokens):
    """Queries, keys and values as ours hands them over: columns of one matrix, [tokens, heads, width]."""
    qkv = probe.narrow(tokens, (HEADS + 2 * KEY_HEADS) * WIDTH)
    parts = qkv.split([HEADS * WIDTH, KEY_HEADS * WIDTH, KEY_HEADS * WIDTH], 1)
    return [part.view(tokens, -1, WIDTH) for part in parts]


def reference(q, k, v, grad, lengths):
    """o and the gradients of q, k, v of causal documents, in float64 by autograd."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    pieces, begin = [], 0
    for n in lengths:
        rows = slice(begin, begin + n)
        keys = k[rows].repeat_interleave(HEADS // KEY_HEADS, 1)
        values = v[rows].repeat_interleave(HEADS // KEY_HEADS, 1)
        scores = torch.einsum("qhd,khd->hqk", q[rows], keys) / WIDTH ** 0.5
        unseen = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        pieces.append(torch.einsum(
            "hqk,khd->qhd", scores.masked_fill(unseen, float("-inf")).softmax(2), values))
        begin += n
    o = torch.cat(pieces)
    return o.detach(), *torch.autograd.grad(o, (q, k, v), grad.double())


def attention_flops(lengths):
    """Of a causal forward: half of 4 n^2 D a head."""
    return sum(2 * HEADS * WIDTH * n * n for n in lengths)


def compared(results, expected):
    return {f"error_{name}": expect(off(is_, said), 2e-2)
            for name, is_, said in zip(("o", "dq", "dk", "dv"), results, expected)}


def timed(probe, forward, backward, lengths):
    there, back = probe.seconds_of(forward), probe.seconds_of(backward)
    return {"forward_ms": there * 1e3, "backward_ms": back * 1e3,
            "tflops": 3.5 * attention_flops(lengths) / (there + back) / 1e12}


def flash(probe, lengths, judge=False):
    q, k, v = qkv_views(probe, sum(lengths))
    grad = probe.narrow(*q.shape)
    ends = torch.tensor([0, *lengths], device=probe.device).cumsum(0).int()
    longest = max(lengths)

    def forward():
        return ATEN._flash_attention_forward(
            q, k, v, ends, ends, longest, longest, 0.0, True, False)

    o, sums, state, unused, _ = forward()

    def backward():
        return ATEN._flash_attention_backward(
            grad, q, k, v, o, sums, ends, ends, longest, longest, 0.0, True, state, unused)

    if judge:
        facts = compared((o, *backward()), reference(q, k, v, grad, lengths))
        return {"sums": list(sums.shape), **facts}
    return timed(probe, forward, backward, lengths)


def dense(probe, tokens, judge=False):
    """cuDNN's dense kernel of one document, [1, heads, tokens, width] views."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in qkv_views(probe, tokens))
    grad = probe.narrow(tokens, HEADS, WIDTH).transpose(0, 1).unsqueeze(0)

    def forward():
        return ATEN._cudnn_attention_forward(
            q, k, v, None, None, None, tokens, tokens, True, 0.0, True, False)

    probe.synchronize()
    begin = time.perf_counter()
    o, sums, _, _, _, _, seed, offset, _ = forward()

    def backward():
        return ATEN._cudnn_attention_backward(
            grad, q, k, v, o, sums, seed, offset, None, None, None, tokens, tokens, 0.0, True)

    gradients = backward()
    probe.synchronize()
    first = time.perf_counter() - begin  # it builds its plans
    if judge:
        flat = [x.squeeze(0).transpose(0, 1) for x in (o, *gradients)]
        expected = reference(
            *(x.squeeze(0).transpose(0, 1) for x in (q, k, v, grad)), [tokens])
        return {"sums": list(sums.shape), **compared(flat, expected)}
    return {"first_ms": first * 1e3, **timed(probe, forward, backward, [tokens])}


def memory(probe):
    return {"allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved()}


def measure(probe):
    tokens, hidden, ffn, vocab = (64, 64, 96, 300) if probe.small else (8192, 2048, 5632, 32000)
    probe.attempt("device", lambda: device(probe))
    probe.attempt("copy", lambda: copy(probe))
    for name, rows, inner, cols in (
            ("qkv", tokens, hidden, 2 * hidden), ("up_gate", tokens, hidden, 2 * ffn),
            ("down", tokens, ffn, hidden), ("head", tokens, hidden, vocab),
            ("square", 4 * hidden, 4 * hidden, 4 * hidden)):
        probe.attempt(
            f"product {name}", lambda r=rows, i=inner, c=cols: product(probe, r, i, c))
    probe.attempt("bfloat16 into float32", lambda: wide_product(probe, tokens, hidden, 2 * ffn))

    # whether they are right comes before how fast they are
    mixed = [5, 30, 1] if probe.small else [700, 33, 1, 129]
    probe.attempt("flash by float64", lambda: flash(probe, mixed, judge=True))
    probe.attempt("cuDNN by float64", lambda: dense(probe, 64 if probe.small else 1024, judge=True))
    for n in (64,) if probe.small else (8192, 4096, 2048, 1024, 16384, 32768):
        probe.attempt(f"flash, one document of {n}", lambda n=n: flash(probe, [n]))
        probe.attempt(f"cuDNN, one document of {n}", lambda n=n: dense(probe, n))
    pack = [30, 4, 4] if probe.small else [6000] + [300] * 6 + [49] * 8
    probe.attempt(f"flash, {len(pack)} documents", lambda: flash(probe, pack))
    if probe.cuda():
        probe.attempt("memory", lambda: memory(probe))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("probe.py: no GPU is seen", file=sys.stderr)
        return 3
    torch.manual_seed(0)
    probe = Probe(options)
    measure(probe)
    return 1 if probe.errors else 0


if __name__ == "__main__":
    sys.exit(main())

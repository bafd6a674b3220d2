#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The codec's numbers: sizes against floors and others' formats, speeds against memcpy.

Runs bench_wfp1 on simulated weights and, where torch is there, on a small transformer that AdamW
has really trained (bf16 weights, fp32 masters), then bench_patch, and prints rows 1 to 4 of the
goals with what was measured.

usage: bench_codec.py [--quick] [--json]     (--json: the rows of all programs as they come, too)
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BIN = TOP / "build" / os.environ.get("WEIGHTFS_VARIANT", "release") / "bench"
RATES = (1e-6, 3e-6)
WARM, APART = 12, 6  # steps of training before the reference, and from there to the new state


def rows_of(*command):
    """What a benchmark prints."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if "--json" in sys.argv:
        for line in lines:
            print(json.dumps(line), flush=True)
    return lines


def train(torch, rate, out, quick):
    """Trains for some steps and writes the last three states that bench_wfp1 wants."""
    torch.manual_seed(7)
    width, words, layers = (128, 2000, 2) if quick else (384, 12000, 4)
    embed = torch.nn.Embedding(words, width)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True,
                                             norm_first=True)
    body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    head = torch.nn.Linear(width, words, bias=False)
    model = torch.nn.ModuleList([embed, body, head])
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, 0, 0.02)
    # Weights are what bf16 can hold, the masters are fp32 and start exactly there.
    masters = [p.detach().to(torch.bfloat16).float().clone().requires_grad_()
               for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=rate, weight_decay=0.0)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(48)

    def publish():
        return [m.detach().to(torch.bfloat16) for m in masters]

    states = {}
    for step in range(WARM + APART + 1):
        weights = publish()
        if step in (WARM, WARM + APART - 1, WARM + APART):
            states[step] = weights
        for p, w in zip(model.parameters(), weights):
            p.data.copy_(w.float())
        text = torch.randint(0, words, (4, 49)) ** 2 % words  # some words are frequent
        loss = torch.nn.functional.cross_entropy(
            head(body(embed(text[:, :-1]), mask=mask)).flatten(0, 1), text[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for m, p in zip(masters, model.parameters()):
            m.grad = p.grad.to(torch.bfloat16).float()
        optimizer.step()
    names = {WARM: "reference", WARM + APART - 1: "old", WARM + APART: "new"}
    for step, name in names.items():
        for i, w in enumerate(states[step]):
            w.contiguous().view(torch.uint16).numpy().tofile(out / f"{i}.{name}")
    (out / "list").write_text("".join(f"{m.numel()} {m.shape[-1]}\n" for m in masters))


def trained_rows(quick):
    """Sizes on what torch has trained; [] without torch."""
    try:
        import torch
    except ImportError:
        print("bench_codec: no torch: without rows of a real trainer", file=sys.stderr)
        return []
    rows = []
    for rate in RATES:
        with tempfile.TemporaryDirectory(prefix="weightfs-bench-") as folder:
            train(torch, rate, Path(folder), quick)
            rows += rows_of(BIN / "bench_wfp1", "--from", f"torch AdamW {rate:g}", folder)
    return rows


def size_table(rows):
    """Row 1."""
    print("\nBits for each changed element\n")
    print(f"{'run':<20}{'density':>8}{'floor':>7}{'wfp1':>7}{'x':>7}{'given exp.':>11}{'wfp1x':>7}"
          f"{'x floor':>8}{'TRL v1':>8}{'v3':>6}{'XOR+zstd-1':>11}{'PULSE':>7}")
    for r in rows:
        if r["bench"] == "wfp1 size":
            print(f"{r['run']:<20}{100 * r['density']:>7.2f}%{r['floor_bits']:>7.2f}"
                  f"{r['wfp1_bits']:>7.2f}{r['ratio']:>7.3f}{r['floor_given_exponents']:>11.2f}"
                  f"{r['wfp1x_bits']:>7.2f}{r['ratio_x']:>8.3f}{r['trl_v1_bits']:>8.0f}"
                  f"{r['trl_v3_bits']:>6.0f}{r['xor_zstd_bits']:>11.1f}{r['pulse_bits']:>7.1f}")


def speed_tables(rows):
    """Rows 2 and 3, wfp1x and packed anchors; medians over the simulated runs."""
    print("\nOne core, million changed elements a second, and shares of memcpy\n")
    print(f"{'kernel':<10}{'decode':>8}{'encode':>8}{'diff':>7}{'diff+encode':>13}"
          f"{'wfp1x decode':>20}{'wfp1x encode':>20}")
    for kernel in ("portable", "avx2", "avx512"):
        of = [r for r in rows if r.get("kernel") == kernel]
        if not of:
            continue

        def get(bench, key, some=of):
            values = sorted(r[key] for r in some if r["bench"] == bench)
            return values[len(values) // 2]

        x = [f"{get('wfp1x', f'{way}_me_per_s'):.0f} ({get('wfp1x', f'{way}_gb_per_s'):.1f} GB/s)"
             for way in ("decode", "encode")]
        print(f"{kernel:<10}{get('wfp1 coding', 'decode_me_per_s'):>8.0f}"
              f"{get('wfp1 coding', 'encode_me_per_s'):>8.0f}{get('wfp1 diff', 'diff'):>7.2f}"
              f"{get('wfp1 diff', 'diff_encode'):>13.2f}{x[0]:>20}{x[1]:>20}")
    for r in rows:
        if r["bench"] == "packed":
            print(f"packed anchor, {r['run']}: {100 * r['size']:.1f} % of its size, packs at "
                  f"{r['pack_gb_per_s']:.2f} GB/s, unpacks at {r['unpack_gb_per_s']:.2f} GB/s")


def goals_table(rows, reads):
    """The goals with what was measured."""
    sizes = [r for r in rows if r["bench"] == "wfp1 size"]
    inside = [r for r in sizes if 0.007 <= r["density"] <= 0.03] or sizes

    def best(bench, key, kernel):
        values = [r[key] for r in rows if r["bench"] == bench and r.get("kernel") == kernel]
        return f"{max(values):.0f}" if values else "-"

    def read(k):
        return next(r["ratio"] for r in reads if r["bench"] == "patched read" and r["k"] == k and
                    r["window"] == 1 << 20 and r["stack"] == "merged")

    share = max(r["diff_encode"] for r in rows if r["bench"] == "wfp1 diff")
    print("\n| # | what | goal | measured |\n|---|---|---|---|")
    print(f"| 1 | wfp1 size against the floor; wfp1x against the same | <= 1.07; - | "
          f"{max(r['ratio'] for r in inside):.3f}; {max(r['ratio_x'] for r in inside):.3f} |")
    print("| 2 | decode AVX2 / AVX-512 / portable; encode (Me/s) | >= 1500 / 3000 / 350; 500 | "
          + " / ".join(best("wfp1 coding", "decode_me_per_s", k)
                       for k in ("avx2", "avx512", "portable"))
          + "; " + best("wfp1 coding", "encode_me_per_s", "avx512") + " |")
    print(f"| 3 | diff and encode against memcpy | >= 0.65 | {share:.2f} |")
    print("| 4 | 1 MiB range, 1 / 10 / 50 deltas merged, against memcpy | <= 1.15 / 1.4 / 2.2 | "
          + " / ".join(f"{read(k):.2f}" for k in (1, 10, 50)) + " |")


def main():
    """All of it."""
    quick = "--quick" in sys.argv
    rows = rows_of(BIN / "bench_wfp1", 4 if quick else 16) + trained_rows(quick)
    reads = rows_of(BIN / "bench_patch", 16 if quick else 128)
    size_table(rows)
    speed_tables(rows)
    goals_table(rows, reads)


main()

"""paradyse fit."""

import json
import random
import unittest

from support import ProgramTest

HEADER = {
    "format": "paradyse-profile", "version": 2, "machine": "pretended", "machine_sha256": "aa",
    "model": "llama", "model_sha256": "bb", "hidden": 64, "layers": 1, "ranks": 2,
    "ranks_per_node": 2, "cores": 2,
    "backend": "local", "device": "cpu", "dtype": "float32"}
LENGTHS = [64, 128, 256, 512, 1024, 2048]


def spread(seconds):
    return {"median": seconds, "least": 0.9 * seconds, "most": 1.2 * seconds}


def probe(part, strategy, length, noise=1.0):
    """Seconds of a machine with known rates, as `paradyse profile` writes them."""
    line = {"probe": "part", "part": part, "strategy": strategy, "recompute": "none", "ranks": 2,
            "length": length, "reshard_after_backward": True, "outcome": "measured", "seconds": {}, "work": {}}
    for phase, times in ("forward", 1), ("backward", 2), ("recompute", 0):
        work = {"matmul_flops": 1e5 * length * times,
                "attention_flops": (128.0 * length ** 2 if part == "attention" else 0) * times,
                "touched_bytes": 4e3 * length * times, "calls": 12 * times,
                "sent_bytes": 512 * length * times, "collectives": 3 * times,
                "bytes_across_nodes": 0, "collectives_across_nodes": 0, "weight_bytes": 0, "weight_collectives": 0}
        rates = {"matmul_flops": 2e-11, "attention_flops": 4e-11, "touched_bytes": 2e-10,
                 "calls": 5e-6, "sent_bytes": 4e-10, "collectives": 5e-5}
        seconds = sum(rates.get(name, 0) * amount for name, amount in work.items()) * noise
        line["seconds"][phase] = spread(seconds)
        line["work"][phase] = work
    return line


def profile_lines(noise=0.0, lengths=LENGTHS, header=HEADER):
    draw = random.Random(1)
    lines = [header]
    for length in lengths:
        for part, strategy in ("attention", "UlyssesZ"), ("mlp", "gather"), ("rest", ""):
            lines.append(probe(part, strategy, length, draw.uniform(1 - noise, 1 + noise)))
    step = sum(phase["median"] for line in lines[1:4] for phase in line["seconds"].values())
    lines.append({"probe": "step", "attention": "UlyssesZ", "mlp": "gather", "recompute": "none",
                  "ranks": 2, "length": lengths[0], "reshard_after_backward": True, "outcome": "measured", "seconds": spread(step),
                  "counted_saved_bytes": 100, "saved_bytes": 100, "counted_peak_bytes": 200,
                  "peak_bytes": 210})
    return lines


def text_of(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


class FitTest(ProgramTest):
    def profile(self, lines, name="profile.jsonl"):
        return self.write(name, text_of(lines))

    def arguments(self, lines, out="costs.json"):
        return ["fit", "--profile", self.profile(lines), "--out", self.folder / out]

    def test_a_table_and_a_costs_file(self):
        done = self.run_program(*self.arguments(profile_lines(noise=0.02)))
        for word in ("structured", "hybrid", "attention", "UlyssesZ", "mlp", "gather", "rest",
                     "default model: structured", "memory overhead: 5.0 %", "costs.json"):
            self.assertIn(word, done.stdout)
        costs = json.loads((self.folder / "costs.json").read_text())
        self.assertEqual((costs["format"], costs["version"]), ("paradyse-costs", 2))
        self.assertEqual(costs["header"], {k: v for k, v in HEADER.items()
                                           if k not in ("format", "version")})
        self.assertEqual(len(costs["hybrid"]["strategies"][0]["forests"]["forward"]), 50)

    def test_errors_are_small_and_the_better_model_is_the_default(self):
        found = self.json_of(*self.arguments(profile_lines(noise=0.02)))
        total = {(row["model"], row["range"]): row["mean"] for row in found["errors"]
                 if row["part"] == "" and row["strategy"] == ""}
        self.assertEqual(set(total), {(model, where) for model in ("structured", "hybrid")
                                      for where in ("inside", "beyond")})
        self.assertEqual(found["best"], "structured")
        self.assertLess(total["structured", "inside"], 0.04)
        self.assertLess(total["structured", "beyond"], 0.06)
        self.assertGreater(total["hybrid", "inside"], total["structured", "inside"])
        self.assertAlmostEqual(found["memory_overhead"], 0.05)

    def test_signed_errors_repeats_and_sizes_of_groups(self):
        lines = profile_lines(noise=0.02) + profile_lines(noise=0.02)[1:-1]
        for length in LENGTHS:  # each rank whole documents of its own
            for part, strategy in ("attention", "DataZ"), ("mlp", "gather"), ("rest", ""):
                lines.append({**probe(part, strategy, length, 1.1), "ranks": 1})
        found = self.json_of(*self.arguments(lines))
        rows = [row for row in found["errors"] if row["model"] == "structured"]
        for row in rows:
            self.assertLessEqual(abs(row["bias"]), row["mean"] + 1e-12)
        [total] = [row for row in rows if row["part"] == row["strategy"] == "" and
                   row["range"] == "inside" and "ranks" not in row]
        self.assertIn("floor", total)
        sizes = {row["ranks"]: row for row in rows if row["part"] == "" and "ranks" in row and
                 row["range"] == "inside"}
        self.assertEqual(set(sizes), {1, 2})
        self.assertNotIn("floor", sizes[1])  # measured once
        self.assertEqual(sum(row["probes"] for row in sizes.values()), total["probes"])
        done = self.run_program(*self.arguments(lines))
        for word in ("signed", "repeats", "single ranks", "groups of 2"):
            self.assertIn(word, done.stdout)

    def test_the_same_profile_gives_the_same_file(self):
        arguments = self.arguments(profile_lines(noise=0.02))
        self.run_program(*arguments)
        first = (self.folder / "costs.json").read_bytes()
        self.run_program(*arguments)  # costs of the same header may be replaced
        self.assertEqual((self.folder / "costs.json").read_bytes(), first)

    def test_by_strategy(self):
        self.run_program(*self.arguments(profile_lines(noise=0.02)), "--hybrid", "by-strategy")
        costs = json.loads((self.folder / "costs.json").read_text())
        self.assertLessEqual({one["use"] for one in costs["hybrid"]["strategies"]},
                             {"forest", "polynomial"})

    def test_what_stands_there_is_not_overwritten(self):
        other = {**HEADER, "dtype": "bfloat16"}
        self.run_program(*self.arguments(profile_lines(header=other), out="other.json"))
        for name, text in [("notes.txt", "my notes"), ("empty", ""), ("plan.json", "{}"),
                           ("profile.jsonl", text_of(profile_lines()))]:
            path = self.write(name, text)
            message = self.error_of(*self.arguments(profile_lines(), out=name))
            self.assertIn("is not a costs file", message)
            self.assertEqual(path.read_text(), text)
        before = (self.folder / "other.json").read_bytes()
        message = self.error_of(*self.arguments(profile_lines(), out="other.json"))
        self.assertIn("'dtype' is \"bfloat16\" there and \"float32\" here", message)
        self.assertIn("nothing was written", message)
        self.assertEqual((self.folder / "other.json").read_bytes(), before)

    def test_bad_input(self):
        self.assertIn("2 measured lengths of attention UlyssesZ",
                      self.error_of(*self.arguments(profile_lines(lengths=[64, 128]))))
        lines = profile_lines()
        lines[2]["seconds"]["forward"]["median"] = -1
        self.assertIn("profile.jsonl: line 3: seconds.forward.median",
                      self.error_of(*self.arguments(lines)))
        nowhere = ["fit", "--profile", self.folder / "none", "--out", self.folder / "costs.json"]
        self.assertIn("not there", self.error_of(*nowhere))
        self.assertIn("did you mean 'by-range'",
                      self.error_of(*self.arguments(profile_lines()), "--hybrid", "by-rnge"))
        self.assertFalse((self.folder / "costs.json").exists())
        message = self.error_of("fit", "--profile", self.folder / "none")
        self.assertIn("does not end in .profile.jsonl", message)
        self.assertIn("give --out", message)

    def test_a_killed_profile_is_fitted_as_far_as_it_went(self):
        text = text_of(profile_lines())
        path = self.write("cut.jsonl", text[:-40])
        self.run_program("fit", "--profile", path, "--out", self.folder / "costs.json")
        self.assertEqual(
            json.loads((self.folder / "costs.json").read_text())["memory_overhead"], 0)


if __name__ == "__main__":
    unittest.main()

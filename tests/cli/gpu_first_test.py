"""scripts/gpu/first.py and start.sh without a GPU: limits, records, and what is decided when a step
fails, with commands that only pretend."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import types
import unittest
import unittest.mock

from support import PARADYSE, USAGE, ProgramTest

GPU = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "gpu"

# Stands for paradyse, device_tests and all: what it says and how it ends is in the file named after
# its first word, and what it was given goes to the file `asked`.
PRETENDER = """#!/usr/bin/env bash
here=$(dirname "${BASH_SOURCE[0]}")
word=$1; [[ $word != exec ]] || word=$(basename "$2")
echo "KERNELS=${PARADYSE_CUDA_KERNELS:-} FLASH=${PARADYSE_FLASH:-} PROGRAMS=${PARADYSE_PROGRAMS:-}" \
  "UNCACHED=${PYTORCH_NO_CUDA_MEMORY_CACHING:-} $*" >>"$here/asked"
source "$here/answers/$word"
"""

DOCTOR = {"ok": True, "version": "1", "findings": [{"name": "cuda", "ok": True, "value": {"gpus": 1}}]}
BENCH = {"rows": [{"length": 8192, "step_s": 0.125, "tokens_per_s": 65536.0}]}


def row(ranks, error=1e-6):
    return {"ranks": ranks, "error": error, "tolerance": 1e-5, "loss_error": 0, "loss_tolerance": 1e-5,
            "place": f"{ranks} ranks, loss"}


def says(answer, code=0):
    return f"echo '{json.dumps(answer)}'; exit {code}"


def said_by_gtest(*tests, of=None):
    """`of`: how many it would run, where it does not come to all of them."""
    lines = [f"[==========] Running {of or len(tests)} tests from 2 test suites."]
    for test, ok in tests:
        lines += [f"[ RUN      ] {test}"]
        if ok is not None:  # it comes to its end
            lines += [f"[       OK ] {test} (1 ms)" if ok else f"[  FAILED  ] {test} (20 ms)"]
    failed = [test for test, ok in tests if ok is False]
    lines += [f"[  FAILED  ] {len(failed)} tests, listed below:",
              *(f"[  FAILED  ] {test}" for test in failed)] if failed else []
    return "printf '%s\\n' " + " ".join(f"'{line}'" for line in lines)


class FirstTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.bundle = self.folder / "bundle"
        (self.bundle / "answers").mkdir(parents=True)
        shutil.copy(GPU / "first.py", self.bundle)
        for name in ("start.sh", "build_here.sh"):
            (self.bundle / name).write_text(PRETENDER)
        (self.bundle / "VERSION").write_text("commit 1\n")
        (self.bundle / "probe.py").write_text("print('{\"what\": \"copy\", \"gb_per_s\": 3000}')\n")
        (self.bundle / "gpu_peer.py").write_text(
            "import json\nfor what in ('eager', 'compile'):\n"
            "  print(json.dumps({'what': what, 'tokens_per_s': 60000.0}))\n"
            "print(json.dumps({'what': 'ours', 'code': 0, 'printed': {'rows': [{'tokens_per_s': 65000.0}]}}))\n")
        self.answer("doctor", says(DOCTOR))
        self.answer("device_tests", said_by_gtest(("Ops.Norm", True)))
        self.answer("compute-sanitizer", said_by_gtest(("Ops.Norm", True)) + "; echo ERROR SUMMARY: 0 errors")
        self.answer("check", says({"rows": [row(1), row(2)], "counts_differ": []}))
        self.answer("bench", says(BENCH))
        steps = "".join(json.dumps({"seconds": 0.1, "tokens": 8000, "loss": 9.0}) + "\n" for _ in range(15))
        (self.bundle / "steps").write_text(steps)
        self.answer("train", "for word; do [[ $word != output.folder=* ]] || runs=${word#*=}; done\n"
                             "mkdir -p $runs/run/plans\n"
                             "echo '{\"lengths\": [8000, 192]}' >$runs/run/plans/step-00001.json\n"
                             "cp \"$here/steps\" $runs/run/metrics.jsonl")
        tools = self.folder / "tools"
        tools.mkdir()
        for name, text in (("nvidia-smi", "echo A card, 580.65.06, 81559 MiB"), ("compute-sanitizer", "exit 1")):
            (tools / name).write_text("#!/bin/sh\n" + text + "\n")
            (tools / name).chmod(0o755)
        self.site = self.folder / "site"
        (self.site / "torch").mkdir(parents=True)
        (self.site / "torch" / "__init__.py").write_text(
            "import types\n__version__ = '2.11.0+cu130'\nversion = types.SimpleNamespace(cuda='13.0')\n")
        self.environment = {
            **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PARADYSE_SITE_PACKAGES": str(self.site)}

    def answer(self, word, script):
        (self.bundle / "answers" / word).write_text(script + "\n")

    def first(self, *options):
        """The records of a run, by name; and the process."""
        done = subprocess.run(
            ["python3", self.bundle / "first.py", self.folder / "out", *options], capture_output=True,
            text=True, timeout=300, env=self.environment)
        self.assertEqual(done.stderr, "")
        name = "second" if "--second" in options else "first"
        lines = (self.folder / "out" / f"{name}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return {record["name"]: record for record in records}, done

    def asked(self):
        return (self.bundle / "asked").read_text().splitlines()

    def module(self):
        """first.py of the bundle, imported."""
        spec = importlib.util.spec_from_file_location("first", self.bundle / "first.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def contact(self, module, seconds, **options):
        options = {"out": self.folder / "out", "dry": False, "second": False, **options}
        contact = module.Contact(types.SimpleNamespace(**options), seconds)
        self.addCleanup(contact.log.close)
        self.addCleanup(contact.lines.close)
        return contact

    def test_all_is_well(self):
        records, done = self.first()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(records["machine"]["result"]["torch"], "2.11.0+cu130 13.0")
        self.assertEqual(
            list(records),
            ["machine", "doctor", "probe", "device_tests", "check", "bench", "peer", "memcheck", "train"])
        for record in records.values():
            self.assertEqual(
                list(record), ["step", "name", "ok", "code", "seconds", "limit", "result"])
            self.assertTrue(record["ok"], record)
        self.assertEqual(records["bench"]["result"]["tokens_per_s"], 65536)
        self.assertEqual(records["peer"]["result"]["ours_tokens_per_s"], "65000")
        self.assertEqual(records["train"]["result"]["tokens_per_s"], 80000)
        self.assertIn("tokens_per_s 6.554e+04", done.stdout)  # the table
        files = sorted(file.name for file in (self.folder / "out").iterdir())
        self.assertEqual(files, ["first.jsonl", "first.log", "first.txt", "first_train.jsonl"])
        # the sum of the limits is what a run may take
        self.assertEqual(sum(record["limit"] for record in records.values()), self.module().FIRST_SECONDS)
        self.assertEqual(self.module().FIRST_SECONDS, 520)

    def test_torch_that_cannot_be_imported_is_told_at_once(self):
        (self.site / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13: not there')\n")
        records, _ = self.first()
        self.assertFalse(records["machine"]["ok"])
        self.assertEqual(records["machine"]["result"]["ended"],
                         "import torch: ImportError: libcudart.so.13: not there")

    @unittest.skipIf(importlib.util.find_spec("torch"), "python3 has a torch of its own")
    def test_a_folder_of_libraries_alone_is_no_torch(self):
        (self.site / "torch" / "__init__.py").unlink()  # Python takes it for a namespace
        records, _ = self.first()
        self.assertFalse(records["machine"]["ok"])
        self.assertIn("import torch: AttributeError: ", records["machine"]["result"]["ended"])

    def test_a_machine_without_a_driver(self):
        (self.folder / "tools" / "nvidia-smi").write_text("#!/bin/sh\necho no devices were found; exit 6\n")
        records, _ = self.first()
        self.assertFalse(records["machine"]["ok"])
        self.assertEqual(records["machine"]["result"]["ended"], "nvidia-smi: no devices were found")

    def test_a_driver_that_is_too_old_for_cuda_13(self):
        for version, ok in (("575.57.08", False), ("580.65.06", True), ("600.1", True)):
            (self.folder / "tools" / "nvidia-smi").write_text(f"#!/bin/sh\necho A card, {version}, 9 MiB\n")
            module = self.module()
            contact = self.contact(module, 60)
            with unittest.mock.patch.dict(os.environ, self.environment):
                self.assertEqual(contact.step(0, "machine", 30, module.machine), ok)
            ended = contact.records[0]["result"].get("ended")
            self.assertEqual(ended, None if ok else (
                "the driver 575.57.08 is older than R580, which CUDA 13 needs: install a newer one, or "
                "NVIDIA's cuda-compat-13-0"))

    def test_scripts_have_the_torch_of_the_site_packages(self):
        (self.bundle / "probe.py").write_text("import torch\nprint('{\"what\": \"%s\"}' % torch.__file__)\n")
        records, _ = self.first()
        self.assertEqual(records["probe"]["result"]["lines"][0]["what"], f"{self.folder}/site/torch/__init__.py")

    def test_a_test_that_the_limit_ends_has_not_failed(self):
        module = self.module()
        said = "[ RUN      ] Ops.A\n[       OK ] Ops.A (1 ms)\n[ RUN      ] Ops.B\n"
        self.assertEqual(module.verdicts(module.Ran(124, said, "")), (["Ops.A"], [], ["Ops.B"]))
        self.assertEqual(module.verdicts(module.Ran(139, said, "")), (["Ops.A"], ["Ops.B"], []))
        both = said + "[  FAILED  ] Ops.B (2 ms)\n[ RUN      ] Ops.C\n[  FAILED  ] Ops.B\n"
        self.assertEqual(module.verdicts(module.Ran(124, both, "")), (["Ops.A"], ["Ops.B"], ["Ops.C"]))

    def test_a_step_that_lacks_memory_is_not_measured(self):
        self.answer("bench", says({"rows": [{"length": 8192, "lacks_memory": "much"}]}, 1))
        records, _ = self.first("--second")
        self.assertFalse(records["bench"]["ok"] or records["vocabulary"]["ok"])
        self.answer("bench", says({"rows": []}))
        records, _ = self.first()
        self.assertFalse(records["bench"]["ok"])

    def test_the_second_run(self):
        records, done = self.first("--second")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(
            list(records),
            ["check", "bench", "train", "varlen", "ranks", "vocabulary", "racecheck"])
        self.assertEqual(sum(record["limit"] for record in records.values()), 300)
        self.assertEqual(records["ranks"]["result"]["MegatronTS_4_step_s"], 0.125)
        files = sorted(file.name for file in (self.folder / "out").iterdir())
        self.assertEqual(files, ["second.jsonl", "second.log", "second.txt", "second_train.jsonl"])

    def test_what_hangs_is_killed_with_its_children(self):
        module = self.module()
        contact = self.contact(module, 60)
        pid = self.folder / "pid"
        script = f"trap '' TERM; (trap '' TERM; sleep 1000) & echo $! >{pid}; echo begun; wait"
        self.assertTrue(contact.step(
            3, "hangs", 4, lambda c: module.Outcome(c.run(["bash", "-c", script]).code == 124, 124, {})))
        child = int(pid.read_text())
        for _ in range(100):  # init takes it, and may take its time
            state = pathlib.Path(f"/proc/{child}/stat")
            if not state.exists() or state.read_text().split()[2] == "Z":
                break
            time.sleep(0.1)
        else:
            self.fail("a child of the step runs on")
        self.assertIn("begun", (self.folder / "out" / "first.log").read_text())

    def test_no_step_begins_after_the_end(self):
        module = self.module()
        contact = self.contact(module, 0)
        contact.step(4, "late", 60, lambda c: self.fail("it began"))
        self.assertEqual(contact.records[0]["result"], {"left out": "no time is left"})
        contact = self.contact(module, 5)
        with contextlib.redirect_stdout(io.StringIO()):
            contact.step(4, "long", 60, lambda c: module.Outcome(False, c.run(["sleep", "1000"]).code, {}))
            self.assertEqual(contact.records[0]["code"], 124)
            self.assertEqual(contact.finish(), 1)

    def test_an_error_of_the_script_is_a_record(self):
        module = self.module()
        contact = self.contact(module, 60)
        contact.step(4, "wrong", 60, lambda c: {}["nothing"])
        self.assertEqual(contact.records[0]["result"], {"ended": "KeyError: 'nothing'"})

    def test_a_program_that_does_not_start_is_built(self):
        self.answer("doctor", f'[[ -n "${{PARADYSE_PROGRAMS:-}}" ]] || {{ echo no GLIBC >&2; exit 1; }}\n'
                              f"{says(DOCTOR)}")
        build = 'mkdir -p "$1/build"; exit 0\n'
        (self.bundle / "build_here.sh").write_text("#!/usr/bin/env bash\n" + build)
        records, done = self.first()
        self.assertEqual(records["doctor"]["result"]["ended"], "no GLIBC")
        self.assertTrue(records["build"]["ok"], records["build"])
        self.assertTrue(records["bench"]["ok"], records["bench"])
        for name in ("peer", "memcheck"):  # whose time it took
            self.assertEqual(records[name]["result"], {"left out": "the programs had to be built"})
        self.assertRegex(next(line for line in self.asked() if "bench step" in line),
                         r"PROGRAMS=\S*paradyse-build-\S*/build ")
        self.assertNotIn("a second run is for mending", done.stdout)

    def test_a_program_that_starts_but_finds_something_broken_is_not_built(self):
        broken = {**DOCTOR, "findings": [{"name": "matmul", "ok": False, "value": 1}]}
        self.answer("doctor", says(broken, 1))
        records, done = self.first()
        self.assertNotIn("build", records)
        self.assertEqual(records["doctor"]["result"]["broken"], ["matmul"])
        self.assertFalse(records["doctor"]["ok"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("a second run is for mending that alone", done.stdout)

    def culprit(self, condition):
        """What is found to be at fault where one rank is right only under this condition."""
        self.answer("check", f'if {condition}; then {says({"rows": [row(1)]})}; fi\n'
                             f'{says({"rows": [row(1, None), row(2)]}, 1)}')
        records, _ = self.first()
        self.assertFalse(records["check"]["ok"])
        return records["check"]["result"]["culprit"], next(
            line for line in self.asked() if "bench step" in line)

    def test_kernels_of_ours_are_the_culprit(self):
        name, bench = self.culprit('[[ ${PARADYSE_CUDA_KERNELS:-} == 0 ]]')
        self.assertEqual(name, "kernels of ours")
        self.assertIn("KERNELS=0 FLASH= ", bench)  # what comes after is right at least

    def test_flash_is_the_culprit(self):
        name, bench = self.culprit('[[ ${PARADYSE_FLASH:-} == 0 ]]')
        self.assertEqual(name, "flash")
        self.assertIn("KERNELS= FLASH=0 ", bench)

    def test_neither_is_the_culprit(self):
        name, bench = self.culprit("false")
        self.assertEqual(name, "not kernels of ours and not flash")
        self.assertIn("KERNELS= FLASH= ", bench)

    def test_several_ranks_that_are_wrong_have_no_culprit(self):
        self.answer("check", says({"rows": [row(1), row(2, 1.0)], "counts_differ": ["x"]}, 1))
        records, _ = self.first()
        self.assertNotIn("culprit", records["check"]["result"])
        self.assertEqual(records["check"]["result"]["wrong"], 1)
        self.assertEqual(records["check"]["result"]["counts_differ"], 1)
        self.assertEqual(records["check"]["result"]["worst"], "1.0e+00 of 1.0e-05 in 2 ranks, loss")
        self.assertEqual(len([line for line in self.asked() if " check " in line]), 1)

    def test_what_follows_a_failed_test_gets_another_try(self):
        after_an_error = said_by_gtest(("Ops.Norm", True), ("Ops.Rope", False), ("Ops.Swiglu", False))
        alone = said_by_gtest(("Ops.Swiglu", True))
        self.answer("device_tests", f"if [[ $* == *Ops.Rope* ]]; then {alone}; exit 0; fi\n"
                                    f"{after_an_error}; exit 1")
        records, _ = self.first()
        self.assertFalse(records["device_tests"]["ok"])
        self.assertEqual(records["device_tests"]["result"]["failed"], "Ops.Rope")
        self.assertEqual(records["device_tests"]["result"]["passed"], 2)
        self.assertEqual(records["device_tests"]["result"]["without_verdict"], 0)
        self.assertEqual(records["device_tests"]["code"], 1)  # of the run that was not well
        asked = [line for line in self.asked() if "exec device_tests" in line]
        self.assertTrue(asked[1].endswith("--gtest_filter=-Ops.Norm:Ops.Rope"), asked)

    def test_a_test_that_crashes_is_named(self):
        self.answer("device_tests", "[[ $* == *Ops.Rope* ]] && exit 0\n"
                                    "echo '[ RUN      ] Ops.Rope'; kill -SEGV $$")
        records, _ = self.first()
        self.assertFalse(records["device_tests"]["ok"])
        self.assertEqual(records["device_tests"]["result"]["failed"], "Ops.Rope")

    def test_a_test_that_has_no_time_to_end_is_not_at_fault(self):
        slow = said_by_gtest(("Ops.Norm", True), ("Ops.Rope", None), of=4)
        rest = said_by_gtest(("Ops.Swiglu", True), ("Ops.Dropout", True))
        self.answer("device_tests", f"if [[ $* == *Ops.Rope* ]]; then {rest}; exit 0; fi\n"
                                    f"{slow}; exec sleep 1000")
        module = self.module()
        module.ANOTHER_RUN = 2
        contact = self.contact(module, 60)
        self.assertFalse(contact.step(3, "device_tests", 12, module.tests))
        self.assertEqual(
            contact.records[0]["result"],
            {"passed": 3, "failed": "", "not_finished": "Ops.Rope", "without_verdict": 0,
             "ended": "killed at its limit"})
        self.assertEqual(contact.records[0]["code"], 124)
        asked = [line for line in self.asked() if "exec device_tests" in line]
        self.assertTrue(asked[1].endswith("--gtest_filter=-Ops.Norm:Ops.Rope"), asked)

    def test_what_fails_before_the_time_is_over_is_at_fault(self):
        slow = said_by_gtest(("Ops.Norm", False), ("Ops.Rope", None), of=5)
        self.answer("device_tests", f"{slow}; exec sleep 1000")
        module = self.module()
        contact = self.contact(module, 60)
        contact.step(3, "device_tests", 5, module.tests)  # too little for another run
        result = contact.records[0]["result"]
        self.assertEqual((result["failed"], result["not_finished"]), ("Ops.Norm", ""))
        self.assertEqual(result["without_verdict"], 4)

    def test_a_sanitizer_tells_what_it_did_not_come_to(self):
        slow = said_by_gtest(("Ops.Norm", True), ("Ops.LayerNorm", False), ("Ops.Rope", None), of=10)
        self.answer("compute-sanitizer", f"{slow}; exec sleep 1000")
        module = self.module()
        contact = self.contact(module, 60)
        with unittest.mock.patch.dict(os.environ, self.environment):
            self.assertFalse(
                contact.step(7, "memcheck", 5, module.sanitizer("memcheck", module.SANITIZED)))
        self.assertEqual(
            contact.records[0]["result"],
            {"passed": 1, "failed": "Ops.LayerNorm", "not_finished": "Ops.Rope", "without_verdict": 7,
             "said": "", "ended": "killed at its limit"})

    def test_memcheck_sees_the_end_of_each_tensor(self):
        self.first()
        asked = next(line for line in self.asked() if "--tool memcheck" in line)
        self.assertIn("UNCACHED=1 ", asked)
        self.assertIn("--report-api-errors no --error-exitcode 9 device_tests", asked)
        for line in self.asked():
            self.assertTrue("UNCACHED= " in line or "--tool memcheck" in line, line)

    def test_sanitizers_get_small_sizes(self):
        self.first()
        self.first("--second")
        for tool in ("memcheck", "racecheck"):
            asked = next(line for line in self.asked() if f"--tool {tool}" in line)
            self.assertIn("device_tests --device cuda --sizes small --gtest_filter=Ops.Norm:", asked)
        self.assertTrue(all("--sizes" not in line for line in self.asked() if "exec device_tests" in line))

    def test_the_peers_are_nothing_without_ours(self):
        peers = "".join(f"print('{json.dumps({'what': what, 'tokens_per_s': 6e4})}')\n"
                        for what in ("eager", "compile"))
        for ours, why in (
                ({"code": 2, "printed": None, "errors": "no GPU\n"}, "no GPU"),
                ({"code": 1, "printed": BENCH, "errors": ""}, "exit code 1"),
                ({"code": 0, "printed": {"rows": []}, "errors": ""}, "exit code 0"), (None, None)):
            with self.subTest(ours=ours):
                line = json.dumps({"what": "ours", **(ours or {})})
                (self.bundle / "gpu_peer.py").write_text(peers + (f"print({line!r})\n" if ours else ""))
                module = self.module()
                contact = self.contact(module, 30)
                self.assertFalse(contact.step(6, "peer", 20, module.peer))
                result = contact.records[0]["result"]
                self.assertEqual(result["eager_tokens_per_s"], "60000")
                self.assertEqual(result.get("ours_ended"), why)

    def test_runs_of_several_ranks_share_the_time(self):
        module = self.module()
        contact = self.contact(module, 100)
        limits = []

        def paradyse(*words, limit):
            limits.append(limit)
            failing = {"--ranks 4", "--attention UlyssesZ"}
            if all(option in " ".join(map(str, words)) for option in failing):
                return module.Ran(1, "", "no memory\n")
            return module.Ran(0, json.dumps(BENCH), "")
        contact.paradyse = paradyse
        self.assertFalse(contact.step(10, "ranks", 60, module.several_ranks))
        for limit, expected in zip(limits, (15, 20, 30, 60), strict=True):  # where no time goes by
            self.assertAlmostEqual(limit, expected, delta=1)
        self.assertEqual(contact.records[0]["code"], 1)  # of the run that failed, not of the last one
        self.assertEqual(contact.records[0]["result"], {
            "UlyssesZ_2_step_s": 0.125, "MegatronTS_2_step_s": 0.125, "UlyssesZ_4_step_s": "no memory",
            "MegatronTS_4_step_s": 0.125, "ended": "no memory"})

    def test_dry_wants_to_hear_that_there_is_no_gpu(self):
        no_gpu = "[[ -z $CUDA_VISIBLE_DEVICES ]] && echo 'x: no GPU is seen' >&2; exit 2"
        for word in ("doctor", "device_tests", "compute-sanitizer", "check", "train"):
            self.answer(word, no_gpu)
        (self.bundle / "probe.py").write_text("import sys\nsys.exit('probe.py: no GPU is seen')\n")
        records, done = self.first("--dry")
        for name in ("doctor", "probe", "device_tests", "check", "memcheck", "train"):
            self.assertTrue(records[name]["ok"], records[name])
            self.assertEqual(records[name]["result"]["ended"], "no GPU is seen")
        self.assertEqual(records["check"]["code"], 2)
        self.assertNotIn("build", records)
        # these ran on as if there were one
        self.assertFalse(records["bench"]["ok"])
        self.assertFalse(records["peer"]["ok"])
        self.assertEqual(done.returncode, 1)


class CommandsTest(ProgramTest):
    """What first.py gives to the real programs is understood by them."""

    def test_the_program_knows_the_options(self):
        spec = importlib.util.spec_from_file_location("first", GPU / "first.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        models = GPU.parent.parent / "configs" / "models"
        module.HERE = models
        for command in (module.bench_command(), module.bench_command(module.WIDE_MODEL, 4, "UlyssesZ")):
            message = self.run_program(*command, code=USAGE).stderr
            self.assertRegex(message, "built without CUDA|no GPU is seen")
        shutil.copy(models / "llama-0.9b.toml", self.folder)
        (self.folder / "documents.jsonl").write_text('{"tokens": [1, 2, 3]}\n')
        done = subprocess.run(
            [pathlib.Path(PARADYSE).resolve(), "train", "-c", GPU / "train.toml", "--set",
             f"output.folder={self.folder}/runs", "--set", "output.name=run"],
            capture_output=True, text=True, timeout=300, cwd=self.folder)
        self.assertEqual(done.returncode, USAGE, done.stderr)
        self.assertRegex(done.stderr, "built without CUDA|no GPU is seen")

    def test_the_sanitizers_tests_are_there(self):
        text = (GPU / "first.py").read_text()
        names = re.findall(r'"(\w+\.\w+)"', text[text.index("SANITIZED"):text.index("# What may be")])
        self.assertEqual(len(names), 10)
        program = pathlib.Path(PARADYSE).resolve().parent / "bin" / "device_tests"
        listed = subprocess.run(
            [program, "--sizes", "small", "--gtest_list_tests", "--gtest_filter=" + ":".join(names)],
            capture_output=True, text=True, timeout=300, check=True).stdout.splitlines()
        self.assertEqual(len([line for line in listed if line.startswith("  ")]), 10, listed)

    def test_device_tests_says_what_is_wrong(self):
        program = pathlib.Path(PARADYSE).resolve().parent / "bin" / "device_tests"
        for arguments, said in ((["--device", "cuda"], "built without CUDA|no GPU is seen"),
                                (["--device", "tpu"], "not one of cpu, cuda"),
                                (["--sizes", "tiny"], "not one of small, large"), (["--bad"], "not known")):
            done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, USAGE)
            self.assertRegex(done.stderr, said)


class StartTest(ProgramTest):
    def start(self, *arguments, **environment):
        return subprocess.run(
            ["bash", GPU / "start.sh", *arguments], capture_output=True, text=True, timeout=60,
            env={**os.environ, **environment})

    def test_sets_the_folders_of_the_wheels(self):
        site = self.folder / "site"
        for folder in ("torch/lib", "nvidia/cu13/lib", "nvidia/nccl/lib"):
            (site / folder).mkdir(parents=True)
        (site / "torch/lib/libtorch_cuda.so").touch()
        done = self.start("exec", "printenv", "LD_LIBRARY_PATH", PARADYSE_SITE_PACKAGES=str(site),
                          LD_LIBRARY_PATH="/driver")
        self.assertEqual(
            done.stdout.strip().split(":"),
            [f"{GPU}/lib", f"{site}/torch/lib", f"{site}/nvidia/cu13/lib", f"{site}/nvidia/nccl/lib",
             "/driver"])
        programs = self.folder / "programs"
        programs.mkdir()
        (programs / "paradyse").write_text("#!/bin/sh\necho other build: $@\n")
        (programs / "paradyse").chmod(0o755)
        done = self.start("doctor", PARADYSE_SITE_PACKAGES=str(site), PARADYSE_PROGRAMS=str(programs))
        self.assertEqual(done.stdout, "other build: doctor\n", done.stderr)

    def test_finds_torch_as_python_does_without_importing_it(self):
        site = self.folder / "site"
        for folder in ("torch/lib", "nvidia/cu13/lib"):
            (site / folder).mkdir(parents=True)
        (site / "torch/lib/libtorch_cuda.so").touch()
        (site / "torch/__init__.py").write_text("raise SystemExit('imported')\n")
        done = self.start(
            "exec", "printenv", "LD_LIBRARY_PATH", PYTHONPATH=str(site), PARADYSE_SITE_PACKAGES="")
        self.assertIn(f"{site}/torch/lib:{site}/nvidia/cu13/lib", done.stdout, done.stderr)

    def test_says_what_is_missing(self):
        done = self.start("doctor", PARADYSE_SITE_PACKAGES=str(self.folder))
        self.assertEqual(done.returncode, 127)
        self.assertIn(f"no torch/lib/libtorch_cuda.so in '{self.folder}'", done.stderr)


if __name__ == "__main__":
    unittest.main()

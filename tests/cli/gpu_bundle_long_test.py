"""build/gpu-bundle/ as `make gpu-bundle` leaves it, without a GPU: what it holds and needs, that its
sources configure beside an installed torch, and that it starts in a machine without network.

The last takes all of CUDA's wheels: in PARADYSE_SITE_PACKAGES, else in .deps/ after
`scripts/install.sh cuda-run`.  Where they are not, what the programs need is held to the list all the
same.
"""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import unittest

from support import ProgramTest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUNDLE = ROOT / "build" / "gpu-bundle"
DEPS = ROOT / ".deps"
# A namespace without network, where users may have one.
ALONE = ["unshare", "-rn"]
if subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0:
    ALONE = []


def builder():
    spec = importlib.util.spec_from_file_location("gpu_bundle", ROOT / "scripts" / "gpu_bundle.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def all_wheels():
    """A site-packages folder with all that libtorch_cuda loads; None where there is none."""
    given = os.environ.get("PARADYSE_SITE_PACKAGES")
    if given:
        return pathlib.Path(given)
    return None if not list(DEPS.glob("torch-2.11.0-cuda/nvidia/cudnn/lib/*")) else DEPS


def link_all(source, into):
    into.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        place = into / file.name
        if not place.exists():
            place.symlink_to(file.resolve())


@unittest.skipUnless(BUNDLE.exists(), "no bundle: `make gpu-bundle` takes a CUDA toolkit")
class BundleTest(ProgramTest):
    def run_alone(self, *command, code=0, **environment):
        """In a clean environment, without network."""
        done = subprocess.run(
            [*ALONE, "env", "-i", "HOME=/nonexistent", *(f"{k}={v}" for k, v in environment.items()),
             *map(str, command)], capture_output=True, text=True, timeout=1200)
        if code is not None:
            self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        return done

    def site(self):
        """What pip would have made of the wheels, with the fmt of torch's own that is in our way."""
        site = self.folder / "site-packages"
        link_all(DEPS / "torch-2.11.0/torch/include", site / "torch/include")
        (site / "torch/include/fmt").mkdir(exist_ok=True)
        for name in ("core.h", "format.h", "ranges.h", "chrono.h"):
            (site / "torch/include/fmt" / name).write_text("#error torch's own fmt\n")
        for home in (DEPS / "torch-2.11.0", DEPS / "torch-2.11.0-cuda"):
            link_all(home / "torch/lib", site / "torch/lib")
            for folder in (home / "nvidia").iterdir():
                for part in folder.iterdir():
                    link_all(part, site / "nvidia" / folder.name / part.name)
        return site

    def test_what_it_holds(self):
        names = {file.name for file in BUNDLE.iterdir()}
        for name in ("paradyse", "device_tests", "start.sh", "first.sh", "first.py", "probe.py",
                     "gpu_peer.py", "build_here.sh", "train.toml", "llama-0.9b.toml",
                     "llama-0.9b-128k.toml", "documents.jsonl", "source.tar.gz", "VERSION", "lib"):
            self.assertIn(name, names)
        size = sum(file.stat().st_size for file in BUNDLE.rglob("*") if file.is_file())
        self.assertLessEqual(size, 40 << 20)
        self.assertRegex((BUNDLE / "VERSION").read_text(), r"^commit \w+.*, GLIBC 2\.\d+, GLIBCXX 3\.4")

    def test_what_it_needs_is_on_the_list(self):
        known = builder()
        brought = {file.name for file in (BUNDLE / "lib").iterdir()}
        self.assertLessEqual(brought, known.OURS)
        for file in (BUNDLE / "paradyse", BUNDLE / "device_tests", *(BUNDLE / "lib").iterdir()):
            needed = set(known.needed(file))
            self.assertTrue(needed)
            self.assertLessEqual(needed, known.SYSTEM | known.WHEELS | brought, file)
        for name in ("paradyse", "device_tests"):
            self.assertIn("libtorch_cuda.so", known.needed(BUNDLE / name))
            self.assertNotRegex(known.run("readelf", "-d", BUNDLE / name), "RPATH|RUNPATH")
            self.assertNotIn(".symtab", known.run("readelf", "-S", "-W", BUNDLE / name))

    def test_documents_are_of_the_drawn_lengths(self):
        lengths = builder().document_lengths()
        text = (BUNDLE / "documents.jsonl").read_text()
        documents = [json.loads(line)["tokens"] for line in text.splitlines()]
        self.assertEqual([len(tokens) for tokens in documents], lengths)
        self.assertTrue(all(0 <= token < 32000 for tokens in documents for token in tokens))
        # enough for 15 steps of new ones
        self.assertGreater(sum(min(length, 8192) for length in lengths), 2 * 15 * 8192)

    @unittest.skipUnless((DEPS / "torch-2.11.0-cuda").exists(), "no scripts/install.sh cuda")
    def test_the_sources_configure_and_compile_beside_an_installed_torch(self):
        site = self.site()
        into = self.folder / "there"
        tools = {"PATH": "/usr/local/cuda/bin:/usr/bin:/bin", "PARADYSE_SITE_PACKAGES": site}
        self.run_alone("bash", BUNDLE / "build_here.sh", into, "configure", **tools)
        cache = (into / "build/CMakeCache.txt").read_text()
        for package in ("nlohmann_json", "tomlplusplus", "fmt", "Eigen3", "CLI11", "GTest", "rapidcheck"):
            self.assertRegex(cache, rf"{package}_DIR:PATH={re.escape(str(into))}/source/prefix/")
        self.assertIn(f"PARADYSE_TORCH_CUDA:PATH={site}", cache)
        # one source of each kind: with fmt, with torch, with CUDA's headers
        self.run_alone(
            "ninja", "-C", into / "build", "CMakeFiles/paradyse_run.dir/src/run/cuda/allocator.cc.o",
            "CMakeFiles/paradyse_run.dir/src/run/execute/trace.cc.o", **tools)
        known = self.run_alone("ninja", "-C", into / "build", "-t", "targets", "all", **tools).stdout
        for program in ("paradyse", "bin/device_tests"):
            self.assertRegex(known, rf"(?m)^{program}: CXX_EXECUTABLE_LINKER")
        with tarfile.open(BUNDLE / "source.tar.gz") as archive:
            self.assertFalse([name for name in archive.getnames() if "/golden/" in name])

    @unittest.skipUnless(all_wheels(), "not all of CUDA's wheels: scripts/install.sh cuda-run")
    def test_it_starts_without_network_and_says_that_there_is_no_gpu(self):
        site = all_wheels() if all_wheels() != DEPS else self.site()
        clean = {"PATH": f"{pathlib.Path(sys.executable).parent}:/usr/bin:/bin",
                 "PARADYSE_SITE_PACKAGES": site, "LD_BIND_NOW": "1"}
        said = json.loads(self.run_alone("bash", BUNDLE / "start.sh", "doctor", "--json", **clean).stdout)
        self.assertTrue(said["ok"], said)
        cuda = next(one for one in said["findings"] if one["name"] == "cuda")
        self.assertTrue(cuda["value"]["built"])
        done = self.run_alone("bash", BUNDLE / "first.sh", self.folder / "out", "--dry", code=None,
                              **clean)
        with open(self.folder / "out" / "first.jsonl") as file:
            records = {record["name"]: record for record in map(json.loads, file)}
        self.assertNotIn("build", records, done.stdout)
        for name in ("doctor", "device_tests", "check", "bench", "train"):
            self.assertTrue(records[name]["ok"], records[name])
            self.assertIn(records[name]["code"], (1, 2))
        # these take a python3 with torch, and a tool
        torch = self.run_alone(
            "python3", "-c", "import torch; print(torch.__version__)", code=None, **clean,
            PYTHONPATH=site).returncode == 0
        if "ran past its limit" not in records["machine"]["result"].get("ended", ""):
            self.assertEqual(records["machine"]["ok"], torch, records["machine"])
        for name in ("probe", "peer"):
            # on a machine that has much else to do, importing torch may take longer than the limit
            self.assertIn(records[name]["code"], (3, 124) if torch else (1, 124))
            self.assertEqual(records[name]["ok"], records[name]["code"] == 3)


if __name__ == "__main__":
    unittest.main()

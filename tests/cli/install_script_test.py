"""scripts/install.sh and cmake/Torch.cmake: what they refuse, and what they name.  No network."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from support import ProgramTest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class InstallTest(ProgramTest):
    def setUp(self):
        super().setUp()
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")

    def install(self, *tools, **environment):
        """What install.sh says where PATH has `tools` and those that the script itself calls."""
        bin = self.folder / "bin"
        bin.mkdir()
        for tool in ("bash", "cat", "dirname", "sed", "ls", "grep", *tools):
            (bin / tool).symlink_to(shutil.which(tool))
        done = subprocess.run(["bash", self.folder / "scripts/install.sh"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, env={**os.environ, **environment, "PATH": str(bin)})
        return done.returncode, done.stderr

    def test_missing_tools_are_named_where_there_is_no_apt(self):
        code, said = self.install("c++", "as", "make", "cmake", "python3", "unzip")
        self.assertEqual(code, 1, said)
        self.assertIn("no apt-get on this machine", said)
        self.assertIn("ninja (Debian: ninja-build)", said)
        self.assertNotIn("cmake (Debian", said)
        self.assertNotIn("nlohmann", said)  # a header that is there

    def test_a_header_that_is_not_there_is_named(self):
        script = self.folder / "scripts/install.sh"
        script.write_text(script.read_text().replace("\npng.h ", "\nno_such_header.h "))
        code, said = self.install("c++", "as", "make", "cmake", "python3", "unzip", "ninja")
        self.assertEqual(code, 1, said)
        self.assertIn("no_such_header.h (Debian: libpng-dev)", said)

    def test_without_a_compiler_it_says_so(self):
        code, said = self.install("make", "cmake", "python3", "unzip", "ninja")
        self.assertEqual(code, 1, said)
        self.assertIn("a C++20 compiler", said)

    def test_a_torch_folder_that_is_not_there_is_refused(self):
        code, said = self.install("c++", "as", "make", "cmake", "python3", "unzip", "ninja", "mkdir",
                                  "flock", TORCH=str(self.folder / "nowhere"))
        self.assertEqual(code, 1, said)
        self.assertIn("nowhere is no folder", said)

    def test_every_wheel_has_its_hash(self):
        script = (ROOT / "scripts/install.sh").read_text()
        wheels = set(re.findall(r"\b([a-z][a-z0-9-]*==[0-9.]+)", script))
        known = {}
        for name in ("wheels.txt", "wheels_cuda_run.txt"):
            for line in (ROOT / "scripts" / name).read_text().splitlines()[1:]:
                self.assertRegex(line, r"^\S+==\S+ --hash=sha256:[0-9a-f]{64}$")
                known[line.split()[0]] = name
        self.assertGreaterEqual(len(wheels), 6)
        self.assertLessEqual(wheels, set(known))


class TorchTest(ProgramTest):
    def libtorch(self, version, libraries=("libtorch_cpu.so", "libc10.so"), abi=b"St7__cxx1112basic_string"):
        root = self.folder / "libtorch"
        (root / "lib").mkdir(parents=True)
        for name in libraries:
            (root / "lib" / name).write_bytes(b"\0" + abi + b"\0")
        if version:
            (root / "include/torch/headeronly").mkdir(parents=True)
            major, minor = version.split(".")
            (root / "include/torch/headeronly/version.h").write_text(
                f"#define TORCH_VERSION_MAJOR {major}\n\n#define TORCH_VERSION_MINOR {minor}\n")
        return root

    def said_of(self, root):
        done = subprocess.run(["cmake", f"-DPARADYSE_TORCH={root}", "-P", ROOT / "cmake/Torch.cmake"],
                              capture_output=True, text=True, cwd=self.folder)
        return " ".join(done.stderr.split())

    def test_another_version_is_refused_by_name(self):
        self.assertIn("is libtorch 2.9; ParaDySe needs 2.11.", self.said_of(self.libtorch("2.9")))

    def test_the_old_abi_is_refused_by_name(self):
        self.assertIn("has the old ABI", self.said_of(self.libtorch("2.11", abi=b"Ss")))

    def test_libraries_without_headers_are_refused(self):
        self.assertIn("has no headers", self.said_of(self.libtorch(None)))

    def test_half_a_libtorch_is_refused(self):
        self.assertIn("No libtorch in", self.said_of(self.libtorch("2.11", ("libtorch_cpu.so",))))

    def test_a_libtorch_and_the_folder_above_a_python_torch_are_taken(self):
        root = self.libtorch("2.11")
        for folder in (root, self.folder / "site"):
            if folder != root:
                folder.mkdir()
                (folder / "torch").symlink_to(root)
            said = self.said_of(folder)
            # A script cannot make targets: what comes after all checks.
            self.assertIn("add_library", said)
            self.assertNotIn("ParaDySe needs", said)


if __name__ == "__main__":
    unittest.main()

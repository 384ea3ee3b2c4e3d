#!/usr/bin/env python3
"""Makes build/gpu-bundle/ of a build with CUDA: what a machine with a GPU and PyTorch needs of us.

    scripts/gpu_bundle.py BUILD [--out build/gpu-bundle]      BUILD: a build folder, as build/cuda

The programs, stripped; the shared libraries beside torch's that they need; scripts/gpu/, model files
and documents; and source.tar.gz with all that a build there takes.  docs/reference/gpu.md says what for.  A
library that is neither there nor here on the list is an error, and so are more than 40 MiB.
"""
import argparse
import io
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import lengths  # noqa: E402

MOST_BYTES = 40 << 20

# Of the machine: what no program goes without.
SYSTEM = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2",
          "libpthread.so.0", "libdl.so.2", "librt.so.1"}
# Of the wheels torch and nvidia-*, on whose folders start.sh sets LD_LIBRARY_PATH.
WHEELS = {"libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so", "libgomp.so.1",
          "libcudart.so.13", "libcupti.so.13", "libnccl.so.2"}
# What the bundle brings.
OURS = {"libfmt.so.9", "libtomlplusplus.so.3", "libpng16.so.16", "libz.so.1"}

# What a build takes beside torch, a CUDA toolkit, g++, CMake and ninja, as Debian has it.
PACKAGES = ["nlohmann-json3-dev", "libtomlplusplus-dev", "libtomlplusplus3", "libcli11-dev",
            "libfmt-dev", "libfmt9", "libxxhash-dev", "libeigen3-dev", "libpng-dev", "libpng16-16",
            "zlib1g-dev", "zlib1g", "libsodium-dev", "libgloo-dev", "libgtest-dev", "libgmock-dev", "librapidcheck-dev"]
KEPT = re.compile(
    r"/usr/(share/doc/[^/]+/copyright|include/(?!eigen3/unsupported)"
    r"|lib/x86_64-linux-gnu/cmake/|share/cmake/|share/eigen3/cmake/"
    r"|lib/x86_64-linux-gnu/lib(fmt|tomlplusplus|png16|png|z)\.so"
    r"|lib/x86_64-linux-gnu/lib(gtest|gtest_main|gmock|gmock_main|rapidcheck|sodium)\.a)")
SOURCES = ["CMakeLists.txt", "CMakePresets.json", "LICENSE", "cmake", "configs/models", "include", "src",
           "lab", "examples", "tests"]


class Refusal(Exception):
    """What is wrong and what to do."""


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True,
                          text=True, cwd=ROOT).stdout


def needed(file):
    """The libraries that a program or library names."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", file))


def library(name):
    """Where a library of the list lies here."""
    folders = [pathlib.Path("/usr/lib/x86_64-linux-gnu"), pathlib.Path("/lib/x86_64-linux-gnu")]
    for folder in folders:
        if (folder / name).exists():
            return (folder / name).resolve()
    raise Refusal(f"{name} is not in {' or '.join(map(str, folders))}")


def libraries(programs, build):
    """{name: file} of all that the programs need and that is to be brought, by way of others too."""
    found, waiting = {}, list(programs)
    while waiting:
        file = waiting.pop()
        for name in needed(file):
            if name in SYSTEM | WHEELS or name in found:
                continue
            if name not in OURS:
                raise Refusal(f"{file} needs {name}, which neither torch's wheels nor the bundle have; "
                              "link without it, or add it to OURS in scripts/gpu_bundle.py")
            found[name] = library(name)
            waiting.append(found[name])
    return found


def place_program(file, into):
    """Without symbols, and without the paths of this machine."""
    place = into / file.name
    run("strip", "-o", place, file)
    with tempfile.NamedTemporaryFile("w", suffix=".cmake") as script:
        script.write(f'file(RPATH_REMOVE FILE "{place}")\n')
        script.flush()
        run("cmake", "-P", script.name)


def version(programs):
    """The commit, and the oldest system libraries that will do."""
    commit = run("git", "describe", "--always", "--dirty").strip()
    text = f"commit {commit}"
    for symbol in ("GLIBC", "GLIBCXX"):
        found = {tuple(map(int, number.split(".")))
                 for file in programs for number in
                 re.findall(rf"Name: {symbol}_([\d.]+)", run("readelf", "-V", "-W", file))}
        text += f", {symbol} {'.'.join(map(str, max(found)))}"
    return text + "\n"


def document_lengths():
    """As source files on GitHub have them, the longest 32k tokens; the same on every machine."""
    return lengths.drawn("GitHubCode", 32768, 400, random.Random(1))


def documents(ids, seed=1):
    """A line a document: few ids often, many seldom, as in texts; the same on every machine."""
    draw = random.Random(seed)
    for length in document_lengths():
        tokens = [int(ids ** draw.random()) - 1 for _ in range(length)]
        yield json.dumps({"tokens": tokens}, separators=(",", ":")) + "\n"


def write_sources(archive):
    """source/ with what git has of the sources, as it lies here, and Debian's in source/prefix/."""
    files = run("git", "ls-files", *SOURCES).split("\n")
    files = [name for name in files if name and not name.startswith("tests/golden/")]
    installed = set()
    for package in PACKAGES:
        try:
            installed.update(run("dpkg-query", "-L", package).split("\n"))
        except (OSError, subprocess.CalledProcessError) as error:
            raise Refusal(f"dpkg-query says nothing of {package}: the bundle is made on Debian, after "
                          "scripts/install.sh") from error
    with tarfile.open(archive, "w:gz", compresslevel=9, dereference=True) as tar:
        for name in files:
            tar.add(ROOT / name, f"source/{name}")
        for name in sorted(installed):
            # libraries that / and /usr share are listed in either
            name = "/usr" + name if name.startswith("/lib/") else name
            path = pathlib.Path(name)
            if KEPT.match(name) and path.is_file():
                tar.add(path, "source/prefix/" + name.removeprefix("/usr/"))
        words = b"What Debian has: scripts/gpu_bundle.py names the packages.\n"
        about = tarfile.TarInfo("source/prefix/README")
        about.size = len(words)
        tar.addfile(about, io.BytesIO(words))


def bundle(build, out):
    programs = [build / "paradyse", build / "bin" / "device_tests"]
    for file in programs:
        if not file.exists():
            raise Refusal(f"{file} is not there; `make gpu-bundle` builds it")
        if "libtorch_cuda.so" not in needed(file):
            raise Refusal(f"{file} was built without CUDA; take a build of the preset `cuda`")
    shutil.rmtree(out, ignore_errors=True)
    (out / "lib").mkdir(parents=True)
    for file in programs:
        place_program(file, out)
    for name, file in sorted(libraries(programs, build).items()):
        shutil.copy(file, out / "lib" / name)
    for file in (ROOT / "scripts" / "gpu").iterdir():
        if file.suffix in (".sh", ".py", ".toml"):
            shutil.copy(file, out)
    for name in ("llama-0.9b.toml", "llama-0.9b-128k.toml"):
        shutil.copy(ROOT / "configs" / "models" / name, out)
    (out / "documents.jsonl").write_text("".join(documents(32000)))
    (out / "VERSION").write_text(version(programs))
    write_sources(out / "source.tar.gz")

    sizes = {file: file.stat().st_size for file in out.rglob("*") if file.is_file()}
    for file, size in sorted(sizes.items(), key=lambda one: -one[1]):
        print(f"{size / 2**20:8.2f} MiB  {file.relative_to(out)}")
    print(f"{sum(sizes.values()) / 2**20:8.2f} MiB  {out}: {(out / 'VERSION').read_text().strip()}")
    if sum(sizes.values()) > MOST_BYTES:
        raise Refusal(f"{out} has more than {MOST_BYTES >> 20} MiB")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "gpu-bundle")
    options = parser.parse_args()
    try:
        bundle(options.build.resolve(), options.out.resolve())
    except Refusal as refusal:
        sys.exit(f"gpu_bundle.py: {refusal}")


if __name__ == "__main__":
    main()

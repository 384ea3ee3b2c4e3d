#!/usr/bin/env python3
"""Compiles our CUDA kernels for each generation of GPUs, warnings as errors, and refuses one that spills
registers, keeps a stack or takes more than 64 registers or 48 KiB of shared memory.  Needs nvcc, no GPU.

usage: scripts/check_cuda_kernels.py [JOBS]
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

GENERATIONS = ["80", "90", "100"]  # A100, H100, B200
MOST_REGISTERS = 64  # 4 blocks of 256 threads on a multiprocessor
MOST_SHARED = 48 * 1024  # bytes that a kernel may have without asking

root = pathlib.Path(__file__).resolve().parent.parent


def nvcc():
    """The compiler's path, that of a toolkit in its usual place if PATH has none."""
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not found:
        sys.exit("check_cuda_kernels: no nvcc, neither on PATH nor in /usr/local/cuda/bin")
    return found


def compile_file(compiler, file, generation, folder):
    """What the assembler says of a file's kernels; ends the program where it is not compiled."""
    command = [compiler, "-std=c++20", "-O3", "-I", root, "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
    command += ["-Xptxas", "-v", f"-gencode=arch=compute_{generation},code=sm_{generation}", "-c", file]
    command += ["-o", folder / f"{file.stem}.{generation}.o"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def kernels(text):
    """(mangled name, numbers) of each kernel in the assembler's report."""
    for part in text.split("Compiling entry function '")[1:]:
        name = part.split("'")[0]

        def number(pattern):
            match = re.search(pattern, part)
            return int(match.group(1)) if match else None

        yield name, {
            "registers": number(r"Used (\d+) registers"),
            "shared": number(r"(\d+) bytes smem") or 0,
            "stack": number(r"(\d+) bytes stack frame"),
            "spilled": (number(r"(\d+) bytes spill stores") or 0) + (number(r"(\d+) bytes spill loads") or 0),
        }


def demangled(names):
    """Short names: Body<types> of run_body<Body<types>>."""
    tool = shutil.which("c++filt")
    text = subprocess.run([tool, *names], capture_output=True, text=True, check=True).stdout if tool else "\n".join(names)
    short = []
    for line in text.splitlines():
        match = re.search(r"run_body<(.*)>\(", line)
        short.append((match.group(1) if match else line).replace("paradyse::cuda::", "").strip())
    return dict(zip(names, short))


def main():
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else os.cpu_count()
    compiler = nvcc()
    files = sorted((root / "src/run/cuda").glob("*.cu"))
    found = {}  # name -> generation -> numbers
    wrong = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        each = [(file, generation) for file in files for generation in GENERATIONS]
        results = pool.map(lambda one: compile_file(compiler, *one, pathlib.Path(folder)), each)
        for (file, generation), (status, text) in zip(each, results):
            mine = list(kernels(text))
            if status:
                wrong.append(f"{file.name} for sm_{generation} is not compiled:\n{text}")
            elif not mine:
                wrong.append(f"{file.name} for sm_{generation}: no kernel in what the assembler says")
            for name, numbers in mine:
                found.setdefault(name, {})[generation] = numbers
    names = demangled(list(found)) if found else {}
    print(f"{'kernel':60} " + " ".join(f"{'sm_' + g:>7}" for g in GENERATIONS) + "   shared, bytes")
    for name in sorted(found, key=names.get):
        of = found[name]
        registers = " ".join(f"{of[g]['registers'] if g in of else '-':>7}" for g in GENERATIONS)
        print(f"{names[name]:60} {registers}   {max(n['shared'] for n in of.values()):>7}")
        for generation, numbers in of.items():
            what = f"{names[name]} for sm_{generation}"
            if numbers["registers"] is None or numbers["stack"] is None:
                wrong.append(f"{what}: the assembler's report is not understood")
            elif numbers["registers"] > MOST_REGISTERS:
                wrong.append(f"{what}: {numbers['registers']} registers, at most {MOST_REGISTERS} are allowed")
            if numbers["spilled"] or numbers["stack"]:
                wrong.append(f"{what}: {numbers['spilled']} bytes spilled, {numbers['stack']} bytes of stack")
            if numbers["shared"] > MOST_SHARED:
                wrong.append(f"{what}: {numbers['shared']} bytes shared, at most {MOST_SHARED} are allowed")
    print("\n".join(wrong) if wrong else f"check_cuda_kernels: {len(found)} kernels, all within limits")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

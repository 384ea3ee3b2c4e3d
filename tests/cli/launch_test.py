"""paradyse over gloo, as a user starts it: by paradyse launch, or by what other launchers say."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import unittest

from support import FAILED, OK, PARADYSE, USAGE, ProgramTest

MODEL = """
architectures = ["LlamaForCausalLM"]
model_type = "llama"
hidden_size = 24
num_hidden_layers = 2
num_attention_heads = 3
num_key_value_heads = 1
intermediate_size = 40
vocab_size = 256
rms_norm_eps = 1e-5
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def children_of(pid):
    return [int(child) for child in
            pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class GlooTest(ProgramTest):
    """A model, documents and a run's configuration."""

    def setUp(self):
        super().setUp()
        self.write("model.toml", MODEL)
        self.data = self.write_documents(
            [[(7 * i + d) % 256 for i in range(n)] for d, n in enumerate([30, 2, 90, 11, 57])])
        self.config = self.write("run.toml", f"""
[model]
path = "{self.folder}/model.toml"
[data]
path = "{self.data}"
[parallel]
attention = "UlyssesZ"
recompute = "none"
[train]
steps = 6
tokens_per_step = 100
[output]
folder = "{self.folder}/runs"
""")
        self.grad = ["grad", "--model", self.folder / "model.toml", "--data", self.data,
                     "--dtype", "float32"]

    def start(self, *arguments, **environment):
        return subprocess.Popen(
            [PARADYSE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **{k: str(v) for k, v in environment.items()}})

    def all_end(self, processes, timeout=120):
        ended = [(p, *p.communicate(timeout=timeout)) for p in processes]
        return [(p.returncode, out, err) for p, out, err in ended]

    def metrics(self, summary):
        lines = (pathlib.Path(summary["folder"]) / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def wait_for_step(self, process):
        """Post: a run of `process` has written its first step."""
        end = time.monotonic() + 60
        while not any(f.stat().st_size for f in self.folder.glob("runs/*/metrics.jsonl")):
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(process.poll())
            time.sleep(0.05)

class LaunchTest(GlooTest):
    def test_trains_as_threads_do(self):
        threads = self.json_of("train", "-c", self.config, "--ranks", 3)
        processes = self.json_of("launch", "-n", 3, "--", "train", "-c", self.config)
        for one, other in zip(self.metrics(threads), self.metrics(processes), strict=True):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=2e-5 * one["loss"])
            self.assertEqual(one["peak_bytes"], other["peak_bytes"])
        folder = pathlib.Path(processes["folder"])
        self.assertEqual(len(list(folder.parent.iterdir())), 2)  # one a run, not one a process
        self.assertRegex((folder / "config.toml").read_text(), r"ranks = 3\b")
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertEqual(names, {"steps", "rank 0", "rank 1", "rank 2"})
        # the same model: evaluated by processes and by threads
        evaluate = ["eval", "--model", folder / "model", "--data", self.data]
        loss = self.json_of(*evaluate, "--ranks", 2)["loss"]
        over = self.json_of("launch", "-n", 2, "--", *evaluate)["loss"]
        self.assertAlmostEqual(loss, over, delta=2e-5 * loss)

    def test_gradients_are_those_of_threads(self):
        mine, theirs = self.folder / "mine.safetensors", self.folder / "theirs.safetensors"
        over = self.json_of("launch", "-n", 3, "--", *self.grad, "--out", mine)
        local = self.json_of(*self.grad, "--ranks", 3, "--out", theirs)
        self.assertEqual(mine.read_bytes(), theirs.read_bytes())
        self.assertEqual(over["loss"], local["loss"])
        self.assertEqual(over["ranks"], local["ranks"])  # bytes, messages, saved bytes and peak

    # Two runs of a process each, which do not hear of one another.
    def expect_killed_after(self, seconds, *options):
        """Post: a rank that hangs after another was interrupted is killed in this time."""
        launcher = self.start(
            "launch", "-n", 2, "--", "train", "-c", self.config, "--backend", "local", "--set", "train.steps=1000000",
            "--set", "output.trace=false", *options)
        self.addCleanup(launcher.kill)
        self.wait_for_step(launcher)
        end = time.monotonic() + 60
        while sum(f.stat().st_size > 0 for f in self.folder.glob("runs/*/metrics.jsonl")) < 2:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        one, other = children_of(launcher.pid)
        os.kill(other, signal.SIGSTOP)
        os.kill(one, signal.SIGTERM)
        (code, _, error), = self.all_end([launcher], timeout=90)
        self.assertEqual(code, 143, error)
        self.assertIn(f"1 of 2 ranks did not end within {seconds} s after another was interrupted, and are killed", error)

    def test_a_rank_that_hangs_after_another_was_interrupted(self):
        self.expect_killed_after(10, "--timeout", 5)

    def test_a_rank_that_hangs_has_the_time_of_the_run_file(self):
        self.config.write_text(self.config.read_text().replace("[parallel]", "[parallel]\ntimeout_seconds = 12"))
        self.expect_killed_after(12)

    def test_check_and_bench(self):
        checked = self.json_of(
            "launch", "-n", 2, "--", "check", "--strategy", "MegatronTS", "--dtype", "float64")
        self.assertTrue(checked["ok"])
        self.assertEqual(checked["counts_differ"], [])
        self.assertEqual({row["ranks"] for row in checked["rows"]}, {1, 2})
        comm = ["bench", "comm", "--bytes", "64,4096", "--seconds", "0.01"]
        for measured in [self.json_of("launch", "-n", 2, "--", *comm),
                         self.json_of(*comm, "--ranks", 2)]:
            self.assertEqual(measured["ranks"], 2)
            self.assertEqual(len(measured["rows"]), 13)
            self.assertTrue(all(row["seconds"] > 0 for row in measured["rows"]))
        step = self.json_of(
            "launch", "-n", 2, "--", "bench", "step", "--model", self.folder / "model.toml",
            "--lengths", "64", "--repeats", "1")
        self.assertEqual(step["backend"], "gloo")
        self.assertGreater(step["rows"][0]["cpu_s"], 0)

    def test_other_launchers(self):
        out = self.folder / "gradients.safetensors"
        expected = self.json_of(*self.grad, "--ranks", 2, "--out", out)["loss"]
        port = free_port()
        for variables in [
                lambda r: dict(RANK=r, WORLD_SIZE=2, LOCAL_RANK=r, MASTER_ADDR="127.0.0.1"),
                lambda r: dict(SLURM_PROCID=r, SLURM_NTASKS=2, SLURM_NODELIST="localhost"),
                lambda r: dict(SLURM_PROCID=r, SLURM_NTASKS=2,
                               SLURM_LAUNCH_NODE_IPADDR="127.0.0.1"),
                # of one machine, whose address no secret is given for: on loopback
                lambda r: dict(SLURM_PROCID=r, SLURM_NTASKS=2, SLURM_NNODES=1,
                               SLURM_NODELIST="192.0.2.7"),
                lambda r: dict(OMPI_COMM_WORLD_RANK=r, OMPI_COMM_WORLD_SIZE=2,
                               OMPI_COMM_WORLD_LOCAL_SIZE=2),
                lambda r: dict(PMI_RANK=r, PMI_SIZE=2, MPI_LOCALNRANKS=2)]:
            ended = self.all_end([
                self.start(*self.grad, "--out", out, "--json", MASTER_PORT=port, **variables(r))
                for r in range(2)])
            self.assertEqual([code for code, _, _ in ended], [OK, OK], ended)
            self.assertEqual(json.loads(ended[0][1])["loss"], expected)
            self.assertEqual(ended[1][1], "")

    def test_refuses(self):
        out = self.folder / "x.safetensors"
        grad = [*self.grad, "--out", out]
        self.assertIn("preset `cuda`", self.error_of(*grad, "--backend", "nccl"))
        self.assertIn("make build-cuda", self.error_of(*grad, "--device", "cuda"))
        self.assertIn("cpu, cuda", self.error_of(*grad, "--device", "gpu"))
        self.assertIn("paradyse launch -n 4", self.error_of(*grad, "--backend", "gloo"))
        self.assertIn("local, gloo", self.error_of(*grad, "--backend", "mpi"))
        done = self.run_program("launch", "-n", 2, "--", *grad, "--ranks", 3, code=USAGE)
        self.assertIn("3 ranks were requested (--ranks, or parallel.ranks), but paradyse launch started 2 "
                      "processes", done.stderr)
        for alone in ("export", "report", "generate", "plan"):
            self.assertIn(f"'{alone}' runs in one process", self.error_of("launch", "-n", 2, "--", alone, "x"))
        self.assertIn("numbered from 0", self.error_of(
            "launch", "--nproc_per_node", 1, "--nnodes", 2, "--node-rank", 2, "--", "doctor"))
        self.assertIn("--rdzv-endpoint", self.error_of("launch", "--processes", 1, "--nodes", 2, "--", "doctor"))
        self.assertIn("--nnodes", self.error_of(
            "launch", "-n", 1, "--nnodes", 2, "--nodes", 2, "--", "doctor"))
        for what in ["host:port", ":1", "host:0", "host:99999"]:
            self.assertIn("accepted is HOST", self.error_of(
                "launch", "-n", 1, "--rdzv-endpoint", what, "--", "doctor"))
        # what is wrong for all is told once; the exit code is that of threads
        done = self.run_program(
            "launch", "-n", 3, "--", "grad", "--model", self.folder / "none", "--data", self.data,
            "--out", out, code=USAGE)
        self.assertLessEqual(len(re.findall("is not there", done.stderr)), 2, done.stderr)

    # Each process with a command line of its own, as on two machines.
    def test_ranks_are_given_the_same(self):
        other = self.write_documents([[1] * n for n in [30, 2, 90, 11, 57]], "other.jsonl")
        copy = self.folder / "copy.jsonl"
        copy.write_bytes(self.data.read_bytes())
        out = self.folder / "x.safetensors"
        train = ["train", "-c", self.config, "--set", "train.steps=1"]
        evaluate = ["eval", "--model", self.folder / "model.toml"]
        for mine, theirs, words in [
                ([*train, "--data", self.data], [*train, "--data", other],
                 "the contents of data.path is XXH64"),
                (train, [*train, "--set", "optimizer.lr=0.5"],
                 "optimizer.lr is 0.001 on rank 0 and 0.5 on rank 1"),
                ([*evaluate, "--data", self.data], [*evaluate, "--data", other],
                 "the contents of data.path is XXH64"),
                ([*self.grad, "--out", out], [*self.grad, "--out", out, "--attention", "METP"],
                 "--attention is not given on rank 0 and METP on rank 1"),
                ([*evaluate, "--data", self.data], [*evaluate, "--data", copy], None),
                ([*evaluate, "--data", self.data], [*evaluate, "--data", "nowhere"],
                 "data.path: nowhere: is not there")]:
            with self.subTest(words):
                port = free_port()
                ended = self.all_end([
                    self.start(*command, RANK=r, WORLD_SIZE=2, LOCAL_RANK=r,
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
                    for r, command in enumerate([mine, theirs])])
                for code, _, err in ended:
                    self.assertEqual(code, USAGE if words else OK, err)
                    if words and "nowhere" not in words:
                        self.assertIn(words, err)
                if words:
                    self.assertIn(words, ended[0][2] + ended[1][2])

    # Others have a deadline of hours: they hear of it.
    def test_a_wrong_command_line_of_one_rank_ends_all(self):
        train = ["train", "-c", self.config, "--timeout", 10000]
        for wrong in (["train", "--setting"], ["train", "-c", "nowhere.toml"]):
            for rank in (0, 1):
                with self.subTest(wrong=wrong, rank=rank):
                    port = free_port()
                    ended = self.all_end([
                        self.start(*(wrong if r == rank else train), RANK=r, WORLD_SIZE=3,
                                   LOCAL_RANK=r, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
                        for r in range(3)], timeout=60)
                    for code, _, err in ended:
                        self.assertEqual(code, USAGE, err)
                    self.assertIn(wrong[-1], ended[rank][2])
                    if rank != 0:
                        self.assertIn(f"rank {rank} failed: ", ended[0][2])
                        self.assertIn(wrong[-1], ended[0][2])

    # Where they meet is in the run file alone.
    def test_a_wrong_command_line_of_one_rank_by_the_run_file(self):
        self.config.write_text(self.config.read_text().replace(
            "[parallel]", f'[parallel]\nrendezvous = "127.0.0.1:{free_port()}"\ntimeout_seconds = 10000'))
        train = ["train", "-c", self.config]
        processes = [self.start(*(train if rank == 0 else [*train, "--setting"]), RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank)
                     for rank in (0, 1)]
        for process in processes:
            self.addCleanup(process.kill)
        for code, _, err in self.all_end(processes, timeout=30):
            self.assertEqual(code, USAGE, err)
            self.assertIn("unknown option --setting", err)

    def test_secrets(self):
        launch = ["launch", "-n", 1, "--", "doctor"]
        file = self.folder / "secret"
        file.write_text("a secret of a file of this run\n")
        for mode in (0o640, 0o604, 0o666):
            file.chmod(mode)
            error = self.error_of("launch", "-n", 1, "--secret-file", file, "--", "doctor")
            self.assertIn(f"its mode is {mode:o}", error)
            self.assertIn(f"chmod 600 {file}", error)
        self.assertIn("cannot be read", self.error_of(
            "launch", "-n", 1, "--secret-file", self.folder / "none", "--", "doctor"))
        ended = self.all_end([
            self.start(*launch, PARADYSE_SECRET="short"),
            self.start(*launch, PARADYSE_SECRET="long enough, it is", PARADYSE_SECRET_FILE=file)])
        self.assertEqual([code for code, _, _ in ended], [USAGE, USAGE], ended)
        self.assertIn("can be found by trying", ended[0][2])
        self.assertIn("unset one", ended[1][2])
        self.assertIn("put it before --", self.error_of(
            "launch", "-n", 1, "--", "eval", "--secret-file", file))
        for wrong in ("[::1]29500", "[::1]x:29500", "::1]:29500"):
            self.assertIn("[ADDRESS]:PORT", self.error_of(
                "launch", "-n", 1, "--nnodes", 2, "--rdzv-endpoint", wrong, "--", "doctor"))
        # processes of one run with two secrets: the wrong one is told, and the others hear of it
        port = free_port()
        out = self.folder / "x.safetensors"
        ended = self.all_end([
            self.start(*self.grad, "--out", out, "--timeout", 4, RANK=r, WORLD_SIZE=2,
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                       PARADYSE_SECRET=f"the secret of rank {r} alone")
            for r in range(2)])
        self.assertEqual([code for code, _, _ in ended], [FAILED, FAILED], ended)
        self.assertIn("rank 1 of 2 did not connect", ended[0][2])
        self.assertIn("turned away a connection from 127.0.0.1:", ended[0][2])
        self.assertIn("refuses this process's secret", ended[1][2])

    # On one machine the launcher makes a secret that no command line and no other user shows.
    def test_launch_makes_a_secret(self):
        process = self.start(
            "launch", "-n", 2, "--", "train", "-c", self.config, "--set", "train.steps=100000")
        self.wait_for_step(process)
        secrets = set()
        for rank in children_of(process.pid):
            variables = pathlib.Path(f"/proc/{rank}/environ").read_bytes().split(b"\0")
            [secret] = [one[16:] for one in variables if one.startswith(b"PARADYSE_SECRET=")]
            self.assertRegex(secret, rb"^[0-9a-f]{64}$")
            self.assertNotIn(secret, pathlib.Path(f"/proc/{rank}/cmdline").read_bytes())
            self.assertEqual(pathlib.Path(f"/proc/{rank}/environ").stat().st_mode & 0o077, 0)
            secrets.add(secret)
        self.assertEqual(len(secrets), 1)
        for file in self.folder.rglob("*"):
            if file.is_file():
                self.assertNotIn(secrets.copy().pop(), file.read_bytes(), file)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    def test_a_second_process_of_a_rank_is_turned_away(self):
        port = free_port()
        train = ["train", "-c", self.config, "--json", "--set", "train.steps=60"]
        variables = dict(WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        both = [self.start(*train, RANK=r, **variables) for r in range(2)]
        self.wait_for_step(both[0])
        [second] = self.all_end([self.start(*train, RANK=1, **variables)])
        self.assertEqual(second[0], FAILED, second)
        self.assertIn(f"rank 1 is taken: process {both[1].pid} on ", second[2])
        ended = self.all_end(both)
        self.assertEqual([code for code, _, _ in ended], [OK, OK], ended)
        self.assertIn("claims rank 1, which process", ended[0][2])
        self.assertEqual(json.loads(ended[0][1])["steps"], 60)

    def test_ctrl_c_saves(self):
        process = self.start(
            "launch", "-n", 3, "--", "train", "-c", self.config, "--json", "--set",
            "train.steps=100000", "--set", "output.trace=false")
        self.wait_for_step(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        summary = json.loads(out)
        self.assertTrue(summary["interrupted"])
        self.assertTrue((pathlib.Path(summary["folder"]) / "model/model.safetensors").is_file())

    def test_a_killed_rank_ends_all(self):
        process = self.start(
            "launch", "-n", 3, "--", "train", "-c", self.config, "--set", "train.steps=100000")
        self.wait_for_step(process)
        ranks = children_of(process.pid)
        self.assertEqual(len(ranks), 3)
        begin = time.monotonic()
        os.kill(ranks[1], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, 40)
        self.assertEqual(process.returncode, 128 + signal.SIGKILL)
        self.assertIn("paradyse launch: rank 1 was ended by signal 9", err)
        self.assertIn("rank 1 is gone, killed or crashed", err)
        for rank in ranks:
            self.assertFalse(pathlib.Path(f"/proc/{rank}").exists())

    def test_a_killed_launcher_leaves_nobody(self):
        process = self.start(
            "launch", "-n", 2, "--", "train", "-c", self.config, "--set", "train.steps=100000")
        self.wait_for_step(process)
        ranks = children_of(process.pid)
        process.kill()
        process.communicate(timeout=60)
        end = time.monotonic() + 30
        while any(pathlib.Path(f"/proc/{rank}/exe").exists() for rank in ranks):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)


# Where processes of this network namespace listen, as [["10.77.0.1", 4000], ...].
LISTENING = """
import json, socket, struct
found = []
for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
    for line in open("/proc/net/" + name).read().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        if state == "0A":
            address, port = local.split(":")
            words = [int(address[i:i + 8], 16) for i in range(0, len(address), 8)]
            raw = b"".join(struct.pack("=I", word) for word in words)
            found.append([socket.inet_ntop(family, raw), int(port, 16)])
print(json.dumps(found))
"""

# A stranger: 900 connections that say nothing, and others that say what c10d's store (which the
# rendezvous once was) does as it is told, what Gloo takes for a rank, or anything.
STRANGER = """
import json, os, resource, socket, struct, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
heard, reached, kept = 0, set(), []

def text(value):
    return struct.pack("=Q", len(value)) + value

# c10d: validate, ping, then set the key that once ended a run
words = [b"",
         struct.pack("=BI", 0, 0x3C85F7CE) + struct.pack("=BI", 13, 1)
         + struct.pack("=B", 1) + text(b"/paradyse/failed") + text(b"ended by a stranger"),
         struct.pack("=q", 0), struct.pack("=q", 1), b"GET / HTTP/1.0\\r\\n\\r\\n", os.urandom(5000),
         b"PdyHel1\\n" + os.urandom(1000), b"PdyHel1\\n" + bytes(32) + b"\\xff" * 100]
for address, port in json.loads(sys.argv[1]):
    for number in range(900 if port == 4000 else 3):
        one = socket.socket()
        one.settimeout(5 if port == 4000 else 0.5)
        try:
            one.connect((address, port))
        except OSError:
            continue
        reached.add(port)
        kept.append(one)
    for said in words:
        one = socket.socket()
        one.settimeout(0.5)
        mine = 0
        try:
            one.connect((address, port))
            one.sendall(said)
            while got := one.recv(4096):
                mine += len(got)
            # after a whole greeting: a refusal, which has nothing of the secret
        except OSError:
            pass
        heard = max(heard, mine if port == 4000 else 0)
print(json.dumps({"most_heard": heard, "reached": sorted(reached)}))
"""


class HostsTest(GlooTest):
    """Two machines, which are network namespaces joined by a cable."""

    def train_for(self, steps):
        return ["train", "-c", self.config, "--json", "--set", f"train.steps={steps}", "--set",
                "output.trace=false"]

    def setUp(self):
        super().setUp()
        self.names = [f"paradyse{os.getpid()}{x}" for x in "ab"]
        self.addCleanup(self.remove)
        try:
            for name in self.names:
                self.ip("netns", "add", name)
            self.ip("link", "add", "cable", "netns", self.names[0], "type", "veth",
                    "peer", "name", "cable", "netns", self.names[1])
            for number, name in enumerate(self.names, start=1):
                self.ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
                self.ip("-n", name, "link", "set", "cable", "up")
                self.ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            print(f"skipped: no network namespaces here: {reason.strip()}")
            self.skipTest(f"no network namespaces here: {reason.strip()}")

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    secret = "the secret of these tests' runs"

    def start_on(self, host, *arguments, secret=secret):
        variables = {name: value for name, value in os.environ.items() if name != "PARADYSE_SECRET"}
        if secret is not None:
            variables["PARADYSE_SECRET"] = secret
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], PARADYSE, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)

    def python_on(self, host, code, *arguments):
        """What a program there prints."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.names[host], sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def start_both(self, *command, options=(), secrets=(secret, secret)):
        return [self.start_on(
            host, "launch", "-n", 2, "--nnodes", 2, "--node-rank", host, "--rdzv-endpoint", "10.77.0.1:4000",
            *(["--interface", "cable"] if host == 1 else []), *options, "--", *command,
            secret=secrets[host]) for host in (0, 1)]

    def test_two_hosts(self):
        out = self.folder / "gradients.safetensors"
        ended = self.all_end(self.start_both(*self.grad, "--out", out, "--json"))
        self.assertEqual([code for code, _, _ in ended], [OK, OK], ended)
        expected = self.json_of(*self.grad, "--ranks", 4, "--out", self.folder / "local.safetensors")
        self.assertEqual(json.loads(ended[0][1]), expected)
        self.assertEqual(out.read_bytes(), (self.folder / "local.safetensors").read_bytes())

    def test_both_hosts_are_measured_as_a_cluster(self):
        cluster = self.folder / "cluster.toml"
        ended = self.all_end(self.start_both(
            "simulate", "--model", self.folder / "model.toml", "--cluster", "measured", "--write-cluster", cluster))
        self.assertEqual([code for code, _, _ in ended], [OK, OK], ended)
        measured = tomllib.loads(cluster.read_text())
        self.assertEqual((measured["ranks_per_node"], measured["device"][0]["count"]), (2, 4))
        for link in ("inside_node", "between_nodes"):
            self.assertGreater(measured[link]["bytes_per_second"], 1e5)
            self.assertGreater(measured[link]["latency_seconds"], 0)
        found = self.json_of("simulate", "--model", self.folder / "model.toml", "--cluster", cluster, "--length", 64)
        self.assertGreater(max(choice["bytes_between_nodes"] for choice in found["choices"]), 0)

    def test_two_hosts_take_a_secret(self):
        grad = [*self.grad, "--out", self.folder / "x.safetensors"]
        # none: nobody listens, and both say what to do
        ended = self.all_end(self.start_both(*grad, secrets=(None, None)))
        for code, _, err in ended:
            self.assertEqual(code, USAGE, err)
            self.assertIn("10.77.0.1:4000 can be reached by other machines", err)
            self.assertIn("PARADYSE_SECRET", err)
            self.assertIn("--secret-file", err)
        # the same without a launcher of ours
        with self.subTest("srun"):
            one = subprocess.run(
                ["ip", "netns", "exec", self.names[0], "env", "-u", "PARADYSE_SECRET", "RANK=0",
                 "WORLD_SIZE=2", "MASTER_ADDR=10.77.0.1", PARADYSE, *map(str, grad)],
                capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(one.returncode, USAGE, one.stderr)
            self.assertIn("PARADYSE_SECRET", one.stderr)
        # nor where ranks of one machine meet on loopback, but are told to talk over a network
        with self.subTest("interface"):
            one = subprocess.run(
                ["ip", "netns", "exec", self.names[0], "env", "-u", "PARADYSE_SECRET", "RANK=0",
                 "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", PARADYSE, *map(str, grad), "--backend", "gloo",
                 "--interface", "cable"],
                capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(one.returncode, USAGE, one.stderr)
            self.assertIn("10.77.0.1:29500 can be reached by other machines", one.stderr)
        # two: each host says that the other's ranks are not of its run
        ended = self.all_end(self.start_both(
            *grad, "--timeout", 4, secrets=(self.secret, "another secret than that")))
        self.assertTrue(all(code != OK for code, _, _ in ended), ended)
        self.assertIn("turned away a connection from 10.77.0.2:", ended[0][2])
        self.assertIn("refuses this process's secret", ended[1][2])
        # of a file that all of them read
        file = self.folder / "secret"
        file.write_text("a secret of a file of this run\n")
        file.chmod(0o600)
        ended = self.all_end(self.start_both(
            *grad, options=["--secret-file", file], secrets=(None, None)))
        self.assertEqual([code for code, _, _ in ended], [OK, OK], ended)

    # What a stranger of another machine may do to a run that has just begun.
    def test_a_stranger_reads_writes_and_ends_nothing(self):
        both = self.start_both(*self.train_for(800))
        self.wait_for_step(both[0])
        ports = json.loads(self.python_on(0, LISTENING))
        self.assertIn(["10.77.0.1", 4000], ports)
        # on the chosen interface alone: the rendezvous, and Gloo of both ranks
        self.assertEqual({address for address, _ in ports}, {"10.77.0.1"})
        begin = time.monotonic()
        found = json.loads(self.python_on(1, STRANGER, json.dumps(ports)))
        self.assertLess(time.monotonic() - begin, 60)
        # A challenge, a random number, is all that anybody hears.
        self.assertLessEqual(found["most_heard"], 40)
        # Where Gloo listens nobody is let in once ranks are connected.
        self.assertEqual(found["reached"], [4000])
        self.assertIsNone(both[0].poll())
        ended = self.all_end(both, timeout=240)
        self.assertEqual([code for code, _, _ in ended], [OK, OK], ended)
        self.assertEqual(json.loads(ended[0][1])["steps"], 800)

    def test_a_cut_cable_ends_both(self):
        both = self.start_both(
            "train", "-c", self.config, "--deadline", 4, "--set", "train.steps=100000")
        self.wait_for_step(both[0])
        self.ip("-n", self.names[1], "link", "set", "cable", "down")
        begin = time.monotonic()
        ended = self.all_end(both)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertTrue(all(code != OK for code, _, _ in ended), ended)
        self.assertRegex(ended[0][2], r"rank [23] (gives no sign of life|is gone)")

    def test_what_cannot_be_reached_is_named_in_time(self):
        # rank 1 offers the address of a network of its own
        self.ip("-n", self.names[1], "link", "add", "inner", "type", "veth", "peer", "name", "end")
        for link in ["inner", "end"]:
            self.ip("-n", self.names[1], "link", "set", link, "up")
        self.ip("-n", self.names[1], "addr", "add", "10.78.0.2/24", "dev", "inner")

        def start_on(host, address, *options):
            return self.start_on(
                host, "launch", "-n", 1, "--nodes", 2, "--node", host, "--rendezvous", address,
                *options, "--", *self.grad, "--timeout", 10, "--out", self.folder / "x")

        begin = time.monotonic()
        nowhere = ["10.77.0.9:4000", "10.77.0.1:4001"]  # no such host; nobody listens
        alone = [start_on(1, address) for address in nowhere]
        both = [start_on(0, "10.77.0.1:4000"),
                start_on(1, "10.77.0.1:4000", "--interface", "inner")]
        ended = self.all_end(alone + both)
        self.assertLess(time.monotonic() - begin, 30)  # 10 s, and a busy machine
        self.assertEqual([code for code, _, _ in ended], [FAILED] * 4, ended)
        for address, (_, _, err) in zip(nowhere, ended):
            self.assertIn(f"could not reach the rendezvous at {address} within 10 s", err)
        self.assertRegex(
            ended[2][2],
            r"rank 0 at 10\.77\.0\.1 could not reach rank 1 at 10\.78\.0\.2:\d+ within 10 s")


if __name__ == "__main__":
    unittest.main()

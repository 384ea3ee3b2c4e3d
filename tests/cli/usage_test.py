"""Help, version, and what is said of a wrong command line."""

import os
import re
import resource
import signal
import subprocess
import unittest

from support import FAILED, OK, PARADYSE, USAGE, ProgramTest

COMMANDS = ["doctor", "train", "eval", "plan", "grad", "check", "bench"]
# What 0 stands for is said; all other numbers begin at 1, or just above 0.
ZERO_IS_ACCEPTED = ["grad --attention-dropout", "grad --dropout-seed", "launch --node-rank",
                    "launch --restarts",
                    "plan batch --moves", "plan batch --reserve", "plan batch --seed", "generate --seed",
                    "generate --temperature", "generate --top-k", "generate --top-p"]


class UsageTest(ProgramTest):
    helps = {}  # by command: asked for once

    def help(self, *command):
        if command not in self.helps:
            self.helps[command] = self.run_program(*command, "--help").stdout
        return self.helps[command]

    def test_help_names_every_command_and_the_exit_codes(self):
        text = self.help()
        for command in COMMANDS:
            self.assertIn(f"  {command} ", text)
        self.assertIn("Exit codes:", text)
        self.assertIn("130", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_every_command_has_help_and_json(self):
        for command in [*COMMANDS, "plan check", "bench step"]:
            text = self.help(*command.split())
            self.assertIn("Exit codes:", text)
            self.assertLessEqual(max(map(len, text.splitlines())), 80)
            if command not in ("plan", "bench"):
                self.assertIn("--json", text)

    def test_version(self):
        self.assertRegex(self.run_program("--version").stdout, r"^paradyse \d+\.\d+\.\d+\n$")
        self.assertRegex(self.json_of("--version")["version"], r"^\d+\.\d+\.\d+$")

    def test_nothing_at_all(self):
        self.assertIn("Train and evaluate:", self.run_program().stdout)
        self.assertIn("check", self.error_of("plan"))

    def test_config_lists_the_keys_of_a_run_file(self):
        keys = self.json_of("config", "train", "parallel.ranks")["keys"]
        self.assertEqual(keys[0]["key"], "train.steps")
        self.assertEqual(keys[-1], {
            "key": "parallel.ranks", "default": "4", "accepted": "a whole number from 1 to 1024",
            "meaning": keys[-1]["meaning"]})
        listed = self.run_program("config", "--list").stdout
        self.assertLessEqual(max(map(len, listed.splitlines())), 80)
        self.assertIn("did you mean 'train'?", self.error_of("config", "trian"))
        self.assertIn("--markdown", self.error_of("config", "train", "--markdown"))

    def test_help_of_resume_lists_what_may_change(self):
        text = " ".join(self.help("train").split())
        said = re.search(r"with its configuration; --set may change (.*?) --resume-from", text).group(1)
        for words in ("data.path, data.eval_path, parallel, costs, train (but not tokens_per_step, dtype)",
                      "output (but not folder, name), checkpoint"):
            self.assertIn(words, said)
        self.assertNotIn("seed", said)

    def test_unknown_command_gets_the_nearest(self):
        self.assertIn("did you mean 'train'?", self.error_of("trian"))
        self.assertIn("did you mean 'check'?", self.error_of("plan", "chek"))
        self.assertIn("did you mean '--version'?", self.error_of("--versoin"))

    def test_unknown_option_gets_the_nearest(self):
        for command, wrong, right in [
                ("doctor", "--jsno", "--json"),
                ("grad", "--modle", "--model"),
                ("grad", "--memory-per-rnak=1GiB", "--memory-per-rank"),
                ("check", "--rank", "--ranks"),
                ("plan check", "--explian", "--explain"),
                ("train", "--print-confg", "--print-config")]:
            message = self.error_of(*command.split(), wrong)
            self.assertIn(f"unknown option {wrong.split('=')[0]}", message)
            self.assertIn(f"did you mean '{right}'?", message)
            self.assertIn(f"paradyse {command} --help", message)

    def test_unknown_option_far_from_all_gets_the_list(self):
        message = self.error_of("grad", "--zzzzzzzzzzzz")
        self.assertNotIn("did you mean", message)
        self.assertIn("--attention", message)

    def test_missing_and_malformed_values(self):
        self.assertIn("--data", self.error_of("grad", "--model", "x", "--out", "y"))
        self.assertIn("--model", self.run_program("grad", "--model", code=USAGE).stderr)
        self.assertIn(
            "--ranks",
            self.error_of("grad", "--model", "x", "--data", "y", "--out", "z", "--ranks", "two"))
        self.assertIn("FILE", self.error_of("plan", "check"))

    def commands(self, *above):
        """Every command, by the help of those above it, which has them in groups after the options."""
        listed = self.help(*above).split("Options:\n")[1]
        groups = re.findall(r"^[A-Z][a-z ]+:\n((?:  .*\n)+)", listed, re.MULTILINE)
        if not groups:
            return [above]
        names = re.findall(r"^  (\S+)", "".join(groups), re.MULTILINE)
        return [command for name in names for command in self.commands(*above, name)]

    def test_a_number_that_makes_no_sense_is_refused(self):
        walked = []
        for command in self.commands():
            text = self.help(*command)
            for option in re.findall(
                    r"^  (?:-\w, *)?(--[a-z-]+),? (?:INT|UINT|FLOAT)\b", text, re.MULTILINE):
                name = " ".join([*command, option])
                walked.append(name)
                for value in ["-1"] if name in ZERO_IS_ACCEPTED else ["-1", "0"]:
                    with self.subTest(f"{name}={value}"):
                        # What else is missing is said only once the numbers are right.
                        said = self.run_program(*command, f"{option}={value}", code=USAGE).stderr
                        self.assertIn(f"{option}: '{value}' is not accepted, a ", said)
        for name in [*ZERO_IS_ACCEPTED, "bench step --ranks", "bench step --lengths", "bench comm --bytes",
                     "check --ranks", "launch --nproc-per-node", "plan layers --layers",
                     "profile --seconds", "simulate --domain", "train --timeout", "train --ranks"]:
            self.assertIn(name, walked)

    def test_what_is_wrong_before_a_command_of_its_own_is_named(self):
        for options, words in (
                (["-n", "0"], "--nproc-per-node: '0' is not accepted, a "),
                (["-n", "1", "--join-timeout", "0"], "--join-timeout: '0' is not accepted, a "),
                (["-n", "1", "--restart", "1"], "unknown option --restart")):
            self.assertIn(words, self.error_of("launch", *options, "--", "train"))

    def test_a_command_of_its_own_without_dashes_before_it(self):
        for options, line in (
                (["-n", "2", "train", "-c", "my run.toml", "--set", "train.steps=2"],
                 "paradyse launch -n 2 -- train -c 'my run.toml' --set train.steps=2"),
                (["-n", "2", "--restarts=1", "train", "--auto-resume", "one", "-c", "run.toml"],
                 "paradyse launch -n 2 --restarts=1 -- train --auto-resume one -c run.toml")):
            self.assertIn(f"comes after --: {line}\n", self.run_program("launch", *options, code=USAGE).stderr)

    def test_a_number_in_a_list_is_refused(self):
        for command, option, value in [
                ("bench step", "--lengths", "64,0"), ("bench comm", "--bytes", "8,2000000000"),
                ("check", "--ranks", "1,1025"), ("simulate", "--length", "9,-9"), ("profile", "--lengths", "9,nine")]:
            said = self.error_of(*command.split(), f"{option}={value}")
            self.assertIn(f"{option}: '{value.split(',')[1]}' is not accepted, a", said)

    def test_stdout_that_takes_nothing_is_known_at_the_start(self):
        def tell(redirected):
            return subprocess.run(["sh", "-c", f'"{PARADYSE}" config train {redirected}'],
                                  capture_output=True, text=True, timeout=60, check=False)
        for redirected, why in ("> /dev/full", "No space left"), (">&-", "Bad file descriptor"):
            done = tell(redirected)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            self.assertIn(f"stdout cannot be written: {why}", done.stderr)
        for redirected in "<&- 2>&-", "> /dev/null":
            self.assertEqual(tell(redirected).returncode, OK)

    def test_stdout_that_takes_not_all(self):
        config = self.write_run(1, "")

        def full():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))

        def unread():
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as of services of systemd

        read, pipe = os.pipe()
        os.close(read)
        self.addCleanup(os.close, pipe)
        out = self.folder / "out"
        printed = ["train", "--print-config", "-c", config]
        for arguments, code in (
                (["--version", "--json"], FAILED), (["config", "--json"], FAILED), ([*printed, "--json"], FAILED),
                (printed, FAILED), (["train", "--nothing", "--json"], USAGE)):
            for name, limit in ("full", full), ("unread", unread):
                with self.subTest(" ".join(map(str, arguments)), stdout=name), out.open("w") as file:
                    done = subprocess.run(
                        [PARADYSE, *map(str, arguments)], stdout=file if name == "full" else pipe, stderr=subprocess.PIPE,
                        preexec_fn=limit, restore_signals=False, text=True, timeout=60, check=False)
                    self.assertEqual(done.returncode, code, done.stderr)
                    self.assertIn("is the disk full or the reader gone?", done.stderr)
        with self.subTest("as other programs"):  # train itself outlives its reader
            done = subprocess.run([PARADYSE, *map(str, printed)], stdout=pipe, timeout=60, check=False)
            self.assertEqual(done.returncode, -signal.SIGPIPE)

    def test_doctor_finds_nothing_broken_here(self):
        found = self.json_of("doctor")
        self.assertTrue(found["ok"])
        names = [finding["name"] for finding in found["findings"]]
        for name in ["cores", "memory", "disk", "libtorch", "matmul", "communicator"]:
            self.assertIn(name, names)
        self.assertIn("GFLOP/s", self.run_program("doctor", code=OK).stdout)

    def test_doctor_says_what_to_do_for_a_gpu_that_is_not_there(self):
        found = self.json_of("doctor", "--device", "cuda", code=None)
        device = next(finding for finding in found["findings"] if finding["name"] == "device")
        if not device["ok"]:  # a machine without a GPU, or a program without CUDA
            self.assertFalse(found["ok"])
            self.assertIn("--device cuda: ", device["remedy"])
        else:
            self.assertTrue(device["value"]["correct"])
        self.assertIn("is not one of cpu, cuda", self.error_of("doctor", "--device", "cuad"))
        self.assertIn("'bfloat16'", self.error_of("doctor", "--dtype", "bfloat61"))


if __name__ == "__main__":
    unittest.main()

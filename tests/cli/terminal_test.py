"""What is drawn on a terminal, and only there: progress, verdicts in colour, tables of its width."""

import fcntl
import json
import os
import pty
import re
import struct
import termios
import unittest

from support import PARADYSE, ProgramTest, uniform_plan

REDRAW = "\r\x1b[K"
GREEN = "\x1b[32m"


class TerminalTest(ProgramTest):
    def on_terminal(self, columns, *arguments, **variables):
        """All that the program writes to a terminal so wide, which it leaves with code 0."""
        child, terminal = pty.fork()
        if child == 0:
            os.environ.pop("NO_COLOR", None)
            os.environ.pop("COLUMNS", None)
            os.environ.update(variables, TERM="xterm")
            # The width is there before the program looks.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execv(PARADYSE, [PARADYSE, *map(str, arguments)])
        text = b""
        try:
            while block := os.read(terminal, 1 << 16):
                text += block
        except OSError:  # the program has ended
            pass
        os.close(terminal)
        _, status = os.waitpid(child, 0)
        text = text.decode()
        self.assertEqual(os.waitstatus_to_exitcode(status), 0, text)
        return text

    def bars(self, text, columns):
        """What was drawn over and over: (share that is full, words), none wider than the terminal."""
        found = []
        for line in text.split(REDRAW)[1:]:
            bar = line.split("\r\n")[0]
            if match := re.match(r"\[(#*)(\.*)\] (.*)", bar):
                self.assertLess(len(bar), columns, bar)
                self.assertEqual(len(match[1] + match[2]), 20)
                found.append((len(match[1]) / 20, match[3]))
        return found

    def test_training(self):
        config = self.write_run(1, "")
        for columns in (80, 60):
            text = self.on_terminal(columns, "train", "-c", config, "--set", f"output.name=at{columns}",
                                    "--set", "train.steps=12", "--set", "train.tokens_per_step=500",
                                    "--set", "costs.file=none")
            steps = [(full, int(re.search(r"step (\d+)/12", words)[1]))
                     for full, words in self.bars(text, columns)]
            self.assertEqual([step for _, step in steps], list(range(1, 13)))
            for full, step in steps:
                self.assertEqual(full, (20 * step // 12) / 20)
            self.assertEqual(len(re.findall(r"step 10/12[^\r]*\r\n", text)), 1, "it stays in the scrollback")
            self.assertEqual(len(re.findall(r"step 9/12[^\r]*\r\n", text)), 0)
            self.assertRegex(text, r"step 12/12[^\r]*\r\n")
            self.assertNotIn("\x1b", text.replace(REDRAW, "").replace("\x1b[0m", "").replace(GREEN, ""))

    def test_pieces_of_other_work_are_wiped_away(self):
        command = ["check", "--strategy", "DataZ", "--ranks", "1,2", "--dtype", "float64"]
        text = self.on_terminal(70, *command)
        bars = self.bars(text, 70)
        self.assertGreater(len(bars), 10)
        self.assertEqual(bars, sorted(bars, key=lambda bar: bar[0]))
        self.assertLess(bars[-1][0], 1)  # the last piece was under way
        after = text.split(REDRAW)[-1]
        self.assertIn("Worst relative error", after)
        self.assertNotIn("[#", after)
        self.assertIn(f"{GREEN}ok: everything is within its tolerance\x1b[0m", after)

    def test_colours_are_not_for_everybody(self):
        plan = self.write("plan.json", json.dumps(uniform_plan("llama", [17, 1, 40], 2, 2)))
        self.assertIn(GREEN + "ok", self.on_terminal(80, "plan", "check", plan))
        self.assertNotIn("\x1b", self.on_terminal(80, "plan", "check", plan, NO_COLOR="1"))
        self.assertNotIn("\x1b", self.run_program("plan", "check", plan).stdout)


if __name__ == "__main__":
    unittest.main()

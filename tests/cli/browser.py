"""Pages of reports in a browser."""

import json
import re
import shutil
import subprocess
import urllib.parse

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class InBrowser:
    """For a ProgramTest."""

    def check_in_browser(self, page, expected):
        """Light and dark, wide and narrow: no error, nothing wider than the window, and the texts."""
        if CHROMIUM is None:
            self.skipTest("there is no chromium to draw the page")
        # The page in a frame, as narrow as a telephone; it tells this one what happened.
        watched = self.write("watched.html", page.read_text().replace("<head>", """<head><script>
            const errors = [];
            addEventListener("error", (event) => errors.push(event.message));
            addEventListener("securitypolicyviolation", (event) => errors.push(event.blockedURI));
            addEventListener("load", () => parent.postMessage({
              errors, width: innerWidth, wider: document.documentElement.scrollWidth - innerWidth,
              text: document.body.outerHTML.split("<template")[0], ink: getComputedStyle(document.body).color }, "*"));
            </script>""", 1))
        frame = self.write("frame.html", "<!DOCTYPE html><body>" + "".join(
            f'<iframe src="{watched.as_uri()}" style="width: {width}px; height: 900px"></iframe>'
            for width in (390, 1280)) + """<p></p><script>
            const told = [];
            addEventListener("message", (event) => {
              told.push(event.data);
              document.querySelector("p").textContent = "told: " + encodeURIComponent(JSON.stringify(told)); });
            </script></body>""")
        inks = set()
        for scheme in (0, 1):
            dom = subprocess.run(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                 f"--user-data-dir={self.folder}/browser", f"--blink-settings=preferredColorScheme={scheme}",
                 "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", frame.as_uri()],
                capture_output=True, text=True, timeout=120).stdout
            self.assertIn("told: ", dom)
            pages = json.loads(urllib.parse.unquote(re.search("told: ([^<]*)", dom).group(1)))
            self.assertEqual(sorted(told["width"] for told in pages), [390, 1280])
            for told in pages:
                self.assertEqual(told["errors"], [], told["width"])
                self.assertLessEqual(told["wider"], 0, told["width"])
                for text in expected:
                    self.assertIn(text, told["text"])
                for nonsense in ("NaN", "undefined", "[object", "Infinity"):
                    self.assertNotIn(nonsense, told["text"])
                inks.add(told["ink"])
        self.assertEqual(len(inks), 2, "light and dark")

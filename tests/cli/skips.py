"""Files of tests that may all be skipped: they end with 77 then, which ctest shows as skipped, not as passed."""

import sys
import unittest


def main():
    result = unittest.main(exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.skipped and len(result.skipped) >= result.testsRun else 0)

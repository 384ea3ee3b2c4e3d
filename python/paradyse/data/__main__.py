"""python -m paradyse.data"""

import sys

from .cli import main

if __name__ == "__main__":  # processes of prepare import this file
    sys.exit(main())

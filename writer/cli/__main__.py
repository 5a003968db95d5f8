"""`python -m headrace.writer.cli` is the `headrace` command."""

import sys

if not sys.flags.safe_path:
    # With -m Python puts the working directory first, whose files may have the names of modules.
    del sys.path[0]

from headrace.writer.cli.main import main

if __name__ == "__main__":
    main()

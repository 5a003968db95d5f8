"""`python -m writer.cli` is the `headrace` command."""

from writer.cli.main import main

if __name__ == "__main__":
    main()

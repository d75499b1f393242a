"""Run the command line: ``python -m shadeproxy``."""

from shadeproxy.cli.main import run

if __name__ == "__main__":
    run()

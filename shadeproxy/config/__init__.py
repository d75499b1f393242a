"""Configuration: read once by the composition root and the command line, by nobody else."""

from shadeproxy.config.settings import Settings

__all__ = ["Settings"]

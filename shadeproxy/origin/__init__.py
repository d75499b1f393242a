"""Remote object storage behind one protocol (base.py): S3, a directory tree, memory, and wrappers of them."""

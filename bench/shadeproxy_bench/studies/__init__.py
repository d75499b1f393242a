"""Studies measure how much each idea of the product is worth. Each is one command, with its results in
docs/studies/.
"""

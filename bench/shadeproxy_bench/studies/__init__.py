"""Studies, which measure how much each idea of the product is worth. Each study is one command, and its
results are in docs/studies/.
"""

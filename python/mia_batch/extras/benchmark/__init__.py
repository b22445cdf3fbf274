"""Was a benchmark in there? Exact tests of its published order, against orders that were drawn.

`exact` has the test, `orders` what a model is asked, `predictable` whether an order
can be foreseen without having seen it, `sets` which sets have names, `asking` how
models are asked, `results` what a table and sentences say.
"""

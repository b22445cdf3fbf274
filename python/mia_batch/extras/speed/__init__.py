"""How fast this machine audits, next to bare engines and to earlier measurements.

`ways` holds what is measured, `texts` on what, `machine` where, `measuring` when and how
often, `comparing` the ratios to an earlier file, `showing` what is printed and drawn.
"""

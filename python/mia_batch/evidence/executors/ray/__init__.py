"""The executor of a Ray cluster: engines are actors, and blocks go to whichever is free.

Ray places and watches the engines; what is worked on, and what is tried again, is decided here.
"""

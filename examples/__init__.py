"""Example apps, installed as `sojourn.examples` so that the demo's nodes can import them. Each is a program
that the tests run.
"""

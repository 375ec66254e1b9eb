"""The options of each verb, beside `redoxfs.launch.options`, by what the verbs are about.

A verb's `run` takes one of these. Nothing behind the grammar knows argparse. Each module is imported by its own name,
because a command needs the options of one verb, and making each of these classes takes half a millisecond.
"""
